from __future__ import annotations

import math
import os
import sqlite3
import threading
from contextlib import closing
from dataclasses import replace

import pytest

from stepscope.exporters.sinks.mlflow import schema as mlflow_schema
from stepscope.exporters.sinks.mlflow import sqlite as mlflow_sqlite
from stepscope.exporters.sinks.sink import RunNews, SentRow, SinkDeniesError, SinkDownError
from tests.exporters.sinks.batches import RUN, batch_of
from tests.exporters.sinks.mlflow_cases import ROWS, SAME, expected, sink_at
from tests.exporters.sinks.mlflow_tables import TABLES, change, rows_of


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "mlflow.db"
    change(path, TABLES)
    return path


@pytest.fixture
def sink(path):
    sink = sink_at(f"mlflow+sqlite:///{path}", prefix="p/")
    sink.known = sink.open(RUN, {})
    return sink


def points(path):
    rows = rows_of(path, "SELECT key, timestamp, step, CASE is_nan WHEN 1 THEN NULL ELSE value END FROM metrics")
    return sorted((key, time, step, repr(math.nan if value is None else value)) for key, time, step, value in rows)


def test_every_point_is_stored_once(path, sink):
    """What is sent twice, also by a sender that was killed before it kept anything, is stored once."""
    assert sink.send(batch_of(ROWS)).merged == 0
    assert sink.send(batch_of(SAME)).merged == 2
    again = sink_at(f"mlflow+sqlite:///{path}", prefix="p/")
    assert again.open(RUN, {}) == sink.known
    again.send(batch_of(SAME + ROWS))
    assert points(path) == expected(ROWS + SAME, "p/")
    assert rows_of(path, "SELECT count(*) FROM runs") == [(1,)]


def test_the_last_value_is_that_of_the_greatest_step(path, sink):
    """`latest_metrics` is what MLflow itself would have: an older point that comes later does not change it."""
    sink.send(batch_of([SentRow(0, 0, 0, 5, 100.0, {"a": 1.0}), SentRow(0, 0, 1, 9, 50.0, {"a": math.nan})]))
    sink.send(batch_of([SentRow(0, 0, 2, 8, 900.0, {"a": 3.0})]))
    assert rows_of(path, "SELECT key, step, timestamp, value, is_nan FROM latest_metrics") == [
        ("p/a", 9, 50_000, 0.0, 1)
    ]


def test_a_batch_is_written_whole_or_not_at_all(path, sink):
    """If one row cannot be written, none is, and the error names the database."""
    change(path, "CREATE TRIGGER stop BEFORE INSERT ON latest_metrics BEGIN SELECT RAISE(ABORT, 'no'); END")
    with pytest.raises(SinkDeniesError, match=r"mlflow\.db"):
        sink.send(batch_of(ROWS))
    assert points(path) == []


