from __future__ import annotations

import math
import os
import sqlite3
from collections import Counter

import pytest

from stepscope.core.errors import StepscopeError
from stepscope.importers import formats
from stepscope.importers.source import AT_END
from tests.importers.tracker_files import FOLDERS, MLFLOW, database, folder
from tests.importers.vendors import texts, vendor

WRITE = """
import json, math, os, warnings
warnings.simplefilter("ignore")
os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
import mlflow
from mlflow.entities import Metric, Param, RunTag

found = {}
for store in ("sqlite:///mlflow.db", "mlruns"):
    client = mlflow.MlflowClient(store)
    experiment = client.create_experiment("vision é")
    run = client.create_run(experiment, start_time=1700000000000, run_name="first é").info.run_id
    values = [(0, 1.0), (2, math.nan), (1, math.inf), (1, -math.inf), (1, 3.5), (9, 5e-324), (-3, -0.0), (2**62, 1e300)]
    client.log_batch(run, params=[Param("lr", "0.1"), Param("n/a", "1.10")], tags=[RunTag("team", "x"),
        RunTag("mlflow.note.content", "a note"), RunTag("mlflow.user", "me")])
    for key in ("loss", "train/é acc", "a b"):
        metrics = [Metric(key, value, 1700000001000 + at, step) for at, (step, value) in enumerate(values)]
        client.log_batch(run, metrics=metrics)
    client.set_terminated(run, "FAILED", end_time=1700000009000)
    gone = client.create_run(experiment).info.run_id
    client.log_metric(gone, "loss", 1.0)
    client.delete_run(gone)
    other = client.create_experiment("to delete")
    client.log_metric(client.create_run(other).info.run_id, "loss", 1.0)
    client.delete_experiment(other)
    keys = client.get_run(run).data.metrics
    found[store] = {"id": run, "metrics": {key: [[metric.step, metric.timestamp, repr(metric.value)]
        for metric in client.get_metric_history(run, key)] for key in keys}}
print(json.dumps(found))
"""
FACTS = {
    "name": "first é",
    "project": "vision é",
    "notes": "a note",
    "user": "me",
    "tags": ["team=x"],
    "config": {"lr": 0.1, "n/a": "1.10"},
    "state": "failed",
    "created": 1700000000.0,
    "ended": 1700000009.0,
}


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """The stores that MLflow itself wrote, and what its client reads from them."""
    place = tmp_path_factory.mktemp("mlflow")
    return place, vendor(WRITE, place)


@pytest.mark.slow
@pytest.mark.parametrize(("store", "path"), [("sqlite:///mlflow.db", "mlflow.db"), ("mlruns", "mlruns")])
def test_both_stores_give_what_mlflow_itself_reads(written, store, path):
    """Every value, step and time of a run equals the client's, non-finite ones and repeated steps included."""
    place, found = written
    (run,) = formats.read(str(place / path))
    history = found[store]["metrics"]
    assert run.names() == sorted(history)
    for name, expected in history.items():
        series = run.series(name)
        read = zip(series.step.tolist(), series.time.tolist(), texts(series.value), strict=True)
        # MLflow's client returns what SQL has for infinity: the largest number.
        restored = (
            (step, stamp / 1e3, value.replace("1.7976931348623157e+308", "inf")) for step, stamp, value in expected
        )
        assert Counter(read) == Counter(restored)
        assert series.time.tolist() == sorted(series.time)
    assert run.facts.items() >= {**FACTS, "run_id": found[store]["id"]}.items()


@pytest.mark.slow
@pytest.mark.parametrize(("path", "note"), [("mlflow.db", "left out: 2"), ("mlruns", "was deleted in MLflow")])
def test_deleted_runs_are_left_out_and_said(written, path, note):
    """A run or experiment in MLflow's bin is not imported, and the notes tell."""
    (run,) = formats.read(str(written[0] / path))
    assert any(note in text for text in run.notes)
    assert (path == "mlflow.db") or any(".trash" in text for text in run.notes)


def test_lines_of_two_three_and_five_fields_have_their_step_in_field_three(tmp_path):
    """MLflow itself reads step 0 from a line of five fields, which names a dataset; the third is the step."""
    run = formats.read(str(folder(FOLDERS["mlflow_files"], tmp_path / "run")))[0]
    assert run.series("train/acc").step.tolist() == [0, 2]
    assert run.facts["state"] == "finished"


@pytest.mark.parametrize("line", [b"x", b"1 2 3 4", b"1 2 3 4 5 6", b"1 two 3", b"1 2 9999999999999999999", b"1 2 0.5"])
def test_lines_that_are_no_points_are_counted(tmp_path, line):
    """A damaged line costs only itself; a last one that is cut is left out too."""
    folder(FOLDERS["mlflow_files"], tmp_path)
    (tmp_path / "metrics" / "loss").write_bytes(line + b"\n1700000001000 0.5 1\n1700000002000 0.")
    (run,) = formats.read(str(tmp_path))
    assert run.series("loss").value.tolist() == [0.5]
    assert sum("left out: loss" in note for note in run.notes) == 2


