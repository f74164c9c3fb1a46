"""Read groups of runs to compare: repeats of one training, from runs, files of other tools and baselines.

Each run becomes a `Recording`: curves under canonical names, hardware and settings.
"""

from __future__ import annotations

import itertools
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from stepscope.analysis.compare.quantity import PHASE, STEP, is_loss, is_score
from stepscope.analysis.compare.recording import MEAN, MOST, SUM, Curve, Group, PointArrays, Recording, curve_of
from stepscope.analysis.compare.schedule import LEARNING_RATE, last_step
from stepscope.core.errors import UsageError
from stepscope.core.ring import NO_STEP
from stepscope.core.vocabulary import aliases, canonical, matches
from stepscope.sources.attempts import counts_of
from stepscope.sources.baselines import read_baseline
from stepscope.sources.source import BASELINE, RUN, RunSource, resolve_all
from stepscope.store.series import Series

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from stepscope.importers.imported import Imported
    from stepscope.store.reader import Past

MOST_RUNS = 500
"""Runs of one group."""
FINE_POINTS = 2_000_000
"""Points of a metric that are compared one by one; longer series are compared as means of blocks."""
COARSE_POINTS = 100_000
ABSOLUTE = 1e8
"""Larger times, in seconds, count from 1970; smaller times from the start of the run."""
SUMS = frozenset({"samples", "tokens", "samples_per_second", "tokens_per_second"})
"""Metrics that add up over the ranks."""
PEAK = "memory/peak_bytes"
PEAKS = ("gpu/*/memory_peak_bytes", "gpu/*/memory_used_bytes", "process/*/memory_bytes")
"""Metrics that stand in for a missing peak of memory, best first."""
PACKAGES = frozenset({"torch", "jax", "tensorflow", "lightning", "pytorch_lightning", "transformers", "accelerate"})
BATCH = re.compile(r"batch|accum|world_size|num_gpus|devices|sequence_length|seq_len|block_size", re.IGNORECASE)
BUILD = re.compile(r"version|commit|python|torch|cuda|triton|jax|numpy", re.IGNORECASE)
HARDWARE = re.compile(r"gpu|device|cpu|hardware|machine|accelerator", re.IGNORECASE)
MOST_SETTINGS = 300
PLANNED = re.compile(
    r"(?:steps|iterations|train_iters|max_iters|max_updates|(?:num|max|total|train|training)(?:_train|_training)?"
    r"_(?:steps|iterations))",
    re.IGNORECASE,
)
"""Settings that give the planned number of steps."""


def group_of(
    argument: str,
    root: str | None = None,
    asked: Collection[str] = (),
    advance: Callable[[float, str], object] | None = None,
    notify: Callable[[str], object] | None = None,
) -> Group:
    """Return the runs that an argument of `resolve_all` names. Raises StepscopeError.

    Args:
        argument: see `resolve_all`.
        root: folder that holds the runs.
        asked: metrics to read in addition to the usual ones.
        advance: called with 1 and a label after each run that was read.
        notify: called with the note of a run whose choice is not obvious.
    """
    runs: list[Recording] = []
    found = (run for source in resolve_all(argument, root, notify) for run in recordings(source, asked))
    for run in itertools.islice(found, MOST_RUNS + 1):
        runs.append(run)
        if advance is not None:
            advance(1, run.label)
    if not runs:
        raise UsageError(f"compare {argument!r}", "it names no run", "see `stepscope runs`")
    if len(runs) > MOST_RUNS:
        raise UsageError(f"compare {argument!r}", f"it names more than {MOST_RUNS} runs", "name fewer")
    return Group(short_path(argument), tuple(runs))


def recordings(source: RunSource, asked: Collection[str] = ()) -> Iterator[Recording]:
    """Yield the runs of a source in the form that comparison takes."""
    if source.kind == BASELINE:
        yield from read_baseline(Path(source.path)).runs
    elif source.kind == RUN:
        yield of_past(source.past(), asked)
    else:
        yield from (of_imported(run, asked) for run in source.imported())


