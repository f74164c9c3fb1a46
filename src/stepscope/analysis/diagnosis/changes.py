"""What changed: each lasting change of step time, loss, memory or throughput, and what else moved then; slow steps.

Phases, samples of the machine and events around a change are its possible causes. Phases are ranked by the seconds that
they explain, samples by how far they left their usual range.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from stepscope.analysis.diagnosis.case import time
from stepscope.analysis.diagnosis.composition import PASSES, is_disturbed
from stepscope.analysis.diagnosis.evidence import RARE
from stepscope.analysis.series.change_points import LEVEL, change_points
from stepscope.analysis.series.robust import SIGMA, median, spread
from stepscope.core.numbers import format_share, format_value
from stepscope.core.vocabulary import unit_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stepscope.analysis.diagnosis.evidence import Evidence, RankSteps
    from stepscope.core.arrays import Floats, Integers


WATCHED = ("loss", "samples_per_second", "tokens_per_second", "memory/resident_bytes", "gpu/0/memory_allocated_bytes")
"""Series, in addition to the step time, whose lasting changes are reported."""
NOTABLE = {"step_seconds": 0.2, "loss": 0.1}
"""Minimum lasting change, relative to the level before."""
NOTABLE_ELSE = 0.15
MOST_POINTS = 4000
"""A longer series is searched for changes in means of equal blocks."""
MOST, MOST_MOVED, MOST_EVENTS = 8, 4, 5
WINDOW = 40
"""Rows before and after a change that are compared."""
SPREADS = 4.0
"""Minimum change of a sample, in standard deviations, to be named."""
WAITED = 0.2
"""Share of the time spent waiting for disks from which a slow step is attributed to them."""
SLOW, MOST_SLOW = 5.0, 5
"""A step is slow if it takes this many median steps; the slowest few are reported."""
SAMPLED = (
    *("cpu/usage_ratio", "cpu/iowait_ratio", "cpu/stolen_ratio", "cpu/frequency_hertz", "disk/busy_ratio"),
    *("pressure/cpu_some_stalled_ratio", "pressure/io_some_stalled_ratio", "pressure/memory_some_stalled_ratio"),
    "swap/used_bytes",
    *("disk/read_bytes_per_second", "disk/write_bytes_per_second", "network/received_bytes_per_second"),
    *("memory/used_bytes", "cgroup/throttled_ratio", "gpu/0/utilization_ratio", "gpu/0/sm_clock_hertz"),
    *("gpu/0/temperature_celsius", "gpu/0/power_watts", "gpu/0/memory_used_bytes", "learning_rate", "grad_norm"),
    *("data/load_seconds", "padding_ratio", "samples"),
)
TOLD_EVENTS = (
    *("checkpoint", "checkpoint_saved", "evaluation", "compile", "worker_died", "stalled", "hung", "recovered"),
    *("clock_jump", "gpu_lost", "gpu_driver_hung", "exploding_gradient", "nonfinite_gradient", "update_skipped"),
    *("out_of_memory", "vanishing_gradient", "dead_gradient"),
)
LASTING = 5
"""Minimum rows before and after a lasting change: a last step that stalls is a slow step."""
LEAST_COST = 0.01
"""Minimum share of the time of all steps that a change adds or saves."""
SPEEDS = ("step_seconds", "samples_per_second", "tokens_per_second")
"""Metrics that other programs on the machine change, too."""
MOVED = 0.15
"""Minimum share of a change of the step time that a phase explains to be named."""
SIMILAR = 2.0
"""A phase changed by itself if it changed by this factor more than the passes: a busy machine changes all equally."""
RATIO_LEAST = 0.05
"""Minimum absolute change of a ratio."""


@dataclass(frozen=True)
class _Edge:
    """A change of one metric between two spans of time."""

    metric: str
    step: int
    moment: float
    before: float
    after: float
    score: float
    early: tuple[float, float]
    late: tuple[float, float]
    cost: float
    """Seconds that the steps on either side took more or less than usual, whichever is more; 0 if it is not a time."""
    until: int | None = None
    """Step at which it was over; None if it lasts."""


def changes(evidence: Evidence) -> list[dict[str, Any]]:
    """Return the lasting changes of a run, those that cost or saved the most time first, each with what else moved."""
    steps = evidence.leader
    found: list[_Edge] = []
    if steps is not None and len(steps):
        found += _edges("step_seconds", steps.step, steps.end, steps.seconds)
        found = [edge for edge in found if edge.cost >= LEAST_COST * steps.total]
    for name in WATCHED:
        track = evidence.finite(name)
        found += _edges(name, track.step, track.time, track.value)
    if is_disturbed(evidence):
        shared = (*PASSES, "data") if "data/load_seconds" in evidence.series else PASSES  # workers compute as well
        found = [edge for edge in found if edge.metric not in SPEEDS or not _is_from_outside(edge, steps, shared)]
    costly = sorted(found, key=lambda edge: (-edge.cost, -edge.score))[:MOST]
    return [_described(edge, evidence) for edge in costly]


def _is_from_outside(edge: _Edge, steps: RankSteps | None, shared: tuple[str, ...]) -> bool:
    """Return whether only those phases changed that other programs slow down: then the machine changed."""
    medians = _medians(edge, steps)
    if not medians:
        return False
    whole = abs(medians[""][1] - medians[""][0])
    early, late = (sum(medians[name][at] for name in shared if name in medians) for at in (0, 1))
    passes = late / early if early > 0 and late > 0 else 1.0
    for name, (before, after) in medians.items():
        if not name or name in shared or abs(after - before) <= MOVED * whole:
            continue
        if min(before, after) <= 0 or not 1 / SIMILAR < after / before / passes < SIMILAR:
            return False
    return True


def _medians(edge: _Edge, steps: RankSteps | None) -> dict[str, tuple[float, float]]:
    """Return the seconds of the steps (as "") and of each phase before and after a change; empty if not measured."""
    if steps is None or not steps.phases:
        return {}
    kept = steps.measured
    when = steps.end[kept]
    early, late = ((when >= first) & (when <= last) for first, last in (edge.early, edge.late))
    if not early.any() or not late.any():
        return {}
    every = {"": np.nan_to_num(steps.seconds[kept]), **{name: steps.phase(name) for name in steps.phases}}
    return {name: (median(each[early]), median(each[late])) for name, each in every.items()}


def _edges(name: str, step: Integers, when: Floats, value: Floats) -> list[_Edge]:
    """Return the notable lasting changes of a metric; a change that was undone has its last step."""
    every = -(-len(value) // MOST_POINTS)
    if every > 1:
        kept = len(value) // every * every
        value = value[:kept].reshape(-1, every).mean(axis=1)
        step, when = step[every - 1 : kept : every], when[every - 1 : kept : every]
    scores = {one.index: one.score for one in change_points(value).changes if one.kind == LEVEL}
    places = [0, *scores, len(value)]
    found: list[_Edge] = []
    for first, at, last in zip(places, places[1:], places[2:], strict=False):
        before, after = value[max(first, at - WINDOW) : at], value[at : min(last, at + WINDOW)]
        if at < LASTING or last - at < LASTING:
            continue
        levels = median(before), median(after)
        if abs(levels[1] - levels[0]) < NOTABLE.get(name, NOTABLE_ELSE) * abs(levels[0]):
            continue
        past = found[-1] if found and found[-1].until is None else None
        if past is not None and abs(levels[1] - past.before) < NOTABLE_ELSE * abs(past.before):
            found[-1] = replace(past, until=int(step[at]))
            continue
        if name == "loss" and levels[1] < levels[0]:
            continue  # a loss should fall
        early = float(when[at - len(before)]), float(when[at - 1])
        late = float(when[at]), float(when[at + len(after) - 1])
        cost = max(_lost(when, value, first, at), _lost(when, value, at, last)) if name == "step_seconds" else 0.0
        found.append(_Edge(name, int(step[at]), late[0], *levels, scores[at], early, late, cost))
    return found


def _lost(when: Floats, value: Floats, first: int, end: int) -> float:
    """Return the seconds that some steps took more, or less, than as many usual ones."""
    level = median(value[first:end])
    return float(when[end - 1] - when[max(0, first - 1)]) * abs(1 - median(value) / level) if level > 0 else 0


def _described(edge: _Edge, evidence: Evidence) -> dict[str, Any]:
    unit = unit_of(edge.metric)
    moved = [*_phases(edge, evidence.leader), *_samples(edge, evidence)]
    happened = _events(evidence, edge.early[1], edge.late[0], edge.step)
    levels = f"from {format_value(edge.before, unit)} to {format_value(edge.after, unit)}"
    text = f"{edge.metric} went {levels} at step {edge.step}"
    text += f" and recovered at step {edge.until}" if edge.until is not None else ""
    if moved:
        text += ": " + ", ".join(one["text"] for one in moved[:2])
    if happened:
        text += f" ({happened[0]['text']})"
    return {
        "metric": edge.metric,
        "step": edge.step,
        "until": edge.until,
        "time": edge.moment,
        "before": edge.before,
        "after": edge.after,
        "cost_seconds": edge.cost if edge.metric == "step_seconds" else None,
        "text": text,
        "moved": moved[:MOST_MOVED],
        "events": happened,
    }


def _phases(edge: _Edge, steps: RankSteps | None) -> list[dict[str, Any]]:
    """Return the phases that moved with a change of the step time, by the seconds that they explain."""
    medians = _medians(edge, steps) if edge.metric != "loss" else {}
    if not medians:
        return []
    first, last = medians.pop("")
    whole = last - first
    found = []
    for name, (before, after) in medians.items():
        share = (after - before) / whole if whole else 0.0
        if share > MOVED:
            text = f"{name} {time(before)} → {time(after)}"
            found.append({"name": f"phase/{name}", "before": before, "after": after, "explains": share, "text": text})
    return sorted(found, key=lambda one: -float(one["explains"]))


def _samples(edge: _Edge, evidence: Evidence) -> list[dict[str, Any]]:
    """Return the machine's metrics that left their usual range with a change, farthest first."""
    found = []
    for name in SAMPLED:
        track = evidence.finite(name)
        early, late = track.within(*edge.early).value, track.within(*edge.late).value
        if name == edge.metric or len(early) < 3 or len(late) < 3:
            continue
        before, after = median(early), median(late)
        change, unit = abs(after - before), unit_of(name)
        spreads = change / max(spread(early - before), spread(late - after), SIGMA * max(0.01 * abs(before), 1e-12))
        if spreads >= SPREADS and change >= (RATIO_LEAST if unit == "ratio" else 0.1 * abs(before)):
            text = f"{name} {format_value(before, unit)} → {format_value(after, unit)}"
            found.append({"name": name, "before": before, "after": after, "spreads": spreads, "text": text})
    return sorted(found, key=lambda one: -float(one["spreads"]))


