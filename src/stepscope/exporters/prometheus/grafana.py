"""A Grafana dashboard over what the Prometheus endpoint serves, as the JSON that Grafana 10 and 11 import.

The data source is a variable, so that the dashboard fits any Grafana. `monitoring/grafana/dashboards` has the general
one; `stepscope export --format grafana` chooses a run in it and adds a panel for each metric of that run's own.
"""

from __future__ import annotations

import json
from pathlib import Path
from string import ascii_uppercase
from typing import TYPE_CHECKING, Any, BinaryIO

from stepscope.core.errors import StepscopeError
from stepscope.core.vocabulary import unit_of
from stepscope.exporters.files.output import write_text
from stepscope.exporters.prometheus.grafana_panels import (
    BY_RANK,
    ROWS,
    TRAINER,
    VARIABLES,
    WIDTH,
    Panel,
    PanelRow,
    PanelScale,
)
from stepscope.exporters.prometheus.names import UNITS, Names

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from stepscope.core.feed import Subject
    from stepscope.exporters.files.selection import ExportedMetric
    from stepscope.store.reader import Past

SCHEMA_VERSION = 39
"""Of Grafana 10.4 and 11; newer ones migrate it when they load it."""
UID = "stepscope-gpu-training"
TITLE = "Stepscope: GPU training"
DATA_SOURCE = {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "refresh": 1}
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
HEIGHT = 8
"""Of a panel, in rows of the grid."""
OWN_PANELS = 60
"""Maximum panels for undeclared metrics of a run."""

_LAST = {"calcs": ["lastNotNull"], "fields": "", "values": False}
OPTIONS = {
    "gauge": {
        "reduceOptions": _LAST,
        "orientation": "auto",
        "showThresholdLabels": False,
        "showThresholdMarkers": True,
    },
    "stat": {"reduceOptions": _LAST, "orientation": "auto", "colorMode": "value", "graphMode": "area"},
    "heatmap": {
        "calculate": False,
        "cellGap": 1,
        "color": {"mode": "scheme", "scheme": "Oranges", "steps": 64},
        "yAxis": {"axisPlacement": "left", "unit": "s"},
        "rowsFrame": {"layout": "auto"},
        "tooltip": {"mode": "single", "yHistogram": True},
        "legend": {"show": True},
    },
    "timeseries": {
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": ["lastNotNull"]},
        "tooltip": {"mode": "multi", "sort": "desc"},
    },
}
"""Grafana's options for each kind of panel; the one heatmap shows durations."""


def dashboard(rows: Sequence[PanelRow] = ROWS, *, run: str | None = None, title: str = TITLE) -> dict[str, Any]:
    """Return the dashboard as plain data; it shows `run` at first, or all runs."""
    return {
        "uid": UID if run is None else f"stepscope-{run}"[:40],
        "title": title,
        "description": "What every step of a training does and costs, and the machine around it.",
        "tags": ["stepscope", "training", "gpu"],
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "id": None,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "15s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "browser",
        "annotations": {"list": []},
        "links": [],
        "templating": {"list": [DATA_SOURCE, *(_variable(*one, run=run) for one in VARIABLES)]},
        "panels": _placed(rows),
    }


def to_json(made: dict[str, Any]) -> str:
    """Return a dashboard as the text of its file."""
    return json.dumps(made, indent=2, ensure_ascii=False) + "\n"


def write(past: Past, metrics: Sequence[ExportedMetric], stream: BinaryIO) -> None:
    """Write the dashboard of one run, with a panel for each of its own metrics."""
    own = own_panels(metric.recorded for metric in metrics)
    rows = (*ROWS, PanelRow("Metrics of this run", own)) if own else ROWS
    made = dashboard(rows, run=past.id, title=f"Stepscope: {past.project} {past.id}")
    stream.write(to_json(made).encode("utf-8", "replace"))


