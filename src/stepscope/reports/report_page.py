"""A report as one HTML file: offline, with a strict content policy, readable without scripts, interactive with them."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stepscope.reports import report_sections as sections
from stepscope.reports.markup import Markup, document, tag

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

STYLE = "report.css"


@dataclass(frozen=True)
class ChartBundle:
    """The page's own charts, and their data."""

    script: str
    style: str
    series: bytes
    """The curves as the server sends them, compressed with gzip."""
    facts: Mapping[str, Any]
    """runs, labels, origin, markers: see web/src/report.ts."""


@dataclass(frozen=True)
class ChartSlot:
    """A place for a chart, and the drawing shown there without scripts."""

    title: str
    unit: str
    names: Sequence[str]
    axis: str
    drawing: Markup
    legend: Sequence[str] = ()

    def markup(self) -> Markup:
        """Return the figure."""
        facts = {"title": self.title, "unit": self.unit, "names": list(self.names), "axis": self.axis}
        keys = [
            tag("span", label, class_=f"line-{place % 8}")
            for place, label in enumerate(self.legend)
            if len(self.legend) > 1
        ]
        still = tag("div", tag("figcaption", tag("span", self.title), keys), self.drawing, class_="still")
        return tag("figure", still, class_="slot", data_slot=json.dumps(facts))


def page(
    facts: Mapping[str, Any],
    training: Sequence[ChartSlot],
    machine: Sequence[ChartSlot],
    bundle: ChartBundle | None = None,
) -> str:
    """Return the file of `views.report.report`; without a bundle its charts are drawings, not interactive."""
    about, compared = facts["run"], facts["comparison"]
    title = f"{about['name'] or about['id']}" + (" compared" if compared else "")
    made = f"Made by stepscope {facts['stepscope']} on {sections.moment(facts['made'])}"
    body = [
        sections.head(facts),
        sections.comparison(compared),
        _part("Performance Summary", sections.performance(facts)),
        _part(facts["ledger"]["title"], sections.ledger(facts["ledger"])),
        _part(
            "Training Progress",
            _charts(training, controls=bundle is not None),
            sections.metrics(facts),
            sections.texts(facts),
        ),
        _part("Resource Utilization", _charts(machine), sections.resources(facts)),
        _part("Diagnosis and Recommendations", sections.diagnosis(facts)),
        _part("Alerts", sections.alerts(facts)),
        _part("Environment", sections.environment(facts)),
        tag(
            "footer",
            f"{made} from {facts['points']:,} points. "
            "Charts hold the lowest and highest value of every interval: no spike is left out.",
        ),
    ]
    if bundle is None:
        return document(title, body, STYLE)
    data = [
        tag("template", json.dumps(bundle.facts), id="report-facts"),
        tag("template", base64.b64encode(bundle.series).decode(), id="report-series"),
    ]
    return document(title, [*body, data], STYLE, bundle.style, bundle.script)


def _part(title: str, *children: Any) -> list[Markup]:
    return [tag("h2", title, class_="part"), *(child for child in children if child)]


def _charts(slots: Sequence[ChartSlot], *, controls: bool = False) -> Any:
    if not slots:
        return None
    bar = tag("div", id="report-controls") if controls else None
    return [bar, tag("div", [slot.markup() for slot in slots], class_="charts")]