def _events(evidence: Evidence, first: float, last: float, step: int) -> list[dict[str, Any]]:
    """Return the events between two times, or of the same step."""
    found = [
        {"kind": event["kind"], "step": event.get("step"), "time": event["time"], "text": _words(event)}
        for event in evidence.of_kind(*TOLD_EVENTS)
        if first <= float(event["time"]) <= last or event.get("step") == step
    ]
    return found[:MOST_EVENTS]


def _words(event: Mapping[str, Any]) -> str:
    kind = str(event.get("kind", "")).replace("_", " ")
    if kind == "compile":
        kind = "recompiled" if event.get("recompiled") else "compiled"
    seconds = event.get("seconds")
    return f"{kind}, {time(float(seconds))}" if isinstance(seconds, (int, float)) else kind


def slow_steps(evidence: Evidence) -> list[dict[str, Any]]:
    """Return the slowest steps of a run, slowest first, with their phases and the events at that time."""
    steps = evidence.leader
    if steps is None or len(steps) < 2 * MOST_SLOW or steps.weight is not None:
        return []
    usual, disturbed = float(np.median(steps.seconds)), is_disturbed(evidence)
    order = np.argsort(-np.nan_to_num(steps.seconds))
    worst = order[: 4 * MOST_SLOW if disturbed else MOST_SLOW]
    found = [_slow(steps, int(at), usual, evidence) for at in worst if steps.seconds[at] > SLOW * usual]
    if disturbed:  # other programs interrupt any step: report those with a known cause, or a high cost
        found = [one for one in found if _is_explained(one) or one["seconds"] - usual > LEAST_COST * steps.total]
    return found[:MOST_SLOW]


