"""torchtitan's structured logs: one JSON object per line, a file per rank (`structured_logs/…global_rank_0.….jsonl`).

Read are scalars and the durations of spans; markers and the starts of spans say nothing more.
"""

from __future__ import annotations

import os
import re
from collections import Counter, defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from stepscope.importers.imported import Imported, joined
from stepscope.importers.logs.jsonl import objects
from stepscope.importers.run_builder import ImportFormat, RunBuilder
from stepscope.importers.source import FileHead, json_value, lines
from stepscope.importers.words import index, moment, number, scaled, whole

if TYPE_CHECKING:
    from collections.abc import Sequence

SCALAR, END = "metric_value", "_end"
"""Kind of a scalar's row, and the end of that of a finished span."""
MILLISECOND = 0.001
RANK = re.compile(r"\.global_rank_\d+")
"""The rank in the name of a file; the source comes before it, the time after it."""


def recognises(head: FileHead) -> bool:
    """Return whether a file starts with a row of torchtitan's."""
    first = head.first_lines(1)
    row = json_value(first[0]) if first else None
    return isinstance(row, dict) and {"log_type", "log_type_name", "rank", "seq_id", "time_us"} <= row.keys()


def fill(path: str, run: RunBuilder) -> None:
    """Read the scalars by their names, and each span as `<name>_seconds`."""
    rows = (json_value(line) for line in lines(path, run.note) if line.strip())
    for row in objects(rows, run, "rows that are no JSON objects, left out"):
        for fact, key in (("host", "host_name"), ("source", "source")):
            if isinstance(row.get(key), str):
                run.facts[fact] = row[key]
        name, value = _metric(row)
        if value is not None:
            run.add(name, value, whole(row.get("step")), moment(row.get("time_us")), index(row.get("rank")))


def _metric(row: dict[str, Any]) -> tuple[str, float | None]:
    kind, value = str(row.get("log_type_name")), number(row.get("value"))
    if value is None:
        return "", None
    if kind == SCALAR:
        return str(row.get("event_name")), value
    return f"{kind.removesuffix(END)}_seconds", scaled(value, MILLISECOND) if kind.endswith(END) else None


def join(found: Sequence[Imported]) -> list[Imported]:
    """Return one run for the ranks of each folder and source; a rank's second file is its second attempt."""
    runs: dict[tuple[str, str], list[Imported]] = defaultdict(list)
    for each in sorted(found, key=_began):
        runs[os.path.dirname(each.path), str(each.facts.get("source"))].append(each)
    return [_joined(files) for files in runs.values()]


def _joined(files: Sequence[Imported]) -> Imported:
    attempts: Counter[int] = Counter()
    parts = []
    for file in files:
        rank = next((int(series.rank[0]) for series in file.columns.values() if len(series)), 0)
        same = np.int32(attempts[rank])
        columns = {name: replace(series, attempt=series.attempt + same) for name, series in file.columns.items()}
        parts.append(replace(file, columns=columns))
        attempts[rank] += 1
    return joined(parts) if len(parts) > 1 else parts[0]


def part_of(path: str) -> str:
    """Return what the files of all ranks have in common: their folder and source."""
    found = RANK.search(path, len(os.path.dirname(path)))
    return path if found is None else path[: found.start()]


def without_rank(path: str) -> str:
    """Return a path that orders the files of one source by their time."""
    return RANK.sub("", path)


def _began(file: Imported) -> tuple[float, str]:
    return min((float(series.time[0]) for series in file.columns.values() if len(series)), default=0.0), file.path


FORMAT = ImportFormat(
    "torchtitan",
    "torchtitan's structured log",
    recognises,
    fill,
    unite=join,
    part_of=part_of,
    ordered_by=without_rank,
)