def test_a_meta_file_that_is_no_yaml_costs_only_its_facts(tmp_path):
    """The metrics are read; the note names the file and the line."""
    folder(FOLDERS["mlflow_files"], tmp_path)
    (tmp_path / "meta.yaml").write_text("x: 1\nrun_id: [r1\n")
    (run,) = formats.read(str(tmp_path))
    assert len(run.series("loss")) == 2
    assert any("meta.yaml" in note for note in run.notes)


def test_a_followed_run_gives_only_what_is_new(tmp_path):
    """Each look takes the lines that were completed since; a database, its new rows."""
    run = folder(FOLDERS["mlflow_files"], tmp_path / "run")
    store = tmp_path / "mlflow.db"
    database(MLFLOW, store)

    def write(look):
        with (run / "metrics/loss").open("a") as file:
            file.write("1700000003000 0.25" if look == 1 else " 3\n")
        connection = sqlite3.connect(store)
        connection.execute("INSERT INTO metrics VALUES ('loss', 0.25, 1700000003000, 'r1', ?, 0)", (2 + look,))
        connection.commit()
        connection.close()

    for form, path, steps in (("mlflow_files", run, [1, 2, 3]), ("mlflow_sql", store, [1, 2, 3, 4])):
        looks = iter((1, 2))
        folder(FOLDERS["mlflow_files"], tmp_path / "run")
        store.unlink()
        database(MLFLOW, store)
        asked = AT_END.set(lambda looks=looks: (look := next(looks, 0)) > 0 and write(look) is None)
        try:
            found = formats.FORMATS[form].read(str(path))
        finally:
            AT_END.reset(asked)
        assert found.series("loss").step.tolist() == steps


def test_a_newer_schema_is_said_and_read_as_far_as_it_fits(tmp_path):
    """Columns that we do not know are named; those that are missing are absent."""
    database(MLFLOW + "ALTER TABLE metrics ADD COLUMN unit TEXT; DROP TABLE tags; DROP TABLE params;", tmp_path / "a")
    (run,) = formats.read(str(tmp_path / "a"))
    assert any("newer MLflow: its metrics also have unit" in note for note in run.notes)
    assert len(run.series("loss")) == 2


def test_a_database_of_early_mlflow_has_no_steps(tmp_path):
    """Before 1.0 a metric had neither a step nor a flag for NaN: all points are at step 0, told apart by time."""
    early = """DROP TABLE metrics; CREATE TABLE metrics (key VARCHAR(250), value FLOAT, timestamp BIGINT,
      run_uuid VARCHAR(32)); INSERT INTO metrics VALUES ('loss', 2, 1500000001000, 'r1'),
      ('loss', 1, 1500000002000, 'r1')"""
    database(MLFLOW + early, tmp_path / "a")
    (run,) = formats.read(str(tmp_path / "a"))
    assert run.series("loss").step.tolist() == [0, 0]
    assert run.series("loss").time.tolist() == [1500000001.0, 1500000002.0]


@pytest.mark.parametrize(
    "change",
    [
        "ALTER TABLE metrics RENAME TO m; CREATE VIEW metrics AS SELECT * FROM m",
        "DROP TABLE metrics; CREATE VIRTUAL TABLE metrics USING fts4(key, value, timestamp, run_uuid, step, is_nan)",
        "DROP TABLE metrics; CREATE TABLE metrics (key, timestamp, run_uuid, step, is_nan, value AS (abs(step)))",
    ],
)
def test_views_and_computed_columns_are_not_read(tmp_path, change):
    """They would run code of the file: such a database is none of MLflow."""
    database(MLFLOW + change, tmp_path / "a")
    with pytest.raises(StepscopeError, match="no format that Stepscope reads"):
        formats.read(str(tmp_path / "a"))
    with pytest.raises(StepscopeError, match="no run in it has a metric"):
        formats.read(str(tmp_path / "a"), "mlflow_sql")


def test_values_of_a_wrong_type_are_left_out_and_counted(tmp_path):
    """SQLite keeps any type in any column."""
    more = (
        "INSERT INTO metrics VALUES ('loss', 'x', 1, 'r1', 3, 0), ('loss', x'ff', 1, 'r1', 'y', 0), "
        "(x'ff', 2, 3, 'r1', 4, 0)"
    )
    database(MLFLOW + more, tmp_path / "a")
    (run,) = formats.read(str(tmp_path / "a"))
    assert texts(run.series("loss").value) == ["0.5", "nan"]
    assert any("no numbers, left out: 2" in note for note in run.notes)


def test_a_locked_database_is_an_error_in_plain_words(tmp_path, monkeypatch):
    """A writer that keeps its lock does not keep us waiting for long."""
    monkeypatch.setattr("stepscope.importers.trackers.sqlite.WAIT_SECONDS", 0.01)
    database(MLFLOW, tmp_path / "a")
    writer = sqlite3.connect(tmp_path / "a", isolation_level=None)
    writer.execute("BEGIN EXCLUSIVE")
    with pytest.raises(StepscopeError, match="keeps the database locked; try again"):
        formats.read(str(tmp_path / "a"))
    writer.close()


