"""What the Neptune exporter writes: Parquet files `part_0.parquet`, … with a row for each value of each attribute."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np

from stepscope.core.errors import StepscopeError
from stepscope.importers import parquet
from stepscope.importers.run_builder import ImportFormat, RunBuilders
from stepscope.importers.source import FileHead
from stepscope.importers.trackers import steps
from stepscope.importers.trackers.sqlite import text

if TYPE_CHECKING:
    from collections.abc import Collection

WHERE = ("project_id", "run_id", "attribute_path", "attribute_type", "step", "timestamp")
VALUE = ("int_value", "float_value", "bool_value", "string_value", "datetime_value", "string_set_value")
KINDS = "('int', 'float', 'bool', 'string', 'datetime', 'string_set')"
"""Attributes with one value, which the columns above hold."""
PART = re.compile(r"part_(\d{1,9})\.parquet")
POINTS = """SELECT run_id, attribute_path, step::DOUBLE, epoch_ms(timestamp) / 1e3, float_value
FROM read_parquet($1) WHERE attribute_type = 'float_series' AND float_value IS NOT NULL"""
VALUES = f"""SELECT run_id, project_id, attribute_path, int_value, float_value, bool_value, string_value,
epoch_ms(datetime_value) / 1e3, string_set_value FROM read_parquet($1) WHERE attribute_type IN {KINDS}"""  # noqa: S608 - our own words
OTHERS = f"""SELECT run_id, attribute_type, attribute_path, count(*) FROM read_parquet($1)
WHERE attribute_type NOT IN {KINDS} AND attribute_type <> 'float_series' GROUP BY ALL LIMIT 10000"""  # noqa: S608 - our own words
FACTS = {
    "sys/name": "name",
    "sys/tags": "tags",
    "sys/description": "notes",
    "sys/creation_time": "created",
    "sys/owner": "user",
    "sys/hostname": "host",
}
"""Attributes that Neptune itself sets, and the facts that they are."""
STATES = {"inactive": "finished", "idle": "finished", "active": "running", "running": "running"}


def recognises(head: FileHead) -> bool:
    """Return whether a file is a part of an export."""
    return {*WHERE, *VALUE} <= {*parquet.columns(head)}


def owns_folder(folder: str, names: Collection[str]) -> bool:
    """Return whether a folder has the parts of an export."""
    parts = _parts(folder, names)
    return bool(parts) and recognises(FileHead(parts[0], parquet.MAGIC))


def _parts(folder: str, names: Collection[str]) -> list[str]:
    """Return the paths of the parts, ordered by number."""
    found = {int(match[1]): name for name in names if (match := PART.fullmatch(name))}
    return [os.path.join(folder, found[number]) for number in sorted(found)]


def fill_all(path: str, runs: RunBuilders) -> None:
    """Read the float series of a part, or of all parts in a folder; other attributes become facts and configuration."""
    parts = _parts(path, os.listdir(path)) if os.path.isdir(path) else [path]
    failed: list[StepscopeError] = []
    for part in parts:
        try:
            _read(part, runs)
        except StepscopeError as error:
            failed.append(error)
            runs.note(str(error))
    if failed and len(failed) == len(parts):
        raise failed[0]


def _read(path: str, runs: RunBuilders) -> None:
    for rows in parquet.rows(path, POINTS):
        grouped: defaultdict[tuple[Any, Any], list[tuple[Any, ...]]] = defaultdict(list)
        for row in rows:
            grouped[row[0], row[1]].append(row)
        for (run_id, name), points in grouped.items():
            _, _, step, time, value = zip(*points, strict=True)
            # A step or time that is absent is None, and NaN here.
            arrays = np.array(value, np.float64), np.array(step, np.float64), np.array(time, np.float64)
            steps.extend(runs.of(text(run_id)), text(name), *arrays)
    for rows in parquet.rows(path, VALUES):
        for run_id, project, name, *values in rows:
            found = next((value for value in values if value is not None), None)
            _add_fact(runs.of(text(run_id)).facts, text(run_id), text(project), text(name), found)
    for rows in parquet.rows(path, OTHERS):
        for run_id, kind, name, count in rows:
            runs.of(text(run_id)).leave_out(f"attributes of the kind {text(kind)[:40]}", text(name), count)


def _add_fact(facts: dict[str, Any], run_id: str, project: str, name: str, value: Any) -> None:
    facts |= {"run_id": run_id, "project": project}
    if name in FACTS:
        facts[FACTS[name]] = value
    elif name == "sys/group_tags" and isinstance(value, list):
        facts["group"] = ", ".join(sorted(map(str, value)))
    elif name == "sys/failed" and value is True:
        facts["state"] = "failed"
    elif name == "sys/state":
        facts.setdefault("state", STATES.get(str(value).lower()))
    elif not name.startswith("sys/"):
        facts.setdefault("config", {})[name] = value


FORMAT = ImportFormat(
    "neptune",
    "Parquet files of the Neptune exporter (part_0.parquet, …)",
    recognises,
    fill_all=fill_all,
    empty=("it has no series of numbers", "export the metrics of the runs too"),
    owns_folder=owns_folder,
)
