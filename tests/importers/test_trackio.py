from __future__ import annotations

import json
import shutil
import sqlite3
from collections import Counter

import pytest

from stepscope.core.errors import StepscopeError
from stepscope.core.ring import NO_STEP
from stepscope.importers import formats
from stepscope.importers.source import AT_END
from tests.importers.tracker_files import OLD_TRACKIO, TRACKIO, database, folder, fragment
from tests.importers.vendors import texts, vendor

WRITE = """
import json, math, os, sqlite3
os.environ["TRACKIO_DIR"] = os.path.abspath("trackio")
import trackio
from trackio.sqlite_storage import SQLiteStorage

trackio.init(project="vision", name="first é", config={"lr": 0.1, "model": {"layers": 2}}, group="g")
for step, value in [(0, 1.0), (2, math.nan), (1, math.inf), (1, -math.inf), (1, 5e-324), (7, -0.0)]:
    trackio.log({"loss": value, "train/é acc": 2, "nested": {"x": step}, "text": "hi", "on": True}, step=step)
trackio.log({"lr": 5})
trackio.log_system({"gpu": 0.5})
trackio.finish()
trackio.init(project="vision", name="second")
trackio.log({"loss": 1})
trackio.finish()
logs = {run: SQLiteStorage.get_logs("vision", run) for run in ("first é", "second")}
SQLiteStorage.export_to_parquet()
names = sqlite3.connect("trackio/vision.db").execute("SELECT DISTINCT run_name, run_id FROM metrics")
print(json.dumps({"logs": logs, "runs": dict(names.fetchall())}))
"""


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """The folder that Trackio itself wrote, and what its own reader returns."""
    place = tmp_path_factory.mktemp("trackio")
    return place / "trackio", vendor(WRITE, place)


def points(run, name):
    """Return the points of a metric: step and value as text."""
    series = run.series(name)
    return list(zip(series.step.tolist(), texts(series.value), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("files", ["*", "*.db*", "*.parquet"])
def test_database_and_parquet_give_what_trackio_itself_reads(written, tmp_path, files):
    """Every value at every step equals that of Trackio's own reader, from each source, and from both once."""
    place, found = written
    for path in place.glob(files):
        if path.is_file():
            shutil.copy(path, tmp_path)
    runs = {run.facts["name"]: run for run in formats.read(str(tmp_path))}
    assert {name: run.facts["run_id"] for name, run in runs.items()} == found["runs"]
    for name, rows in found["logs"].items():
        for metric in ("loss", "train/é acc", "learning_rate"):
            source = {"learning_rate": "lr"}.get(metric, metric)
            expected = [(row["step"], repr(float(row[source]))) for row in rows if source in row]
            assert Counter(points(runs[name], metric)) == Counter(expected)
    first = runs["first é"]
    assert first.facts["config"] == {"lr": 0.1, "model": {"layers": 2}}
    assert (first.facts["project"], first.facts["group"]) == ("vision", "g")
    assert points(first, "nested/x")[1] == (2, "2.0")
    assert points(first, "system/gpu") == [(NO_STEP, "0.5")]
    assert any("text, left out" in note for note in first.notes)


def test_databases_without_ids_have_a_run_for_each_name(tmp_path):
    """Trackio before 0.24 had no ids of runs and rows; its times had no zone."""
    database(OLD_TRACKIO, tmp_path / "vision.db")
    calm, wild = formats.read(str(tmp_path / "vision.db"))
    assert (calm.key, wild.key) == ("calm-tree-0", "wild-sea-1")
    assert points(calm, "loss") == [(0, "0.5"), (1, "0.4")]
    assert calm.series("loss").time.tolist() == [1754028334.0, 1754028335.0]


def test_fragments_and_the_database_give_a_run_once(tmp_path):
    """A fragment may be read into the database already, in whole or in part; an id of a row is taken once."""
    database(TRACKIO, tmp_path / "vision.db")
    known = {"step": 1, "timestamp": "2026-11-18T06:05:34.5+00:00", "metrics": {"loss": 0.5, "lr": 1}, "log_id": "a"}
    new = {"step": 3, "timestamp": "2026-11-18T06:05:36.5+00:00", "metrics": {"loss": "-Infinity"}, "log_id": "c"}
    system = {"kind": "system_metric", "timestamp": "2026-11-18T06:05:36+00:00", "metrics": {"gpu": 1}, "log_id": "d"}
    folder(
        {"inbox/one/00000000.jsonl": fragment(known, new), "inbox/two/00000000.jsonl": fragment(new, system)}, tmp_path
    )
    (run,) = formats.read(str(tmp_path))
    assert points(run, "loss") == [(1, "0.5"), (2, "nan"), (3, "-inf")]
    assert points(run, "system/gpu") == [(NO_STEP, "1.0")]
    assert run.facts["config"] == {"lr": 0.1}


def test_an_inbox_alone_is_read(tmp_path):
    """Where SQLite is unsafe Trackio writes only fragments; a config in one is the run's."""
    folder({"inbox/one/00000000.jsonl": fragment({"step": 1, "metrics": {"loss": 1}, "config": {"lr": 1}})}, tmp_path)
    for path in (tmp_path, tmp_path / "inbox", tmp_path / "inbox/one/00000000.jsonl"):
        (run,) = formats.read(str(path))
        assert run.format == "trackio"
        assert run.facts.items() >= {"config": {"lr": 1}, "project": "vision", "name": "first"}.items()


def test_followed_sources_give_only_what_is_new(tmp_path):
    """Each look takes new rows of a database, and new fragments of an inbox."""
    store = tmp_path / "vision.db"
    database(TRACKIO, store)
    folder({"inbox/one/00000000.jsonl": fragment({"step": 1, "metrics": {"loss": 1}})}, tmp_path)

    def write():
        connection = sqlite3.connect(store)
        row = ("r1", "2026-11-18T06:05:37+00:00", "first", 3, json.dumps({"loss": 7}))
        connection.execute(
            "INSERT INTO metrics (run_id, timestamp, run_name, step, metrics) VALUES (?, ?, ?, ?, ?)", row
        )
        connection.commit()
        connection.close()
        folder({"inbox/one/00000001.jsonl": fragment({"step": 3, "metrics": {"loss": 7}})}, tmp_path)
        return True

    for path, steps in ((store, [1, 2, 3]), (tmp_path / "inbox", [1, 3])):
        looks = iter((write, lambda: False))
        asked = AT_END.set(lambda looks=looks: next(looks)())
        try:
            run = formats.FORMATS["trackio"].read(str(path))
        finally:
            AT_END.reset(asked)
        assert run.series("loss").step.tolist() == steps


@pytest.mark.parametrize("metrics", ["[1]", "7", "", "{", "[" * 100_000, '{"a": {}}', '{"loss": NaN}'])
def test_rows_that_are_no_objects_cost_only_themselves(tmp_path, metrics):
    """A damaged or hostile row is left out, and the rest is read."""
    store = tmp_path / "vision.db"
    database(TRACKIO, store)
    connection = sqlite3.connect(store)
    connection.execute("UPDATE metrics SET metrics = ? WHERE step = 2", (metrics,))
    connection.commit()
    connection.close()
    (run,) = formats.read(str(store))
    assert points(run, "loss")[0] == (1, "0.5")


def test_a_database_without_a_number_is_refused(tmp_path):
    """There is nothing to import."""
    database(TRACKIO + "DELETE FROM metrics", tmp_path / "vision.db")
    with pytest.raises(StepscopeError, match="no run in it has a number"):
        formats.read(str(tmp_path / "vision.db"))