def test_nodes_that_start_together_share_one_run(path):
    """Sinks that open the same run in the same moment create one."""
    found = []
    start = threading.Barrier(4)

    def opened():
        sink = sink_at(f"mlflow+sqlite:///{path}")
        start.wait()
        found.append(sink.open(RUN, {})["run_id"])

    threads = [threading.Thread(target=opened) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert len(set(found)) == 1


def test_a_locked_database_is_down(path, sink, monkeypatch):
    """While another program writes, the sink waits a little, and then says that it is down."""
    monkeypatch.setattr(mlflow_sqlite, "BUSY_SECONDS", 0.05)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(SinkDownError, match="locked"):
            sink.send(batch_of(ROWS))
        with pytest.raises(SinkDownError, match="locked"):
            sink.report(RunNews())
    sink.send(batch_of(ROWS))
    assert points(path) == expected(ROWS, "p/")


def test_waiting_for_others_ends_before_the_call_must(path):
    """Two waits, at the start and end of a transaction, fit into one call."""
    assert 2 * mlflow_sqlite.BUSY_SECONDS < mlflow_sqlite.MOST_SECONDS < mlflow_sqlite.CALL_SECONDS


def test_a_reader_does_not_stop_us_and_the_journal_stays(path, sink):
    """A database in WAL mode stays in it, and one without stays without."""
    assert rows_of(path, "PRAGMA journal_mode") == [("delete",)]
    change(path, "PRAGMA journal_mode = WAL")
    with closing(sqlite3.connect(path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM metrics").fetchone()
        sink.send(batch_of(ROWS))
        assert reader.execute("SELECT count(*) FROM metrics").fetchone() == (0,)
        assert reader.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert points(path) == expected(ROWS, "p/")


def test_what_was_deleted_is_not_created_again(path, sink):
    """A deleted run or experiment denies, with a text that says so."""
    change(path, "UPDATE runs SET lifecycle_stage = 'deleted'")
    for call in (
        lambda: sink.send(batch_of(ROWS)),
        lambda: sink.report(RunNews()),
        lambda: sink.open(RUN, {}),
        lambda: sink.open(RUN, sink.known),
    ):
        with pytest.raises(SinkDeniesError, match="run was deleted"):
            call()
    change(path, "UPDATE experiments SET lifecycle_stage = 'deleted'")
    with pytest.raises(SinkDeniesError, match="experiment mnist was deleted"):
        sink.open(replace(RUN, id="other"), {})


def test_news_are_written_and_written_again(path, sink):
    """State, end, parameters and tags arrive; saying them again changes nothing, and a resumed run has no end."""
    sink.report(RunNews(config={"lr": 1}, tags=("a",)))
    news = RunNews("finished", "", 1_795_000_002.5, config={"lr": 2, "b": {"c": None}}, tags=("b",), notes="new")
    for _ in range(2):
        sink.report(news)
        assert rows_of(path, "SELECT status, end_time FROM runs") == [("FINISHED", 1_795_000_002_500)]
        assert dict(rows_of(path, "SELECT key, value FROM params")) == {"lr": "1", "b.c": "None"}
        tags = dict(rows_of(path, "SELECT key, value FROM tags"))
        assert tags["stepscope.config.lr"] == "2"
        assert tags["mlflow.note.content"].startswith("new\n")
        assert [key for key in tags if key.startswith("stepscope.tag.")] == ["stepscope.tag.b"]
    sink.report(RunNews(config={"lr": 2}))
    assert rows_of(path, "SELECT status, end_time FROM runs") == [("RUNNING", None)]


def test_a_run_is_as_mlflow_creates_one(path):
    """Experiment and run have the names, times and places that MLflow's own store would give them."""
    change(
        path,
        "INSERT INTO experiments (experiment_id, name, artifact_location, lifecycle_stage)"
        " VALUES (0, 'Default', 'mlflow-artifacts:/0', 'active')",
    )
    known = sink_at(f"mlflow+sqlite:///{path}?experiment=mine").open(RUN, {})
    asked = "SELECT name, artifact_location, lifecycle_stage, workspace FROM experiments WHERE experiment_id = 1"
    assert rows_of(path, asked) == [("mine", "mlflow-artifacts:/1", "active", "default")]
    assert rows_of(path, "SELECT name, status, start_time, artifact_uri, lifecycle_stage FROM runs") == [
        ("first try", "RUNNING", 1_795_000_000_250, f"mlflow-artifacts:/1/{known['run_id']}/artifacts", "active")
    ]
    assert known["experiment_id"] == "1"


@pytest.mark.parametrize("lost", ["workspace", "creation_time"])
def test_an_older_schema_with_our_columns_is_written(tmp_path, lost):
    """Another version of MLflow's tables is fine if it has the columns that we write."""
    path = tmp_path / "old.db"
    text = TABLES.replace("workspace VARCHAR(63) DEFAULT 'default' NOT NULL,", "").replace(
        "UNIQUE (workspace, name)", "UNIQUE (name)"
    )
    change(path, text if lost == "workspace" else TABLES.replace("creation_time BIGINT, last_update_time BIGINT,", ""))
    change(path, "UPDATE alembic_version SET version_num = 'older'")
    sink = sink_at(f"mlflow+sqlite:///{path}")
    sink.open(RUN, {})
    sink.send(batch_of(ROWS))
    assert points(path) == expected(ROWS)


def test_a_schema_without_our_columns_is_denied_by_name(path):
    """Tables that we cannot write are named with their version."""
    change(path, "UPDATE alembic_version SET version_num = 'f00'; ALTER TABLE metrics RENAME COLUMN is_nan TO nan")
    sink = sink_at(f"mlflow+sqlite:///{path}")
    for call in (sink.probe, lambda: sink.open(RUN, {})):
        with pytest.raises(SinkDeniesError, match=r"schema f00, which lacks metrics\.is_nan"):
            call()


@pytest.mark.parametrize("content", [b"", b"not a database at all, but long enough to look like one" * 30])
def test_a_file_that_is_no_mlflow_database_is_denied(tmp_path, content):
    """Some other file is left alone."""
    path = tmp_path / "other.db"
    path.write_bytes(content)
    for call in (sink_at(f"mlflow+sqlite:///{path}").probe, lambda: sink_at(f"mlflow+sqlite:///{path}").open(RUN, {})):
        with pytest.raises(SinkDeniesError):
            call()
    assert path.read_bytes() == content


def test_without_mlflow_no_database_is_created(tmp_path, monkeypatch):
    """Where MLflow is not installed, a missing database says what to do, and nothing is created."""
    monkeypatch.setattr(mlflow_schema, "can_create", lambda: False)
    monkeypatch.setattr(mlflow_sqlite, "can_create", lambda: False)
    sink = sink_at(f"mlflow+sqlite:///{tmp_path}/new/mlflow.db")
    for call in (sink.probe, lambda: sink.open(RUN, {})):
        with pytest.raises(SinkDeniesError, match="mlflow server"):
            call()
    assert os.listdir(tmp_path) == []


def test_a_database_that_went_away_is_not_replaced(path, sink):
    """An empty database in its place would look complete: it has to come back."""
    path.unlink()
    with pytest.raises(SinkDeniesError, match="bring it back"):
        sink.open(RUN, sink.known)
    with pytest.raises(SinkDeniesError, match="unable to open"):
        sink.send(batch_of(ROWS))
    assert not path.exists()


def test_a_creation_that_fails_leaves_nothing(tmp_path, monkeypatch):
    """If MLflow's command fails, the error has its last line, and no half of a database is left."""
    monkeypatch.setattr(mlflow_schema, "can_create", lambda: True)
    monkeypatch.setattr(mlflow_schema, "interpreter", lambda: "/bin/false")
    with pytest.raises(SinkDeniesError, match="exit code 1"):
        mlflow_schema.create(tmp_path / "a.db", {})
    assert os.listdir(tmp_path) == []


def test_a_relative_address_is_below_the_working_folder(tmp_path, monkeypatch):
    """Three slashes are a relative path, four an absolute one, as MLflow has it."""
    monkeypatch.chdir(tmp_path)
    assert sink_at("mlflow+sqlite:///runs/a.db").path == tmp_path / "runs" / "a.db"
    assert sink_at("mlflow+sqlite:////srv/a.db").path.as_posix() == "/srv/a.db"