@pytest.mark.parametrize("files", [("a", "a-wal", "a-shm"), ("a", "a-wal")])
def test_a_log_of_changes_is_read_and_nothing_is_written_beside_it(tmp_path, files):
    """Rows that are only in the write-ahead log count, whether its writer lives, or was killed and the files moved."""
    writer = sqlite3.connect(tmp_path / "a")
    writer.execute("PRAGMA journal_mode = WAL")
    writer.executescript(MLFLOW)
    (tmp_path / "copy").mkdir()
    for name in files:
        (tmp_path / "copy" / name).write_bytes((tmp_path / name).read_bytes())
    (run,) = formats.read(str(tmp_path / "copy" / "a"))
    writer.close()
    assert texts(run.series("loss").value) == ["0.5", "nan"]
    assert sorted(os.listdir(tmp_path / "copy")) == sorted(files)


def test_a_transaction_that_was_cut_by_a_kill_is_undone_in_a_copy(tmp_path):
    """The journal of a killed writer is applied to a private copy: only committed rows are read, nothing is changed."""
    database(MLFLOW, tmp_path / "a")
    writer = sqlite3.connect(tmp_path / "a", isolation_level=None)
    writer.execute("PRAGMA cache_size = 1")  # so that it writes to the file before it commits
    writer.execute("BEGIN")
    writer.executemany("INSERT INTO metrics VALUES ('loss', ?, 1, 'r1', 9, 0)", [(at,) for at in range(2000)])
    (tmp_path / "copy").mkdir()
    for name in ("a", "a-journal"):
        (tmp_path / "copy" / name).write_bytes((tmp_path / name).read_bytes())
    writer.close()
    before = {path: path.read_bytes() for path in (tmp_path / "copy").iterdir()}
    (run,) = formats.read(str(tmp_path / "copy" / "a"))
    assert texts(run.series("loss").value) == ["0.5", "nan"]
    assert {path: path.read_bytes() for path in (tmp_path / "copy").iterdir()} == before


def test_a_database_that_is_damaged_in_the_middle_is_read_up_to_there(tmp_path, monkeypatch):
    """What was read stays, and the notes tell that there was more."""
    monkeypatch.setattr("stepscope.importers.trackers.sqlite.BATCH", 100)
    rows = ", ".join(f"('loss', {at}, {at}, 'r1', {at}, 0)" for at in range(5000))
    data = bytearray(database(MLFLOW + f"INSERT INTO metrics VALUES {rows}"))
    middle = len(data) // 2 // 512 * 512
    data[middle : middle + 51_200] = bytes(51_200)
    (tmp_path / "a").write_bytes(data)
    (run,) = formats.read(str(tmp_path / "a"))
    assert 100 < len(run.series("loss")) < 5000
    assert any("the database is damaged" in note for note in run.notes)


def test_a_writer_is_not_kept_waiting_by_a_reader_that_follows(tmp_path):
    """Between two looks, and between two batches, a writer commits at once."""
    path = tmp_path / "mlflow.db"
    database(MLFLOW, path)
    writer = sqlite3.connect(path, timeout=0, isolation_level=None)
    counts = iter(range(3, 8))

    def write():
        step = next(counts, None)
        if step is not None:
            writer.execute("INSERT INTO metrics VALUES ('loss', 1, ?, 'r1', ?, 0)", (step, step))
        return step is not None

    asked = AT_END.set(write)
    try:
        run = formats.FORMATS["mlflow_sql"].read(str(path))
    finally:
        AT_END.reset(asked)
        writer.close()
    assert run.series("loss").step.tolist() == [1, 2, 3, 4, 5, 6, 7]


def test_a_followed_database_that_is_locked_is_read_at_the_next_look(tmp_path):
    """A lock that lasts does not end the following."""
    path = tmp_path / "mlflow.db"
    database(MLFLOW, path)
    writer = sqlite3.connect(path, isolation_level=None)
    writer.execute("BEGIN EXCLUSIVE")
    looks = iter((True, False))

    def release():
        if writer.in_transaction:
            writer.execute("COMMIT")
        return next(looks)

    asked = AT_END.set(release)
    try:
        run = formats.FORMATS["mlflow_sql"].read(str(path))
    finally:
        AT_END.reset(asked)
        writer.close()
    assert len(run.series("loss")) == 2


def test_a_closed_database_gets_no_log_beside_it(tmp_path):
    """SQLite would leave two files beside a database that has a write-ahead log."""
    database("PRAGMA journal_mode = WAL;" + MLFLOW, tmp_path / "a")
    assert len(formats.read(str(tmp_path / "a"))) == 1
    assert os.listdir(tmp_path) == ["a"]


def test_infinity_is_the_largest_number(tmp_path):
    """As MLflow stores it in SQL."""
    largest = "INSERT INTO metrics VALUES ('x', {sign}1.7976931348623157e308, 1, 'r1', 3, 0);"
    database(MLFLOW + largest.format(sign="") + largest.format(sign="-"), tmp_path / "a")
    (run,) = formats.read(str(tmp_path / "a"))
    assert run.series("x").value.tolist() == [math.inf, -math.inf]
