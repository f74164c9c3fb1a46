"""When steps ended: found in the records that were just drained."""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING, NamedTuple

from stepscope.core import ring

if TYPE_CHECKING:
    from collections.abc import Iterable

    from stepscope.core.columns import SchemaTable

STEP = "step_seconds"
"""The first column of the row that ends a step."""
_PAIR = struct.Struct("<Qd")


class Moments(NamedTuple):
    """Monotonic times in ns, in order."""

    steps: list[int]
    rows: list[int]
    """Of rows of numbers that end no step."""
    began: int | None = None
    """When the first of these steps began."""


def moments(pieces: Iterable[bytes], table: SchemaTable) -> Moments:
    """Return when steps ended and when other rows were logged; `table` says what the columns of a row are."""
    steps: list[int] = []
    rows: list[int] = []
    began: int | None = None
    for data in pieces:
        for offset, schema, _ in ring.records(data):
            if schema == ring.SCHEMA_EVENT:
                continue
            moment: int = ring.RECORD.unpack_from(data, offset)[3]
            seconds = _step_seconds(data, offset + ring.RECORD.size, schema, table)
            if seconds is None:
                rows.append(moment)
                continue
            began = moment - round(seconds * 1e9) if not steps else began
            steps.append(moment)
    return Moments(steps, rows, began)


def _step_seconds(data: bytes, offset: int, schema: int, table: SchemaTable) -> float | None:
    """Return how long the step took whose row's values begin at `offset`; None if the row ends no step."""
    if schema == ring.SCHEMA_PAIRS:  # of a run with very many names
        number, value = _PAIR.unpack_from(data, offset)
        seconds: float = value
        return seconds if number < len(table.names) and table.names[number] == STEP else None
    declared = table.schemas.get(schema)
    if declared is None or STEP not in declared.names[:1]:
        return None
    return int.from_bytes(data[offset : offset + 8], "little", signed=True) / 1e9


def last_rows(data: bytes, table: SchemaTable, most: int = 5) -> list[dict[str, float | int | None]]:
    """Return the last rows of a piece of records with their `step`, for an event that tells what went before it."""
    rows: list[dict[str, float | int | None]] = []
    for offset, schema, _ in ring.records(data)[-most:]:
        declared = table.schemas.get(schema)
        if declared is None:  # an event, or pairs of a run with very many names
            continue
        step: int = ring.RECORD.unpack_from(data, offset)[4]
        values = struct.unpack_from(f"<{declared.kinds}", data, offset + ring.RECORD.size)
        seconds = [value / 1e9 if kind == "q" else value for value, kind in zip(values, declared.kinds, strict=True)]
        named = dict(zip(declared.names, map(_shown, seconds), strict=True))
        rows.append({"step": None if step == ring.NO_STEP else step, **named})
    return rows


def _shown(value: float) -> float | None:
    """Return a number that JSON can hold."""
    return value if math.isfinite(value) else None
