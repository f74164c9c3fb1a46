"""The content of `show` as plain data: how the run went, where its time goes, its metrics, and our own cost.

Times are in seconds. Each derived number has its definition in DEFINITIONS; a number that cannot be computed is None,
never 0.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from stepscope.analysis import clocks
from stepscope.core.events import ours
from stepscope.core.ring import NO_STEP
from stepscope.core.vocabulary import canonical, unit_of
from stepscope.sources.attempts import counts_of, nodes_of
from stepscope.sources.clocks import clock_offsets, true_events
from stepscope.sources.first_error import first_error_of
from stepscope.sources.hang import recorded_verdict
from stepscope.store.curves import MOST_POINTS
from stepscope.store.layout import RunFolder
from stepscope.store.machine import declared
from stepscope.store.parquet import Selection
from stepscope.store.retention import size_of
from stepscope.store.series import Series, by_name, summarize, whole
from stepscope.store.snapshot import take_snapshot
from stepscope.store.states import LOST_AFTER, NodeState, newest_attempt, read_nodes
from stepscope.views.buckets import buckets_of
from stepscope.views.event_list import QUIET, last_texts, line_of
from stepscope.views.nodes import DEFINITION as NODES
from stepscope.views.nodes import nodes_view
from stepscope.views.pace import SAMPLES, STEP, pace_of
from stepscope.views.rates import DEFINITIONS as RATES
from stepscope.views.rates import rates
from stepscope.views.run_list import standing
from stepscope.views.sinks import sink_rows
from stepscope.views.sums import lines_of, sums_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from stepscope.core.arrays import Floats
    from stepscope.store.points import Points
    from stepscope.store.reader import Past
    from stepscope.views.buckets import Buckets
    from stepscope.views.sums import Sums

PHASE, OWN = "phase/", "stepscope/"
OWN_COST = tuple(f"{OWN}{name}" for name in ("log_seconds", "bytes_total", "drain_lag_seconds", "ring_fill_ratio"))
"""Metrics that tell the cost of watching."""
FIRST = ("loss", "accuracy", "perplexity", "learning_rate", "grad_norm", "epoch")
"""Canonical names that come first among the metrics; machine metrics come last."""
WINDOW = 1_000_000
"""Maximum rows of `step_seconds`; of longer runs only the last steps are used."""
FINE_POINTS = 20_000
"""Maximum points of a metric that are read one by one; beyond it, buckets (the same statistics, no percentiles)."""
CHECKED_POINTS = 5_000_000
"""Maximum points of a run for which every block is checked for problems."""
TIMED_ROWS = 5000
"""Minimum rows of a rank for the time of a call: one in 256 is timed, and the first is cold."""
TREND = 24
"""Buckets of a metric's trend."""
TREND_POINTS = 200
"""Buckets in which the first rank of a metric is read for its trend."""
FEW_RANKS = 16
"""Ranks whose last steps are read one by one however long the run is; of more ranks all steps are summed."""
LAST_STEPS = 20
BESIDE = ("loss", "grad_norm", "learning_rate")
"""Metrics shown beside the time of a step."""
NO_REASON = QUIET | {"text", "clock_jump", "sampler_back"}
"""Kinds of events that do not explain an end."""
LAST_EVENTS = 5
TRACE_LINES = 12

DEFINITIONS = {
    "share": "seconds of the phase / seconds of the steps that have phases, over all ranks and attempts",
    "mean": "seconds of the phase / number of steps that have phases",
    "p50": "median over the steps that have the phase",
    "p95": "95th percentile over the steps that have the phase",
    **RATES,
    "clocks": "seconds by which a node's clock is ahead of that of the node with rank 0; times are corrected by it",
    "nodes": NODES,
    "cost_ratio": "time of a log call on the training thread (sampled) * rows / duration of the run",
}


def overview(past: Past, metrics: int | None = None) -> dict[str, Any]:
    """Return everything, with at most `metrics` of the program's own metrics (None: all, also the machine's)."""
    nodes, counts = nodes_of(past), counts_of(past)
    sampled = machine_names(past, counts)
    names = metric_names(counts, sampled)
    if metrics is not None:
        names = [name for name in names if name not in sampled]
    stands, ranks, sums = standing(nodes), attempts(nodes), sums_of(past)
    return {
        "run": identity(past),
        **{key: stands[key] for key in ("state", "cause", "step", "heard")},
        "duration_seconds": stands["duration"],
        "bytes": size_of(past.path),
        "points": sum(counts.values()),
        "attempts": ranks,
        "nodes": nodes_view(past, nodes),
        "clocks": clocks.facts(clock_offsets(past)),
        "time": _step_time(past, counts, sums),
        "throughput": throughput(past, counts, sums),
        "metrics": metric_rows(past, names[:metrics], counts, sums),
        "metrics_total": len(names),
        "texts": last_texts(past),
        "machine": machine(past, {name: sums[name] for name in sampled if name in sums}),
        "sinks": sink_rows(RunFolder(past.path)),
        "end": end(past, ranks, stands["step"]),
        "hang": None if (verdict := recorded_verdict(past)) is None else verdict.as_dict(),
        "own_cost": own_cost(sums, nodes, stands["duration"]),
        "events": dict(Counter(str(event.get("kind", "other")) for event in past.events())),
        "problems": problems(past, counts),
        "definitions": DEFINITIONS,
    }


