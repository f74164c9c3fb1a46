"""Print the demo: plain lines while it runs, for a pipe, a file or a simple terminal, and a summary after it.

The summary shows where the time went, which faults were planted, and how they show in the run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from stepscope.cli.demo.progress import PHASE, aligned, happenings
from stepscope.core.numbers import format_count, format_duration, format_share, format_value
from stepscope.core.terminal_text import plain
from stepscope.core.vocabulary import MIB, unit_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TextIO

    from stepscope.cli.demo.progress import DemoProgress, DemoRun, EventSummary

LINE_SECONDS = 5.0
"""Seconds of the run between two lines."""
NAMES = {"process/memory_bytes": "memory"}
PLANTED = ("planted", "checkpoint")
"""Kinds of events that record a planted fault."""
BEFORE = 20
"""Steps before a spike with which it is compared."""


class RunLines:
    """Writes one line every few seconds of the run, and one for each event."""

    def __init__(self, stream: TextIO) -> None:
        """Write to `stream`."""
        self._stream = stream
        self._due = 0.0
        self._printed: set[tuple[str, int]] = set()

    def show(self, view: DemoProgress) -> None:
        """Write the new events, and the state of the run if a line is due."""
        for event in view.happenings:
            if (event.label, event.count) not in self._printed:
                self._printed.add((event.label, event.count))
                when = format_duration(round(view.elapsed))
                text = f"{when}  {plain(event.label)} at step {step_range(event)}: {plain(event.why)}"
                print(text, file=self._stream, flush=True)
        if view.steps and view.elapsed >= self._due:
            self._due = view.elapsed + LINE_SECONDS
            print(one_line(view), file=self._stream, flush=True)


def one_line(view: DemoProgress) -> str:
    """Return the state of a run on one line."""
    of = f"/{view.total}" if view.total is not None else ""
    parts = [format_duration(round(view.elapsed)), f"step {view.steps}{of}"]
    if view.rates.steps_per_second is not None:
        parts.append(format_value(view.rates.steps_per_second, "steps/second"))
    for name in ("loss", "accuracy", "process/memory_bytes"):
        curve = view.curves.get(name)
        if curve is not None:
            parts.append(f"{NAMES.get(name, name)} {format_value(curve.last, unit_of(name))}")
    if view.phases:
        name, share = max(view.phases.items(), key=lambda phase: phase[1])
        parts.append(f"{name} {format_share(share)} of the step")
    return "  ".join(parts)


def step_range(event: EventSummary) -> str:
    """Return the steps at which something happened: "120", or "120-140"."""
    if event.step is None:
        return ""
    if event.until is not None and event.until > event.step:
        return f"{event.step}-{event.until}"
    return str(event.step)


def summary(recorded: DemoRun, view: DemoProgress) -> list[tuple[str, str]]:
    """Return the lines of the summary, each with its label (empty: as above)."""
    ending = "finished" if view.steps == view.total else "stopped"
    rows = [("training", f"{ending} after {format_count(view.steps)} steps in {format_duration(view.elapsed)}")]
    rows += _results(recorded, view)
    rows += _labelled("time", [_share(name, seconds, whole) for name, seconds, whole in totals(recorded)])
    planted = [event for event in recorded.events if event.get("kind") in PLANTED]
    rows += _labelled("planted", [_planted(one, recorded) for one in happenings(planted)])
    rows.append(("recorded", _recording(recorded, view)))
    return rows


def _labelled(label: str, texts: list[str]) -> list[tuple[str, str]]:
    return [(label if not place else "", text) for place, text in enumerate(texts)]


def _results(recorded: DemoRun, view: DemoProgress) -> list[tuple[str, str]]:
    loss, accuracy = view.curves.get("loss"), view.curves.get("accuracy")
    if loss is None or loss.best is None or accuracy is None:
        return []
    rows = [("loss", f"{loss.last:.4f} at the end, best {loss.best:.4f} at step {loss.best_step}")]
    held_out = recorded.columns.get("validation/accuracy")
    if held_out is not None:
        text = f"{_percent(accuracy.last)} of the last batch, {_percent(held_out.value[-1])} of data it has not seen"
        rows.append(("accuracy", text))
    return rows


def totals(recorded: DemoRun) -> list[tuple[str, float, float]]:
    """Return name, seconds and seconds of all steps, of each phase, the longest first."""
    steps = recorded.columns.get("step_seconds")
    if steps is None:
        return []
    whole = float(steps.value.sum())
    phases = {name: column for name, column in recorded.columns.items() if name.startswith(PHASE)}
    spent = [(name.removeprefix(PHASE), float(column.value.sum()), whole) for name, column in phases.items()]
    return sorted(spent, key=lambda phase: -phase[1])


def _share(name: str, seconds: float, whole: float) -> str:
    return f"{name:<12}{_percent(seconds / whole if whole else 0.0):>7}{format_duration(seconds):>10}"


def _percent(share: float, digits: int = 1) -> str:
    return f"{share * 100:.{digits}f} %"


def _planted(one: EventSummary, recorded: DemoRun) -> str:
    """Return each planted fault, its steps, and its effect on the recorded values."""
    evidence = {
        "data stall": _stall,
        "loss spike": _spike,
        "memory leak": _leak,
        "evaluation": _pause_of("evaluation"),
        "checkpoint": _pause_of("checkpoint"),
    }.get(one.label)
    seen = evidence(one, recorded) if evidence is not None else one.why
    times = f", {one.count} times" if one.count > 1 else ""
    return f"{one.label:<12}  step {step_range(one)}{times}: {seen}"


def _stall(one: EventSummary, recorded: DemoRun) -> str:
    waited = recorded.columns["phase/data"]
    inside = (waited.step >= (one.step or 0)) & (waited.step <= (one.until or 0))
    if inside.all() or not inside.any():
        return one.why
    usual = float(np.median(waited.value[~inside]))
    return f"{waited.value[inside].mean() * 1e3:.0f} ms of waiting for data per step, elsewhere {usual * 1e3:.0f} ms"


def _spike(one: EventSummary, recorded: DemoRun) -> str:
    loss, step = recorded.columns["loss"], one.step or 0
    before = loss.value[(loss.step < step) & (loss.step >= step - BEFORE)]
    there = loss.value[loss.step == step]
    if not len(before) or not len(there):
        return one.why
    return f"loss {there[0]:.3f}, {float(np.median(before)):.3f} in the {len(before)} steps before"


def _leak(one: EventSummary, recorded: DemoRun) -> str:
    memory = recorded.columns["process/memory_bytes"]
    after = memory.value[memory.step >= (one.step or 0)]
    return f"{(after[-1] - after[0]) / MIB:+.1f} MiB of memory to the end" if len(after) else one.why


def _pause_of(phase: str) -> Callable[[EventSummary, DemoRun], str]:
    def text(one: EventSummary, recorded: DemoRun) -> str:
        column, steps = recorded.columns.get(f"phase/{phase}"), recorded.columns.get("step_seconds")
        if column is None or steps is None:
            return one.why
        each = aligned(column, steps)
        return f"delays the next step by {each[each > 0].mean() * 1e3:.0f} ms"

    return text


def _recording(recorded: DemoRun, view: DemoProgress) -> str:
    values, cost = sum(map(len, recorded.columns.values())), view.cost
    text = f"{format_count(cost.rows)} rows, {format_count(values)} values, {format_count(cost.drops)} dropped"
    if cost.log_seconds is not None and cost.share is not None:
        text += f"; {cost.log_seconds * 1e6:.1f} µs per row, {_percent(cost.share, 3)} of the time"
    return text
