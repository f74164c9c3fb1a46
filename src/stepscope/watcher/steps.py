"""When steps ended, and what the last rows were: found in the records that were just drained."""

from __future__ import annotations

import math
import struct
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

from stepscope.core import ring

if TYPE_CHECKING:
    from collections.abc import Iterable

    from stepscope.core.columns import SchemaTable

STEP = "step_seconds"
"""The first column of the row that ends a step."""
LONGEST = 1e6
"""Seconds that no step takes."""
LAST_ROWS = 20
_PAIR = struct.Struct("<Qd")


class Moments(NamedTuple):
    """Monotonic times in ns, in order."""

    steps: list[int]
    rows: list[int]
    """Of rows of numbers that end no step."""
    began: int | None = None
    """When the first of these steps began."""


class Steps:
    """The steps of one rank, as its records tell."""

    def __init__(self, table: SchemaTable) -> None:
        """Read records whose columns `table` declares, also those that it will be told of later."""
        self._table = table
        self._moments = Moments([], [])
        self._last: deque[bytes] = deque(maxlen=LAST_ROWS)
        self.newest: int | None = None
        """The step that the last record with one belongs to."""
        self.count, self.seconds = 0, 0.0
        """Steps that ended, and the sum of their seconds."""

    def take(self, pieces: Iterable[bytes]) -> None:
        """Look through records that were drained."""
        unpack, head = ring.RECORD.unpack_from, ring.RECORD.size
        found: list[tuple[bytes, int, int]] = []
        for data in pieces:
            at, size = 0, len(data)
            while at + head <= size:
                length, schema, _, moment, step = unpack(data, at)
                end = at + length
                if length < head or end > size:
                    break
                if schema != ring.SCHEMA_EVENT:
                    self._note(data, at + head, schema, moment)
                    found.append((data, at, end))
                if step != ring.NO_STEP:
                    self.newest = step
                at = end
        self._last.extend(data[at:end] for data, at, end in found[-LAST_ROWS:])

    def _note(self, data: bytes, offset: int, schema: int, moment: int) -> None:
        """Take in a row whose values begin at `offset`."""
        seconds = self._step_seconds(data, offset, schema)
        if seconds is None:
            self._moments.rows.append(moment)
            return
        if not self._moments.steps:
            self._moments = self._moments._replace(began=moment - round(seconds * 1e9))
        self._moments.steps.append(moment)
        self.count += 1
        self.seconds += seconds

    def _step_seconds(self, data: bytes, offset: int, schema: int) -> float | None:
        """Return how long the step took whose row's values begin at `offset`; None if the row ends no step."""
        if schema == ring.SCHEMA_PAIRS:  # of a run with very many names
            number, value = _PAIR.unpack_from(data, offset)
            names = self._table.names
            seconds: float = value if 0 <= value < LONGEST else 0.0
            return seconds if number < len(names) and names[number] == STEP else None
        declared = self._table.schemas.get(schema)
        if declared is None or STEP not in declared.names[:1] or declared.kinds[0] != "q":  # a float: the user's own
            return None
        return int.from_bytes(data[offset : offset + 8], "little", signed=True) / 1e9

    def moments(self) -> Moments:
        """Return when steps ended and rows were logged since the last call."""
        found, self._moments = self._moments, Moments([], [])
        return found

    def last_rows(self) -> list[dict[str, Any]]:
        """Return the last rows, oldest first, each with its `step` (None for none); NaN and infinity are None."""
        rows = []
        for data in self._last:
            _, schema, _, _, step = ring.RECORD.unpack_from(data)
            declared = self._table.schemas.get(schema)
            size = struct.calcsize(f"<{declared.kinds}") if declared else len(data)
            if declared is None or len(data) < ring.RECORD.size + size:  # pairs, or damaged
                continue
            values = struct.unpack_from(f"<{declared.kinds}", data, ring.RECORD.size)
            numbers = [
                value / 1e9 if kind == "q" else value for value, kind in zip(values, declared.kinds, strict=True)
            ]
            shown = [number if math.isfinite(number) else None for number in numbers]
            rows.append(
                {"step": None if step == ring.NO_STEP else step, **dict(zip(declared.names, shown, strict=True))}
            )
        return rows
