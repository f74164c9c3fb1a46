"""Log lines of Megatron-LM, Megatron-DeepSpeed and NeMo: `iteration 10/ 1000 | lm loss: 1.2E+01 | … |`."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

from stepscope.core.ring import NO_STEP
from stepscope.importers.points import Points
from stepscope.importers.source import lines, unreadable
from stepscope.importers.words import moment, parsed, scaled

if TYPE_CHECKING:
    from stepscope.importers.imported import Imported
    from stepscope.importers.source import Head

NAME = "megatron"
ITERATION = re.compile(r"\biteration\s{1,20}(\d{1,18})\s{0,20}/\s{0,20}(\d{1,18})\s{0,20}\|")
EVALUATION = re.compile(r"\b(validation|test) loss at iteration\s{1,20}(\d{1,18})\b[^|]{0,200}\|")
MEMORY = re.compile(r"\[Rank (\d{1,6})\] \(after (\d{1,18}) iterations\) memory \(M(?:i?)B\) \|")
STAMP = re.compile(r"\[?(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:\.\d{1,6})?)\]?")
FIELD = re.compile(r"([^|:]{1,80}):\s{0,40}([-+.\w]{1,40})(?:/[-+.\w]{1,40})?\s{0,40}")
"""A name and a value; on ROCm the running mean follows it."""
UNITS = {"(ms)": 1e-3, "(s)": 1.0, "(seconds)": 1.0}
"""Units in names, and their factors to seconds."""
MEBI = 2.0**20
MEMORY_NAMES = {
    "allocated": "memory_allocated_bytes",
    "max allocated": "memory_peak_bytes",
    "reserved": "memory_reserved_bytes",
}


def recognises(head: Head) -> bool:
    """Return whether a text has a line of a Megatron iteration."""
    return b"iteration" in head.data and ITERATION.search(head.text) is not None


def read(path: str) -> Imported:
    """Return the values of the lines; an iteration that is not above the previous one starts a new attempt."""
    points = Points()
    attempt, last, total = 0, -1, 0
    for line in lines(path, points.note):
        if (found := ITERATION.search(line)) is not None:
            step, total = int(found[1]), int(found[2])
            attempt += step <= last
            last = step
            _add(points, line[found.end() :], "", step, _time(line[: found.start()]), attempt)
        elif (found := EVALUATION.search(line)) is not None:
            _add(points, line[found.end() :], f"{found[1]}/", int(found[2]), _time(line[: found.start()]), attempt)
        elif (found := MEMORY.search(line)) is not None:
            _add_memory(points, line[found.end() :], int(found[1]), int(found[2]), attempt)
    if not points.columns:
        raise unreadable(path, "it has no line of an iteration", "give the output of the last rank")
    return points.imported(path, NAME, {"iterations": total})


def _time(before: str) -> float:
    """Return the time at the start of a line, or NaN."""
    found = STAMP.search(before[-200:])
    return moment(found[1]) if found else math.nan


def _add(points: Points, text: str, prefix: str, step: int, time: float, attempt: int) -> None:
    """Add the fields of a line; a unit in a field's name is applied to its value."""
    for field in text.split("|"):
        found = FIELD.fullmatch(field)
        value = parsed(found[2]) if found else None
        if found is None or value is None:
            if field.strip():
                points.leave_out("fields that are no numbers", field.partition(":")[0].strip())
            continue
        name, factor = found[1].strip(), 1.0
        for unit, scale in UNITS.items():
            if name.endswith(unit):
                name, factor = name.removesuffix(unit).rstrip(), scale
        points.add(prefix + name, scaled(value, factor), step, time, 0, attempt)


def _add_memory(points: Points, text: str, rank: int, step: int, attempt: int) -> None:
    """Add a rank's allocator report, in bytes."""
    for field in text.split("|"):
        found = FIELD.fullmatch(field)
        value = parsed(found[2]) if found else None
        name = MEMORY_NAMES.get(found[1].strip()) if found else None
        if name is not None and value is not None:
            points.add(f"gpu/0/{name}", value * MEBI, step if step >= 0 else NO_STEP, math.nan, rank, attempt)
