from __future__ import annotations

import sqlite3

import pytest

from stepscope.core.errors import StepscopeError
from stepscope.core.ring import NO_STEP
from stepscope.importers import formats
from stepscope.importers.source import AT_END
from tests.importers.tracker_files import FILES, GOODSEED, PLUTO, database
from tests.importers.vendors import texts


def points(run, name):
    """Return the points of a metric: step and value as text."""
    series = run.series(name)
    return list(zip(series.step.tolist(), texts(series.value), strict=True))


def test_a_run_of_goodseed_is_read_with_its_fractional_steps(tmp_path):
    """A point lies at the integer part of its step; the true steps are beside it."""
    (tmp_path / "run-1.sqlite").write_bytes(FILES["goodseed"])
    (run,) = formats.read(str(tmp_path))
    assert points(run, "loss") == [(0, "1.0"), (1, "inf")]
    assert points(run, "x") == [(1, "3.0"), (2, "4.0")]
    assert points(run, "x/fractional_step") == [(1, "1.0"), (2, "2.5")]
    assert "loss/fractional_step" not in run.columns
    assert run.facts == {
        "run_id": "run-1",
        "project": "team/vision",
        "name": "first",
        "state": "finished",
        "tags": ["a", "b"],
        "created": 1700000000.0,
        "ended": 1700000010.0,
        "notes": "a note",
        "config": {"params/lr": 0.1, "params/on": True, "params/none": None, "params/text": "1"},
    }
    assert "lines of text, left out: 1" in run.notes


def test_the_queue_of_pluto_is_read(tmp_path):
    """Metrics that were not uploaded are rescued, with configuration and tags; the notes say what a queue is."""
    (tmp_path / "sync.db").write_bytes(FILES["pluto"])
    (run,) = formats.read(str(tmp_path))
    assert points(run, "loss") == [(1, "0.5")]
    assert points(run, "acc") == [(1, "nan")]
    assert points(run, "system/cpu") == [(NO_STEP, "7.0")]
    facts = {"run_id": "run-1", "project": "vision", "created": 1700000000.5, "state": "finished", "tags": ["a"]}
    assert run.facts == {**facts, "config": {"lr": 0.1, "layers": 2}}
    assert any("removed after an upload" in note for note in run.notes)
    assert any("console lines" in note for note in run.notes)


@pytest.mark.parametrize(
    ("form", "schema", "clear"), [("goodseed", GOODSEED, "metric_points"), ("pluto", PLUTO, "sync_queue")]
)
def test_databases_without_a_point_are_refused(tmp_path, form, schema, clear):
    """There is nothing to import."""
    database(f"{schema} DELETE FROM {clear}", tmp_path / "a")
    with pytest.raises(StepscopeError, match="no metric"):
        formats.read(str(tmp_path / "a"), form)


@pytest.mark.parametrize(
    ("form", "schema", "more", "name", "steps"),
    [
        ("goodseed", GOODSEED, "INSERT INTO metric_points VALUES (1, 2.25, 5, 1700000002, 0)", "loss", [0, 1, 2]),
        (
            *("pluto", PLUTO),
            "INSERT INTO sync_queue VALUES (9, 'run-1', 0, '{\"loss\": 1}', 1700000002000, 2, 0, 0, 0)",
            *("loss", [1, 2]),
        ),
    ],
)
def test_a_followed_database_gives_only_what_is_new(tmp_path, form, schema, more, name, steps):
    """A second look takes the new rows; a first fractional step brings the true steps of all points."""
    path = tmp_path / "a"
    database(schema, path)

    def write():
        connection = sqlite3.connect(path)
        connection.execute(more)
        connection.commit()
        connection.close()
        return True

    looks = iter((write, lambda: False))
    asked = AT_END.set(lambda looks=looks: next(looks)())
    try:
        run = formats.FORMATS[form].read(str(path))
    finally:
        AT_END.reset(asked)
    assert run.series(name).step.tolist() == steps
    if form == "goodseed":
        assert run.series("loss/fractional_step").value.tolist() == [0, 1, 2.25]


def test_cells_of_a_wrong_type_cost_only_themselves(tmp_path):
    """SQLite keeps any type in any column."""
    more = "INSERT INTO metric_points VALUES (1, 'x', 5, 1, 0), (7, 3, 5, 1, 0), (1, 9, x'00', 1, 0);"
    database(GOODSEED + more, tmp_path / "a")
    (run,) = formats.read(str(tmp_path / "a"))
    assert points(run, "loss") == [(0, "1.0"), (1, "inf")]
    assert points(run, "series 7") == [(3, "5.0")]
    hostile = (
        "UPDATE runs SET created_at = 'x', config_json = 5; UPDATE sync_queue SET timestamp_ms = x'00', step = 'x';"
    )
    database(PLUTO + hostile + "UPDATE sync_queue SET payload_json = '[' WHERE record_type <> 0", tmp_path / "b")
    (run,) = formats.read(str(tmp_path / "b"))
    assert "records that are no JSON objects, left out (3 times)" in run.notes
