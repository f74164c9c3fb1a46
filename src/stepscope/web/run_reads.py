"""What each route about runs returns, by its path. Loads every view, numpy and DuckDB, so only threads import it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stepscope.sources.diagnosis import diagnose
from stepscope.store.console import ConsoleQuery
from stepscope.store.curves import Ask, curves
from stepscope.views.comparison_view import comparison_view
from stepscope.views.console_view import printed_lines
from stepscope.views.curve_message import encode_curves
from stepscope.views.event_list import alert_list, event_list, histogram_list
from stepscope.views.ledger import usual_account
from stepscope.views.machine_view import machine_view
from stepscope.views.metric_list import metric_list
from stepscope.views.ranks import map_view, ranks_view, step_view
from stepscope.views.recipe import recipe
from stepscope.views.run_head import run_head

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepscope.store.reader import Past
    from stepscope.web import parameters as given


def _series(_site: Any, parameters: given.SeriesParameters, *runs: Past) -> bytes:
    asked = _query(parameters, fold=parameters.fold or "")
    return encode_curves(
        [(key, curves(past, asked)) for key, past in dict(zip(parameters.run, runs, strict=True)).items()]
    )


def _query(parameters: given.CurveParameters, fold: str = "") -> Ask:
    chosen = (parameters.rank, parameters.attempt)
    ranks, attempts = (None if values is None else tuple(dict.fromkeys(values)) for values in chosen)
    steps, times = parameters.range_on("step"), parameters.range_on("time", 1e6)
    names = tuple(dict.fromkeys(parameters.name))
    folded, worst = bool(fold), fold == "worst"
    return Ask(names, parameters.points, ranks, attempts, steps, times, fold=folded, worst=worst)


def _console(_site: Any, asked: given.ConsoleParameters, past: Past) -> dict[str, Any]:
    ranks = None if asked.rank is None else frozenset(asked.rank)
    places = (asked.since, asked.until, asked.after, asked.last)
    query = ConsoleQuery(ranks, asked.attempt, *places, pattern=asked.pattern, level=asked.level, limit=asked.limit)
    return printed_lines(past, query, asked.step)


READS: dict[str, Callable[..., Any]] = {
    "/api/run": lambda site, _, past: run_head(past, site.first),
    "/api/names": lambda site, _, past: metric_list(past, site.first),
    "/api/events": lambda _, asked, past: event_list(past, asked.kind, asked.limit),
    "/api/console": _console,
    "/api/histograms": lambda _, asked, past: histogram_list(past, asked.name, asked.limit),
    "/api/machine": lambda _site, _, past: machine_view(past),
    "/api/ranks": lambda _site, asked, past: ranks_view(past, asked.steps),
    "/api/ranks/map": lambda _site, asked, past: map_view(past, asked.what, asked.steps, asked.buckets),
    "/api/ranks/step": lambda _site, asked, past: step_view(past, (asked.first, asked.last), asked.rank),
    "/api/compare": lambda _site, _, *runs: comparison_view(runs),
    "/api/diagnosis": lambda _site, _, past: diagnose(past),
    "/api/ledger": lambda _site, _, past: usual_account(past),
    "/api/recipe": lambda _, asked, past: recipe(past, _query(asked)),
    "/api/alerts": lambda _site, _, past: alert_list(past),
    "/api/series": _series,
}
"""Functions of the site, the parameters, and the runs that these name; they return plain data, or bytes."""
