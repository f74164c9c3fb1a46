from __future__ import annotations

import datetime as dt
import math
import os
import struct

import numpy as np
import pytest

from stepscope.core.errors import StepscopeError, UsageError
from stepscope.sources.opened_run import open_run
from stepscope.store import shelf, sql
from stepscope.store.catalog import runs
from stepscope.store.layout import RunFolder, Writer
from stepscope.store.states import NodeState, RankState
from tests.exporters.recorded import (
    CREATED,
    durations,
    leave_tail,
    make_run,
    points_of,
    seal_points,
    tell,
    without_steps,
)

COLUMNS = {view: list(columns) for view, columns in sql.VIEWS.items()}
START = dt.datetime(2023, 11, 14, 22, 13, 20)  # noqa: DTZ001 (SQL's TIMESTAMP has no zone; ours are UTC)

WRITES = [
    "COPY points TO '{out}'",
    "COPY (SELECT 1) TO '{out}'",
    "COPY (SELECT 1 AS a) TO '{unit}' (FORMAT parquet, USE_TMP_FILE false)",
    "COPY points FROM '/etc/passwd'",
    "WITH x AS (COPY (SELECT 1 AS a) TO '{unit}' (FORMAT parquet, USE_TMP_FILE false)) SELECT 1",
    "WITH x AS (COPY (SELECT 1 AS a) TO '{unit}' (FORMAT parquet, USE_TMP_FILE false)) SELECT * FROM x",
    "EXPLAIN ANALYZE COPY (SELECT 1 AS a) TO '{unit}' (FORMAT parquet, USE_TMP_FILE false)",
    "EXPLAIN ANALYZE WITH x AS (COPY (SELECT 1) TO '{unit}' (FORMAT csv, USE_TMP_FILE false)) SELECT 1",
    "/* */ EXPLAIN ANALYZE COPY (SELECT 1 AS a) TO '{unit}' (FORMAT parquet, USE_TMP_FILE false)",
    "EXPLAIN (ANALYZE, FORMAT json) COPY (SELECT 1 AS a) TO '{unit}' (FORMAT parquet, USE_TMP_FILE false)",
    "SUMMARIZE WITH x AS (COPY (SELECT 1 AS a) TO '{unit}' (USE_TMP_FILE false, FORMAT parquet)) SELECT 1",
    "SELECT * FROM query('WITH x AS (COPY (SELECT 1) TO ''{unit}'' (USE_TMP_FILE false)) SELECT 1')",
    "SELECT * FROM json_execute_serialized_sql(json_serialize_sql('WITH x AS (COPY points TO ''{unit}'') SELECT 1'))",
    "PRAGMA json_execute_serialized_sql('{{}}')",
    "WITH x AS (INSERT INTO internal.files VALUES (9, 9) RETURNING *) SELECT * FROM x",
    "WITH x AS (DELETE FROM internal.loose RETURNING *) SELECT * FROM x",
    "CREATE TABLE mine AS SELECT 1",
    "EXPLAIN ANALYZE CREATE TABLE mine AS SELECT 1",
    "CREATE VIEW points AS SELECT 1",
    "DROP VIEW points",
    "ATTACH '{out}'",
    "EXPORT DATABASE '{out}'",
    "IMPORT DATABASE '/tmp'",
    "CREATE SECRET s (TYPE s3)",
    "INSERT INTO internal.loose SELECT * FROM internal.loose",
]
READS = [
    "SELECT * FROM read_text('/etc/passwd')",
    "SELECT * FROM read_blob('/etc/passwd')",
    "SELECT * FROM read_csv('/etc/passwd')",
    "SELECT * FROM read_json('/etc/passwd')",
    "SELECT * FROM read_parquet('/etc/passwd')",
    "SELECT * FROM sniff_csv('/etc/passwd')",
    "SELECT * FROM glob('/*')",
    "SELECT * FROM glob('/etc/*')",
    "SELECT * FROM '/etc/passwd'",
    "SELECT * FROM '/etc/passwd.csv'",
    "SELECT * FROM '{other}'",
    "SELECT * FROM read_parquet('{other}')",
    "SELECT * FROM read_text('{run}/run.json')",
    "SELECT * FROM query('SELECT * FROM read_text(''/etc/passwd'')')",
    "SELECT getenv('HOME')",
    "SELECT * FROM local_variable",
    "SELECT * FROM duckdb_secrets()",
]
SETTINGS = [
    "INSTALL httpfs",
    "LOAD httpfs",
    "LOAD '/tmp/x.duckdb_extension'",
    "SET enable_external_access = true",
    "SET memory_limit = '100GB'",
    "RESET lock_configuration",
    "PRAGMA enable_profiling",
    "PRAGMA database_list",
    "CALL pragma_version()",
    "SELECT * FROM enable_logging(storage='file', storage_path='{out}')",
    "SELECT * FROM enable_profiling()",
    "USE memory",
    "BEGIN",
    "COMMIT",
    "ROLLBACK",
    "CHECKPOINT",
    "PREPARE p AS SELECT 1",
    "DETACH memory",
    "VACUUM",
]
NOT_ONE = [
    "",
    " ",
    "-- nothing",
    "SELECT 1; SELECT 2",
    "SELECT 1; DROP VIEW points",
    "SELECT 1; COPY points TO '{out}'",
]


