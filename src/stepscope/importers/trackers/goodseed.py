"""GoodSeed: one SQLite database per run. Its steps are real numbers."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np

from stepscope.importers.run_builder import ImportFormat, RunBuilder, RunBuilders
from stepscope.importers.trackers import steps
from stepscope.importers.trackers.json_text import decoded
from stepscope.importers.trackers.mlflow_facts import written
from stepscope.importers.trackers.sqlite import columns, has_tables, look, new_rows, text
from stepscope.importers.words import moment

if TYPE_CHECKING:
    import sqlite3

    from stepscope.importers.source import FileHead

POINT = ("series_id", "step", "y", "ts")
ABOUT = {"run_id": "run_id", "project": "project", "name": "name", "created_at": "created", "closed_at": "ended"}
"""Keys that GoodSeed sets for a run, and the facts that they are."""
FACTS = {"sys/description": "notes", "sys/tags": "tags", "sys/name": "name", "monitoring/hostname": "host"}
"""The same for settings."""
STATES = ("finished", "failed", "running")


def recognises(head: FileHead) -> bool:
    """Return whether a file is a run of GoodSeed."""
    return has_tables(head, {"run_meta": ("key", "value"), "metric_series": ("path",), "metric_points": POINT})


def fill_all(path: str, runs: RunBuilders) -> None:
    """Read the metrics of a run, in the order in which they were logged."""
    look(path, _GrowingRun(runs).read, runs)


class _GrowingRun:
    """What was read of a run so far."""

    def __init__(self, runs: RunBuilders) -> None:
        self.runs = runs
        self.last = -(2**63)

    def read(self, database: sqlite3.Connection) -> None:
        """Read what is new, and the facts again."""
        names = {
            number: text(path)
            for rows in new_rows(database, "metric_series", ("id", "path"))
            for _, number, path in rows
        }
        run = self.runs.of("")
        for rows in new_rows(database, "metric_points", POINT, self.last):
            grouped: defaultdict[Any, list[tuple[Any, ...]]] = defaultdict(list)
            for row in rows:
                grouped[row[1]].append(row)
            for series, points in grouped.items():
                _add(run, names.get(series, f"series {text(series)}"), points)
            self.last = rows[-1][0]
        run.facts = _facts(database)
        if columns(database, "string_points"):
            (count,) = database.execute("SELECT count(*) FROM string_points").fetchone()
            if count:
                self.runs.note(f"lines of text, left out: {count}")


def _add(run: RunBuilder, name: str, points: list[tuple[Any, ...]]) -> None:
    usable = [row[2:] for row in points if all(isinstance(cell, (int, float)) for cell in row[2:])]
    if len(usable) < len(points):
        run.leave_out("points that are no numbers", name, len(points) - len(usable))
    if usable:
        step, value, time = (np.array(column, np.float64) for column in zip(*usable, strict=True))
        steps.extend(run, name, value, step, time)


def _facts(database: sqlite3.Connection) -> dict[str, Any]:
    about = {
        text(key): text(value) for rows in new_rows(database, "run_meta", ("key", "value")) for _, key, value in rows
    }
    facts: dict[str, Any] = {fact: about[key] for key, fact in ABOUT.items() if about.get(key)}
    for fact in ("created", "ended"):
        at = moment(facts.pop(fact, None))
        facts |= {fact: at} if math.isfinite(at) else {}
    if about.get("status") in STATES:
        facts["state"] = about["status"]
    config = facts["config"] = {}
    for rows in new_rows(database, "configs", ("path", "type_tag", "value")):
        for _, path, kind, value in rows:
            name = text(path)
            if name in FACTS:
                facts[FACTS[name]] = _value(text(kind), text(value))
            elif not name.startswith("sys/"):
                config[name] = _value(text(kind), text(value))
    return facts


def _value(kind: str, value: str) -> Any:
    if kind in {"string_set", "bool"}:
        return decoded(value)
    return value if kind in {"str", "datetime"} else written(value) if kind != "null" else None


FORMAT = ImportFormat(
    "goodseed",
    "run of GoodSeed (SQLite)",
    recognises,
    fill_all=fill_all,
    empty=("the run has no metric", "check whether it was logged to another folder"),
)
