"""How far the training of the demo is: arrays of points in, numbers out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from stepscope.analysis.series.forecast import total_steps
from stepscope.core.events import typed
from stepscope.core.vocabulary import phase_place
from stepscope.sources.attempts import at_keys
from stepscope.views.rates import StepRates, StepTotals, rates

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.core.arrays import Floats, Integers
    from stepscope.store.points import Points
    from stepscope.store.reader import Past

WINDOW = 50
"""Steps over which the phases of a step are averaged."""
CURVES = {"loss": min, "accuracy": max, "process/memory_bytes": None}
"""Metrics shown, in order, and which extreme is best."""
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
class DemoRun:
    """What the demo has recorded so far: its first rank, in its last attempt."""

    columns: dict[str, MetricColumn]
    events: Sequence[dict[str, Any]] = ()
    total: int | None = None
    """Total steps of the run; None if unknown."""


@dataclass(frozen=True, slots=True)
class LastValue:
    """The newest value of a metric, and its best one."""

    last: float
    best: float | None = None
    best_step: int | None = None


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
class DemoProgress:
    """Everything that the demo prints."""

    total: int | None = None
    steps: int = 0
    """Steps done."""
    elapsed: float = 0.0
    """Seconds from the start of the first step to the end of the newest one."""
    rates: StepRates = field(default_factory=StepRates)
    """Rates of the attempt, as everywhere."""
    curves: dict[str, LastValue] = field(default_factory=dict)
    phases: dict[str, float] = field(default_factory=dict)
    """Share of each phase in the last `WINDOW` steps, 0 to 1."""
    happenings: list[EventSummary] = field(default_factory=list)
    cost: RecordingCost = field(default_factory=RecordingCost)


def read(past: Past) -> DemoRun:
    """Read what was recorded so far."""
    return DemoRun(columns_of(past.points()), past.events(), total_steps(past.config))


def columns_of(points: Points) -> dict[str, MetricColumn]:
    """Return the points by name: of the first rank and its node (rank -1), in the last attempt."""
    if not len(points):
        return {}
    chosen = points.select(np.isin(points.rank, (-1, 0)) & (points.attempt == points.attempt.max()))
    found = {}
    for code, name in enumerate(chosen.names):
        own = chosen.select(chosen.name == code)
        if len(own):
            found[name] = MetricColumn(own.seq, own.step, own.time / 1e6, own.value)
    return found


def progress(recorded: DemoRun) -> DemoProgress:
    """Return what to print about the run."""
    columns = recorded.columns
    steps, samples = columns.get("step_seconds"), columns.get("samples")
    facts: dict[str, Any] = {}
    if steps is not None:
        amount = (0.0, 0) if samples is None else (float(samples.value.sum()), len(samples))
        facts = {
            "steps": len(steps),
            "elapsed": float(steps.time[-1] - steps.time[0] + steps.value[0]),
            "rates": rates([StepTotals(len(steps), float(steps.value.sum()), *amount)]),
            "phases": phases_of(columns, steps),
        }
    return DemoProgress(
        total=recorded.total,
        curves={name: _last_value(name, columns[name]) for name in CURVES if name in columns},
        happenings=happenings(recorded.events),
        cost=cost_of(columns),
        **facts,
    )


def _last_value(name: str, column: MetricColumn) -> LastValue:
    best, last = CURVES[name], float(column.value[-1])
    finite = np.flatnonzero(np.isfinite(column.value))
    if best is None or not len(finite):
        return LastValue(last)
    values = column.value[finite]
    place = finite[int(values.argmin() if best is min else values.argmax())]
    return LastValue(last, float(column.value[place]), int(column.step[place]))


def phases_of(columns: dict[str, MetricColumn], steps: MetricColumn) -> dict[str, float]:
    """Return the share of every phase that has occurred, in the order in which a step runs."""
    mean = float(steps.value[-WINDOW:].mean())
    names = sorted(name.removeprefix(PHASE) for name in columns if name.startswith(PHASE))
    seconds = {name: float(aligned(columns[f"{PHASE}{name}"], steps)[-WINDOW:].mean()) for name in names}
    return {name: seconds[name] / mean if mean > 0 else 0.0 for name in sorted(names, key=phase_place)}


def aligned(column: MetricColumn, steps: MetricColumn) -> Floats:
    """Return a value of `column` for each step: that of the same row, or 0 where the row has none."""
    return at_keys(steps.seq, column.seq, column.value, absent=0.0)


def cost_of(columns: dict[str, MetricColumn]) -> RecordingCost:
    """Return the recorder's own cost."""
    last = {name: column.value[-1] for name, column in columns.items() if name.startswith("stepscope/")}
    rows, drops = (int(last.get(f"stepscope/{name}_total", 0)) for name in ("rows", "drops"))
    seconds, steps = last.get("stepscope/log_seconds"), columns.get("step_seconds")
    whole = float(steps.value.sum()) if steps is not None else 0.0
    if seconds is None:
        return RecordingCost(rows=rows, drops=drops)
    return RecordingCost(float(seconds), float(seconds * rows / whole) if whole > 0 else None, rows, drops)


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
