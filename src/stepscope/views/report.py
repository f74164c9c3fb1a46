"""The report of a run as plain data: the source of every report format.

Times are seconds since 1970 UTC, durations seconds, shares 0 to 1; each metric has its unit. Unknown values are None,
never 0.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from stepscope.alerts.evaluation.history import alerts_of
from stepscope.analysis.compare.quantity import is_loss, is_score
from stepscope.core.vocabulary import canonical
from stepscope.sources.diagnosis import diagnose
from stepscope.store.layout import RunFolder
from stepscope.store.snapshot import take_snapshot
from stepscope.store.states import read_nodes
from stepscope.version import __version__
from stepscope.views.buckets import Buckets, buckets_of
from stepscope.views.comparison_view import comparison_view
from stepscope.views.event_list import event_list, text_list
from stepscope.views.ledger_summary import kept
from stepscope.views.machine_view import machine_view
from stepscope.views.metric_list import metric_list
from stepscope.views.overview import DEFINITIONS, own_cost
from stepscope.views.pricing import usual_account
from stepscope.views.run_head import run_head

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.store.reader import Past

FORMAT = "stepscope-report"
VERSION = 1
POINTS = 400
"""Buckets for the statistics of a metric, which are exact for any number."""
METRICS = 200
"""Maximum metrics of the training with a row."""
MACHINE_METRICS = 400
CHARTS = 24
"""Maximum metrics of the training with a chart."""
MACHINE_CHARTS = 12
MACHINE_LINES = 8
"""Maximum lines of one machine chart."""
COUNTERS = frozenset(("epoch", "samples", "steps_total"))
"""Counters, which only rise, are not drawn."""
EVENTS = TEXTS = 100
MARKED = frozenset(("checkpoint", "evaluation", "alert", "stalled", "attempt"))
"""Maximum events marked on charts."""


def report(past: Past, others: Sequence[Past] = (), now: float | None = None) -> dict[str, Any]:
    """Return the whole content of a report.

    Args:
        past: the run.
        others: runs to compare with.
        now: time of the report.
    """
    head = run_head(past)
    listed = metric_list(past)["metrics"]
    events = event_list(past, limit=EVENTS)
    return {
        "format": FORMAT,
        "version": VERSION,
        "stepscope": __version__,
        "made": time.time() if now is None else now,
        "run": head["run"],
        "status": head["status"],
        "numbers": head["numbers"],
        "performance": _performance(past, head),
        "ledger": kept(usual_account(past)),
        "training": _training(past, listed, head["important"]),
        "resources": _resources(past, listed),
        "diagnosis": diagnose(past),
        "alerts": alerts_of(past.events()),
        "texts": text_list(past, TEXTS),
        "events": events["events"],
        "events_total": events["total"],
        "end": head["end"],
        "ranks": head["ranks"],
        "points": head["points"],
        "problems": head["problems"],
        "definitions": DEFINITIONS,
        "comparison": comparison_view([past, *others]) if others else None,
    }


def _performance(past: Past, head: dict[str, Any]) -> dict[str, Any]:
    folder = RunFolder(past.path)
    counts = take_snapshot(folder).counts()
    cost = own_cost(past, counts, read_nodes(folder)[0], head["status"]["duration"])
    kept = {key: head["card"][key] for key in ("rate", "samples_per_second", "step_seconds", "gpu", "cost")}
    return {**kept, "time": head["time"], "throughput": head["throughput"], "own_cost": cost}


def _training(past: Past, listed: list[dict[str, Any]], important: list[str]) -> dict[str, Any]:
    own = [one for one in listed if one["source"] == "training"]
    names = [one["name"] for one in own[:METRICS]]
    found = past.overview(names, POINTS) if names else {}
    rows = [{**_metric(one), **figures(buckets_of(found[one["name"]]))} for one in own if one["name"] in found]
    ordered = dict.fromkeys([*(name for name in important if name in found), *names])
    charts = [name for name in ordered if canonical(name) not in COUNTERS][:CHARTS]
    return {"metrics": [{**row, "best": best(row)} for row in rows], "total": len(own), "charts": charts}


def _metric(one: dict[str, Any]) -> dict[str, Any]:
    return {key: one[key] for key in ("name", "unit", "help")}


def figures(one: Buckets) -> dict[str, Any]:
    """Return count, last, min, max and mean of the finite points, and how many are not finite."""
    total = int(one.count.sum())
    place = int(one.time.argmax()) if len(one.time) else None
    return {
        "count": total,
        "last": None if place is None else float(one.last[place]),
        "min": one.lowest(),
        "max": one.highest(),
        "mean": one.average(),
        "nonfinite": total - int(one.finite.sum()),
    }


def best(row: dict[str, Any]) -> float | None:
    """Return the best value of a loss or a score; None for other metrics."""
    known = canonical(row["name"])
    value = row["max"] if is_score(known) else row["min"] if is_loss(known) else None
    return None if value is None else float(value)


def _resources(past: Past, listed: list[dict[str, Any]]) -> dict[str, Any]:
    sampled = [one for one in listed if one["source"] == "machine"][:MACHINE_METRICS]
    found = past.overview([one["name"] for one in sampled], POINTS) if sampled else {}
    rows = [{**_metric(one), **figures(buckets_of(found[one["name"]]))} for one in sampled if one["name"] in found]
    machine = machine_view(past)
    charts = [
        {"title": one["title"], "unit": one["unit"], "names": one["names"][:MACHINE_LINES]}
        for one in machine["groups"]
        if one["title"] not in one["names"]
    ]
    return {
        "metrics": rows,
        "nodes": machine["nodes"],
        "gpus": machine["gpus"],
        "processes": machine["processes"],
        "charts": charts[:MACHINE_CHARTS],
    }


def markers(facts: dict[str, Any], most: int = 60) -> list[dict[str, Any]]:
    """Return the marks on charts: step, time, text and kind of some events, the newest last."""
    kinds = {"checkpoint": "checkpoint", "alert": "alert", "attempt": "attempt"}
    return [
        {"step": one["step"], "time": one["time"], "text": one["text"], "kind": kinds.get(one["kind"], "event")}
        for one in facts["events"]
        if one["kind"] in MARKED and one["data"].get("state") in (None, "firing")
    ][-most:]
