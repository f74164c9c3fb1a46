"""Samples of the machine on their way to the rules: collected until they are due, then evaluated together.

A rule on the mean of a minute gains nothing from an evaluation every second, and five samples cost no more than one. A
sample may wait for a tenth of the window of the rules that read it; it is still evaluated at its own time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from stepscope.alerts.evaluation.detectors import DETECTORS
from stepscope.alerts.evaluation.records import NewPoints
from stepscope.alerts.rules.expression import TIME, CallNode, MetricNode, Node, OperationNode

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from stepscope.alerts.evaluation.records import PointsByMetric, Wanted
    from stepscope.alerts.rules.rule import Rule

    Numbers = NDArray[np.float64]
    Clocks = dict[tuple[float, ...], tuple[int, Numbers, Numbers]]
    """Axis, steps and times of samples that were taken at the same times."""

SHARE = 0.1
"""Share of a rule's window, or of its `for`, by which it may fire later."""
LONGEST = 5.0
"""Maximum seconds that a sample waits."""
SLACK = 0.5
"""A sample may be this many seconds early: evaluations come once a second."""


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