def short_path(argument: str) -> str:
    """Return the last two parts of a path."""
    parts = argument.rstrip("/").split("/")
    return "/".join(parts[-2:]) if len(parts) > 2 else argument.rstrip("/") or argument


def of_past(past: Past, asked: Collection[str] = ()) -> Recording:
    """Return a recorded run."""
    counts = counts_of(past)
    names = [name for name in past.names() if wanted(name, asked)]

    def read(name: str) -> PointArrays:
        if counts.get(name, 0) <= FINE_POINTS:
            return past.series(name)
        coarse = past.series(name, points=COARSE_POINTS)
        if (blocks := coarse.buckets) is None:
            return coarse
        return Series(name, blocks.last_step, blocks.last_time / 1e6, blocks.mean, blocks.rank, blocks.attempt)

    series = {name: read(name) for name in names}
    curves, facts = curves_of(series), past_facts(past, series)
    found = Recording(past.id, curves, facts, span_of(series), planned_in(facts))
    if found.planned is None and past.state == "finished":
        return replace(found, planned=last_step(found))
    return found


def planned_in(facts: dict[str, Any]) -> int | None:
    """Return the planned number of steps from the settings; None if it is missing or ambiguous."""
    values = [value for name, value in facts.items() if PLANNED.fullmatch(re.split(r"[/.]", name)[-1])]
    numbers = [value for value in values if isinstance(value, (int, float)) and not isinstance(value, bool)]
    found = {int(value) for value in numbers if 1 <= value < 2**53}
    return found.pop() if len(found) == 1 else None


def wanted(name: str, asked: Collection[str]) -> bool:
    """Return whether to compare a metric: those asked for, and the usual metrics."""
    main = canonical(name)
    if main in {*SUMS, STEP, PEAK, LEARNING_RATE, *asked} or name in asked or main.startswith(PHASE):
        return True
    return is_loss(main) or is_score(main) or any(matches(pattern, main) for pattern in PEAKS)


def curves_of(series: dict[str, PointArrays]) -> dict[str, Curve]:
    """Return curves under canonical names, with those that follow from others."""
    start = _start(series)
    found: dict[str, Curve] = {}
    for name, points in series.items():
        main = canonical(name)
        if name == main or main not in series:
            curve = curve_of(points, start, SUM if main in SUMS else MOST if main.endswith("bytes") else MEAN)
            factor = aliases[name].factor if name in aliases else 1.0
            found[main] = Curve(curve.step, curve.elapsed, curve.value * factor, curve.left_out)
    _add_peak(found)
    _add_rates(found)
    return _with_time(found)


def _start(series: dict[str, PointArrays]) -> float:
    """Return the start of the first step, on the clock of the points."""
    firsts = []
    for name, points in series.items():
        known = np.isfinite(points.time) & np.isfinite(points.value)
        if known.any():
            at = int(np.argmin(np.where(known, points.time, np.inf)))
            firsts.append(float(points.time[at]) - (float(points.value[at]) if name == STEP else 0.0))
    return min(firsts, default=float("nan"))


def span_of(series: dict[str, PointArrays]) -> tuple[float, float] | None:
    """Return start and end of the steps; None if the source has no absolute times."""
    times = series[STEP].time if STEP in series else np.empty(0)
    times = times[np.isfinite(times)]
    return (float(times.min()), float(times.max())) if len(times) and times.min() > ABSOLUTE else None


def _add_peak(curves: dict[str, Curve]) -> None:
    for pattern in PEAKS:
        if PEAK in curves:
            return
        parts = [curve for name, curve in curves.items() if matches(pattern, name) and len(curve)]
        if parts:
            curves[PEAK] = max(parts, key=lambda curve: float(curve.value.max()))


