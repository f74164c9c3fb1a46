"""The report of a run as one HTML file, to keep, to send and to print: the page's own charts with their data.

It needs no network, has a strict content policy, and is readable without scripts.
"""

from __future__ import annotations

import base64
import gzip
import json
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import numpy as np

from stepscope.reports import report_sections as sections
from stepscope.reports.markup import Markup, document, tag
from stepscope.reports.report_drawing import DrawnLine, drawing, lines_of
from stepscope.store.curves import Ask, Curves, curves
from stepscope.store.layout import RunFolder
from stepscope.store.states import read_nodes
from stepscope.views.curve_message import encode_curves
from stepscope.views.report import markers

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from stepscope.store.reader import Past

POINTS = 1000
"""Buckets of a curve, unless so many curves would make the file too large."""
FEWEST = 60
MOST_BYTES = 1_150_000
"""Maximum compressed data of a file; base64 adds a third, and with drawings and script it stays below 2 MB."""
MOST_RANKS = 8
"""Maximum ranks with their own line; more are folded into one with its band."""

EXTREMES = "Charts hold the lowest and highest value of every interval: no spike is left out."


@dataclass(frozen=True)
class _ChartBundle:
    """The page's own charts, and their data."""

    script: str
    style: str
    series: bytes
    """The curves as the server sends them, compressed with gzip."""
    facts: Mapping[str, Any]
    """runs, labels, origin, markers: see web/src/report.ts."""


def html_of(runs: Sequence[Past], facts: dict[str, Any]) -> str:
    """Return the HTML file of a report; `runs` are the runs behind `facts`."""
    labels = [past.name for past in runs]
    machine = [] if len(runs) > 1 else facts["resources"]["charts"]
    names = [*facts["training"]["charts"], *(name for chart in machine for name in chart["names"])]
    points = POINTS
    while True:
        found = [curves_of(past, names, points, fold=len(runs) > 1) for past in runs]
        bundle = _bundle(runs, labels, found, facts)
        if bundle is None or len(bundle.series) <= MOST_BYTES or points <= FEWEST:
            break
        points = max(FEWEST, int(points * min(0.7, MOST_BYTES / len(bundle.series))))
    machines = []
    for chart in machine:
        lines = [line for name in chart["names"] for line in lines_of(found[0], name, name, by_time=True)]
        machines.append(_figure(chart["title"], chart["unit"], chart["names"], lines, by_time=True))
    return _page(facts, _training(facts["training"], labels if len(runs) > 1 else [""], found), machines, bundle)


def _training(facts: dict[str, Any], labels: Sequence[str], found: Sequence[Curves]) -> list[Markup]:
    units, figures = {one["name"]: one["unit"] for one in facts["metrics"]}, []
    for name in facts["charts"]:
        pairs = zip(found, labels, strict=True)
        lines = [line for one, label in pairs for line in lines_of(one, name, label, by_time=False)]
        figures.append(_figure(name, units.get(name, ""), [name], lines, by_time=False))
    return figures


def curves_of(past: Past, names: Sequence[str], points: int, *, fold: bool = False) -> Curves:
    """Return the data of a run's charts; many ranks, or the ranks of several runs, are folded into one line."""
    ranks = {rank for node in read_nodes(RunFolder(past.path))[0] for rank in node.ranks}
    return curves(past, Ask(tuple(names), points, fold=fold or len(ranks) > MOST_RANKS))


def _bundle(
    runs: Sequence[Past], labels: Sequence[str], found: Sequence[Curves], facts: dict[str, Any]
) -> _ChartBundle | None:
    """Return the page's charts with their data; None if the page was not built."""
    folder = files("stepscope.web").joinpath("static").joinpath("report")
    script, style = folder.joinpath("report.js"), folder.joinpath("report.css")
    if not script.is_file() or not style.is_file():
        return None
    keys = [str(place) for place in range(len(runs))]
    message = encode_curves([(key, _short(one)) for key, one in zip(keys, found, strict=True)])
    series = gzip.compress(message, 9, mtime=0)
    embedded = {"runs": keys, "labels": list(labels), "origin": facts["run"]["created"], "markers": markers(facts)}
    return _ChartBundle(script.read_text(encoding="utf-8"), style.read_text(encoding="utf-8"), series, embedded)


def _short(found: Curves) -> Curves:
    """Return curves with values rounded to float32 precision: half of their bytes are zeros then and compress."""

    def cut(values: Any) -> Any:
        with np.errstate(over="ignore"):
            short = values.astype(np.float32).astype(np.float64)
        return np.where(np.isfinite(short) | ~np.isfinite(values), short, values)

    columns = {key: cut(getattr(found.blocks, key)) for key in ("min", "max", "mean", "last")}
    points = replace(found.points, value=cut(found.points.value))
    return replace(found, blocks=replace(found.blocks, **columns), points=points)


def _figure(title: str, unit: str, names: list[str], lines: list[DrawnLine], *, by_time: bool) -> Markup:
    """Return the place for a chart, and the drawing shown there without scripts."""
    facts = {"title": title, "unit": unit, "names": names, "axis": "time" if by_time else "step"}
    shown = lines if len(lines) > 1 else []
    keys = [tag("span", line.label, class_=f"line-{place % 8}") for place, line in enumerate(shown)]
    drawn = drawing(lines, unit, by_time=by_time)
    still = tag("div", tag("figcaption", tag("span", title), keys), drawn, class_="still")
    return tag("figure", still, class_="slot", data_slot=json.dumps(facts))


def _page(
    facts: Mapping[str, Any], training: Sequence[Markup], machine: Sequence[Markup], bundle: _ChartBundle | None
) -> str:
    about, compared = facts["run"], facts["comparison"]
    title = f"{about['name'] or about['id']}" + (" compared" if compared else "")
    made = f"Made by stepscope {facts['stepscope']} on {sections.moment(facts['made'])}"
    charts = _charts(training, controls=bundle is not None)
    ended = sections.how_it_ended(facts["end"])
    body = [
        sections.head(facts),
        _part("How It Ended", *ended) if ended else None,
        sections.comparison(compared),
        _part("Performance Summary", sections.performance(facts)),
        _part(facts["ledger"]["title"], sections.ledger(facts["ledger"])),
        _part("Training Progress", charts, sections.metrics(facts), sections.texts(facts)),
        _part("Resource Utilization", _charts(machine), sections.resources(facts)),
        _part("Diagnosis and Recommendations", sections.diagnosis(facts)),
        _part("Alerts", sections.alerts(facts)),
        _part("Sinks", sections.sinks(facts)) if facts["sinks"] else None,
        _part("Environment", sections.environment(facts)),
        tag("footer", f"{made} from {facts['points']:,} points. {EXTREMES}"),
    ]
    if bundle is None:
        return document(title, body, "report.css")
    data = [
        tag("template", json.dumps(bundle.facts), id="report-facts"),
        tag("template", base64.b64encode(bundle.series).decode(), id="report-series"),
    ]
    return document(title, [*body, data], "report.css", bundle.style, bundle.script)


def _part(title: str, *children: Any) -> list[Markup]:
    return [tag("h2", title, class_="part"), *(child for child in children if child)]


def _charts(figures: Sequence[Markup], *, controls: bool = False) -> Any:
    if not figures:
        return None
    bar = tag("div", id="report-controls") if controls else None
    return [bar, tag("div", figures, class_="charts")]