@pytest.fixture
def root(tmp_path):
    """Two runs: one sealed with a tail behind it, one that only has a tail."""
    first = make_run(tmp_path, "run-1", config={"lr": 3e-4, "layers": [1, 2]})
    sealed = [points_of({"loss": [3.0, 2.0, math.nan], "lr": [1e-3] * 3}), durations("step_seconds", [5, 10**9 + 1])]
    seal_points(first, points_of({}).concat([*sealed, without_steps(points_of({"cpu/usage_ratio": [0.5]}, rank=-1))]))
    leave_tail(first, [{"loss": math.inf, "lr": -0.0}], first=3)
    tell(first, "checkpoint", path="/x", size=math.nan)
    leave_tail(make_run(tmp_path, "run-2", "other", state="failed"), [{"loss": 7.5}])
    return tmp_path


def ask(root, text):
    return sql.query(root, text)[1]


def bits(value):
    return struct.pack("<d", value)


@pytest.mark.parametrize("view", COLUMNS)
def test_views_have_their_columns(root, view):
    """Each view has the documented columns in the documented types, filled or not."""
    found = {name: kind for name, kind, *_ in ask(root, f"DESCRIBE {view}")}
    assert found == sql.VIEWS[view]
    columns, rows = sql.query(root, f"SELECT * FROM {view}")
    assert columns == COLUMNS[view]
    assert rows


def test_points_join_sealed_files_and_tails(root):
    """A query sees sealed rows and those of the tail, of all runs, each once."""
    rows = ask(root, "SELECT run, seq, value FROM points WHERE name = 'loss' ORDER BY run, seq")
    assert [(run, seq) for run, seq, _ in rows] == [*(("run-1", seq) for seq in range(4)), ("run-2", 0)]
    assert [bits(value) for *_, value in rows] == [bits(value) for value in (3.0, 2.0, math.nan, math.inf, 7.5)]


def test_durations_are_seconds_and_exact_nanoseconds(root):
    """A duration is in seconds in `value` and exact in `ns`; a plain value has no `ns`."""
    assert ask(root, "SELECT value, ns FROM points WHERE name = 'step_seconds' ORDER BY seq") == [
        (5e-9, 5),
        (1.000000001, 10**9 + 1),
    ]
    assert ask(root, "SELECT DISTINCT ns FROM points WHERE name = 'loss'") == [(None,)]


def test_times_are_utc(root, monkeypatch):
    """Times are UTC, also where they meet those with a zone, wherever the machine is."""
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    assert ask(root, "SELECT min(time) FROM points WHERE name = 'lr'") == [(START,)]
    assert ask(root, "SELECT max(created) FROM runs") == [(START,)]
    later = "SELECT created + INTERVAL 1 HOUR > TIMESTAMPTZ '2023-11-14 22:13:21+00' FROM runs LIMIT 1"
    assert ask(root, later) == [(True,)]
    assert ask(root, "SELECT TIMESTAMPTZ '2023-11-14 23:13:20+01' AS t -- a comment") == [(START,)]


