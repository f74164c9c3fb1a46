"""Transfer foreign runs from the confined child as bytes: a JSON head, then the arrays."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from stepscope.core.errors import StepscopeError
from stepscope.importers import formats
from stepscope.importers.confinement import Limits, confined
from stepscope.importers.imported import Imported, ImportedSeries

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

COLUMNS = (("step", np.int64), ("time", np.float64), ("value", np.float64), ("rank", np.int32), ("attempt", np.int32))
"""The arrays of a series in their order; `seq` follows if there is one."""
LENGTH = 8
"""Bytes that hold the length of the head."""


def read(path: str, form: str | None = None) -> list[Imported]:
    """Return the runs in a file or folder of another tool, as `formats.read`, but read by a child with limits.

    Raises:
        StepscopeError: nothing there can be read, or it would exceed the limits.
    """
    told = confined(f"read {path!r}", lambda: pieces(formats.read(path, form)), Limits.of([path]))
    try:
        return runs(told)
    except (ValueError, TypeError, KeyError) as error:
        raise StepscopeError(f"read {path!r}", f"its reader's answer is damaged ({error})", "check the file") from error


def pieces(found: Sequence[Imported]) -> Iterator[bytes | memoryview]:
    """Yield runs as bytes."""
    head = [
        {
            "path": run.path,
            "format": run.format,
            "facts": run.facts,
            "notes": run.notes,
            "columns": [[name, len(series), series.seq is not None] for name, series in run.columns.items()],
        }
        for run in found
    ]
    text = json.dumps(head).encode()
    yield len(text).to_bytes(LENGTH, "little")
    yield text
    for run in found:
        for series in run.columns.values():
            arrays = [np.ascontiguousarray(getattr(series, name), kind) for name, kind in COLUMNS]
            arrays += [] if series.seq is None else [np.ascontiguousarray(series.seq, np.int64)]
            yield from (array.data.cast("B") for array in arrays if len(array))


def runs(data: bytes) -> list[Imported]:
    """Return the runs in the bytes of `pieces`.

    Raises:
        ValueError: they do not fit together.
    """
    start = LENGTH + int.from_bytes(data[:LENGTH], "little")
    arrays = _Arrays(data, start)
    found = [_run(about, arrays) for about in json.loads(data[LENGTH:start])]
    if not arrays.done:
        raise ValueError("there is more than its head says")
    return found


def _run(about: dict[str, Any], arrays: _Arrays) -> Imported:
    columns = {}
    for name, count, counted in about["columns"]:
        step, time, value, rank, attempt = (arrays.next(kind, count) for _, kind in COLUMNS)
        seq = arrays.next(np.int64, count) if counted else None
        columns[str(name)] = ImportedSeries(str(name), step, time, value, rank, attempt, seq)
    return Imported(str(about["path"]), str(about["format"]), columns, dict(about["facts"]), tuple(about["notes"]))


class _Arrays:
    """Reads one array after the other from bytes."""

    def __init__(self, data: bytes, start: int) -> None:
        self._data, self._at = data, start

    @property
    def done(self) -> bool:
        """Whether nothing is left."""
        return self._at == len(self._data)

    def next(self, kind: Any, count: int) -> Any:
        """Return the next array, as a writable copy. Raises ValueError if there is none."""
        found = np.frombuffer(self._data, kind, count, self._at).copy() if count else np.empty(0, kind)
        self._at += found.nbytes
        return found