def _add_rates(curves: dict[str, Curve]) -> None:
    """Add the throughput where samples or tokens of the steps are known."""
    for what in ("samples", "tokens"):
        rate = f"{what}_per_second"
        if rate not in curves and what in curves and STEP in curves:
            steps, here, there = np.intersect1d(curves[STEP].step, curves[what].step, return_indices=True)
            seconds, amount = curves[STEP].value[here], curves[what].value[there]
            some = seconds > 0
            curves[rate] = Curve(steps[some], curves[STEP].elapsed[here][some], amount[some] / seconds[some])


def _with_time(curves: dict[str, Curve]) -> dict[str, Curve]:
    """Use the durations of the steps as a clock if the source has no times."""
    step = curves.get(STEP)
    if step is None or not len(step) or np.isfinite(step.elapsed).any():
        return curves
    clock = np.cumsum(step.value)

    def timed(curve: Curve) -> Curve:
        if not len(curve) or np.isfinite(curve.elapsed).any() or curve.step[0] == NO_STEP:
            return curve
        return Curve(curve.step, np.interp(curve.step, step.step, clock), curve.value, curve.left_out)

    return {name: timed(curve) for name, curve in curves.items()}


def past_facts(past: Past, series: dict[str, PointArrays]) -> dict[str, Any]:
    """Return hardware, batch, build and settings of a run, named as in `analysis.compare.likeness`."""
    meta = past.meta
    part: Callable[[str], dict[str, Any]] = lambda key: meta[key] if isinstance(meta.get(key), dict) else {}  # noqa: E731
    memory = part("memory").get("total_bytes")
    devices = {name for machine in past.machines() for name in machine.devices.values()}
    gpus = {name.split("/")[1] for name in past.names() if re.match(r"gpu/\d+/", name)}
    facts = {
        "hardware/machine": part("platform").get("machine"),
        "hardware/processors": part("cpu").get("usable"),
        "hardware/memory_gib": round(memory / 2**30) if isinstance(memory, (int, float)) else None,
        "hardware/gpus": len(gpus) or None,
        "hardware/devices": ", ".join(sorted(devices)) or None,
        "batch/world_size": meta.get("world_size"),
        "build/commit": str(part("git").get("commit") or "")[:12] or None,
        "build/python": part("python").get("version"),
    }
    facts |= {f"build/{name}": version for name, version in part("packages").items() if name in PACKAGES}
    if "samples" in series:
        value = series["samples"].value
        facts["batch/samples"] = float(np.median(value[np.isfinite(value)])) if np.isfinite(value).any() else None
    facts |= {category_of(key): value for key, value in flat(meta.get("config"))}
    return {name: value for name, value in facts.items() if value is not None}


def category_of(key: str) -> str:
    """Return the name of a fact with its category in front."""
    kinds = (("batch", BATCH), ("build", BUILD), ("hardware", HARDWARE))
    return f"{next((what for what, pattern in kinds if pattern.search(key)), 'config')}/{key}"


def flat(tree: Any, above: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Yield the plain values of a configuration with their paths, up to a limit."""
    if not isinstance(tree, dict) or depth > 8:
        return
    for number, (key, value) in enumerate(tree.items()):
        if number >= MOST_SETTINGS:
            return
        name = f"{above}.{key}" if above else str(key)
        if isinstance(value, dict):
            yield from flat(value, name, depth + 1)
        elif isinstance(value, (str, int, float, bool)) and len(str(value)) <= 200:
            yield name, value


def of_imported(run: Imported, asked: Collection[str] = ()) -> Recording:
    """Return a run of another tool."""
    series: dict[str, PointArrays] = {name: run.series(name) for name in run.names() if wanted(name, asked)}
    facts = {category_of(key): value for key, value in flat(run.facts) if value is not None}
    name = os.path.basename(run.path)
    label = name if len(name) <= 40 else f"{name[:18]}…{name[-18:]}"
    return Recording(label, curves_of(series), facts, span_of(series), planned_in(facts))