def _is_explained(slow: dict[str, Any]) -> bool:
    """Return whether the cause of a slow step is known: a rare phase, an event, or the disk."""
    rare = sum(slow["phases"].get(name, 0.0) for name in RARE)
    return bool(slow["events"]) or rare > 0.5 * slow["seconds"] or (slow["io_waiting_ratio"] or 0.0) >= WAITED


def _slow(steps: RankSteps, at: int, usual: float, evidence: Evidence) -> dict[str, Any]:
    seconds, end, step = float(steps.seconds[at]), float(steps.end[at]), int(steps.step[at])
    phases = {name: float(values[at]) for name, values in steps.phases.items() if np.isfinite(values[at])}
    most = max(phases, key=lambda name: phases[name], default="")
    text = f"step {step} took {time(seconds)} instead of {time(usual)}"
    if most:
        text += f": {time(phases[most])} in {most}"
    pressure = evidence.finite("pressure/io_some_stalled_ratio")
    first, last = np.searchsorted(pressure.time, [end - seconds, end])
    sampled = pressure.value[first : last + 1]  # with the next sample, which covers the end of the step
    waited = float(sampled.mean()) if len(sampled) else None
    if waited is not None and waited >= WAITED:
        text += f" while processes waited for disks {format_share(waited)} of the time"
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
