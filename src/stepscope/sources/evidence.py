"""Read the evidence for a diagnosis from a recorded run of any length, or from a run of another tool."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from stepscope.analysis.cost.logged_time import Logged, steps_since
from stepscope.analysis.diagnosis.evidence import RARE, Evidence, RankSteps, Track
from stepscope.core.events import ours
from stepscope.core.ring import NO_STEP
from stepscope.core.vocabulary import aliases, by_canonical, canonical
from stepscope.sources.attempts import PHASE, STEP, at_keys, attempts_of, counts_of, is_foreign, logged_series, nodes_of
from stepscope.sources.clocks import rank_seconds, true_events
from stepscope.sources.first_error import first_error_of
from stepscope.store.states import newest_attempt

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stepscope.analysis.cost.ledger import Attempt
    from stepscope.core.arrays import Floats, Integers
    from stepscope.importers.imported import Imported, ImportedSeries
    from stepscope.store.pyramid import Blocks
    from stepscope.store.reader import Past
    from stepscope.store.series import Series


MOST_STEPS = 200_000
"""Steps that are read one by one with their phases; a longer run is read in blocks."""
BLOCKS = 10_000
"""Blocks of steps of a longer run."""
POINTS, LOSS_POINTS = 4000, 50_000
"""Points of a series, and of a loss; longer series are averaged."""
USELESS = ("stepscope/", PHASE, STEP, "steps_total")
"""Metrics that are irrelevant here, or read separately."""


def evidence_of(past: Past) -> Evidence:
    """Return the evidence of the last attempt of a run."""
    counts = counts_of(past)
    last = newest_attempt(nodes_of(past))
    if counts.get(STEP, 0) > MOST_STEPS:
        ranks = _long(past, counts, last)
    elif is_foreign(past):  # as its file is judged: the ledger cuts its time into other pieces
        ranks = [
            steps
            for (rank, attempt), series in sorted(logged_series(past).items())
            if attempt == last and (steps := _logged_steps(rank, series)) is not None
        ]
    else:
        ranks = [_steps(one) for one in attempts_of(past) if one.number == last and len(one.end)]
    series = _series(past, counts, last, rank_seconds(past, last))
    started = [float(one.end[0] - one.seconds[0]) for one in ranks if len(one)]
    ended = [float(one.end[-1]) for one in ranks if len(one)]
    return Evidence(
        ranks,
        series,
        [event for event in ours(true_events(past)) if event.get("attempt", last) == last],
        past.state,
        past.cause,
        max(ended) - min(started) if ended else None,
        _processors(past.meta, series),
        str(past.meta["imported"].get("format") or "") if is_foreign(past) else "",
        {rank: node.node for node in nodes_of(past) if node.attempt == last for rank in node.ranks},
        first_error=first_error_of(past),
    )


def _steps(one: Attempt) -> RankSteps:
    order = np.argsort(one.end, kind="stable")
    phases = {name: seconds[order] for name, seconds in one.phases.items()}
    return RankSteps(one.rank, one.step[order], one.end[order], one.seconds[order], phases)


def _long(past: Past, counts: Mapping[str, int], attempt: int) -> list[RankSteps]:
    """Return the steps of a long run as blocks: each is the mean of some hundred steps."""
    names = [name for name in counts if name == STEP or name.startswith(PHASE)]
    blocks = {name: series.buckets for name, series in past.overview(names, points=BLOCKS).items()}
    whole = blocks.get(STEP)
    if whole is None:
        return []
    parts = {
        name.removeprefix(PHASE): _by_rank_of(part, attempt)
        for name, part in blocks.items()
        if name != STEP and part is not None
    }
    ahead = rank_seconds(past, attempt)
    return [_blocks_of(rank, own, parts, ahead.get(rank, 0.0)) for rank, own in _by_rank_of(whole, attempt).items()]


def _by_rank_of(blocks: Blocks, attempt: int) -> dict[int, Blocks]:
    """Return the blocks of each rank in an attempt; the blocks are sorted by rank and attempt."""
    own = blocks.select(blocks.attempt == attempt)
    starts: list[int] = np.flatnonzero(np.diff(own.rank, prepend=-(2**31))).tolist() if len(own) else []
    return {int(own.rank[first]): own.select(slice(first, last)) for first, last in pairwise([*starts, len(own)])}


def _blocks_of(rank: int, own: Blocks, parts: Mapping[str, Mapping[int, Blocks]], ahead: float) -> RankSteps:
    """Return the steps of one rank, whose clock is ahead by some seconds, as blocks."""
    weight = own.count.astype(np.float64)
    mine = {phase: part[rank] for phase, part in parts.items() if rank in part}
    measured = max((int(part.count.sum()) for part in mine.values()), default=0)
    scale = float(weight.sum()) / measured if measured else 1.0
    phases = {phase: _spread(part, own) / weight * (1.0 if phase in RARE else scale) for phase, part in mine.items()}
    return RankSteps(rank, own.last_step, own.last_time / 1e6 - ahead, own.mean, phases, weight)


def _spread(part: Blocks, rows: Blocks) -> Floats:
    """Return the seconds of a phase in each row of steps: those of its blocks, spread evenly over their steps."""
    if not len(part):
        return np.zeros(len(rows))
    seconds = np.nan_to_num(part.mean) * (part.count - part.nonfinite)
    after = np.cumsum(seconds)
    order = np.argsort(part.low_step, kind="stable")
    edges = np.stack([part.low_step[order] - 1, part.high_step[order]], axis=1).ravel().astype(np.float64)
    sums = np.stack([after[order] - seconds[order], after[order]], axis=1).ravel()
    edges = np.maximum.accumulate(edges)
    until = np.interp(rows.high_step.astype(np.float64), edges, sums)
    return np.asarray(np.maximum(0.0, np.diff(until, prepend=0.0)))


def _series(
    past: Past, counts: Mapping[str, int], attempt: int, ahead: Mapping[int, float]
) -> dict[str, dict[int, Track]]:
    names = [name for name in counts if not name.startswith(USELESS)]
    fine = [name for name in names if name.replace("_", "/").endswith("/loss") or name == "loss"]
    found: dict[str, dict[int, Track]] = {}
    read = past.overview([name for name in names if name not in fine], points=POINTS)
    read |= past.overview(fine, points=LOSS_POINTS) if fine else {}
    for name, points in read.items():
        main = canonical(name)
        tracks = _tracks(points, attempt, aliases[name].factor if name in aliases else 1.0)
        if ahead:
            tracks = {rank: one.earlier(ahead.get(rank, 0.0)) for rank, one in tracks.items()}
        if tracks and (main == name or main not in counts):
            found[main] = tracks
    return found


def _tracks(points: Series, attempt: int, factor: float) -> dict[int, Track]:
    """Return a series by rank, of one attempt: means of buckets where there are many points."""
    step, when, value, rank, of = points.step, points.time, points.value, points.rank, points.attempt
    blocks = points.buckets
    if blocks is not None:
        bad = blocks.bad_kind > 0
        step = np.concatenate([blocks.last_step, blocks.bad_step[bad]])
        when = np.concatenate([blocks.last_time, blocks.bad_time[bad]]) / 1e6
        value = np.concatenate([blocks.mean, np.full(int(bad.sum()), np.nan)])
        rank, of = (np.concatenate([column, column[bad]]) for column in (blocks.rank, blocks.attempt))
        order = np.lexsort((when, of, rank))
        step, when, value, rank, of = step[order], when[order], value[order], rank[order], of[order]
    mine = of == attempt
    step, when, value, rank = step[mine], when[mine], value[mine] * factor, rank[mine]
    order = np.argsort(rank, kind="stable")
    step, when, value, rank = step[order], when[order], value[order], rank[order]
    starts: list[int] = np.flatnonzero(np.diff(rank, prepend=-(2**31))).tolist() if len(rank) else []
    return {
        int(rank[first]): Track(step[first:last], when[first:last], value[first:last])
        for first, last in pairwise([*starts, len(rank)])
    }


def _processors(meta: Mapping[str, Any], series: Mapping[str, Mapping[int, Track]]) -> float | None:
    for name in ("cgroup/cpu_limit", "cpu/count"):
        for track in series.get(name, {}).values():
            value = track.finite().value
            if len(value):
                return float(value[-1])
    cpu = meta.get("cpu")
    usable = cpu.get("usable") if isinstance(cpu, dict) else None
    return float(usable) if isinstance(usable, (int, float)) else None


def evidence_of_imported(run: Imported) -> Evidence:
    """Return the evidence of a run of another tool: its series, and the steps of each rank if timed."""
    columns = {}
    for main, name in by_canonical(run.names()).items():
        column, factor = run.columns[name], aliases[name].factor if name in aliases else 1.0
        # In our unit: `gpu_utilization`, for example, is in percent.
        columns[main] = column if factor == 1.0 else replace(column, value=column.value * factor)
    series = {name: _by_rank(column) for name, column in columns.items() if not name.startswith(USELESS)}
    series = {name: tracks for name, tracks in series.items() if tracks}
    ranks = _imported_steps(columns)
    status = str(run.facts.get("status") or "finished").lower()
    state = "finished" if status in ("finished", "success", "completed") else "failed" if "fail" in status else status
    spans = [(float(one.end[0] - one.seconds[0]), float(one.end[-1])) for one in ranks if np.isfinite(one.end).all()]
    seconds = max(last for _, last in spans) - min(first for first, _ in spans) if spans else None
    return Evidence(ranks, series, (), state, "", seconds, None, run.format)


def _by_rank(column: ImportedSeries) -> dict[int, Track]:
    found = {}
    for rank in np.unique(column.rank).tolist():
        kept = column.rank == rank
        step, when = column.step[kept], column.time[kept]
        if not np.isfinite(when).all():  # without a clock the order stands for it
            when = np.arange(len(step), dtype=np.float64)
        if len(step) and (step == NO_STEP).all():
            step = np.arange(len(step))
        found[int(rank)] = Track(step, when, column.value[kept])
    return found


def _imported_steps(columns: Mapping[str, ImportedSeries]) -> list[RankSteps]:
    timed = {name: one for name, one in columns.items() if name == STEP or name.startswith(PHASE)}
    found = []
    for rank in np.unique(columns[STEP].rank).tolist() if STEP in columns else ():
        own = {
            name: Logged(*(column[one.rank == rank] for column in (one.step, one.time, one.value)))
            for name, one in timed.items()
        }
        found.append(_logged_steps(int(rank), own))
    return [steps for steps in found if steps is not None]


def _logged_steps(rank: int, series: Mapping[str, Logged]) -> RankSteps | None:
    """Return the logged steps of one rank, each row weighted by the steps it stands for; None without step times."""
    lasted = series.get(STEP)
    kept = np.isfinite(lasted.value) & (lasted.value >= 0) if lasted is not None else np.zeros(0, bool)
    if lasted is None or not kept.any():
        return None
    step, seconds, when = lasted.step[kept], lasted.value[kept], lasted.time[kept]
    if (step == NO_STEP).all():
        step = np.arange(len(step))
    weight = _steps_of_rows(step, seconds, when)
    if not np.isfinite(when).all():
        when = np.cumsum(seconds * weight)
    phases = {}
    for name, one in series.items():
        if name.startswith(PHASE):
            phase = name.removeprefix(PHASE)
            phases[phase] = _beside(one, step) / (weight if phase in RARE else 1.0)
    for each in phases.values():
        outside = np.nan_to_num(each)
        if (outside > seconds).any():  # a tool that counts its steps without it
            seconds = seconds + outside
    return RankSteps(rank, step, when, seconds, phases, weight if (weight > 1).any() else None)


def _steps_of_rows(step: Integers, seconds: Floats, when: Floats) -> Floats:
    """Return how many steps each row of a log stands for: all since the row before.

    Unless a clock shows that no time passes for the others: then the log numbers something else, such as samples.
    """
    apart = np.diff(step).astype(np.float64)
    if not len(apart) or (apart <= 0).any():
        return np.ones(len(step))
    passed = np.diff(when)
    with np.errstate(divide="ignore", invalid="ignore"):
        each = float(np.median(passed / seconds[1:])) if np.isfinite(passed).all() else math.nan
    if np.isfinite(each) and each < 0.5 * float(np.median(apart)):
        return np.ones(len(step))
    return steps_since(step)


def _beside(one: Logged, step: Integers) -> Floats:
    """Return a metric at the given steps; NaN where it is missing."""
    order = np.argsort(step, kind="stable")
    finite = np.isfinite(one.value)
    values = np.empty(len(step))
    values[order] = at_keys(step[order], one.step[finite], one.value[finite])
    return values
