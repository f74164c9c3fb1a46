"""New points of metrics on their way to the rules: rows that were drained, and samples of the machine.

Records are decoded many rows at once, and only the columns that a rule reads. Samples are collected until they are due,
then evaluated together: a rule on the mean of a minute gains nothing from an evaluation every second, and five samples
cost no more than one. A sample may wait for a tenth of the window of the rules that read it; it is still evaluated at
its own time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from stepscope.alerts.evaluation.detectors import DETECTORS
from stepscope.alerts.rules.expression import TIME, CallNode, MetricNode, Node, OperationNode
from stepscope.core import records
from stepscope.core.records import NO_STEP, RECORD

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stepscope.alerts.rules.rule import Rule
    from stepscope.core.arrays import Floats, Integers
    from stepscope.core.columns import RowSchema
    from stepscope.core.feed import Drained

    Clocks = dict[tuple[float, ...], tuple[int, Floats, Floats]]
    """Axis, steps and times of samples that were taken at the same times."""

FEW = 12
"""Up to this many rows, numbers are read one by one: arrays would cost more than they save."""
SHARE = 0.1
"""Share of a rule's window, or of its `for`, by which it may fire later."""
LONGEST = 5.0
"""Maximum seconds that a sample waits."""
SLACK = 0.5
"""A sample may be this many seconds early: evaluations come once a second."""
Column = tuple[str, int, bool]
"""Name of a metric, its index in the row, and whether it is a duration in ns."""
Batch = tuple[bytes, list[int]]
"""Records, and the offsets of those of one kind."""
Wanted = Callable[[int, str], bool]
"""Returns whether a rule reads a metric of a rank."""


class NewPoints(NamedTuple):
    """New points of one metric."""

    step: Floats
    """NaN for a point that belongs to no step."""
    time: Floats
    """Seconds since 1970."""
    value: Floats
    axis: int
    """Identifies the rows that the points came in."""


PointsByMetric = dict[tuple[int, str], list[NewPoints]]
"""New points by rank and metric, in the order in which they came."""


