"""MLflow's SQL store as SQLite (`mlflow.db`): the runs of all experiments, with parameters and tags."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np

from stepscope.importers.run_builder import ImportFormat, RunBuilders
from stepscope.importers.trackers.mlflow_facts import STATES, tag_facts, written
from stepscope.importers.trackers.sqlite import columns, has_tables, look, new_rows, text
from stepscope.importers.words import number

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Sequence

    from stepscope.importers.source import FileHead

METRIC = ("key", "value", "timestamp", "run_uuid", "step", "is_nan")
RUN = ("run_uuid", "name", "user_id", "status", "start_time", "end_time", "lifecycle_stage", "experiment_id")
LARGEST = 1.7976931348623157e308
"""What MLflow stores for infinity."""


def recognises(head: FileHead) -> bool:
    """Return whether a file is a database of MLflow."""
    return has_tables(head, {"runs": ("run_uuid", "experiment_id"), "metrics": METRIC[:4]})


def fill_all(path: str, runs: RunBuilders) -> None:
    """Read the metrics of all runs that are not deleted, in the order in which they were logged."""
    look(path, _Store(runs).read, runs)


class _Store:
    """What was read of a database so far."""

    def __init__(self, runs: RunBuilders) -> None:
        self.runs = runs
        self.facts: dict[str, dict[str, Any]] = {}
        self.params: defaultdict[str, dict[str, Any]] = defaultdict(dict)
        self.deleted: set[bytes] = set()
        self.last_metric = self.last_param = -(2**63)

    def read(self, database: sqlite3.Connection) -> None:
        """Read what is new; states and tags may change, and are read again."""
        self._read_facts(database)
        for rows in new_rows(database, "metrics", METRIC, self.last_metric):
            self._add(rows)
            self.last_metric = rows[-1][0]
        for name, run in self.runs.by_key.items():
            run.facts.update(self.facts.get(name, {}), config=self.params[name], run_id=name)

    def _add(self, rows: list[tuple[Any, ...]]) -> None:
        """Add rows of all runs and metrics, column by column, which takes a third of the time of row by row."""
        _, keys, values, times, run_ids, steps, flags = zip(*rows, strict=True)
        try:
            value, time, is_nan = np.array(values, np.float64), np.array(times, np.float64), np.array(flags, np.bool_)
            step = np.array(steps if steps[0] is not None else [0] * len(steps), np.int64)
        except (TypeError, ValueError, OverflowError):
            self._add_sound(rows)
            return
        value[value >= LARGEST] = math.inf
        value[value <= -LARGEST] = -math.inf
        value[is_nan] = math.nan
        owners: dict[tuple[Any, Any], int] = {}
        numbers = np.array([owners.setdefault(owner, len(owners)) for owner in zip(run_ids, keys, strict=True)])
        ends = np.cumsum(np.bincount(numbers))[:-1]
        for (run_id, key), part in zip(owners, np.split(np.argsort(numbers, kind="stable"), ends), strict=True):
            if run_id not in self.deleted:
                self.runs.of(text(run_id)).extend(text(key), value[part], step[part], time[part] / 1e3)

    def _add_sound(self, rows: list[tuple[Any, ...]]) -> None:
        """Add the rows whose value, time and step are numbers, and count the others."""
        kinds: dict[int, Any] = {2: (int, float), 3: (int, float), 5: int, 6: int}
        sound = [row for row in rows if all(isinstance(row[at], kind) for at, kind in kinds.items())]
        if len(sound) < len(rows):
            self.runs.note(f"points that are no numbers, left out: {len(rows) - len(sound)}")
            if sound:
                self._add(sound)

    def _read_facts(self, database: sqlite3.Connection) -> None:
        unknown = columns(database, "metrics") - {*METRIC}
        if unknown:
            names = ", ".join(sorted(unknown)[:5])
            self.runs.note(f"the database is of a newer MLflow: its metrics also have {names}, left out")
        experiments: dict[Any, str] = {}
        closed: set[Any] = set()
        for rows in new_rows(database, "experiments", ("experiment_id", "name", "lifecycle_stage")):
            experiments.update({number: text(name) for _, number, name, _ in rows})
            closed.update(number for _, number, _, stage in rows if stage == b"deleted")
        for rows in new_rows(database, "runs", RUN):
            for _, run_id, *row in rows:
                if row[5] == b"deleted" or row[6] in closed:
                    self.deleted.add(run_id)
                else:
                    self.facts[text(run_id)] = _run_facts(row, experiments)
        if self.deleted:
            self.runs.note(f"runs that were deleted in MLflow, left out: {len(self.deleted)}")
        for rows in new_rows(database, "params", ("key", "value", "run_uuid"), self.last_param):
            for _, key, value, run_id in rows:
                self.params[text(run_id)][text(key)] = written(text(value))
            self.last_param = rows[-1][0]
        tags: defaultdict[str, dict[str, str]] = defaultdict(dict)
        for rows in new_rows(database, "tags", ("key", "value", "run_uuid")):
            for _, key, value, run_id in rows:
                tags[text(run_id)][text(key)] = text(value)
        for run_id, some in tags.items():
            self.facts.setdefault(run_id, {}).update(tag_facts(some))


def _run_facts(row: Sequence[Any], experiments: dict[Any, str]) -> dict[str, Any]:
    name, user, status, started, ended, _, experiment = row
    facts = {
        "name": text(name),
        "user": text(user),
        "project": experiments.get(experiment, ""),
        "state": STATES.get(text(status)),
        "created": _seconds(started),
        "ended": _seconds(ended),
    }
    return {key: value for key, value in facts.items() if value not in {None, ""}}


def _seconds(milliseconds: Any) -> float | None:
    found = number(milliseconds)
    return found / 1e3 if found is not None and math.isfinite(found) else None


FORMAT = ImportFormat(
    "mlflow_sql",
    "MLflow's SQLite store (mlflow.db)",
    recognises,
    fill_all=fill_all,
    empty=("no run in it has a metric", "check whether the runs were logged to another store"),
)
