"""What changed: at every lasting change of step time, loss, memory or throughput, what else moved then; slow steps too.

What belongs to a change is sought in the phases of the steps, in the samples of the machine, and in the events around
it, and ranked: phases by the seconds that they explain, samples by how far they left their usual range.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from stepscope.analysis.change_points import LEVEL, change_points
from stepscope.analysis.diagnosis.tell import time
from stepscope.core.vocabulary import format_value, unit_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from stepscope.analysis.diagnosis.evidence import Evidence, Steps, Track

    Numbers = NDArray[np.float64]

WATCHED = ("loss", "samples_per_second", "tokens_per_second", "memory/resident_bytes", "gpu/0/memory_allocated_bytes")
"""Series beside the step's time whose lasting changes are told."""
NOTABLE = {"step_seconds": 0.2, "loss": 0.1}
"""Lasting change, relative to the level before, below which nothing is told."""
NOTABLE_ELSE = 0.15
MOST_POINTS = 4000
"""Points of a series that are searched for changes; more are joined to means."""
MOST, MOST_MOVED, MOST_EVENTS = 8, 4, 5
WINDOW = 40
"""Rows before and after a change that are compared."""
SPREADS = 4.0
"""Usual spreads by which a sample of the machine must have moved to be named."""
SLOW, MOST_SLOW = 5.0, 5
"""A step that takes so many usual ones is told by itself; the slowest few are."""
SAMPLED = (
    *(
        "cpu/usage_ratio",
        "cpu/iowait_ratio",
        "cpu/stolen_ratio",
        "cpu/frequency_hertz",
        "pressure/cpu_some_stalled_ratio",
    ),
    *("pressure/io_some_stalled_ratio", "pressure/memory_some_stalled_ratio", "disk/busy_ratio", "swap/used_bytes"),
    *("disk/read_bytes_per_second", "disk/write_bytes_per_second", "network/received_bytes_per_second"),
    *("memory/used_bytes", "cgroup/throttled_ratio", "gpu/0/utilization_ratio", "gpu/0/sm_clock_hertz"),
    *("gpu/0/temperature_celsius", "gpu/0/power_watts", "gpu/0/memory_used_bytes", "learning_rate", "grad_norm"),
    *("data/load_seconds", "padding_ratio", "samples"),
)
TOLD_EVENTS = frozenset(
    (
        *("checkpoint", "checkpoint_saved", "evaluation", "compile", "worker_died", "stalled", "hung", "recovered"),
        *("clock_jump", "gpu_lost", "gpu_driver_hung", "exploding_gradient", "nonfinite_gradient", "update_skipped"),
        *("out_of_memory", "vanishing_gradient", "dead_gradient"),
    )
)
RATIO_LEAST = 0.05
"""Change of a ratio that is worth a word, in itself."""


@dataclass(frozen=True)
class _Edge:
    """A change of one metric between two stretches of time."""

    metric: str
    step: int
    moment: float
    before: float
    after: float
    score: float
    early: tuple[float, float]
    late: tuple[float, float]


def changes(evidence: Evidence) -> list[dict[str, Any]]:
    """Return the lasting changes of a run, in order of time, each with what else moved then."""
    steps = evidence.leader
    found: list[_Edge] = []
    if steps is not None and len(steps):
        found += _edges("step_seconds", steps.step, steps.end, steps.seconds)
    for name in WATCHED:
        track = evidence.track(name)
        if track is not None and len(track):
            whole = track.finite()
            found += _edges(name, whole.step, whole.time, whole.value)
    strongest = sorted(found, key=lambda edge: -edge.score)[:MOST]
    return [_told(edge, evidence) for edge in sorted(strongest, key=lambda edge: edge.moment)]


