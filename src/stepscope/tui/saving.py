"""Save the scene: everything as JSON, the graphs as CSV."""

from __future__ import annotations

import json
import math
import os
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.core.strict_json import null, strict
from stepscope.core.vocabulary import unit_of
from stepscope.exporters.files.csv import text_cell

if TYPE_CHECKING:
    from stepscope.views.terminal import TerminalCurve, TerminalScene

RANK = ("rank", "state", "node", "pid", "step", "step_seconds")
COLUMNS = ("name", "unit", "axis", "x", "min", "max", "mean", "count", "nonfinite")


def save(scene: TerminalScene, folder: Path | None = None) -> list[Path]:
    """Write a JSON and a CSV file into a folder, under names of their own, and return them.

    Raises:
        OSError: they cannot be written.
    """
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime(scene.now))
    name = re.sub(r"[^\w.-]+", "-", scene.id or scene.title)[:80].strip("-.") or "machine"
    base = (folder or Path.cwd()) / f"stepscope-top-{name}-{stamp}"
    contents = {
        ".json": json.dumps(facts(scene), indent=2, allow_nan=False) + "\n",
        ".csv": "\n".join(rows(scene)) + "\n",
    }
    paths = []
    for end, text in contents.items():
        path = base.with_name(base.name + end)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="replace") as file:
            file.write(text)
        paths.append(path)
    return paths


def facts(scene: TerminalScene) -> dict[str, Any]:
    """Return the scene as plain data; values that are not finite are null."""
    found: dict[str, Any] = strict(
        {
            "run": {"id": scene.id, "name": scene.title, "project": scene.project} if scene.is_run else None,
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(scene.now)),
            "status": scene.status or None,
            "step_seconds": scene.step_seconds(),
            "samples_per_second": scene.samples_per_second,
            "phases": [{"phase": one.name, "seconds": one.seconds, "share": one.share} for one in scene.phases()],
            "metrics": {name: _curve(curve) for name, curve in scene.curves.items()},
            "machines": [
                {"node": node.name, "devices": node.devices, "metrics": node.values}
                for _, node in sorted(scene.nodes.items(), reverse=True)
            ],
            "ranks": [
                {**{key: getattr(rank, key) for key in RANK}, "metrics": rank.values}
                for _, rank in sorted(scene.ranks.items())
            ],
            "alerts": scene.alerts,
            "diagnosis": scene.diagnosis,
        },
        null,
    )
    return found


def _curve(curve: TerminalCurve) -> dict[str, Any]:
    past = curve.history
    return {"unit": curve.unit, "last": past.last, "min": past.lowest, "max": past.highest, "points": past.points}


def rows(scene: TerminalScene) -> list[str]:
    """Return the lines of the CSV file: the buckets of every graph, then the machine's recent samples."""
    lines = [",".join(COLUMNS)]
    for name, curve in scene.curves.items():
        start = f"{text_cell(name)},{text_cell(curve.unit)},step"
        for row in curve.history.rows():
            cells = ["" if row[key] is None else repr(row[key]) for key in COLUMNS[3:]]
            lines.append(",".join([start, *cells]))
    for _, node in sorted(scene.nodes.items(), reverse=True):
        for name, trend in node.trends.items():
            start = f"{text_cell(name)},{text_cell(unit_of(name))},sample"
            for place, value in enumerate(trend):
                number, bad = repr(float(value)), int(not math.isfinite(value))
                lines.append(f"{start},{place},{number},{number},{number},1,{bad}")
    return lines
