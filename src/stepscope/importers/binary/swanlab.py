"""SwanLab run files (`run-….swanlab`): LevelDB's log format with protocol buffers, one scalar each.

The configuration and the machine's name are in files beside it, as SwanLab writes them: `files/config.yaml` and
`files/swanlab-metadata.json`.
"""

from __future__ import annotations

import math
import os
import re
from pathlib import Path
from typing import Any

from stepscope.core.errors import StepscopeError
from stepscope.importers.binary.level_log import IDENT, records
from stepscope.importers.binary.machine_names import MachineName, machine_metric
from stepscope.importers.binary.wire import Field, fields, timestamp
from stepscope.importers.run_builder import ImportFormat, RunBuilder
from stepscope.importers.source import FileHead, document

NAME, MAGIC, VERSION = b":SWL", 0xE1D6, 2
START, FINISH, SCALAR, MEDIA, SAVE = 10, 11, 13, 14, 20
"""Record fields that are read."""
START_FACTS = {1: "project", 4: "name", 5: "notes", 7: "group", 8: "job_type", 10: "run_id"}
"""Text fields of the record that a run starts with."""
STATES = {1: "finished", 2: "failed", 3: "interrupted"}
CONFIG_FILE, METADATA_FILE = 1, 2
"""Kinds of saved files that are read."""
SYSTEM = "__swanlab__."
"""Prefix of what SwanLab measures itself."""
MACHINE: tuple[MachineName, ...] = (
    (re.compile(r"gpu\.(\d+)\.pct"), r"gpu/\1/utilization_ratio", 0.01),
    (re.compile(r"gpu\.(\d+)\.temp"), r"gpu/\1/temperature_celsius", 1.0),
    (re.compile(r"gpu\.(\d+)\.power"), r"gpu/\1/power_watts", 1.0),
    (re.compile(r"cpu\.pct"), "cpu/usage_ratio", 0.01),
    (re.compile(r"mem\.pct"), "memory/used_ratio", 0.01),
    (re.compile(r"(.*)", re.DOTALL), r"system/\1", 1.0),
)


def recognises(head: FileHead) -> bool:
    """Return whether a file is a SwanLab run file."""
    return len(head.data) >= IDENT.size and IDENT.unpack_from(head.data)[:2] == (NAME, MAGIC)


def fill(path: str, run: RunBuilder) -> None:
    """Read the scalars, what SwanLab measured of the machine, and what the run is called."""
    for some in records(path, VERSION, run.note):
        for record in some:
            try:
                for field in fields(record):
                    _add_record(field, run, path)
            except ValueError:
                run.note("records that cannot be decoded, left out")


def _add_record(field: Field, run: RunBuilder, path: str) -> None:
    if field.number == SCALAR:
        _add_scalar(field.data, run)
    elif field.number == MEDIA:
        run.leave_out("media and texts", next((part.text for part in fields(field.data) if part.number == 1), ""))
    elif field.number == START:
        _add_start(field.data, run.facts)
    elif field.number == FINISH:
        for part in fields(field.data):
            if part.number == 1 and part.integer in STATES:
                run.facts["state"] = STATES[part.integer]
            elif part.number == 2:
                run.facts["cause"] = part.text
    elif field.number == SAVE:
        kind = next((part.integer for part in fields(field.data) if part.number == 5), 0)
        _add_file(kind, os.path.join(os.path.dirname(path), "files"), run)


def _add_scalar(message: bytes, run: RunBuilder) -> None:
    key, step, time, value = "", 0, math.nan, 0.0
    for field in fields(message):
        if field.number == 1:
            key = field.text
        elif field.number == 2:
            step = field.signed
        elif field.number == 4:
            time = timestamp(field.data)
        elif field.number == 5:
            value = next((part.real for part in fields(field.data) if part.number == 1), 0.0)
    if key.startswith(SYSTEM):
        name, figure = machine_metric(key.removeprefix(SYSTEM), value, MACHINE)
        run.add(name, figure, time=time)
    elif key:
        run.add(key, value, step, time)


def _add_start(message: bytes, facts: dict[str, Any]) -> None:
    facts["tags"] = []
    for field in fields(message):
        if field.number in START_FACTS:
            facts[START_FACTS[field.number]] = field.text
        elif field.number == 6:
            facts["tags"].append(field.text)
        elif field.number == 12:
            facts["created"] = timestamp(field.data)


def _add_file(kind: int, folder: str, run: RunBuilder) -> None:
    """Take facts from a file that SwanLab saved beside its own; the path in the record may be of another machine."""
    try:
        if kind == CONFIG_FILE:
            from stepscope.core.yaml_text import read_file  # loads PyYAML

            found = read_file(Path(folder, "config.yaml")).data
            run.facts["config"] = {key: one.get("value") for key, one in found.items() if isinstance(one, dict)}
        elif kind == METADATA_FILE:
            metadata = document(os.path.join(folder, "swanlab-metadata.json"))
            run.facts["host"] = str(metadata["runtime"]["hostname"])
    except (StepscopeError, KeyError, TypeError) as error:
        run.note(f"what was saved beside it is left out: {error}")


FORMAT = ImportFormat("swanlab", "SwanLab run file", recognises, fill)
