"""The report of a run as plain data: the source of every report format.

Times are seconds since 1970 UTC, durations seconds, shares 0 to 1; each metric has its unit. Unknown values are None,
never 0.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from stepscope.alerts.evaluation.history import alerts_of
from stepscope.analysis.compare.quantity import is_loss, is_score
from stepscope.core.numbers import format_money, format_value
from stepscope.core.vocabulary import canonical
from stepscope.sources.attempts import nodes_of
from stepscope.sources.diagnosis import diagnose
from stepscope.version import __version__
from stepscope.views.buckets import buckets_of
from stepscope.views.comparison_view import comparison_view
from stepscope.views.event_list import event_list, text_list
from stepscope.views.ledger import usual_account
from stepscope.views.machine_view import machine_view
from stepscope.views.metric_list import metric_list
from stepscope.views.overview import DEFINITIONS, OWN_COST, own_cost
from stepscope.views.run_head import run_head
from stepscope.views.sums import sums_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.store.reader import Past
    from stepscope.store.series import Series

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
"""Kinds of events that are marked on charts."""
LEDGER_TITLE = "Where the Time Went"
LEDGER_KEYS = ("wall_seconds", "paid_seconds", "goodput_ratio", "steps", "seconds", "imported", "money", "wasted")
"""Keys of a ledger that a report keeps."""


def report(past: Past, others: Sequence[Past] = (), now: float | None = None) -> dict[str, Any]:
    """Return the content of a report at the time `now`, with a comparison if there are other runs."""
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
        "ledger": _ledger(usual_account(past)),
        "training": _training(past, listed, head["important"]),
        "resources": _resources(past, listed),
        "diagnosis": diagnose(past),
        "alerts": alerts_of(past.events()),
        "sinks": head["sinks"],
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
    cost = own_cost(sums_of(past, OWN_COST), nodes_of(past), head["status"]["duration"])
    kept = {key: head["card"][key] for key in ("rate", "samples_per_second", "step_seconds", "gpu", "cost")}
    return {**kept, "time": head["time"], "throughput": head["throughput"], "own_cost": cost}


def _ledger(account: dict[str, Any]) -> dict[str, Any]:
    """Return the part of a ledger that a report shows, with its table and a summary in one sentence."""
    good, whole, money = account["goodput_ratio"], account["wall_seconds"], account["money"]
    rows = [
        [
            name,
            format_value(seconds, "seconds"),
            format_value(seconds / whole, "ratio"),
            *([format_money(money["classes"][name])] if money else []),
        ]
        for name, seconds in account["seconds"].items()
        if seconds > 0
    ]
    share = "no step is known" if good is None else f"{format_value(good, 'ratio')} were productive"
    summary = f"Of {format_value(whole, 'seconds')} {share}"
    if account["imported"] is not None and not account["imported"]["timed"]:
        summary += "; the times are added up, as the log tells none of the clock"
    return {
        **{key: account[key] for key in LEDGER_KEYS},
        "title": LEDGER_TITLE,
        "titles": ["class", "time", "share", *([money["currency"]] if money else [])],
        "rows": rows,
        "summary": f"{summary}.",
    }


def _training(past: Past, listed: list[dict[str, Any]], important: list[str]) -> dict[str, Any]:
    own = [one for one in listed if one["source"] == "training"]
    names = [one["name"] for one in own[:METRICS]]
    found = past.overview(names, POINTS) if names else {}
    rows = _rows(own, found)
    ordered = dict.fromkeys([*(name for name in important if name in found), *names])
    charts = [name for name in ordered if canonical(name) not in COUNTERS][:CHARTS]
    return {"metrics": [{**row, "best": best(row)} for row in rows], "total": len(own), "charts": charts}


def _rows(metrics: list[dict[str, Any]], found: dict[str, Series]) -> list[dict[str, Any]]:
    return [
        {**{key: one[key] for key in ("name", "unit", "help")}, **buckets_of(found[one["name"]]).figures()}
        for one in metrics
        if one["name"] in found
    ]


def best(row: dict[str, Any]) -> float | None:
    """Return the best value of a loss or a score; None for other metrics."""
    known = canonical(row["name"])
    value = row["max"] if is_score(known) else row["min"] if is_loss(known) else None
    return None if value is None else float(value)


def _resources(past: Past, listed: list[dict[str, Any]]) -> dict[str, Any]:
    sampled = [one for one in listed if one["source"] == "machine"][:MACHINE_METRICS]
    found = past.overview([one["name"] for one in sampled], POINTS) if sampled else {}
    machine = machine_view(past)
    charts = [
        {"title": one["title"], "unit": one["unit"], "names": one["names"][:MACHINE_LINES]}
        for one in machine["groups"]
        if one["title"] not in one["names"]
    ]
    kept = {key: machine[key] for key in ("nodes", "gpus", "processes")}
    return {"metrics": _rows(sampled, found), **kept, "charts": charts[:MACHINE_CHARTS]}


def markers(facts: dict[str, Any], most: int = 60) -> list[dict[str, Any]]:
    """Return the marks on charts: step, time, text and kind of some events, the newest last."""
    own = ("checkpoint", "alert", "attempt")
    return [
        {**{key: one[key] for key in ("step", "time", "text")}, "kind": one["kind"] if one["kind"] in own else "event"}
        for one in facts["events"]
        if one["kind"] in MARKED and one["data"].get("state") in (None, "firing")
    ][-most:]
