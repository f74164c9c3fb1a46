"""Read drained records for the Prometheus page: the newest value of each metric, and the duration of each step."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

from stepscope.core import vocabulary
from stepscope.core.records import NO_STEP, RECORD, SCHEMA_PAIRS, heads, pair_values, row_values

if TYPE_CHECKING:
    from collections.abc import Iterable

    from stepscope.core.columns import RowSchema, SchemaTable

STEP_SECONDS = "step_seconds"
_DURATION = struct.Struct("<q")
_FLOAT = struct.Struct("<d")


class NewValues(NamedTuple):
    """The contents of new rows of a rank."""

    values: dict[str, float]
    """The newest value of each metric; durations in seconds."""
    steps: int
    """Steps that ended."""
    step_seconds: list[float]
    """How long each of them took."""


class RankReader:
    """Reads the rows of one rank.

    In a run that never calls `step()`, steps are counted by the step numbers of its rows, and a duration that the
    program logs itself, such as `batch_time`, is used as that of the step.
    """

    def __init__(self) -> None:
        """Begin before the first row."""
        self._last_step: int | None = None
        self._is_timed = False
        self._timed: dict[int, tuple[bool, tuple[int, struct.Struct] | None]] = {}

    def read(self, pieces: Iterable[bytes], table: SchemaTable, *, checked: bool = False) -> NewValues:
        """Return the values of complete records; rows whose schema is not in `table` yet are left out."""
        newest: dict[int, tuple[bytes, int, RowSchema]] = {}
        latest: dict[str, float] = {}
        durations: list[float] = []
        steps = 0
        for data in pieces:
            for offset, _, number, _, _, step in heads(data):
                if number == SCHEMA_PAIRS:
                    values = pair_values(data, offset, table.names, checked=checked)
                    latest.update(values)
                    if STEP_SECONDS in values:
                        self._prefer_recorded(durations)
                        durations.append(values[STEP_SECONDS])
                    steps += self._advance(step)
                    continue
                schema = table.schemas.get(number)
                if schema is None or len(schema.kinds) != len(schema.names):
                    continue
                newest.pop(number, None)
                newest[number] = (data, offset, schema)
                if not self._measure(data, offset, schema, durations):
                    steps += self._advance(step)
        for data, offset, schema in newest.values():
            latest.update(row_values(data, offset, schema))
        return NewValues(latest, len(durations) if self._is_timed else steps, durations)

    def _measure(self, data: bytes, offset: int, schema: RowSchema, found: list[float]) -> bool:
        """Add the duration of a step that a row holds; return whether the recorder has timed it."""
        if schema.id not in self._timed:
            self._timed[schema.id] = _time_column(schema)
        is_ours, column = self._timed[schema.id]
        if is_ours:
            self._prefer_recorded(found)
        if column is not None and is_ours == self._is_timed:
            place, layout = column
            (value,) = layout.unpack_from(data, offset + place)
            found.append(value / 1e9 if layout is _DURATION else value)
        return is_ours

    def _prefer_recorded(self, found: list[float]) -> None:
        """Rely on the recorder's own durations from the first one on."""
        if not self._is_timed:
            self._is_timed = True
            found.clear()

    def _advance(self, step: int) -> int:
        """Return how many steps a row is ahead of the previous one; 0 if it goes back or has no step."""
        if step == NO_STEP:
            return 0
        before, self._last_step = self._last_step, step
        return 1 if before is None else max(0, step - before)


def _time_column(schema: RowSchema) -> tuple[bool, tuple[int, struct.Struct] | None]:
    """Return whether the recorder wrote the row at the end of a step, and where its duration is in a record."""
    is_ours = STEP_SECONDS in schema.names
    for index, name in enumerate(schema.names):
        if name == STEP_SECONDS or (not is_ours and vocabulary.canonical(name) == STEP_SECONDS):
            layout = _DURATION if schema.kinds[index] == "q" else _FLOAT
            return is_ours, (RECORD.size + 8 * index, layout)
    return is_ours, None