def identity(past: Past) -> dict[str, Any]:
    """Return the run's identity from its run.json."""
    meta = past.meta
    who = {"id": past.id, "name": past.name, "project": past.project, "path": str(past.path)}
    kept = ("source", "world_size", "host", "platform", "python", "cpu", "memory", "container", "git", "cwd", "config")
    facts = {key: meta.get(key) for key in (*kept, "labels")}
    return {**who, "created": meta.get("created", 0) / 1e6 or None, **facts, "command": meta.get("argv")}


def attempts(nodes: list[NodeState]) -> list[dict[str, Any]]:
    """Return each rank of each attempt, in order."""
    kept = ("state", "cause", "inferred", "pid", "step", "rows", "lost", "refused")
    found = []
    for node in sorted(nodes, key=lambda node: (node.attempt, node.node)):
        for number, rank in sorted(node.ranks.items()):
            until, facts = rank.ended or node.time, {key: getattr(rank, key) for key in kept}
            seconds = (until - rank.started) / 1e6 if rank.started and until else None
            facts["stall"] = rank.stall if rank.state == "running" else ""
            found.append({"attempt": node.attempt, "rank": number, "node": node.node, **facts, "seconds": seconds})
    return found


def metric_names(counts: Iterable[str], sampled: Collection[str] = ()) -> list[str]:
    """Return the names of metrics to list, the best known first, the machine's last."""
    own = [name for name in counts if name not in {STEP, SAMPLES} and not name.startswith((PHASE, OWN))]
    return sorted(own, key=lambda name: (name in sampled, importance(name), name))


def importance(name: str) -> int:
    """Return the place of a metric among those in FIRST; all others come after them."""
    known = canonical(name)
    return FIRST.index(known) if known in FIRST else len(FIRST)


def step_range(past: Past, counts: dict[str, int]) -> tuple[int, int] | None:
    """Return the range of steps to analyze; None for all of them."""
    if counts.get(STEP, 0) <= WINDOW:
        return None
    coarse = past.series(STEP, points=1000)
    ranks = max(1, len(np.unique(coarse.rank)))
    last = int(coarse.step.max())
    return last - WINDOW // ranks + 1, last


class TimeSpent(NamedTuple):
    """The seconds of the steps, or of one phase."""

    steps: int
    """Number of steps that have it."""
    seconds: float
    figures: Mapping[str, float | None]
    """mean, p50, p95 and max of a step."""


def step_time(past: Past, counts: dict[str, int], steps: tuple[int, int] | None) -> dict[str, Any] | None:
    """Return how long steps take and their phases, the largest first; None without steps."""
    if STEP not in counts:
        return None
    names = [STEP, *(name for name in counts if name.startswith(PHASE))]
    found = {name: past.series(name, step_range=steps).value for name in names}
    return divided({name: TimeSpent(len(one), float(one.sum()), summarize(one)) for name, one in found.items()}, steps)


def _step_time(past: Past, counts: dict[str, int], sums: Sums) -> dict[str, Any] | None:
    """Return `step_time`; of very many steps of many ranks that of all steps, without percentiles."""
    timed = {name: one for name, one in sums.items() if name == STEP or name.startswith(PHASE)}
    if STEP not in timed or counts.get(STEP, 0) <= WINDOW or len(timed[STEP].rank) <= FEW_RANKS:
        return step_time(past, counts, step_range(past, counts))
    return summed(timed)


def summed(timed: Mapping[str, Buckets]) -> dict[str, Any]:
    """Return how the steps divide into phases, from exact sums: without percentiles."""
    spent = {}
    for name, one in timed.items():
        figures = {"mean": one.average(), "p50": None, "p95": None, "max": one.highest()}
        spent[name] = TimeSpent(int(one.count.sum()), one.total(), figures)
    return divided(spent)


