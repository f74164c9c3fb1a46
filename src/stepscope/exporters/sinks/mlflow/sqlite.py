"""MLflow's database in SQLite, written directly: `mlflow+sqlite:///relative/path.db` or `mlflow+sqlite:////absolute`.

One transaction per batch. An MLflow server may use the same file at the same time; the journal mode stays as it is.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
import uuid
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from stepscope.core.errors import UsageError
from stepscope.exporters.sinks.mlflow.points import newest, stored_points
from stepscope.exporters.sinks.mlflow.run_facts import (
    RUN_TAG,
    RunView,
    changes,
    first_tags,
    milliseconds,
    note,
    one_of,
    run_mark,
    run_name,
)
from stepscope.exporters.sinks.mlflow.schema import artifact_root, below, can_create, create, schema_of
from stepscope.exporters.sinks.sink import CALL_SECONDS, Receipt, Sink, SinkDeniesError, SinkDownError, SinkSlowError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from stepscope.exporters.sinks.address import SinkAddress
    from stepscope.exporters.sinks.mlflow.schema import MlflowSchema
    from stepscope.exporters.sinks.sink import RunFacts, RunNews, SinkBatch

OPTIONS = ("experiment",)
BUSY_SECONDS = 12.0
"""How long we wait for another writer at the start of a transaction, and for readers at its end."""
MOST_SECONDS = CALL_SECONDS - 2.0
_CHECKED_EVERY = 100_000
"""Instructions of SQLite between two looks at the clock."""
DELETED = "its run was deleted in MLflow; restore it there, or give the sink another experiment"
INSERT_METRIC = """
    INSERT INTO metrics (key, timestamp, step, value, is_nan, run_uuid) VALUES (?, ?, ?, ?, ?, ?)
    ON CONFLICT DO NOTHING"""
INSERT_LATEST = """
    INSERT INTO latest_metrics (key, timestamp, step, value, is_nan, run_uuid) VALUES (?, ?, ?, ?, ?, ?)
    ON CONFLICT (key, run_uuid) DO UPDATE SET
        timestamp = excluded.timestamp, step = excluded.step, value = excluded.value, is_nan = excluded.is_nan
    WHERE (excluded.step, excluded.timestamp, excluded.value)
        > (latest_metrics.step, latest_metrics.timestamp, latest_metrics.value)"""
SET_TAG = """
    INSERT INTO tags (key, value, run_uuid) VALUES (?, ?, ?)
    ON CONFLICT (key, run_uuid) DO UPDATE SET value = excluded.value"""


class MlflowSqliteSink(Sink):
    """A database of MLflow in a file."""

    kind: ClassVar[str] = "mlflow"
    most_points: ClassVar[int] = 10_000
    is_keyed: ClassVar[bool] = True

    def __init__(self, address: SinkAddress, environ: Mapping[str, str]) -> None:
        """Open nothing yet. UsageError if the address cannot be one of this sink."""
        super().__init__(address, environ)
        target = address.target(environ)
        if target.netloc or len(target.path) < 2:
            cause = "its address names no file"
            remedy = "write mlflow+sqlite:///mlflow.db, or mlflow+sqlite:////absolute/path/mlflow.db"
            raise UsageError(f"use sink {address.name}", cause, remedy)
        self.path = Path(target.path[1:]).absolute()
        self._experiment_name = address.options(environ, OPTIONS).get("experiment", "")
        self._run_id = self._page = self._notes = ""

    def probe(self) -> str:
        """Return what this sink is, in a few words, if it would take rows; raise SinkError if not. Creates nothing."""
        if not self.path.exists():
            if not can_create():
                create(self.path, self.environ)  # says why it cannot
            return f"MLflow database {self.path}, to be created"
        with self._connected() as database:
            schema_of(database)
        if not os.access(self.path, os.W_OK):
            raise SinkDeniesError(f"the database {self.path} cannot be written by this user")
        return f"MLflow database {self.path}"

    def open(self, run: RunFacts, known: Mapping[str, str]) -> dict[str, str]:
        """Create the run in the database, or find it again; the database too is created if it was never there."""
        if not self.path.exists():
            if known.get("run_id"):
                raise SinkDeniesError(f"the database {self.path}, which has this run, is not there; bring it back")
            create(self.path, self.environ)
        with self._transaction() as database:
            schema = schema_of(database)
            found = database.execute(
                "SELECT run_uuid, experiment_id FROM runs WHERE run_uuid = ? AND lifecycle_stage = 'active'",
                (known.get("run_id", ""),),
            ).fetchone()
            if found is None:
                found = self._found(database, schema, run, was_known="run_id" in known)
        self._run_id, self._page, self._notes = str(found[0]), run.page, run.notes
        return {"run_id": self._run_id, "experiment_id": str(found[1])}

    def send(self, batch: SinkBatch) -> Receipt:
        """Write points in one transaction."""
        rows, merged = stored_points(batch, self.address.prefix)
        rows.sort()  # the key of the table: neighbours go into the same page
        run_id = self._run_id
        with self._transaction() as database:
            self._check(database)
            database.executemany(INSERT_METRIC, ((*row, run_id) for row in rows))
            database.executemany(INSERT_LATEST, [(*row, run_id) for row in newest(rows).values()])
        return Receipt(merged=merged)

    def report(self, news: RunNews) -> None:
        """Bring MLflow's view of the run up to date, in one transaction."""
        has_notes = bool(news.notes) and news.notes != self._notes
        run_id = self._run_id
        with self._transaction() as database:
            self._check(database)
            change = changes(self._view(database), news, note(news.notes, self._page) if has_notes else "")
            params = [(key, value, run_id) for key, value in change.params.items()]
            database.executemany("INSERT INTO params (key, value, run_uuid) VALUES (?, ?, ?)", params)
            database.executemany(SET_TAG, [(key, value, run_id) for key, value in change.tags.items()])
            gone = [(key, run_id) for key in change.gone]
            database.executemany("DELETE FROM tags WHERE key = ? AND run_uuid = ?", gone)
            if change.is_other:
                values = (change.status, change.end_time, run_id)
                database.execute("UPDATE runs SET status = ?, end_time = ? WHERE run_uuid = ?", values)
        self._notes = news.notes or self._notes

    @contextlib.contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        """Open the file for one call: a file that was replaced meanwhile is the one that counts."""
        until = time.monotonic() + MOST_SECONDS
        address = f"{self.path.as_uri()}?mode=rw"
        try:
            with closing(sqlite3.connect(address, timeout=BUSY_SECONDS, isolation_level=None, uri=True)) as database:
                database.execute("PRAGMA foreign_keys = ON")
                database.set_progress_handler(lambda: time.monotonic() > until, _CHECKED_EVERY)
                yield database
        except sqlite3.Error as error:
            raise self._meaning(error) from None

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._connected() as database:
            database.execute("BEGIN IMMEDIATE")
            yield database  # after an error, closing the file undoes all
            database.execute("COMMIT")

    def _meaning(self, error: sqlite3.Error) -> Exception:
        text = f"{type(error).__name__}: {error}"[:200]
        words = str(error).lower()
        if "locked" in words or "busy" in words:
            return SinkDownError(f"the database {self.path} is locked by another program")
        if "interrupted" in words:
            return SinkSlowError(f"the database {self.path} did not answer in time")
        if isinstance(error, sqlite3.OperationalError) and not any(
            word in words for word in ("readonly", "unable to open", "no such", "has no column")
        ):
            return SinkDownError(f"the database {self.path} cannot be written: {text}")
        return SinkDeniesError(f"the database {self.path} cannot be written: {text}")

    def _check(self, database: sqlite3.Connection) -> None:
        found = database.execute("SELECT lifecycle_stage FROM runs WHERE run_uuid = ?", (self._run_id,)).fetchone()
        if found is None or found[0] != "active":
            raise SinkDeniesError(DELETED)

    def _view(self, database: sqlite3.Connection) -> RunView:
        run = (self._run_id,)
        params = dict(database.execute("SELECT key, value FROM params WHERE run_uuid = ?", run))
        tags = dict(database.execute("SELECT key, value FROM tags WHERE run_uuid = ?", run))
        status, end = database.execute("SELECT status, end_time FROM runs WHERE run_uuid = ?", run).fetchone()
        return RunView(params, tags, status, end)

    def _found(
        self, database: sqlite3.Connection, schema: MlflowSchema, run: RunFacts, *, was_known: bool
    ) -> tuple[str, int]:
        """Return run and experiment with our tag, after creating them if they never were."""
        experiment_id, location = self._experiment(database, schema, self._experiment_name or run.project)
        runs = database.execute(
            "SELECT run_uuid, lifecycle_stage, EXISTS (SELECT 1 FROM latest_metrics AS l WHERE l.run_uuid = r.run_uuid)"
            " FROM runs AS r JOIN tags AS t USING (run_uuid) WHERE r.experiment_id = ? AND t.key = ? AND t.value = ?",
            (experiment_id, RUN_TAG, run_mark(run)),
        ).fetchall()
        active = [(str(run_id), bool(has_metrics)) for run_id, stage, has_metrics in runs if stage == "active"]
        if active:
            return one_of(active), experiment_id
        if runs or was_known:
            raise SinkDeniesError(DELETED)
        return _create_run(database, run, experiment_id, location), experiment_id

    def _experiment(self, database: sqlite3.Connection, schema: MlflowSchema, name: str) -> tuple[int, str]:
        """Return id and place of artifacts of an experiment, after creating it if it is not there."""
        asked = "SELECT experiment_id, artifact_location, lifecycle_stage FROM experiments WHERE name = ?"
        asked += " AND workspace = 'default'" if schema.has_workspaces else ""
        found = database.execute(asked, (name,)).fetchone()
        places = dict(database.execute("SELECT experiment_id, artifact_location FROM experiments"))
        root = artifact_root(places, self.path)
        if found is None:
            made = database.execute("INSERT INTO experiments (name, lifecycle_stage) VALUES (?, 'active')", (name,))
            number = int(made.lastrowid or 0)
            place = below(root, str(number))
            database.execute("UPDATE experiments SET artifact_location = ? WHERE experiment_id = ?", (place, number))
            if schema.has_times:
                times = "UPDATE experiments SET creation_time = ?, last_update_time = ? WHERE experiment_id = ?"
                now = milliseconds(time.time())
                database.execute(times, (now, now, number))
            return number, place
        if found[2] != "active":
            raise SinkDeniesError(
                f"the experiment {name[:100]} was deleted in MLflow; restore it there, or name another"
            )
        return int(found[0]), str(found[1] or below(root, str(found[0])))


def _create_run(database: sqlite3.Connection, run: RunFacts, experiment_id: int, location: str) -> str:
    run_id = uuid.uuid4().hex
    database.execute(
        "INSERT INTO runs (run_uuid, name, source_type, source_name, entry_point_name, user_id, status, start_time,"
        " source_version, lifecycle_stage, artifact_uri, experiment_id)"
        " VALUES (?, ?, 'UNKNOWN', '', '', '', 'RUNNING', ?, '', 'active', ?, ?)",
        (run_id, run_name(run), milliseconds(run.created), below(location, run_id, "artifacts"), experiment_id),
    )
    database.executemany(SET_TAG, [(key, value, run_id) for key, value in first_tags(run).items()])
    return run_id