def test_absent_steps_are_null(root):
    """A sample that belongs to no step has the step NULL, sealed or not."""
    assert ask(root, "SELECT DISTINCT step FROM points WHERE name LIKE 'cpu%' OR seq = 3") == [(None,)]


def test_impossible_times_are_null(root):
    """A time that DuckDB cannot hold is NULL and spoils no query."""
    points = points_of({"odd": [1.0, 2.0]})
    points.time[:] = [2**63 - 1, -(2**63)]
    seal_points(make_run(root, "run-3"), points)
    assert ask(root, "SELECT time, value FROM points WHERE name = 'odd' ORDER BY seq") == [(None, 1.0), (None, 2.0)]


def test_runs_tell_what_is_known(root):
    """The view of runs has state, duration, step and configuration; what nobody knows is NULL."""
    make_run(root, "run-3", state="running")
    rows = ask(root, "SELECT run, state, cause, duration, step, config->>'$.lr', path FROM runs ORDER BY run")
    assert rows[0] == ("run-1", "finished", None, 2.5, 4, "0.0003", str(root / "mnist" / "run-1"))
    assert [row[1] for row in rows] == ["finished", "failed", "running"]
    assert rows[2][5] is None


def test_a_broken_run_is_listed(root):
    """A run whose run.json is damaged is listed as broken, and its points are left out."""
    (root / "other" / "run-2" / "run.json").write_text("{")
    assert ask(root, "SELECT state FROM runs WHERE run = 'run-2'") == [("broken",)]
    assert ask(root, "SELECT DISTINCT run FROM points") == [("run-1",)]


def test_events_have_their_fields_as_json(root):
    """An event has its time, kind, rank, attempt and step, and the rest as strict JSON."""
    [row] = ask(root, "SELECT time - INTERVAL 1 MILLISECOND, kind, rank, attempt, step, data FROM events")
    assert row == (START, "checkpoint", 0, 0, 3, '{"sequence":7,"path":"/x","size":"NaN"}')


def test_odd_events_spoil_nothing(root):
    """What an event says in the wrong type is kept in `data`."""
    tell(make_run(root, "run-3"), "odd \ud800", step=[1], attempt=2**40)
    [row] = ask(root, "SELECT kind, step, attempt, data->>'$.attempt' FROM events WHERE run = 'run-3'")
    assert row == ("odd \ufffd", None, None, str(2**40))


@pytest.mark.slow
@pytest.mark.parametrize("text", WRITES + READS + SETTINGS + NOT_ONE)
def test_only_reading_the_views_is_possible(root, tmp_path, text):
    """Whatever writes, opens another file or changes a setting is refused in our form, and nothing has changed."""
    local_variable = np.arange(3)  # noqa: F841 (DuckDB must not find it)
    other = seal_points(make_run(tmp_path / "elsewhere"), points_of({"x": [1.0]}))
    [unit] = (root / "mnist" / "run-1" / "metrics").glob("*-0-0-0.parquet")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    places = {"out": tmp_path / "out", "unit": unit, "other": other, "run": unit.parents[1]}
    with sql.connect(root) as database, pytest.raises(UsageError, match=r"^cannot run the query: .+; .+"):
        list(database.query(text.format(**places)).rows)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [
        "FROM points",
        "SHOW TABLES",
        "SUMMARIZE points",
        "DESCRIBE SELECT 1",
        "EXPLAIN SELECT 1",
        "explain analyze select count(*) from points",
        "EXPLAIN (FORMAT json) SELECT 1",
        "VALUES (1)",
        "WITH x AS (SELECT 1 AS copy) SELECT copy FROM x;",
        "SELECT 'COPY x TO y; DROP TABLE z'",
        "SELECT * FROM (PIVOT points ON name IN ('loss', 'lr') USING last(value) GROUP BY run, step)",
        "WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t WHERE n < 3) SELECT * FROM t",
        "SELECT now()",
        "SELECT 'lone \ud800'",
    ],
)
def test_reading_in_any_form_is_allowed(root, text):
    """Every form of SELECT runs, and DESCRIBE, SHOW, SUMMARIZE and EXPLAIN."""
    with sql.connect(root) as database:
        assert list(database.query(text).rows)


