"""Log lines of Megatron-LM, Megatron-DeepSpeed and NeMo: `iteration 10/ 1000 | lm loss: 1.2E+01 | … |`."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

from stepscope.importers.run_builder import ImportFormat, RunBuilder
from stepscope.importers.source import FileHead, lines
from stepscope.importers.words import moment, parsed, scaled

if TYPE_CHECKING:
    from collections.abc import Iterator


ITERATION = re.compile(r"\biteration\s{1,20}(\d{1,18})\s{0,20}/\s{0,20}(\d{1,18})\s{0,20}\|")
EVALUATION = re.compile(r"\b(validation|test) loss at iteration\s{1,20}(\d{1,18})\b[^|]{0,200}\|")
MEMORY = re.compile(r"\[Rank (\d{1,6})\] \(after (\d{1,18}) iterations\) memory \(M(?:i?)B\) \|")
STAMP = re.compile(r"\[?(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:\.\d{1,6})?)\]?")
FIELD = re.compile(r"([^|:]{1,80}):\s{0,40}([-+.\w]{1,40})(?:/[-+.\w]{1,40})?\s{0,40}")
"""A name and a value; on ROCm the running mean follows it."""
UNITS = {"(ms)": 1e-3, "(s)": 1.0, "(seconds)": 1.0}
"""Units in names, and their factors to seconds."""
MEMORY_NAMES = {"allocated": "allocated", "max allocated": "peak", "reserved": "reserved"}
"""Figures of a rank's allocator, and what we call them."""


def recognises(head: FileHead) -> bool:
    """Return whether a text has a line of a Megatron iteration."""
    return b"iteration" in head.data and ITERATION.search(head.text) is not None


def fill(path: str, run: RunBuilder) -> None:
    """Read the values of the lines; an iteration that is not above the previous one starts a new attempt."""
    attempt, last, total = 0, -1, 0
    for line in lines(path, run.note):
        if (found := ITERATION.search(line)) is not None:
            step, total = int(found[1]), int(found[2])
            attempt += step <= last
            last = step
            _add_values(run, line, found, "", step, attempt)
        elif (found := EVALUATION.search(line)) is not None:
            _add_values(run, line, found, f"{found[1]}/", int(found[2]), attempt)
        elif (found := MEMORY.search(line)) is not None:
            for name, value in _fields(line[found.end() :]):
                if value is not None and name in MEMORY_NAMES:
                    metric = f"gpu/0/memory_{MEMORY_NAMES[name]}_bytes"
                    run.add(metric, value * 2.0**20, int(found[2]), rank=int(found[1]), attempt=attempt)
    run.facts["iterations"] = total


def _add_values(run: RunBuilder, line: str, found: re.Match[str], prefix: str, step: int, attempt: int) -> None:
    """Add the fields after the start of a line; a unit in a field's name is applied to its value."""
    stamp = STAMP.search(line[: found.start()][-200:])
    time = moment(stamp[1]) if stamp else math.nan
    for name, value in _fields(line[found.end() :]):
        if value is None:
            run.leave_out("fields that are no numbers", name)
            continue
        unit = next((unit for unit in UNITS if name.endswith(unit)), "")
        run.add(prefix + name.removesuffix(unit).rstrip(), scaled(value, UNITS.get(unit, 1.0)), step, time, 0, attempt)


def _fields(text: str) -> Iterator[tuple[str, float | None]]:
    for field in text.split("|"):
        found = FIELD.fullmatch(field)
        if field.strip():
            yield field.partition(":")[0].strip(), parsed(found[2]) if found else None


FORMAT = ImportFormat(
    "megatron",
    "Megatron, DeepSpeed or NeMo log lines",
    recognises,
    fill,
    ("it has no line of an iteration", "give the output of the last rank"),
)
