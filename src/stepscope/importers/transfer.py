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
    return _unpacked(path, data)[0]


def survey(path: str, form: str | None = None) -> formats.Survey:
    """Return what there is to read in a file or folder, as `formats.survey`, but seen by a child with limits.

    Raises:
        StepscopeError: it is a file that cannot be read, or it would exceed the limits.
    """

    def look() -> Iterator[bytes]:
        found = formats.survey(path, form)
        yield json.dumps([found.batches, [_parts(error) for error in found.problems], found.others]).encode()

    batches, problems, others = json.loads(confined(f"read {path!r}", look, ChildLimits.of([path])))
    read = tuple(formats.Batch(name, tuple(paths), size) for name, paths, size in batches)
    return formats.Survey(read, tuple(StepscopeError(*parts) for parts in problems), others)


def read_batches(batches: Sequence[formats.Batch]) -> tuple[list[Imported], list[StepscopeError]]:
    """Return the runs of some batches, read by a child with limits, and the errors of what cannot be read.

    A batch that exceeds the limits costs itself only.
    """
    paths = [path for batch in batches for path in batch.paths]

    def work() -> Iterator[bytes | memoryview]:
        found = [formats.read_batch(batch) for batch in batches]
        return pieces([run for some, _ in found for run in some], [error for _, some in found for error in some])

    try:
        return _unpacked(paths[0], confined(f"read {paths[0]!r}", work, ChildLimits.of(paths)))
    except StepscopeError as error:
        if len(batches) == 1:
            return [], [error]
    parts = [read_batches([batch]) for batch in batches]
    return [run for some, _ in parts for run in some], [error for _, some in parts for error in some]


def _unpacked(path: str, data: bytes) -> tuple[list[Imported], list[StepscopeError]]:
    try:
        return runs(data)
    except (ValueError, TypeError, KeyError) as error:
        raise StepscopeError(f"read {path!r}", f"its reader's result is damaged ({error})", "check the file") from error


def _parts(error: StepscopeError) -> tuple[str, str, str]:
    return error.what, error.cause, error.remedy


def pieces(found: Sequence[Imported], problems: Sequence[StepscopeError] = ()) -> Iterator[bytes | memoryview]:
    """Yield runs, and errors, as bytes."""
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
    text = json.dumps({"runs": head, "problems": [_parts(error) for error in problems]}).encode()
    yield len(text).to_bytes(LENGTH, "little")
    yield text
    for run in found:
        for series in run.columns.values():
            arrays = [np.ascontiguousarray(getattr(series, name), kind) for name, kind in COLUMNS.items()]
            arrays += [] if series.seq is None else [np.ascontiguousarray(series.seq, np.int64)]
            yield from (array.data.cast("B") for array in arrays if len(array))


def runs(data: bytes) -> tuple[list[Imported], list[StepscopeError]]:
    """Return the runs and the errors in the bytes of `pieces`.

    Raises:
        ValueError: they do not fit together.
    """
    start = at = LENGTH + int.from_bytes(data[:LENGTH], "little")
    head, found = json.loads(data[LENGTH:start]), []
    for about in head["runs"]:
        columns = {}
        for name, count, has_seq in about["columns"]:
            if not isinstance(count, int) or count < 0:
                raise ValueError("a column has no length")
            arrays = []
            for kind in (*COLUMNS.values(), *([np.int64] if has_seq else [])):
                arrays.append(np.frombuffer(data, kind, count, at).copy() if count else np.empty(0, kind))
                at += arrays[-1].nbytes
            columns[str(name)] = ImportedSeries(str(name), *arrays)
        facts, notes = dict(about["facts"]), tuple(about["notes"])
        found.append(Imported(str(about["path"]), str(about["format"]), columns, facts, notes, str(about["key"])))
    if at != len(data):
        raise ValueError("there is more than its head says")
    return found, [StepscopeError(*parts) for parts in head["problems"]]
