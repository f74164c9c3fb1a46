"""The machine and the end of a run as `show` prints them, as plain data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stepscope.core.events import ours
from stepscope.core.ring import NO_STEP
from stepscope.store.machine import declared
from stepscope.views.buckets import buckets_of
from stepscope.views.event_list import line_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from stepscope.store.reader import Past
    from stepscope.store.series import Series

POINTS = 200
"""Buckets used for the mean of a metric."""
LAST_STEPS = 20
BESIDE = ("loss", "grad_norm", "learning_rate")
"""Metrics shown beside the time of a step."""
QUIET = frozenset(("histogram", "text", "clock_jump", "sampler_back"))
"""Kinds of events that do not explain an end."""
LAST_EVENTS = 5
TRACE_LINES = 12


def machine_names(past: Past, counts: Iterable[str]) -> set[str]:
    """Return the machine metrics: those that a watcher of the run has declared."""
    machines = past.machines()
    groups = {metric.name.partition("/")[0] for machine in machines for metric in machine.metrics}
    return {name for name in counts if name.partition("/")[0] in groups and declared(machines, name)}


def machine(past: Past, names: Collection[str]) -> dict[str, Any]:
    """Return mean, maximum and last value of the machine metrics, and what could not be sampled and why."""
    found = past.overview(names, points=POINTS) if names else {}
    absent = {what: why for node in past.machines() for what, why in node.absent.items()}
    devices = {what: name for node in past.machines() for what, name in node.devices.items()}
    metrics = {}
    for name, series in sorted(found.items()):
        one = buckets_of(series)
        metrics[name] = {"mean": one.average(), "min": one.lowest(), "max": one.highest(), "last": one.newest()}
    return {"metrics": metrics, "absent": absent, "devices": devices}


def end(past: Past, attempts: list[dict[str, Any]], last: int | None) -> dict[str, Any]:
    """Return how the run ended: for the first rank that failed, its last steps, its traceback, and what came before."""
    attempt = max((rank["attempt"] for rank in attempts), default=0)
    own = [rank for rank in attempts if rank["attempt"] == attempt]
    bad = [rank for rank in own if rank["state"] not in {"finished", "running"}]
    number = min((rank["rank"] for rank in bad or own), default=0)
    events = [event for event in past.events() if event.get("kind") not in QUIET]
    errors = [event for event in ours(events) if event.get("kind") == "exception" and event.get("rank") == number]
    trace = str(errors[-1].get("traceback", "")).rstrip().splitlines() if errors else []
    return {
        "attempt": attempt,
        "rank": number,
        "traceback": trace[-TRACE_LINES:],
        "events": [_event(event) for event in events[-LAST_EVENTS:]],
        "steps": last_steps(past, number, attempt, last),
    }


def _event(event: dict[str, Any]) -> dict[str, Any]:
    kept = {key: event.get(key) for key in ("kind", "time", "rank", "step")}
    words = [event.get(key) for key in ("message", "why", "error", "cause", "reason")]
    text = line_of(event) if event.get("kind") == "alert" else next((str(word) for word in words if word), "")
    try:
        frame = event["stacks"][-1]["frames"][0]  # the innermost frame of the main thread
        text = f"{text}; it is at {frame['file']}:{frame['line']} in {frame['function']}"
    except (TypeError, KeyError, IndexError):
        pass  # most events have no stacks
    return {**kept, "text": text[:400]}


def last_steps(past: Past, rank: int, attempt: int, last: int | None) -> list[dict[str, Any]]:
    """Return the last steps of a rank: duration, longest phases and the values logged with each."""
    names = set(past.names())
    if last is None or "step_seconds" not in names:
        return []
    since = (last - LAST_STEPS + 1, last)
    phases = [name for name in names if name.startswith("phase/")]
    columns = {
        name: _by_step(past.series(name, rank=rank, attempt=attempt, step_range=since))
        for name in ("step_seconds", *phases, *(name for name in BESIDE if name in names))
    }
    rows = []
    for step, seconds in sorted(columns["step_seconds"].items())[-LAST_STEPS:]:
        taken = {name.removeprefix("phase/"): columns[name][step] for name in phases if step in columns[name]}
        row = {"step": step, "seconds": seconds, "phases": taken}
        rows.append(row | {name: columns[name].get(step) for name in BESIDE if name in columns})
    return rows


def _by_step(series: Series) -> dict[int, float]:
    pairs = zip(series.step.tolist(), series.value.tolist(), strict=True)
    return {step: value for step, value in pairs if step != NO_STEP}