def _edges(name: str, step: NDArray[np.int64], when: Numbers, value: Numbers) -> Iterator[_Edge]:
    every = -(-len(value) // MOST_POINTS)
    if every > 1:
        kept = len(value) // every * every
        value = value[:kept].reshape(-1, every).mean(axis=1)
        step, when = step[every - 1 : kept : every], when[every - 1 : kept : every]
    places = [0]
    told = [one for one in change_points(value).changes if one.kind == LEVEL]
    places += [one.index for one in told] + [len(value)]
    for number, one in enumerate(told, 1):
        if one.index < 5:
            continue
        first, last = max(places[number - 1], one.index - WINDOW), min(places[number + 1], one.index + WINDOW)
        before, after = float(np.median(value[first : one.index])), float(np.median(value[one.index : last]))
        if abs(after - before) < NOTABLE.get(name, NOTABLE_ELSE) * abs(before) or (name == "loss" and after < before):
            continue  # a loss that falls is what it is for
        early = float(when[first]), float(when[one.index - 1])
        late = float(when[one.index]), float(when[last - 1])
        yield _Edge(name, int(step[one.index]), late[0], before, after, one.score, early, late)


def _told(edge: _Edge, evidence: Evidence) -> dict[str, Any]:
    unit = unit_of(edge.metric)
    moved = [*_phases(edge, evidence.leader), *_samples(edge, evidence)]
    happened = _events(evidence, edge.early[1], edge.late[0], edge.step)
    levels = f"from {format_value(edge.before, unit)} to {format_value(edge.after, unit)}"
    text = f"{edge.metric} went {levels} at step {edge.step}"
    if moved:
        text += ": " + ", ".join(one["text"] for one in moved[:2])
    if happened:
        text += f" ({happened[0]['text']})"
    return {
        "metric": edge.metric,
        "step": edge.step,
        "time": edge.moment,
        "before": edge.before,
        "after": edge.after,
        "text": text,
        "moved": moved[:MOST_MOVED],
        "events": happened,
    }


def _phases(edge: _Edge, steps: Steps | None) -> list[dict[str, Any]]:
    """Return the phases that moved with a change of the step's time, by the seconds that they explain."""
    if steps is None or edge.metric == "loss" or not steps.phases:
        return []
    kept = steps.measured
    when = steps.end[kept]
    early, late = ((when >= first) & (when <= last) for first, last in (edge.early, edge.late))
    if not early.any() or not late.any():
        return []
    seconds = steps.seconds[kept]
    whole = float(np.median(seconds[late]) - np.median(seconds[early]))
    found = []
    for name in steps.phases:
        values = steps.phase(name)
        before, after = float(np.median(values[early])), float(np.median(values[late]))
        if abs(whole) > 0 and (after - before) / whole > 0.15:
            text = f"{name} {time(before)} → {time(after)}"
            found.append(
                {
                    "name": f"phase/{name}",
                    "before": before,
                    "after": after,
                    "explains": (after - before) / whole,
                    "text": text,
                }
            )
    return sorted(found, key=lambda one: -float(one["explains"]))


def _samples(edge: _Edge, evidence: Evidence) -> list[dict[str, Any]]:
    """Return what the machine says that left its usual range with a change, the furthest first."""
    found = []
    for name in SAMPLED:
        track = evidence.track(name)
        if track is None or name == edge.metric:
            continue
        early, late = track.finite().within(*edge.early).value, track.finite().within(*edge.late).value
        if len(early) < 3 or len(late) < 3:
            continue
        before, after = float(np.median(early)), float(np.median(late))
        spread = 1.4826 * max(_deviation(early), _deviation(late), 0.01 * abs(before), 1e-12)
        unit = unit_of(name)
        little = abs(after - before) < (RATIO_LEAST if unit == "ratio" else 0.1 * abs(before))
        if abs(after - before) < SPREADS * spread or little:
            continue
        text = f"{name} {format_value(before, unit)} → {format_value(after, unit)}"
        found.append(
            {"name": name, "before": before, "after": after, "spreads": abs(after - before) / spread, "text": text}
        )
    return sorted(found, key=lambda one: -float(one["spreads"]))


def _deviation(value: Numbers) -> float:
    return float(np.median(np.abs(value - np.median(value))))


def _events(evidence: Evidence, first: float, last: float, step: int) -> list[dict[str, Any]]:
    """Return the events between two moments, or of the very step."""
    found = []
    for event in evidence.events:
        if event.get("kind") not in TOLD_EVENTS:
            continue
        if first <= float(event["time"]) <= last or event.get("step") == step:
            found.append(
                {"kind": event["kind"], "step": event.get("step"), "time": event["time"], "text": spoken(event)}
            )
    return found[:MOST_EVENTS]


def spoken(event: Mapping[str, Any]) -> str:
    """Return an event in a few words."""
    kind = str(event.get("kind", "")).replace("_", " ")
    if kind == "compile":
        kind = "recompiled" if event.get("recompiled") else "compiled"
    seconds = event.get("seconds")
    return f"{kind}, {time(float(seconds))}" if isinstance(seconds, (int, float)) else kind


def slow_steps(evidence: Evidence) -> list[dict[str, Any]]:
    """Return the slowest steps of a run, the worst first: what they spent their time on, and what happened then."""
    steps = evidence.leader
    if steps is None or len(steps) < 2 * MOST_SLOW or steps.weight is not None:
        return []
    usual = float(np.median(steps.seconds))
    order = np.argsort(-np.nan_to_num(steps.seconds))[:MOST_SLOW]
    return [_slow(steps, int(at), usual, evidence) for at in order if steps.seconds[at] > SLOW * usual]


def _slow(steps: Steps, at: int, usual: float, evidence: Evidence) -> dict[str, Any]:
    seconds, end, step = float(steps.seconds[at]), float(steps.end[at]), int(steps.step[at])
    phases = {name: float(values[at]) for name, values in steps.phases.items() if np.isfinite(values[at])}
    most = max(phases, key=lambda name: phases[name], default="")
    text = f"step {step} took {time(seconds)} instead of {time(usual)}"
    if most:
        text += f": {time(phases[most])} in {most}"
    waited = _then(evidence.track("pressure/io_some_stalled_ratio"), end - seconds, end)
    if waited is not None and waited >= 0.2:
        text += f" while disks were waited for {waited:.0%} of the time"
    happened = _events(evidence, end - seconds, end, step)
    if happened:
        text += f" ({happened[0]['text']})"
    return {
        "step": step,
        "time": end,
        "seconds": seconds,
        "usual_seconds": usual,
        "phases": phases,
        "io_waiting_ratio": waited,
        "events": happened,
        "text": text,
    }


def _then(track: Track | None, first: float, last: float) -> float | None:
    """Return the mean of a sampled metric over a stretch of time, with the next sample after it; None if unknown."""
    if track is None:
        return None
    whole = track.finite()
    start, stop = np.searchsorted(whole.time, first), np.searchsorted(whole.time, last) + 1
    some = whole.value[start:stop]
    return float(some.mean()) if len(some) else None