def write_for(subject: Subject, settings: Mapping[str, Any], note: Callable[[str], None]) -> None:
    """Write the dashboard of a new run to the path in `exporters.grafana.path`, or into the run's folder."""
    target = Path(settings.get("exporters.grafana.path") or subject.folder / "grafana.json")
    made = dashboard(run=subject.run, title=f"Stepscope: {subject.project} {subject.run}")
    try:
        write_text(target, to_json(made))
    except StepscopeError as error:
        note(f"cannot write the Grafana dashboard: {error.cause}; `stepscope export --format grafana` does it later")


def own_panels(names: Iterable[str]) -> tuple[Panel, ...]:
    """Return a panel for each name that the other panels do not show, of the first OWN_PANELS."""
    known = Names()
    panels: list[Panel] = []
    for name in names:
        targets = known.targets(name)
        if any(target.is_own for target in targets) and len(panels) < OWN_PANELS:
            matched = f"{targets[0].family}{{{TRAINER}, metric={json.dumps(name, ensure_ascii=False)}}}"
            scale = PanelScale(UNITS.get(unit_of(name), "none"))
            panels.append(Panel(name, f"Recorded as {name}.", {BY_RANK: matched}, scale, width=8))
    return tuple(panels)


def _variable(name: str, label: str, query: str, *, run: str | None) -> dict[str, Any]:
    chosen = {"selected": True, "text": [run], "value": [run]} if name == "run" and run else None
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": SOURCE,
        "definition": query,
        "query": {"query": query, "refId": f"variable-{name}"},
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": chosen or {"selected": True, "text": ["All"], "value": ["$__all"]},
    }


def _placed(rows: Sequence[PanelRow]) -> list[dict[str, Any]]:
    """Return headings and panels with ids and places: from left to right, and below where there is no room left."""
    made: list[dict[str, Any]] = []
    y = 0
    for row in rows:
        heading = {"id": len(made) + 1, "type": "row", "title": row.title, "collapsed": False}
        made.append({**heading, "gridPos": {"x": 0, "y": y, "w": WIDTH, "h": 1}, "panels": []})
        y, x = y + 1, 0
        for panel in row.panels:
            if x + panel.width > WIDTH:
                x, y = 0, y + HEIGHT
            place = {"x": x, "y": y, "w": panel.width, "h": HEIGHT}
            made.append({"id": len(made) + 1, "gridPos": place, **_panel(panel)})
            x += panel.width
        y += HEIGHT
    return made


def _panel(panel: Panel) -> dict[str, Any]:
    form = "heatmap" if panel.kind == "heatmap" else "time_series"
    return {
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": SOURCE,
        "targets": [
            {
                "refId": letter,
                "datasource": SOURCE,
                "editorMode": "code",
                "expr": expression,
                "legendFormat": legend,
                "format": form,
                "range": True,
            }
            for letter, (legend, expression) in zip(ascii_uppercase, panel.queries.items(), strict=False)
        ],
        "fieldConfig": {"defaults": _field(panel.kind, panel.scale), "overrides": []},
        "options": OPTIONS[panel.kind],
    }


def _field(kind: str, scale: PanelScale) -> dict[str, Any]:
    steps = [{"color": colour, "value": value} for colour, value in scale.colours]
    field: dict[str, Any] = {"unit": scale.unit, "thresholds": {"mode": "absolute", "steps": steps}}
    field |= {} if scale.low is None else {"min": scale.low}
    field |= {} if scale.high is None else {"max": scale.high}
    if kind == "timeseries":
        field["custom"] = {
            "drawStyle": "line",
            "lineWidth": 1,
            "fillOpacity": 0,
            "showPoints": "never",
            "spanNulls": False,
            "scaleDistribution": {"type": "log", "log": 10} if scale.logarithmic else {"type": "linear"},
            "thresholdsStyle": {"mode": "line" if len(steps) > 1 else "off"},
        }
        field["color"] = {"mode": "palette-classic"}
    elif kind in {"gauge", "stat"}:
        field["color"] = {"mode": "thresholds"}
    return field
