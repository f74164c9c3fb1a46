"""Reads drained records of a rank: when steps ended, how long they took, and the last rows."""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

from stepscope.core import records
from stepscope.core.records import NO_STEP, RECORD

if TYPE_CHECKING:
    from collections.abc import Iterable

    from stepscope.core.columns import SchemaTable
    from stepscope.core.records import RecordGroup

STEP = "step_seconds"
"""The first column of the row that ends a step."""
LONGEST = 1e6
"""Seconds; a longer step is an invalid value."""
LAST_ROWS = 20


class StepTimes(NamedTuple):
    """Monotonic times in ns, in order."""

    steps: list[int]
    rows: list[int]
    """Times of rows of numbers that end no step."""
    began: int | None = None
    """When the first of these steps began."""


class StepTracker:
    """The steps of one rank, as its records show them."""

    def __init__(self, table: SchemaTable) -> None:
        """Read records whose columns are declared in `table`, now or later."""
        self._table = table
        self._times = StepTimes([], [])
        self._last: deque[bytes] = deque(maxlen=LAST_ROWS)
        self.newest: int | None = None
        """The step of the last record that has one."""
        self.count, self.seconds = 0, 0.0
        """Number of steps that ended, and the sum of their seconds."""

    def add(self, pieces: Iterable[bytes]) -> None:
        """Add drained records."""
        for data in pieces:
            found = records.groups(data)
            rows = [group for group in found if group.schema != records.SCHEMA_EVENT]
            self._add_times(data, rows)
            with_step = [last for group in found if (last := _last_with_step(data, group))]
            if with_step:
                self.newest = max(with_step)[1]
            ends = sorted((at, group.length) for group in rows for at in group.offsets()[-LAST_ROWS:])
            self._last.extend(data[at : at + length] for at, length in ends[-LAST_ROWS:])

    def _add_times(self, data: bytes, rows: list[RecordGroup]) -> None:
        """Add when rows were logged, and how long the steps took that they end."""
        steps: list[tuple[int, float]] = []
        others: list[int] = []
        for group in rows:
            times = group.column(data, records.WORD_TIME)
            if group.length < RECORD.size + 8:  # damaged: a row without a value
                others += times
            elif group.schema == records.SCHEMA_PAIRS:  # each may have different names
                for at, time in zip(group.offsets(), times, strict=True):
                    seconds = self._pair_seconds(data, at + RECORD.size)
                    others.append(time) if seconds is None else steps.append((time, seconds))
            elif self._ends_steps(group.schema):
                steps += zip(times, (ns / 1e9 for ns in group.column(data, records.HEAD_WORDS)), strict=True)
            else:
                others += times
        self._times.rows.extend(sorted(others))
        if not steps:
            return
        steps.sort()
        if not self._times.steps:
            end, seconds = steps[0]
            self._times = self._times._replace(began=end - round(seconds * 1e9))
        self._times.steps.extend(end for end, _ in steps)
        self.count += len(steps)
        self.seconds += sum(seconds for _, seconds in steps)

    def _pair_seconds(self, data: bytes, offset: int) -> float | None:
        """Return the duration of the step that a row of pairs at `offset` ends; None if it ends none."""
        if offset + records.PAIR.size > len(data):
            return None
        number, value = records.PAIR.unpack_from(data, offset)
        names = self._table.names
        seconds: float = value if 0 <= value < LONGEST else 0.0
        return seconds if number < len(names) and names[number] == STEP else None

    def _ends_steps(self, schema: int) -> bool:
        """Return whether rows of a schema end a step; if `step_seconds` is a float, the user logged it."""
        declared = self._table.schemas.get(schema)
        return declared is not None and STEP in declared.names[:1] and declared.kinds[0] == "q"

    def take_times(self) -> StepTimes:
        """Return when steps ended and rows were logged since the last call."""
        found, self._times = self._times, StepTimes([], [])
        return found

    def last_rows(self) -> list[dict[str, Any]]:
        """Return the last rows, oldest first, each with its `step` (None for none); NaN and infinity are None."""
        rows = []
        for data in self._last:
            _, _, schema, _, _, step = records.first_head(data)
            declared = self._table.schemas.get(schema)
            values = records.row_values(data, 0, declared) if declared is not None else {}  # else pairs
            if values:
                shown = {name: value if math.isfinite(value) else None for name, value in values.items()}
                rows.append({"step": None if step == NO_STEP else step, **shown})
        return rows


def _last_with_step(data: bytes, group: RecordGroup) -> tuple[int, int] | None:
    """Return the offset and the step of the last record of a group that belongs to a step."""
    at = group.offsets()[-1]
    step = RECORD.unpack_from(data, at)[4]
    if step != NO_STEP:  # as almost always
        return at, step
    found = zip(group.offsets(), group.column(data, records.WORD_STEP), strict=True)
    return max(((at, step) for at, step in found if step != NO_STEP), default=None)