def test_mistakes_are_told_with_a_hint(root):
    """A mistake in a query is told in our form, with what DuckDB suggests."""
    with pytest.raises(UsageError, match=r'"valeu" not found .*"value".*; correct it'):
        ask(root, "SELECT valeu FROM points")
    with pytest.raises(UsageError, match="name them"):
        ask(root, "PIVOT points ON name USING last(value)")


def test_a_connection_survives_mistakes(root):
    """After a query that failed, or was not read to its end, the next one works."""
    with sql.connect(root) as database:
        next(database.query("SELECT * FROM range(100000)").rows)
        for text in ("SELECT nope", "DROP VIEW points", "SELECT error('x')"):
            with pytest.raises(UsageError):
                list(database.query(text).rows)
        assert list(database.query("SELECT 1").rows) == [(1,)]


def test_memory_is_bounded(root):
    """A query that needs more memory than it may have fails, and says what to do."""
    with sql.connect(root, memory="64MB") as database, pytest.raises(StepscopeError, match="fewer rows"):
        list(database.query("SELECT list(range) FROM range(100000000)").rows)


def test_columns_are_distinct(root):
    """Columns of one name are told apart."""
    assert sql.query(root, "SELECT 1 AS a, 2 AS a, 3 AS a_2")[0] == ["a", "a_3", "a_2"]


def test_a_view_not_asked_for_fails(root):
    """A view that is reached without its name fails instead of being empty."""
    with pytest.raises(UsageError, match="was not asked for by name"):
        ask(root, "FROM query_table(['po' || 'ints'])")


def test_queries_of_runs_compare_no_files(root, monkeypatch):
    """A query that does not name points reads none of them."""
    monkeypatch.setattr(shelf, "take_snapshot", None)
    assert ask(root, "SELECT count(*) FROM runs") == [(2,)]


def test_a_missing_root_is_told(tmp_path):
    """A folder that is not there is an error; one without runs has empty views."""
    with pytest.raises(StepscopeError, match=r"there is no such folder; .*--dir"):
        ask(tmp_path / "nowhere", "SELECT 1")
    assert ask(tmp_path, "SELECT (SELECT count(*) FROM points), (SELECT count(*) FROM events)") == [(0, 0)]


def test_damaged_units_give_what_is_whole(tmp_path):
    """Of a unit with a flipped byte the whole row groups are read, and the rest is told."""
    folder = make_run(tmp_path)
    unit = seal_points(folder, points_of({"loss": np.arange(250_000.0)}))
    data = bytearray(unit.read_bytes())
    data[200] ^= 0x10
    unit.write_bytes(data)
    with sql.connect(tmp_path) as database:
        [(count, wrong)] = database.query("SELECT count(*), count_if(value <> seq) FROM points").rows
        assert (count, wrong) == (250_000 - 98_304, 0)
        assert "does not match its checksum; 98304 entries are left out" in " ".join(database.problems)
    assert count == len(open_run(folder.path).points())


@pytest.mark.parametrize("part", [".sum", ".blocks.parquet"])
def test_units_without_a_part_are_read(tmp_path, part):
    """A unit without its checksums or its pyramid is read all the same."""
    unit = seal_points(make_run(tmp_path), points_of({"loss": [1.0, 2.0]}))
    unit.with_name(unit.name.removesuffix(".parquet") + part).unlink()
    assert ask(tmp_path, "SELECT sum(value) FROM points") == [(3.0,)]


