"""Pluto's queue of what it has not uploaded yet (`sync.db`): a rescue for runs whose server was out of reach."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from stepscope.importers.rows import values
from stepscope.importers.run_builder import ImportFormat, RunBuilder, RunBuilders
from stepscope.importers.trackers.json_text import decoded
from stepscope.importers.trackers.sqlite import has_tables, look, new_rows, text
from stepscope.importers.words import moment, whole

if TYPE_CHECKING:
    import sqlite3

    from stepscope.importers.source import FileHead

RECORD = ("run_id", "record_type", "payload_json", "timestamp_ms", "step")
METRIC, FILE, CONFIG, DATA, TAGS, SYSTEM, CONSOLE = range(7)
"""Kinds of records."""
OTHERS = {FILE: "files", DATA: "charts and tables", CONSOLE: "console lines"}


def recognises(head: FileHead) -> bool:
    """Return whether a file is a queue of Pluto."""
    return has_tables(head, {"sync_queue": RECORD, "runs": ("run_id", "project")})


def fill_all(path: str, runs: RunBuilders) -> None:
    """Read the metrics that are in the queue, uploaded or not."""
    look(path, _Queue(runs).read, runs)


class _Queue:
    """What was read of a queue so far."""

    def __init__(self, runs: RunBuilders) -> None:
        self.runs = runs
        self.last = -(2**63)

    def read(self, database: sqlite3.Connection) -> None:
        """Read the records that are new, and the facts of the runs again."""
        for rows in new_rows(database, "sync_queue", RECORD, self.last):
            for _, run_id, kind, payload, time, step in rows:
                _add(self.runs.of(text(run_id)), kind, decoded(text(payload)), moment(text(time)), whole(step))
            self.last = rows[-1][0]
        for rows in new_rows(database, "runs", ("run_id", "project", "created_at", "finished", "config_json")):
            for _, run_id, project, created, finished, config in rows:
                run = self.runs.by_key.get(text(run_id))
                if run is not None:
                    _describe(run, text(run_id), text(project), moment(text(created)), finished, decoded(text(config)))
        self.runs.note("this is Pluto's queue: what it removed after an upload is only on its server")


def _add(run: RunBuilder, kind: Any, payload: Any, time: float, step: int | None) -> None:
    if kind in OTHERS:
        run.leave_out("records of other kinds", OTHERS[kind])
    elif not isinstance(payload, dict):
        run.note("records that are no JSON objects, left out")
    elif kind in {METRIC, SYSTEM}:
        for name, value in values(payload, run.not_a_number):
            run.add(f"system/{name}" if kind == SYSTEM else name, value, None if kind == SYSTEM else step, time)
    elif kind == CONFIG:
        run.facts.setdefault("config", {}).update(payload)
    elif kind == TAGS and isinstance(payload.get("tags"), list):
        run.facts["tags"] = [str(tag) for tag in payload["tags"]]


def _describe(run: RunBuilder, run_id: str, project: str, created: float, finished: Any, config: Any) -> None:
    run.facts |= {"run_id": run_id, "project": project, "state": "finished" if finished else "running"}
    if math.isfinite(created):
        run.facts["created"] = created
    if isinstance(config, dict):
        run.facts["config"] = {**config, **run.facts.get("config", {})}


FORMAT = ImportFormat(
    "pluto",
    "Pluto's queue of what is not uploaded yet (sync.db)",
    recognises,
    fill_all=fill_all,
    empty=("no metric is in the queue", "look for the run on Pluto's server: it was uploaded"),
)