class PointReader:
    """Decodes drained records; remembers which columns of which rows are wanted."""

    def __init__(self, offset: float, wanted: Wanted) -> None:
        """Decode the metrics that are `wanted`; `offset` is added to monotonic seconds."""
        self._offset, self._wanted = offset, wanted
        self._columns: dict[tuple[int, int], tuple[RowSchema, list[Column]]] = {}
        self._axes = 0

    def read(self, pieces: Iterable[Drained], points: PointsByMetric) -> PointsByMetric:
        """Add the points of `pieces` to `points`, and return it."""
        rows: dict[tuple[int, int], tuple[RowSchema, list[Batch]]] = {}
        for piece in pieces:
            by_schema: dict[int, list[int]] = {}
            for group in records.groups(piece.data):
                by_schema.setdefault(group.schema, []).extend(group.offsets())
            by_schema.pop(records.SCHEMA_EVENT, None)
            for offset in sorted(by_schema.pop(records.SCHEMA_PAIRS, ())):
                self._add_pairs(piece, offset, points)
            for number, offsets in by_schema.items():
                schema = piece.table.schemas.get(number)
                if schema is not None and len(schema.kinds) == len(schema.names):
                    rows.setdefault((piece.rank, id(schema)), (schema, []))[1].append((piece.data, sorted(offsets)))
        for (rank, _), (schema, batches) in rows.items():
            columns = self._columns_of(rank, schema)
            if columns:
                size = RECORD.size + 8 * len(schema.names)
                complete = [(data, [at for at in offsets if at + size <= len(data)]) for data, offsets in batches]
                count = sum(len(offsets) for _, offsets in complete)
                if count > FEW:
                    self._add_many(rank, columns, complete, points)
                elif count:
                    self._add_few(rank, schema, columns, complete, points)
        return points

    def _add_few(
        self, rank: int, schema: RowSchema, columns: list[Column], batches: list[Batch], points: PointsByMetric
    ) -> None:
        """Read rows one by one."""
        heads = [RECORD.unpack_from(data, at) for data, offsets in batches for at in offsets]
        values = [records.row_values(data, at, schema) for data, offsets in batches for at in offsets]
        self._axes -= 1
        time = np.array([head[3] / 1e9 + self._offset for head in heads])
        step = steps_of(np.array([head[4] for head in heads]))
        for name, _, _ in columns:
            value = np.array([row[name] for row in values])
            points.setdefault((rank, name), []).append(NewPoints(step, time, value, self._axes))

    def _add_many(self, rank: int, columns: list[Column], batches: list[Batch], points: PointsByMetric) -> None:
        """Read all rows at once."""
        arrays = [
            records.RecordArray(records.words_of(data), np.array(offsets, dtype=np.int64) // 8)
            for data, offsets in batches
        ]
        time = np.concatenate([each.time_ns for each in arrays]) / 1e9 + self._offset
        step = steps_of(np.concatenate([each.step for each in arrays]))
        self._axes -= 1
        wanted = np.array([column for _, column, _ in columns])
        table = np.concatenate([each.raw(wanted) for each in arrays])
        floats = table.view("<f8")
        for index, (name, _, is_duration) in enumerate(columns):
            value = table[:, index] / 1e9 if is_duration else floats[:, index]
            points.setdefault((rank, name), []).append(NewPoints(step, time, value, self._axes))

    def _columns_of(self, rank: int, schema: RowSchema) -> list[Column]:
        """Return the columns of a kind of row that are wanted."""
        known = self._columns.get((rank, id(schema)))
        if known is None:
            columns = [
                (name, column, schema.kinds[column] == "q")
                for column, name in enumerate(schema.names)
                if self._wanted(rank, name)
            ]
            known = self._columns[rank, id(schema)] = (schema, columns)  # kept alive, so that its id stays unique
        return known[1]

    def _add_pairs(self, piece: Drained, offset: int, points: PointsByMetric) -> None:
        """Read a row of (name id, value) pairs."""
        _, _, _, time_ns, step = RECORD.unpack_from(piece.data, offset)
        time, steps = np.array([time_ns / 1e9 + self._offset]), steps_of(np.array([step]))
        self._axes -= 1
        pairs = records.pair_values(piece.data, offset, piece.table.names, checked=piece.checked)
        for name, value in pairs.items():
            if self._wanted(piece.rank, name):
                new = NewPoints(steps, time, np.array([value]), self._axes)
                points.setdefault((piece.rank, name), []).append(new)


def steps_of(step: Integers) -> Floats:
    """Return steps as numbers, NaN for no step."""
    numbers = step.astype(np.float64)
    numbers[step == NO_STEP] = np.nan
    return numbers


def merged(parts: list[NewPoints]) -> NewPoints:
    """Return the points of one metric that came in several kinds of rows, ordered by time."""
    if len(parts) == 1:
        return parts[0]
    time = np.concatenate([part.time for part in parts])
    order = np.argsort(time, kind="stable")
    step, value = (np.concatenate(each)[order] for each in ([p.step for p in parts], [p.value for p in parts]))
    return NewPoints(step, time[order], value, hash(tuple(part.axis for part in parts)))


def patience_of(rule: Rule) -> float:
    """Return how many seconds samples may wait for a rule; 0 for a rule on single values."""
    if rule.detect:
        return min(LONGEST, SHARE * DETECTORS[rule.detect].need.seconds)
    lasting = rule.lasting.size if rule.lasting.unit == TIME else 0.0
    span = 0.0 if rule.condition is None else _span(rule.condition)
    return min(LONGEST, SHARE * max(lasting, span if span != np.inf else 0.0))


def _span(node: Node) -> float:
    """Return the shortest window over any value in a condition; infinity without a value."""
    if isinstance(node, MetricNode):
        return 0.0
    if isinstance(node, CallNode):
        return min((window.size for window in node.windows if window.unit == TIME), default=0.0)
    return min((_span(part) for part in node.operands), default=np.inf) if isinstance(node, OperationNode) else np.inf


@dataclass
class _Batch:
    """Rows with the same names, whose values may wait equally long."""

    rank: int
    patience: float
    names: tuple[str, ...]
    times: list[float] = field(default_factory=list)
    rows: list[Mapping[str, float]] = field(default_factory=list)


class DelayedSamples:
    """Rows of samples that wait."""

    def __init__(self, wanted: Wanted, patience: Callable[[str], float]) -> None:
        """Collect the metrics that are `wanted`; `patience` returns how many seconds a metric may wait."""
        self._wanted, self._patience = wanted, patience
        self._plans: dict[tuple[int, tuple[str, ...]], list[_Batch]] = {}
        self._batches: dict[tuple[int, float, tuple[str, ...]], _Batch] = {}
        self._axes = 0

    def add(self, rank: int, values: Mapping[str, float], moment: float) -> None:
        """Add a row that the watcher made itself; `moment` in seconds since 1970."""
        key = (rank, tuple(values))
        plan = self._plans.get(key)
        if plan is None:
            plan = self._plans[key] = self._plan(*key)
        for batch in plan:
            batch.times.append(moment)
            batch.rows.append(values)

    def _plan(self, rank: int, names: tuple[str, ...]) -> list[_Batch]:
        """Return the batches for rows with these names, one per waiting time."""
        found: dict[float, list[str]] = {}
        for name in names:
            if self._wanted(rank, name):
                found.setdefault(self._patience(name), []).append(name)
        keys = [(rank, patience, tuple(together)) for patience, together in found.items()]
        return [self._batches.setdefault(key, _Batch(*key)) for key in keys]

    def due(self, now: float, *, every: bool = False) -> PointsByMetric:
        """Return the points that have waited long enough, or all; `now` in seconds since 1970."""
        found: PointsByMetric = {}
        clocks: Clocks = {}
        for batch in self._batches.values():
            if batch.times and (every or now - batch.times[0] >= batch.patience - SLACK):
                self._release(batch, clocks, found)
        return found

    def _release(self, batch: _Batch, clocks: Clocks, found: PointsByMetric) -> None:
        """Release the rows of a batch; samples with the same times get the same axis."""
        times = tuple(batch.times)
        if times not in clocks:
            self._axes += 1
            clocks[times] = (self._axes, np.full(len(times), np.nan), np.array(times))
        axis, step, time = clocks[times]
        values = np.array([[row[name] for row in batch.rows] for name in batch.names], dtype=np.float64)
        for name, column in zip(batch.names, values, strict=True):
            found.setdefault((batch.rank, name), []).append(NewPoints(step, time, column, axis))
        batch.times, batch.rows = [], []