def divided(spent: dict[str, TimeSpent], window: tuple[int, int] | None = None) -> dict[str, Any]:
    """Return how the steps divide into phases, the largest first; `spent` has the step and each phase by metric."""
    whole, phases = spent[STEP], {name.removeprefix(PHASE): one for name, one in spent.items() if name != STEP}
    # If only every n-th step is measured, the others have no phases; those of a measured step sum to it.
    measured = sum(one.seconds for one in phases.values())
    number = max((one.steps for one in phases.values()), default=0)
    rows = [
        {
            "phase": name,
            "seconds": one.seconds,
            "share": one.seconds / measured if measured > 0 else None,
            "mean": one.seconds / number if number else None,
            **{key: one.figures[key] for key in ("p50", "p95", "max")},
            "steps": one.steps,
        }
        for name, one in sorted(phases.items(), key=lambda phase: -phase[1].seconds)
    ]
    figures = {key: whole.figures[key] for key in ("mean", "p50", "p95", "max")}
    return {"steps": whole.steps, "seconds": whole.seconds, "window": window, "step": figures, "phases": rows}


def throughput(past: Past, counts: dict[str, int], sums: Sums | None = None) -> list[dict[str, Any]]:
    """Return steps and samples per second of each attempt; its sums need not be read again if they are given."""
    if STEP not in counts:
        return []
    found = pace_of(past, sums).attempts()
    return [{"attempt": attempt, "ranks": len(ranks), **rates(ranks)._asdict()} for attempt, ranks in found.items()]


def metric_rows(past: Past, names: Sequence[str], counts: Mapping[str, int], sums: Sums) -> list[dict[str, Any]]:
    """Return the statistics of each metric over all ranks and attempts, and the trend of its first rank."""
    short = [name for name in names if counts.get(name, 0) <= FINE_POINTS]
    if sum(counts.get(name, 0) for name in short) > MOST_POINTS:
        short = []
    found = {name: (summarize(one.value), trend(one)) for name, one in _whole(past, short).items()}
    summed = [name for name in names if name not in found and name in sums]
    lines = lines_of(past, sums, summed, TREND_POINTS)
    found |= {name: (sums[name].figures(), _parts(lines[name], TREND) if name in lines else []) for name in summed}
    rows = ((name, *found[name]) for name in names if name in found)
    return [{"name": name, "unit": unit_of(name), **figures, "trend": parts} for name, figures, parts in rows]


def metric(past: Past, name: str) -> dict[str, Any]:
    """Return the statistics of one metric over all ranks and attempts, and its trend."""
    return metric_rows(past, [name], counts_of(past), sums_of(past, [name]))[0]


def _whole(past: Past, names: Sequence[str]) -> dict[str, Series]:
    points = past.points(list(names)) if names else None
    return {} if points is None else {name: whole(name, part) for name, part in by_name(points)}


def trend(series: Series, stretches: int = TREND) -> list[float | None]:
    """Return the mean of each part of the first rank's values; None if one of them is not finite."""
    return _parts(buckets_of(series), stretches)


def _parts(one: Buckets, stretches: int) -> list[float | None]:
    value = np.where(one.finite < one.count, np.nan, one.mean)
    first = value[one.rank == one.rank.min()] if len(one.rank) else value
    parts: Sequence[Floats] = np.array_split(first, min(stretches, len(first)) or 1)
    return [float(part.mean()) if np.isfinite(part).all() else None for part in parts if len(part)]


def details(past: Past, name: str) -> dict[str, Any]:
    """Return every statistic of one metric, percentiles included. Raises UsageError if there is no such metric."""
    series = past.series(name)
    steps = series.step[series.step != NO_STEP]
    first, last = (int(steps.min()), int(steps.max())) if len(steps) else (None, None)
    facts = {"name": name, "unit": unit_of(name), **summarize(series.value), "trend": trend(series, 2 * TREND)}
    return {**facts, "first_step": first, "last_step": last, "ranks": np.unique(series.rank).tolist()}


def machine_names(past: Past, counts: Iterable[str]) -> set[str]:
    """Return the machine metrics: those that a watcher of the run has declared."""
    machines = past.machines()
    groups = {metric.name.partition("/")[0] for machine in machines for metric in machine.metrics}
    return {name for name in counts if name.partition("/")[0] in groups and declared(machines, name)}


def machine(past: Past, sums: Sums) -> dict[str, Any]:
    """Return mean, maximum and last value of the machine metrics, and what could not be sampled and why."""
    absent = {what: why for node in past.machines() for what, why in node.absent.items()}
    devices = {what: name for node in past.machines() for what, name in node.devices.items()}
    metrics = {}
    for name, one in sorted(sums.items()):
        metrics[name] = {"mean": one.average(), "min": one.lowest(), "max": one.highest(), "last": one.newest()}
    return {"metrics": metrics, "absent": absent, "devices": devices}


