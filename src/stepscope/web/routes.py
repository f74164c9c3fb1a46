"""The routes: one table for the server and for its description."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stepscope.web import questions as ask
from stepscope.web import shapes
from stepscope.web.answers import NotThereError, Site, encoded

if TYPE_CHECKING:
    from collections.abc import Callable

    import duckdb

    Reader = Callable[[Site, Any, duckdb.DuckDBPyConnection], dict[str, Any]]

DEADLINE = 30.0
"""Seconds after which a request is cancelled."""


@dataclass(frozen=True)
class JsonRoute:
    """A route that reads a run in a thread and answers in JSON."""

    path: str
    title: str
    question: type[ask.Question]
    answer: Any
    read: Reader


def _head(site: Site, asked: ask.OfRun, connection: duckdb.DuckDBPyConnection) -> dict[str, Any]:
    from stepscope.views.run_head import run_head

    return run_head(site.open(asked.run, connection), site.first)


def _names(site: Site, asked: ask.OfRun, connection: duckdb.DuckDBPyConnection) -> dict[str, Any]:
    from stepscope.views.metric_list import metric_list

    return metric_list(site.open(asked.run, connection), site.first)


def _events(site: Site, asked: ask.Events, connection: duckdb.DuckDBPyConnection) -> dict[str, Any]:
    from stepscope.views.event_list import event_list

    return event_list(site.open(asked.run, connection), asked.kind, asked.limit)


def _histograms(site: Site, asked: ask.Histograms, connection: duckdb.DuckDBPyConnection) -> dict[str, Any]:
    from stepscope.views.event_list import histogram_list

    return histogram_list(site.open(asked.run, connection), asked.name, asked.limit)


def _machine(site: Site, asked: ask.OfRun, connection: duckdb.DuckDBPyConnection) -> dict[str, Any]:
    from stepscope.views.machine_view import machine_view

    return machine_view(site.open(asked.run, connection))


def _compare(site: Site, asked: ask.Compare, connection: duckdb.DuckDBPyConnection) -> dict[str, Any]:
    from stepscope.views.comparison_view import comparison_view

    return comparison_view([site.open(key, connection) for key in asked.run])


def _diagnosis(site: Site, asked: ask.OfRun, connection: duckdb.DuckDBPyConnection) -> dict[str, Any]:
    from stepscope.views.diagnosis import diagnose

    return diagnose(site.open(asked.run, connection))


def _ledger(site: Site, asked: ask.OfRun, connection: duckdb.DuckDBPyConnection) -> dict[str, Any]:
    from stepscope.views.pricing import usual_account

    return usual_account(site.open(asked.run, connection))


def _alerts(site: Site, asked: ask.OfRun, connection: duckdb.DuckDBPyConnection) -> dict[str, Any]:
    from stepscope.views.alert_list import alert_list

    return alert_list(site.open(asked.run, connection))


def _recipe(site: Site, asked: ask.Recipe, connection: duckdb.DuckDBPyConnection) -> dict[str, Any]:
    from stepscope.views.recipe import Part, recipe

    names = tuple(dict.fromkeys(asked.name))
    ranks, attempts = _tuple(asked.rank), _tuple(asked.attempt)
    part = Part(names, ranks, attempts, asked.ends("step"), asked.ends("time", 1e6))
    return dict(recipe(site.open(asked.run, connection), part))


def _tuple(values: list[int] | None) -> tuple[int, ...] | None:
    return None if values is None else tuple(dict.fromkeys(values))


JSON_ROUTES = (
    JsonRoute("/api/run", "The first screen of a run", ask.OfRun, shapes.Head, _head),
    JsonRoute("/api/names", "The metrics of a run", ask.OfRun, shapes.Metrics, _names),
    JsonRoute("/api/events", "What happened in a run", ask.Events, shapes.Events, _events),
    JsonRoute("/api/histograms", "The histograms of a run", ask.Histograms, shapes.Histograms, _histograms),
    JsonRoute("/api/machine", "The machine of a run", ask.OfRun, shapes.Machine, _machine),
    JsonRoute("/api/compare", "Runs beside each other", ask.Compare, shapes.Comparison, _compare),
    JsonRoute("/api/diagnosis", "Why a run is slow or goes wrong", ask.OfRun, shapes.Diagnosis, _diagnosis),
    JsonRoute("/api/alerts", "The alerts of a run", ask.OfRun, shapes.Alerts, _alerts),
    JsonRoute("/api/ledger", "Where time and money went", ask.OfRun, shapes.Ledger, _ledger),
    JsonRoute("/api/recipe", "The same numbers elsewhere", ask.Recipe, shapes.Recipe, _recipe),
)


async def read_json(site: Site, route: JsonRoute, asked: ask.Question, query: bytes) -> bytes:
    """Return the answer of a route in JSON, read in a thread and encoded there."""

    def read(connection: duckdb.DuckDBPyConnection) -> bytes:
        return encoded(route.read(site, asked, connection))

    run = getattr(asked, "run", "")
    return bytes(await timed(site.readers.ask((route.path, query), read, run if isinstance(run, str) else run[0])))


async def read_series(site: Site, asked: ask.Series, query: bytes) -> bytes:
    """Return curves in the binary form."""
    for key in asked.run:
        site.folder(key)

    def read(connection: duckdb.DuckDBPyConnection) -> bytes:
        from stepscope.store.curves import Ask, curves
        from stepscope.views.curve_message import encode_curves

        wanted = Ask(
            tuple(dict.fromkeys(asked.name)),
            asked.points,
            _tuple(asked.rank),
            _tuple(asked.attempt),
            asked.ends("step"),
            asked.ends("time", 1e6),
            fold=asked.fold is not None,
        )
        keys = list(dict.fromkeys(asked.run))
        return encode_curves([(key, curves(site.open(key, connection), wanted)) for key in keys])

    return bytes(await timed(site.readers.ask(("series", query), read, asked.run[0])))


async def read_live(site: Site, asked: ask.Live) -> bytes | dict[str, Any] | None:
    """Return what is new in a run: frames, nothing, or for who begins, where to begin.

    Raises:
        BehindError: the cursor is too old.
    """
    path = site.folder(asked.run)
    channel = site.channels.get(asked.run)
    if channel is None or asked.since is None or channel.is_due:

        def look(connection: duckdb.DuckDBPyConnection) -> Any:
            opened = site.channels.open(asked.run, path, connection)
            opened.look()
            return opened

        channel = await timed(site.readers.ask(("live", asked.run), look, asked.run))
    if asked.since is not None:
        return channel.since(asked.since)
    hello = await timed(site.readers.ask(("hello", asked.run), lambda _: channel.hello(), asked.run))
    return dict(hello)


def act_on_alerts(site: Site, asked: ask.AlertAction) -> dict[str, Any]:
    """Leave a request for the watchers of a live run, and say what will come of it.

    Raises:
        NotThereError: the run is not there, or nobody watches it any more.
        UsageError: the request is not complete.
    """
    from stepscope.alerts.requests import ask as leave

    path = site.folder(asked.run)
    row = site.catalogue.row(asked.run)
    if row is None or row["state"] != "running":
        raise NotThereError("this run has ended, and nobody watches it any more; its alerts stay as they are")
    words = {"ack": "acknowledge"}
    named = {"alert": asked.alert or asked.rule, "rule": asked.rule or asked.alert, "seconds": asked.seconds}
    facts = {"do": words.get(asked.action, asked.action), "by": "the page"}
    leave(path, facts | {key: value for key, value in named.items() if value is not None})
    return {"ok": True, "text": "the watcher of the run takes it within a second"}


async def timed(work: Any) -> Any:
    """Wait for an answer, no longer than DEADLINE.

    Raises:
        TimeoutError: it took too long; whoever read was interrupted.
    """
    try:
        return await asyncio.wait_for(work, DEADLINE)
    except asyncio.TimeoutError:
        raise TimeoutError from None


def metrics_page(site: Site, requests: int, refusals: int, started: float) -> bytes:
    """Return the server's own figures for Prometheus."""
    rows = site.catalogue.rows()["rows"]
    states: dict[str, int] = {}
    for row in rows:
        states[row["state"]] = states.get(row["state"], 0) + 1
    readers = site.readers
    lines = [
        *_family("stepscope_web_requests_total", "counter", "requests answered or refused", {"": requests}),
        *_family("stepscope_web_refusals_total", "counter", "requests refused by a rule", {"": refusals}),
        *_family("stepscope_web_reads_total", "counter", "questions read from runs", {"": readers.asked}),
        *_family("stepscope_web_reads_refused_total", "counter", "questions refused: busy", {"": readers.refused}),
        *_family("stepscope_web_reads_cancelled_total", "counter", "questions given up", {"": readers.cancelled}),
        *_family("stepscope_web_uptime_seconds", "gauge", "since the start", {"": time.monotonic() - started}),
        *_family("stepscope_web_runs", "gauge", "runs by state", {f'{{state="{k}"}}': v for k, v in states.items()}),
    ]
    return "\n".join([*lines, ""]).encode()


def _family(name: str, kind: str, text: str, samples: dict[str, float]) -> list[str]:
    head = [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
    return [*head, *(f"{name}{labels} {value:g}" for labels, value in samples.items())]
