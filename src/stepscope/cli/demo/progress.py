"""The state of a live run as plain data: arrays of points in, numbers out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from stepscope.analysis.series.forecast import total_steps
from stepscope.core.events import typed
from stepscope.core.vocabulary import phase_place
from stepscope.sources.attempts import at_keys
from stepscope.views.rates import StepTotals, Throughput, rates

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.core.arrays import Floats, Integers
    from stepscope.store.points import Points
    from stepscope.store.reader import Past

WINDOW = 50
"""Steps over which the phases of a step are averaged."""
RATE_WINDOW = 200
"""Steps used for the time left and the memory trend."""
TREND_POINTS = 20
"""Minimum points for a trend."""
TREND_PARTS = 8
CURVES = {"loss": min, "accuracy": max, "learning_rate": None, "grad_norm": None, "process/memory_bytes": None}
"""Metrics shown as curves, in order, and which extreme is best."""
PHASE = "phase/"


@dataclass(frozen=True, slots=True)
class MetricColumn:
    """The points of one metric, in the order they were recorded."""

    seq: Integers
    step: Integers
    time: Floats
    """Seconds since 1970 UTC."""
    value: Floats

    def __len__(self) -> int:
        """Return the number of points."""
        return len(self.value)


@dataclass(frozen=True, slots=True)
class LiveRun:
    """A snapshot of a run: its first rank, in its last attempt."""

    id: str
    project: str
    state: str
    columns: dict[str, MetricColumn]
    events: Sequence[dict[str, Any]] = ()
    total: int | None = None
    """Total steps of the run; None if unknown."""


@dataclass(frozen=True, slots=True)
class LiveCurve:
    """One metric over the steps."""

    name: str
    step: Integers
    value: Floats
    best: float | None = None
    best_step: int | None = None

    @property
    def last(self) -> float:
        """The newest value."""
        return float(self.value[-1])


@dataclass(frozen=True, slots=True)
class PhaseTime:
    """A phase of the step, averaged over the last `WINDOW` steps."""

    name: str
    seconds: float
    share: float
    """Share of the mean step, 0 to 1."""
    usual: float
    """Seconds: the median over all steps so far."""

    @property
    def excess(self) -> float | None:
        """Ratio to its usual duration; None if it is usually absent."""
        return self.seconds / self.usual if self.usual > 0 else None


@dataclass(frozen=True, slots=True)
class EventSummary:
    """All events of one kind and subject."""

    label: str
    step: int | None
    """Step of the last one."""
    until: int | None = None
    """Step at which it ends, if the event has it."""
    count: int = 1
    why: str = ""


@dataclass(frozen=True, slots=True)
class RecordingCost:
    """The cost of the recording itself."""

    log_seconds: float | None = None
    """Mean of the calls that were timed, one in a few dozen."""
    share: float | None = None
    """Time of all rows as a share of the time of all steps, 0 to 1."""
    rows: int = 0
    drops: int = 0


@dataclass(frozen=True, slots=True)
class LiveView:
    """Everything that a screen shows of a run."""

    id: str
    project: str
    state: str
    total: int | None = None
    steps: int = 0
    """Steps done."""
    elapsed: float = 0.0
    """Seconds from the start of the first step to the end of the newest one."""
    left: float | None = None
    """Seconds until the last step, if steps take as long as the last `RATE_WINDOW` did."""
    step_seconds: float | None = None
    """Mean of the last `WINDOW` steps."""
    rates: Throughput = field(default_factory=Throughput)
    """Rates of the whole attempt, as everywhere."""
    curves: list[LiveCurve] = field(default_factory=list)
    phases: list[PhaseTime] = field(default_factory=list)
    memory_trend: float | None = None
    """Bytes per second, over the last `RATE_WINDOW` steps; see `trend`."""
    happenings: list[EventSummary] = field(default_factory=list)
    cost: RecordingCost = field(default_factory=RecordingCost)

    def curve(self, name: str) -> LiveCurve | None:
        """Return the curve of a metric, if there is one."""
        return next((curve for curve in self.curves if curve.name == name), None)


def read(past: Past) -> LiveRun:
    """Read the current state of a live run."""
    return LiveRun(
        id=past.id,
        project=past.project,
        state=past.state,
        columns=columns_of(past.points()),
        events=past.events(),
        total=total_steps(past.config),
    )


def columns_of(points: Points) -> dict[str, MetricColumn]:
    """Return the points by name: of the first rank and its node, in the last attempt."""
    if not len(points):
        return {}
    low, high = (-1, 0)
    keep = (points.rank >= low) & (points.rank <= high) & (points.attempt == points.attempt.max())
    chosen = points.select(keep)
    order = np.argsort(chosen.name, kind="stable")
    cuts = np.searchsorted(chosen.name[order], np.arange(len(chosen.names) + 1))
    found = {}
    for code, name in enumerate(chosen.names):
        place = order[cuts[code] : cuts[code + 1]]
        if len(place):
            column = MetricColumn(chosen.seq[place], chosen.step[place], chosen.time[place] / 1e6, chosen.value[place])
            found[name] = column
    return found


def view(recorded: LiveRun) -> LiveView:
    """Return what to show of a run."""
    columns = recorded.columns
    steps = columns.get("step_seconds")
    facts: dict[str, Any] = {}
    if steps is not None:
        recent = float(steps.value[-RATE_WINDOW:].mean())
        left = None if recorded.total is None else max(0, recorded.total - len(steps)) * recent
        facts = {
            "steps": len(steps),
            "elapsed": float(steps.time[-1] - steps.time[0] + steps.value[0]),
            "left": left if recorded.state == "running" else None,
            "step_seconds": float(steps.value[-WINDOW:].mean()),
            "rates": _rates(columns, steps),
            "phases": phases_of(columns),
        }
    return LiveView(
        id=recorded.id,
        project=recorded.project,
        state=recorded.state,
        total=recorded.total,
        curves=[_curve(name, columns[name]) for name in CURVES if name in columns],
        memory_trend=trend(columns.get("process/memory_bytes")),
        happenings=happenings(recorded.events),
        cost=cost_of(columns),
        **facts,
    )


def _curve(name: str, column: MetricColumn) -> LiveCurve:
    best = CURVES[name]
    finite = np.flatnonzero(np.isfinite(column.value))
    if best is None or not len(finite):
        return LiveCurve(name, column.step, column.value)
    values = column.value[finite]
    place = finite[int(values.argmin() if best is min else values.argmax())]
    return LiveCurve(name, column.step, column.value, float(column.value[place]), int(column.step[place]))


def _rates(columns: dict[str, MetricColumn], steps: MetricColumn) -> Throughput:
    samples = columns.get("samples")
    amount = (0.0, 0) if samples is None else (float(samples.value.sum()), len(samples))
    return rates([StepTotals(len(steps), float(steps.value.sum()), *amount)])


def phases_of(columns: dict[str, MetricColumn]) -> list[PhaseTime]:
    """Return every phase that has occurred; a missing phase counts as 0, so that they sum to the step."""
    steps = columns["step_seconds"]
    mean = float(steps.value[-WINDOW:].mean())
    found = []
    for name, column in columns.items():
        if name.startswith(PHASE):
            spent = aligned(column, steps)
            seconds = float(spent[-WINDOW:].mean())
            share = seconds / mean if mean > 0 else 0.0
            found.append(PhaseTime(name.removeprefix(PHASE), seconds, share, float(np.median(spent))))
    return sorted(found, key=lambda phase: (phase_place(phase.name), phase.name))


def aligned(column: MetricColumn, steps: MetricColumn) -> Floats:
    """Return a value of `column` for each step: that of the same row, or 0 where the row has none."""
    return at_keys(steps.seq, column.seq, column.value, absent=0.0)


def trend(column: MetricColumn | None) -> float | None:
    """Return the growth per second: the median difference between eight consecutive parts of the newest points.

    A single jump is not a trend: it changes only one of the seven differences.
    """
    if column is None or len(column) < TREND_POINTS:
        return None
    time = [part.mean() for part in np.array_split(column.time[-RATE_WINDOW:], TREND_PARTS)]
    value = [part.mean() for part in np.array_split(column.value[-RATE_WINDOW:], TREND_PARTS)]
    passed = np.diff(time)
    return float(np.median(np.diff(value) / passed)) if (passed > 0).all() else None


def cost_of(columns: dict[str, MetricColumn]) -> RecordingCost:
    """Return the recorder's own cost."""
    last = {name: column.value[-1] for name, column in columns.items() if name.startswith("stepscope/")}
    rows, seconds = last.get("stepscope/rows_total", 0), last.get("stepscope/log_seconds")
    steps = columns.get("step_seconds")
    whole = float(steps.value.sum()) if steps is not None else 0.0
    return RecordingCost(
        log_seconds=None if seconds is None else float(seconds),
        share=float(seconds * rows / whole) if seconds is not None and whole > 0 else None,
        rows=int(rows),
        drops=int(last.get("stepscope/drops_total", 0)),
    )


def happenings(events: Sequence[dict[str, Any]]) -> list[EventSummary]:
    """Return the events, grouped by kind and subject, ordered by last occurrence."""
    found: dict[str, EventSummary] = {}
    for event in map(typed, events):
        kind = event.get("kind")
        if kind == "histogram" or (kind == "alert" and event.get("state") != "firing"):
            continue
        label = str(event.get("rule") if kind == "alert" else event.get("what") or kind)
        why = f"alert: {event.get('text')}" if kind == "alert" else event.get("why")
        before = found.pop(label, None)
        count = 1 if before is None else before.count + 1
        found[label] = EventSummary(label, event.get("step"), event.get("until"), count, str(why or ""))
    return list(found.values())