def end(past: Past, attempts: list[dict[str, Any]], last: int | None) -> dict[str, Any]:
    """Return how the run ended: the first error, the last steps and lines of its rank, and what came before."""
    attempt = newest_attempt(nodes_of(past))
    own = [rank for rank in attempts if rank["attempt"] == attempt]
    bad = [rank for rank in own if rank["state"] not in {"finished", "running"}]
    first = first_error_of(past)
    number = first.rank if first is not None and first.ranks else min((rank["rank"] for rank in bad or own), default=0)
    events = [event for event in true_events(past) if event.get("kind") not in NO_REASON]
    return {
        "attempt": attempt,
        "rank": number,
        "traceback": list(first.lines) if first is not None and first.lines else _traceback(events, number),
        "first_error": None if first is None else first.as_dict(),
        "events": [_event(event) for event in events[-LAST_EVENTS:]],
        "steps": last_steps(past, number, attempt, last),
    }


def _traceback(events: Sequence[dict[str, Any]], rank: int) -> list[str]:
    errors = [event for event in ours(events) if event.get("kind") == "exception" and event.get("rank") == rank]
    return str(errors[-1].get("traceback", "")).rstrip().splitlines()[-TRACE_LINES:] if errors else []


def _event(event: dict[str, Any]) -> dict[str, Any]:
    kept = {key: event.get(key) for key in ("kind", "time", "rank", "step")}
    text = line_of(event)
    try:
        frame = event["stacks"][-1]["frames"][0]  # the innermost frame of the main thread
        text = f"{text}; it is at {frame['file']}:{frame['line']} in {frame['function']}"
    except (TypeError, KeyError, IndexError):
        pass  # most events have no stacks
    return {**kept, "text": text[:400]}


def last_steps(past: Past, rank: int, attempt: int, last: int | None) -> list[dict[str, Any]]:
    """Return the last steps of a rank: duration, longest phases and the values logged with each."""
    names = set(past.names())
    if last is None or STEP not in names:
        return []
    phases = [name for name in names if name.startswith(PHASE)]
    wanted = {STEP, *phases, *(name for name in BESIDE if name in names)}
    chosen = Selection(wanted, (rank,), (attempt,), (last - LAST_STEPS + 1, last))
    points = past.read(lambda snapshot, connection: snapshot.points(chosen, connection))
    columns = {name: dict[int, float]() for name in wanted} | {name: _by_step(part) for name, part in by_name(points)}
    rows = []
    for step, seconds in sorted(columns[STEP].items())[-LAST_STEPS:]:
        taken = {name.removeprefix(PHASE): columns[name][step] for name in phases if step in columns[name]}
        beside = {name: columns[name].get(step) for name in BESIDE if name in columns}
        rows.append({"step": step, "seconds": seconds, "phases": taken, **beside})
    return rows


def _by_step(points: Points) -> dict[int, float]:
    pairs = zip(points.step.tolist(), points.value.tolist(), strict=True)
    return {step: value for step, value in pairs if step != NO_STEP}


def own_cost(sums: Sums, nodes: list[NodeState], duration: float | None) -> dict[str, float | int | None]:
    """Return the cost of watching, and what was lost."""

    def figure(name: str, which: str) -> float | None:
        one = sums.get(f"{OWN}{name}")
        return None if one is None else (one.newest() if which == "last" else one.highest())

    ranks = [rank for node in nodes for rank in node.ranks.values()]
    busiest = max((rank.rows for rank in ranks), default=0)
    call = figure("log_seconds", "last") if busiest >= TIMED_ROWS else None
    return {
        "log_seconds": call,
        **{key: sum(getattr(rank, key) for rank in ranks) for key in ("rows", "lost", "refused")},
        "bytes": figure("bytes_total", "max"),
        "drain_lag_seconds_max": figure("drain_lag_seconds", "max"),
        "ring_fill_ratio_max": figure("ring_fill_ratio", "max"),
        "cost_ratio": call * busiest / duration if call is not None and duration else None,
    }


def problems(past: Past, counts: dict[str, int]) -> list[str]:
    """Return what could not be read; of a very large run, the problems recorded in its files."""
    if sum(counts.values()) <= CHECKED_POINTS:
        return past.problems()
    folder = RunFolder(past.path)
    note = f"only listed, not read: more than {CHECKED_POINTS} points"
    return [*take_snapshot(folder).problems, *read_nodes(folder)[1], note]


def silence(heard: float | None, now: float | None = None) -> float | None:
    """Return the seconds since the last heartbeat of a live run; None if that is normal."""
    if heard is None:
        return None
    quiet = (time.time() if now is None else now) - heard
    return quiet if quiet > LOST_AFTER / 2 else None
