"""Weights & Biases run files (`run-….wandb`): LevelDB's log format with protocol buffers that contain JSON.

Reads logged values (history), system statistics, the configuration and what the run is called. The file of a live or
killed run is read up to its end; a damaged block costs only that block.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from stepscope.importers.binary.level_log import records
from stepscope.importers.binary.machine_names import MachineName, machine_metric
from stepscope.importers.binary.wandb_history import add_history, item
from stepscope.importers.binary.wire import Field, fields, timestamp, varint
from stepscope.importers.rows import values
from stepscope.importers.run_builder import ImportFormat, RunBuilder

if TYPE_CHECKING:
    from stepscope.importers.source import FileHead

MAGIC, VERSION = b":W&B", 0
HISTORY, CONFIG, STATISTICS, METRIC, RUN, EXIT = 2, 5, 7, 12, 17, 18
"""Record fields that are read."""
NUMBER_KEY, SUMMARY_KEY = b"\x08", b"\x1a"
"""Keys on the wire: the number of a record, and the best or last values so far."""
MACHINE: tuple[MachineName, ...] = (
    (re.compile(r"gpu\.(\d+)\.gpu"), r"gpu/\1/utilization_ratio", 0.01),
    (re.compile(r"gpu\.(\d+)\.memoryAllocatedBytes"), r"gpu/\1/memory_used_bytes", 1.0),
    (re.compile(r"gpu\.(\d+)\.temp"), r"gpu/\1/temperature_celsius", 1.0),
    (re.compile(r"gpu\.(\d+)\.powerWatts"), r"gpu/\1/power_watts", 1.0),
    (re.compile(r"cpu"), "cpu/usage_ratio", 0.01),
    (re.compile(r"memory(?:_percent)?"), "memory/used_ratio", 0.01),
    (re.compile(r"(.*)", re.DOTALL), r"system/\1", 1.0),
)
"""System statistics without the prefix `system.`."""
RUN_FACTS = {1: "run_id", 3: "project", 6: "group", 7: "job_type", 8: "name", 9: "notes", 13: "host"}
"""Text fields of the record that identifies the run."""


def recognises(head: FileHead) -> bool:
    """Return whether a file is a W&B run file."""
    return head.data.startswith(MAGIC)


def fill(path: str, run: RunBuilder) -> None:
    """Read logged values, at the step that the run defined for each metric, and W&B's system statistics."""
    run.facts["config"] = {}
    axes: dict[str, str] = {}
    for some in records(path, VERSION, run.note):
        rows: list[bytes] = []
        for record in some:
            try:
                if record.startswith(NUMBER_KEY) and record.startswith(SUMMARY_KEY, varint(record, 1)[1]):
                    continue  # two beside each row, to no use here: it pays not to decode them
                for field in fields(record):
                    if field.number == HISTORY:
                        rows.append(field.data)
                    elif field.number == METRIC and rows:  # it tells the steps of the rows after it
                        add_history(rows, run, axes)
                        rows = []
                    _add_record(field, run, axes)
            except ValueError:
                run.note("records that cannot be decoded, left out")
        if rows:
            add_history(rows, run, axes)


def _add_record(field: Field, run: RunBuilder, axes: dict[str, str]) -> None:
    if field.number == STATISTICS:
        _add_statistics(field.data, run)
    elif field.number == METRIC:  # `define_metric`: one metric is the step of others
        parts = {part.number: part.text for part in fields(field.data) if part.number in {1, 2, 4}}
        name = parts.get(1) or parts.get(2)
        if name and parts.get(4):
            axes[name] = parts[4]
    elif field.number == CONFIG:
        _add_config(field.data, run.facts)
    elif field.number == RUN:
        _add_run(field.data, run.facts)
    elif field.number == EXIT:
        _add_exit(field.data, run.facts)


def _items(message: bytes, number_of_items: int) -> dict[str, Any]:
    """Return the items of a message by name."""
    return dict(item(field.data) for field in fields(message) if field.number == number_of_items)


def _add_statistics(message: bytes, run: RunBuilder) -> None:
    stamp = next((field.data for field in fields(message) if field.number == 2), b"")
    time = timestamp(stamp)
    for name, value in values(_items(message, 3), run.not_a_number):
        ours, figure = machine_metric(name.removeprefix("system."), value, MACHINE)
        run.add(ours, figure, time=time)


def _add_config(message: bytes, facts: dict[str, Any]) -> None:
    facts["config"].update(_items(message, 1))
    facts["config"].pop("_wandb", None)  # W&B's own versions


def _add_run(message: bytes, facts: dict[str, Any]) -> None:
    """Take what the run is called; a later record replaces an earlier one."""
    tags = []
    for field in fields(message):
        if field.number in RUN_FACTS:
            facts[RUN_FACTS[field.number]] = field.text
        elif field.number == 4:
            _add_config(field.data, facts)
        elif field.number == 10:
            tags.append(field.text)
        elif field.number == 17:
            facts["created"] = timestamp(field.data)
    facts["tags"] = tags


def _add_exit(message: bytes, facts: dict[str, Any]) -> None:
    code = next((field.signed for field in fields(message) if field.number == 1), 0)
    facts["exit_code"] = code
    facts["state"] = "failed" if code else "finished"
    if code:
        facts["cause"] = f"exit code {code}"


FORMAT = ImportFormat("wandb", "Weights & Biases run file", recognises, fill)