def test_superseded_units_are_not_read(tmp_path):
    """Of a compacted unit and those it replaces, only the first is read."""
    folder = make_run(tmp_path)
    for number in (0, 1):
        seal_points(folder, points_of({"loss": [1.0]}, first=number), number)
    whole = seal_points(folder, points_of({"loss": [1.0, 1.0]}), 7)
    for path in whole.parent.glob("*-0-7-7*"):
        path.rename(path.with_name(path.name.replace("-0-7-7", "-0-0-1")))
    assert ask(tmp_path, "SELECT count(*) FROM points") == [(2,)]


def test_rows_of_two_watchers_appear_once(tmp_path):
    """A row that two watchers of one attempt brought home, sealed or in a tail, appears once."""
    folder = make_run(tmp_path)
    after = Writer("node.def", 0)
    NodeState(after.node, 0, ended=True, ranks={0: RankState()}).save(folder)
    seal_points(folder, points_of({"loss": [1.0, 2.0]}))
    seal_points(folder, points_of({"loss": [2.0, 3.0]}, first=1), writer=after)
    leave_tail(folder, [{"loss": 3.0}, {"loss": 4.0}], first=2)
    seal_points(make_run(tmp_path, "run-2"), points_of({"loss": [9.0]}))
    assert ask(tmp_path, "SELECT run, seq, value FROM points ORDER BY run, seq") == [
        *(("run-1", seq, seq + 1.0) for seq in range(4)),
        ("run-2", 0, 9.0),
    ]


def test_ranks_of_several_nodes_need_no_comparison(tmp_path):
    """Watchers that hold different ranks of an attempt do not make its rows suspicious."""
    folder = make_run(tmp_path)
    other = Writer("node.def", 0)
    NodeState(other.node, 0, ended=True, ranks={1: RankState()}).save(folder)
    seal_points(folder, points_of({"loss": [1.0]}))
    seal_points(folder, points_of({"loss": [1.0]}, rank=1), writer=other)
    assert not any(twice for *_, twice in shelf.Shelf(runs(tmp_path)).files)
    assert ask(tmp_path, "SELECT rank FROM points ORDER BY rank") == [(0,), (1,)]


def test_files_are_compared_once(tmp_path, monkeypatch):
    """A file that was compared with its checksum is not read for that again in this process."""
    seal_points(make_run(tmp_path), points_of({"loss": [1.0]}))
    ask(tmp_path, "SELECT 1 FROM points")
    monkeypatch.setattr(os, "pread", None)
    assert ask(tmp_path, "SELECT count(*) FROM points") == [(1,)]


def test_odd_paths_are_quoted(tmp_path):
    """Quotes and wildcards in the path of a run are part of it."""
    root = tmp_path / "it's [a] *?"
    seal_points(make_run(root), points_of({"loss": [1.0]}))
    assert ask(root, "SELECT count(*) FROM points") == [(1,)]


def test_a_file_that_goes_away_is_looked_up_again(tmp_path, monkeypatch):
    """When a unit is replaced while the runs are listed, they are listed again."""
    seal_points(make_run(tmp_path), points_of({"loss": [1.0]}))
    take, calls = shelf.take_snapshot, []

    def once(folder):
        calls.append(folder)
        if len(calls) == 1:
            raise FileNotFoundError
        return take(folder)

    monkeypatch.setattr(shelf, "take_snapshot", once)
    assert ask(tmp_path, "SELECT count(*) FROM points") == [(1,)]
    assert len(calls) == 2


def test_python_and_sql_agree(root):
    """Python and SQL give the same bits for every point of a run."""
    past = open_run(RunFolder(root / "mnist" / "run-1").path)
    points = past.points()
    rows = ask(root, "SELECT name, rank, attempt, seq, epoch_us(time), value FROM points WHERE run = 'run-1'")
    found = {(name, *key): (time, bits(value)) for name, *key, time, value in rows}
    columns = (points.rank, points.attempt, points.seq, points.time, points.value)
    names = [points.names[code] for code in points.name]
    expected = {
        (name, *key): (time, bits(value))
        for name, (*key, time, value) in zip(names, zip(*(c.tolist() for c in columns), strict=True), strict=True)
    }
    assert found == expected
    assert len(rows) == len(points)
    assert CREATED in {time for time, _ in found.values()}
