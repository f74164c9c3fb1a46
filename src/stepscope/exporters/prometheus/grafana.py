"""A Grafana dashboard over what the Prometheus endpoint serves, as the JSON that Grafana 10 and 11 import.

The data source is a variable, so that the dashboard fits any Grafana. `monitoring/grafana/dashboards` has the general
one; `stepscope export --format grafana` chooses a run in it and adds a panel for each metric of that run's own.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from stepscope.core.errors import StepscopeError, in_words
from stepscope.core.vocabulary import unit_of
from stepscope.exporters.files.output import new_file
from stepscope.exporters.prometheus.grafana_panels import ROWS, TRAINER, VARIABLES, WIDTH, Panel, Query, Row
from stepscope.exporters.prometheus.names import Names

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from stepscope.core.feed import Subject
    from stepscope.exporters.files.selection import Metric
    from stepscope.store.reader import Past

SCHEMA_VERSION = 39
"""Of Grafana 10.4 and 11; newer ones migrate it when they load it."""
UID = "stepscope-gpu-training"
TITLE = "Stepscope: GPU training"
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
HEIGHT = 8
"""Of a panel, in rows of the grid."""
OWN_PANELS = 60
"""Panels at most for metrics of a run's own."""

GRAFANA_UNITS = {
    "seconds": "s",
    "milliseconds": "ms",
    "bytes": "bytes",
    "MiB": "mbytes",
    "GiB": "gbytes",
    "bytes/second": "binBps",
    "ratio": "percentunit",
    "percent": "percent",
    "celsius": "celsius",
    "watts": "watt",
    "joules": "joule",
    "hertz": "hertz",
}


def dashboard(rows: Sequence[Row] = ROWS, *, run: str | None = None, title: str = TITLE) -> dict[str, Any]:
    """Return the dashboard as plain data.

    Args:
        rows: headings and panels, from the top.
        run: the run to show at first; None is all of them.
        title: of the dashboard.
    """
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
        "templating": {"list": [_datasource(), *(_variable(*one, run=run) for one in VARIABLES)]},
        "panels": _placed(rows),
    }


def expressions(made: dict[str, Any]) -> list[str]:
    """Return every PromQL expression of a dashboard's panels."""
    return [target["expr"] for panel in made["panels"] for target in panel.get("targets", ())]


def to_json(made: dict[str, Any]) -> str:
    """Return a dashboard as the text of its file."""
    return json.dumps(made, indent=2, ensure_ascii=False) + "\n"


def write(past: Past, metrics: Sequence[Metric], stream: BinaryIO) -> None:
    """Write the dashboard of one run, with a panel for each of its own metrics."""
    own = own_panels(metric.recorded for metric in metrics)
    rows = (*ROWS, Row("Metrics of this run", own)) if own else ROWS
    made = dashboard(rows, run=past.id, title=f"Stepscope: {past.project} {past.id}")
    stream.write(to_json(made).encode("utf-8", "replace"))


def write_for(subject: Subject, settings: Mapping[str, Any], note: Callable[[str], None]) -> None:
    """Write the dashboard of a run that begins, where `exporters.grafana.path` says, or into the run's folder.

    Args:
        subject: what is watched.
        settings: the configuration by key.
        note: where to say why it was not written.
    """
    target = Path(settings.get("exporters.grafana.path") or subject.folder / "grafana.json")
    made = dashboard(run=subject.run, title=f"Stepscope: {subject.project} {subject.run}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with new_file(target, force=True) as path:
            path.write_text(to_json(made), encoding="utf-8")
    except (OSError, StepscopeError) as error:
        note(
            f"cannot write the Grafana dashboard: {in_words(error)}; `stepscope export --format grafana` does it later"
        )


def own_panels(names: Iterable[str]) -> tuple[Panel, ...]:
    """Return a panel for each name that the other panels do not show, of the first OWN_PANELS."""
    mapping = Names()
    panels: list[Panel] = []
    for name in names:
        targets = mapping.targets(name)
        is_own = any(label == "metric" for target in targets for label, _ in target.labels)
        if is_own and len(panels) < OWN_PANELS:
            matched = f"{targets[0].family}{{{TRAINER}, metric={json.dumps(name, ensure_ascii=False)}}}"
            unit = GRAFANA_UNITS.get(unit_of(name), "none")
            text = f"Recorded as {name}."
            panels.append(Panel(name, text, unit, (Query(matched, "{{run}} rank {{rank}}"),), width=8))
    return tuple(panels)


def _datasource() -> dict[str, Any]:
    return {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "refresh": 1}


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


def _placed(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return headings and panels with ids and places: from left to right, and below where there is no room left."""
    made: list[dict[str, Any]] = []
    y = 0
    for row in rows:
        place = {"x": 0, "y": y, "w": WIDTH, "h": 1}
        made.append({"id": len(made) + 1, "type": "row", "title": row.title, "collapsed": False, "gridPos": place})
        made[-1]["panels"] = []
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
    return {
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": SOURCE,
        "targets": [_target(query, chr(ord("A") + index)) for index, query in enumerate(panel.queries)],
        "fieldConfig": {"defaults": _field(panel), "overrides": []},
        "options": _options(panel),
    }


def _target(query: Query, letter: str) -> dict[str, Any]:
    return {
        "refId": letter,
        "datasource": SOURCE,
        "editorMode": "code",
        "expr": query.expression,
        "legendFormat": query.legend,
        "format": query.form,
        "range": True,
    }


def _field(panel: Panel) -> dict[str, Any]:
    field: dict[str, Any] = {"unit": panel.unit, "thresholds": {"mode": "absolute", "steps": list(panel.thresholds)}}
    field |= {} if panel.low is None else {"min": panel.low}
    field |= {} if panel.high is None else {"max": panel.high}
    if panel.kind == "timeseries":
        scale = {"type": "log", "log": 10} if panel.logarithmic else {"type": "linear"}
        style = "line" if len(panel.thresholds) > 1 else "off"
        field["custom"] = {
            "drawStyle": "line",
            "lineWidth": 1,
            "fillOpacity": 0,
            "showPoints": "never",
            "spanNulls": False,
            "scaleDistribution": scale,
            "thresholdsStyle": {"mode": style},
        }
        field["color"] = {"mode": "palette-classic"}
    elif panel.kind in {"gauge", "stat"}:
        field["color"] = {"mode": "thresholds"}
    return field


def _options(panel: Panel) -> dict[str, Any]:
    last = {"calcs": ["lastNotNull"], "fields": "", "values": False}
    if panel.kind == "gauge":
        return {
            "reduceOptions": last,
            "orientation": "auto",
            "showThresholdLabels": False,
            "showThresholdMarkers": True,
        }
    if panel.kind == "stat":
        return {"reduceOptions": last, "orientation": "auto", "colorMode": "value", "graphMode": "area"}
    if panel.kind == "heatmap":
        colours = {"mode": "scheme", "scheme": "Oranges", "steps": 64}
        return {
            "calculate": False,
            "cellGap": 1,
            "color": colours,
            "yAxis": {"axisPlacement": "left", "unit": panel.unit},
            "rowsFrame": {"layout": "auto"},
            "tooltip": {"mode": "single", "yHistogram": True},
            "legend": {"show": True},
        }
    legend = {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": ["lastNotNull"]}
    return {"legend": legend, "tooltip": {"mode": "multi", "sort": "desc"}}
