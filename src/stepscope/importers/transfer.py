"""Transfer foreign runs from the confined child as bytes: a JSON head, then the arrays."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np

from stepscope.core.errors import StepscopeError
from stepscope.importers import formats
from stepscope.importers.confinement import ChildLimits, confined
from stepscope.importers.imported import COLUMNS, Imported, ImportedSeries

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

LENGTH = 8
"""Bytes that hold the length of the head."""


def read(path: str, form: str | None = None) -> list[Imported]:
    """Return the runs in a file or folder of another tool, as `formats.read`, but read by a child with limits.

    Raises:
        StepscopeError: nothing there can be read, or it would exceed the limits.
    """
    data = confined(f"read {path!r}", lambda: pieces(formats.read(path, form)), ChildLimits.of([path]))
    try:
        return runs(data)
    except (ValueError, TypeError, KeyError) as error:
        raise StepscopeError(f"read {path!r}", f"its reader's result is damaged ({error})", "check the file") from error


def pieces(found: Sequence[Imported]) -> Iterator[bytes | memoryview]:
    """Yield runs as bytes."""
    head = [
        {
            "path": run.path,
            "format": run.format,
            "facts": run.facts,
            "notes": run.notes,
            "key": run.key,
            "columns": [[name, len(series), series.seq is not None] for name, series in run.columns.items()],
        }
        for run in found
    ]
    text = json.dumps(head).encode()
    yield len(text).to_bytes(LENGTH, "little")
    yield text
    for run in found:
        for series in run.columns.values():
            arrays = [np.ascontiguousarray(getattr(series, name), kind) for name, kind in COLUMNS.items()]
            arrays += [] if series.seq is None else [np.ascontiguousarray(series.seq, np.int64)]
            yield from (array.data.cast("B") for array in arrays if len(array))


def runs(data: bytes) -> list[Imported]:
    """Return the runs in the bytes of `pieces`.

    Raises:
        ValueError: they do not fit together.
    """
    start = at = LENGTH + int.from_bytes(data[:LENGTH], "little")
    found = []
    for about in json.loads(data[LENGTH:start]):
        columns = {}
        for name, count, has_seq in about["columns"]:
            arrays = []
            for kind in (*COLUMNS.values(), *([np.int64] if has_seq else [])):
                arrays.append(np.frombuffer(data, kind, count, at).copy() if count else np.empty(0, kind))
                at += arrays[-1].nbytes
            columns[str(name)] = ImportedSeries(str(name), *arrays)
        facts, notes = dict(about["facts"]), tuple(about["notes"])
        found.append(Imported(str(about["path"]), str(about["format"]), columns, facts, notes, str(about["key"])))
    if at != len(data):
        raise ValueError("there is more than its head says")
    return found
