"""Weights & Biases run files (`run-….wandb`): LevelDB's log format with protocol buffers that contain JSON.

Reads logged values (history), system statistics and the configuration. The file of a live or killed run is read up to
its end; a damaged block costs only that block.
"""

from __future__ import annotations

import math
import re
import zlib
from typing import TYPE_CHECKING, Any

from stepscope.importers.binary.wire import Field, fields
from stepscope.importers.rows import values
from stepscope.importers.run_builder import ImportFormat, RunBuilder
from stepscope.importers.source import FileHead, chunks, json_value
from stepscope.importers.words import moment, scaled, whole

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping


MAGIC = b":W&B"
IDENT_BYTES = 7
BLOCK = 32 * 1024
HEADER = 7
"""Bytes before each piece of a record: checksum, length, kind."""
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4
MOST_RECORD = 64 * 2**20
"""Maximum bytes of a reassembled record."""
HISTORY, CONFIG, STATISTICS, METRIC, RUN, EXIT = 2, 5, 7, 12, 17, 18
"""Record fields that are read."""
MACHINE = (
    (re.compile(r"gpu\.(\d+)\.gpu"), r"gpu/\1/utilization_ratio", 0.01),
    (re.compile(r"gpu\.(\d+)\.memoryAllocatedBytes"), r"gpu/\1/memory_used_bytes", 1.0),
    (re.compile(r"gpu\.(\d+)\.temp"), r"gpu/\1/temperature_celsius", 1.0),
    (re.compile(r"gpu\.(\d+)\.powerWatts"), r"gpu/\1/power_watts", 1.0),
    (re.compile(r"cpu"), "cpu/usage_ratio", 0.01),
    (re.compile(r"memory(?:_percent)?"), "memory/used_ratio", 0.01),
    (re.compile(r"(.*)", re.DOTALL), r"system/\1", 1.0),
)
"""System statistics without the prefix `system.`, our names, and the factors to their units; first match wins."""
RUN_FACTS = {1: "run_id", 3: "project", 6: "group", 7: "job_type", 8: "name", 13: "host"}
"""Text fields of the record that identifies the run."""


def recognises(head: FileHead) -> bool:
    """Return whether a file is a W&B run file."""
    return head.data.startswith(MAGIC)


def fill(path: str, run: RunBuilder) -> None:
    """Read logged values, at the step that the run defined for each metric, and W&B's system statistics."""
    run.facts["config"] = {}
    axes: dict[str, str] = {}
    for record in _records(path, run.note):
        try:
            for field in fields(record):
                _add_record(field, run, axes)
        except ValueError:
            run.note("records that cannot be decoded, left out")


def _add_record(field: Field, run: RunBuilder, axes: dict[str, str]) -> None:
    if field.number == HISTORY:
        _add_history(field.data, run, axes)
    elif field.number == STATISTICS:
        _add_statistics(field.data, run)
    elif field.number == METRIC:  # `define_metric`: one metric is the step of others
        parts = {part.number: part.text for part in fields(field.data) if part.number in {1, 2, 4}}
        name = parts.get(1) or parts.get(2)
        if name and parts.get(4):
            axes[name] = parts[4]
    elif field.number == CONFIG:
        run.facts["config"].update(_items(field.data, 1))
    elif field.number == RUN:
        _add_run(field.data, run.facts)
    elif field.number == EXIT:
        run.facts["exit_code"] = next((part.signed for part in fields(field.data) if part.number == 1), 0)


def _records(path: str, note: Callable[[str], None]) -> Iterator[bytes]:
    """Yield whole records; pieces with a wrong checksum, and the rest of their block, are skipped."""
    begun = bytearray()
    joining = False
    for index, block in enumerate(chunks(path, note, BLOCK)):
        for kind, piece in _pieces(block, IDENT_BYTES if index == 0 else 0, note):
            if kind in {FULL, FIRST}:
                begun, joining = bytearray(), True
            if not joining or len(begun) + len(piece) > MOST_RECORD:
                joining = False
                note("pieces of records that have no beginning or no end, left out")
                continue
            begun += piece
            if kind in {FULL, LAST}:
                joining = False
                yield bytes(begun)
    if joining:
        note("the last record is cut: the run was being written or was killed")


def _pieces(block: bytes, at: int, note: Callable[[str], None]) -> Iterator[tuple[int, bytes]]:
    while len(block) - at >= HEADER:
        checksum = int.from_bytes(block[at : at + 4], "little")
        size = int.from_bytes(block[at + 4 : at + 6], "little")
        kind, piece = block[at + 6], block[at + HEADER : at + HEADER + size]
        if not (checksum or size or kind):
            return  # padding, or space that was reserved and never written
        if len(piece) < size:
            note("the last record is cut: the run was being written or was killed")
            return
        if kind not in {FULL, FIRST, MIDDLE, LAST} or zlib.crc32(block[at + 6 : at + HEADER + size]) != checksum:
            note("blocks with a wrong checksum: the rest of each is left out")
            return
        yield kind, piece
        at += HEADER + size


def _items(message: bytes, number_of_items: int) -> dict[str, Any]:
    """Return the items of a message: key (or path of keys) and a JSON text each."""
    found: dict[str, Any] = {}
    for field in fields(message):
        if field.number != number_of_items:
            continue
        keys, text = [], ""
        for part in fields(field.data):
            if part.number in {1, 2} and part.data:
                keys.append(part.text)
            elif part.number == 16:
                text = part.text
        found[".".join(keys)] = json_value(text)
    return found


def _add_history(message: bytes, run: RunBuilder, axes: dict[str, str]) -> None:
    """Add one call of `wandb.log`."""
    row = _items(message, 1)
    if "_step" in row:
        own = whole(row["_step"])
    else:
        counter = next((part.data for part in fields(message) if part.number == 2), b"")
        own = next((part.signed for part in fields(counter) if part.number == 1), None)
    time = moment(row.get("_timestamp"))
    own_values = {key: value for key, value in row.items() if not key.startswith("_")}
    for name, value in values(own_values, run.not_a_number):
        axis = axis_of(name, axes)
        step = whole(row.get(axis)) if axis else None
        run.add(name, value, own if step is None else step, time)


def axis_of(name: str, axes: Mapping[str, str]) -> str | None:
    """Return the metric that is the step of another: as defined for it, else for the longest matching `…*`."""
    if name in axes:
        return axes[name]
    globs = [glob for glob in axes if glob.endswith("*") and name.startswith(glob[:-1])]
    return axes[max(globs, key=len)] if globs else None


def _add_statistics(message: bytes, run: RunBuilder) -> None:
    stamp = next((field.data for field in fields(message) if field.number == 2), b"")
    parts = {field.number: field.signed for field in fields(stamp)}
    time = parts[1] + parts.get(2, 0) / 1e9 if 1 in parts else math.nan
    for name, value in values(_items(message, 3), run.not_a_number):
        own = name.removeprefix("system.")
        pattern, ours, factor = next(row for row in MACHINE if row[0].fullmatch(own))
        run.add(pattern.sub(ours, own, count=1), scaled(value, factor), time=time)


def _add_run(message: bytes, facts: dict[str, Any]) -> None:
    for field in fields(message):
        if field.number in RUN_FACTS:
            facts[RUN_FACTS[field.number]] = field.text
        elif field.number == 4:
            facts["config"].update(_items(field.data, 1))
        elif field.number == 17:
            facts["started"] = next((part.signed for part in fields(field.data) if part.number == 1), None)


FORMAT = ImportFormat("wandb", "Weights & Biases run file", recognises, fill)
