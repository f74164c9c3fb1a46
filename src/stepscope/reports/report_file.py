"""The report of a run as one HTML file: the page's own charts with their data, to keep, to send and to print."""

from __future__ import annotations

import gzip
from dataclasses import replace
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import numpy as np

from stepscope.reports.report_drawing import DrawnLine, drawing, lines_of
from stepscope.reports.report_page import ChartBundle, ChartSlot, page
from stepscope.store.curves import Ask, Curves, curves
from stepscope.store.layout import RunFolder
from stepscope.store.states import read_nodes
from stepscope.views.curve_message import encode_curves
from stepscope.views.report import markers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.store.reader import Past

POINTS = 1000
"""Buckets of a curve, unless so many curves would make the file too large."""
FEWEST = 60
MOST_BYTES = 1_150_000
"""Maximum compressed data of a file; base64 adds a third, and with drawings and script it stays below 2 MB."""
MOST_RANKS = 8
"""Maximum ranks with their own line; more are folded into one with its band."""


def html_of(runs: Sequence[Past], facts: dict[str, Any]) -> str:
    """Return the HTML file of a report; `runs` are the runs behind `facts`."""
    labels = [past.name for past in runs]
    machine = [] if len(runs) > 1 else [name for one in facts["resources"]["charts"] for name in one["names"]]
    names = [*facts["training"]["charts"], *machine]
    points = POINTS
    while True:
        found = [curves_of(past, names, points, fold=len(runs) > 1) for past in runs]
        bundle = _bundle(runs, labels, found, facts)
        if bundle is None or len(bundle.series) <= MOST_BYTES or points <= FEWEST:
            break
        points = max(FEWEST, int(points * min(0.7, MOST_BYTES / len(bundle.series))))
    training, machines = _slots(facts, labels, found, machine=len(runs) == 1)
    return page(facts, training, machines, bundle)


def curves_of(past: Past, names: Sequence[str], points: int, *, fold: bool = False) -> Curves:
    """Return the data of a run's charts; many ranks, or the ranks of several runs, are folded into one line."""
    ranks = {rank for node in read_nodes(RunFolder(past.path))[0] for rank in node.ranks}
    return curves(past, Ask(tuple(names), points, fold=fold or len(ranks) > MOST_RANKS))


def _bundle(
    runs: Sequence[Past], labels: Sequence[str], found: Sequence[Curves], facts: dict[str, Any]
) -> ChartBundle | None:
    """Return the page's charts with their data; None if the page was not built."""
    folder = files("stepscope.web").joinpath("static").joinpath("report")
    script, style = folder.joinpath("report.js"), folder.joinpath("report.css")
    if not script.is_file() or not style.is_file():
        return None
    keys = [str(place) for place in range(len(runs))]
    message = encode_curves([(key, _short(one)) for key, one in zip(keys, found, strict=True)])
    series = gzip.compress(message, 9, mtime=0)
    embedded = {"runs": keys, "labels": list(labels), "origin": facts["run"]["created"], "markers": markers(facts)}
    return ChartBundle(script.read_text(encoding="utf-8"), style.read_text(encoding="utf-8"), series, embedded)


def _short(found: Curves) -> Curves:
    """Return curves with values rounded to float32 precision: half of their bytes are zeros then and compress."""

    def cut(values: Any) -> Any:
        with np.errstate(over="ignore"):
            short = values.astype(np.float32).astype(np.float64)
        return np.where(np.isfinite(short) | ~np.isfinite(values), short, values)

    columns = {key: cut(getattr(found.blocks, key)) for key in ("min", "max", "mean", "last")}
    points = replace(found.points, value=cut(found.points.value))
    return replace(found, blocks=replace(found.blocks, **columns), points=points)


def _slots(
    facts: dict[str, Any], labels: Sequence[str], found: Sequence[Curves], *, machine: bool
) -> tuple[list[ChartSlot], list[ChartSlot]]:
    units = {one["name"]: one["unit"] for one in facts["training"]["metrics"]}
    labels = labels if len(found) > 1 else [""]
    training, machines = [], []
    for name in facts["training"]["charts"]:
        pairs = zip(found, labels, strict=True)
        lines = [line for one, label in pairs for line in lines_of(one, name, label, by_time=False)]
        training.append(_slot(name, units.get(name, ""), [name], lines, by_time=False))
    for chart in facts["resources"]["charts"] if machine else ():
        lines = [line for name in chart["names"] for line in lines_of(found[0], name, name, by_time=True)]
        machines.append(_slot(chart["title"], chart["unit"], chart["names"], lines, by_time=True))
    return training, machines


def _slot(title: str, unit: str, names: list[str], lines: list[DrawnLine], *, by_time: bool) -> ChartSlot:
    drawn, axis = drawing(lines, unit, by_time=by_time), "time" if by_time else "step"
    return ChartSlot(title, unit, names, axis, drawn, [line.label for line in lines])
