from __future__ import annotations

import csv
import io
import json
import math
import struct
from pathlib import Path

import duckdb
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.exporters.files import csv as csv_format
from stepscope.exporters.files import portions
from stepscope.exporters.files.selection import ExportedMetric, choose
from stepscope.exporters.formats import FOLDER, FORMATS
from stepscope.sources.opened_run import open_run
from stepscope.store import sql
from stepscope.store.layout import Writer
from stepscope.store.points import Points
from stepscope.store.snapshot import Snapshot
from tests.exporters.recorded import WRITER, durations, leave_tail, make_run, points_of, seal_points, without_steps

BITS = st.integers(0, 2**64 - 1) | st.sampled_from(
    [0, 1, 1 << 63, 0x7FF0 << 48, 0xFFF0 << 48, 0x7FF8 << 48, (1 << 52) - 1]
)
VALUES = st.lists(BITS.map(lambda bits: struct.unpack("<d", struct.pack("<Q", bits))[0]), max_size=8)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=6)


class Reader:
    """A run in memory, with as much of a reader as exporters use."""

    id, project, path = "run-1", "mnist", Path("nowhere")

    def __init__(self, points):
        self.recorded = points

    def names(self):
        return sorted(self.recorded.names)

    def points(self, names):
        return self.recorded.select(np.isin(self.recorded.name, [self.recorded.names.index(name) for name in names]))

    def read(self, how):
        return how(Snapshot([], self.recorded), None)[0]


@pytest.fixture
def past(tmp_path):
    """A run with every kind of value, sealed and in a tail."""
    folder = make_run(tmp_path)
    parts = [points_of({"loss": [0.1, 1e308, 5e-324], "lr": [1 / 3]}), durations("step_seconds", [1, 123_456_789])]
    parts.append(without_steps(points_of({"cpu/usage_ratio": [0.57]}, rank=-1)))
    seal_points(folder, Points.concat(parts))
    leave_tail(folder, [{"loss": math.nan}, {"loss": -math.inf}, {"loss": -0.0}], first=3)
    return open_run(folder.path)


def exported(past, name, metrics=None, wide=False):
    stream = io.BytesIO()
    form = FORMATS[name]
    (form.write_wide if wide else form.write)(past, choose(past) if metrics is None else metrics, stream)
    return stream.getvalue().decode()


def table(text):
    return list(csv.DictReader(io.StringIO(text, newline="")))


def objects(text):
    def refuse(word):
        raise AssertionError(f"{word} is not JSON")

    return [json.loads(line, parse_constant=refuse) for line in text.splitlines()]


def number(entry):
    return float(entry["nonfinite"]) if "nonfinite" in entry else entry["value"]


def same(left, right):
    """Say whether two lists of floats have the same bits; of NaN only that it is one counts."""
    return [None if math.isnan(v) else struct.pack("<d", v) for v in left] == [
        None if math.isnan(v) else struct.pack("<d", v) for v in right
    ]


@given(VALUES)
def test_csv_reads_back_to_the_same_bits(values):
    """Each finite float of a CSV reads back to the same 64 bits, and each other to its kind."""
    text = exported(Reader(points_of({"x": values})), "csv", [ExportedMetric("x", "x")])
    assert same([float(row["value"]) for row in table(text)], values)


@pytest.mark.promise("S2-047")
@given(VALUES)
def test_jsonl_reads_back_to_the_same_bits(values):
    """Each finite float of a JSONL reads back to the same 64 bits; others are null with a flag, in strict JSON."""
    entries = objects(exported(Reader(points_of({"x": values})), "jsonl", [ExportedMetric("x", "x")]))
    assert same([number(entry) for entry in entries], values)
    assert all((entry["value"] is None) == ("nonfinite" in entry) for entry in entries)


@given(st.lists(st.tuples(st.integers(0, 2), st.floats()), max_size=12))
def test_wide_csv_has_the_last_value_of_each_step(entries):
    """A wide CSV has a row for each step and in it the last value, bit by bit; what was not recorded is empty."""
    points = points_of({"x": [value for _, value in entries], "y": [1.0]})
    points.step[: len(entries)] = [step for step, _ in entries]
    rows = table(exported(Reader(points), "csv", [ExportedMetric("x", "x"), ExportedMetric("y", "y")], wide=True))
    last = dict(entries)
    assert [int(row["step"]) for row in rows] == sorted({*last, 0})
    assert same([float(row["x"]) for row in rows if row["x"]], [last[step] for step in sorted(last)])
    assert [row["y"] for row in rows if row["y"]] == ["1.0"]


@given(TEXT)
def test_any_name_survives_csv(name):
    """A name is one cell whatever is in it, and no cell starts like a formula."""
    [row] = table(exported(Reader(points_of({name: [1.0]})), "csv", [ExportedMetric(name, name)]))
    assert row["name"] in {name, f"'{name}"}
    assert not row["name"].startswith(("=", "+", "-", "@", "\t", "\r"))


@pytest.mark.parametrize("name", ["=cmd()", "+1", "-x", "@sum", "\tx", "\rx"])
def test_formulas_are_neutralised(name):
    """A text that a spreadsheet would run gets a quote in front; negative numbers stay numbers."""
    points = points_of({name: [-1.5]}, rank=-1)
    [row] = table(exported(Reader(points), "csv", [ExportedMetric(name, name)]))
    assert (row["name"], row["rank"], row["value"]) == (f"'{name}", "-1", "-1.5")
    wide = exported(Reader(points), "csv", [ExportedMetric(name, name)], wide=True)
    assert table(wide) == [{"rank": "-1", "attempt": "0", "step": "0", f"'{name}": "-1.5"}]


def test_long_csv_has_what_is_documented(past):
    """A line of a CSV has the documented columns, its time in UTC with microseconds, and no step if there is none."""
    lines = exported(past, "csv").splitlines()
    assert lines[0] == "name,rank,attempt,seq,step,time,value"
    assert lines[1] == "cpu/usage_ratio,-1,0,0,,2023-11-14T22:13:20.000000Z,0.57"
    assert lines[2] == "loss,0,0,0,0,2023-11-14T22:13:20.000000Z,0.1"
    assert lines[-1] == "step_seconds,0,0,1,1,2023-11-14T22:13:20.001000Z,0.123456789"


def test_wide_csv_leaves_out_what_has_no_step(past):
    """Points without a step have no row in a wide CSV; a metric called like a key column can be told from it."""
    rows = table(exported(past, "csv", [*choose(past), ExportedMetric("lr", "step")], wide=True))
    assert [row["step"] for row in rows] == ["0", "1", "2"]
    assert rows[0]["metric/step"] == rows[0]["lr"]
    assert {row["cpu/usage_ratio"] for row in rows} == {""}


def test_no_points_no_rows(tmp_path):
    """A run without points exports to a header, or to nothing."""
    past = open_run(make_run(tmp_path).path)
    assert exported(past, "csv") == "name,rank,attempt,seq,step,time,value\n"
    assert exported(past, "csv", wide=True) == "rank,attempt,step\n"
    assert exported(past, "jsonl") == ""


def test_parquet_has_the_columns_of_the_view(past, tmp_path):
    """A Parquet export has the columns and types of `points`, its rows in order, and the recorded names."""
    target = tmp_path / "out.parquet"
    FORMATS["parquet"].write(past, choose(past), target)
    with duckdb.connect() as connection:
        kinds = connection.execute("DESCRIBE SELECT * FROM read_parquet($1)", [str(target)]).fetchall()
        rows = connection.execute("SELECT * FROM read_parquet($1)", [str(target)]).fetchall()
    assert {name: kind for name, kind, *_ in kinds} == sql.VIEWS["points"]
    assert [(row[0], row[2], row[5]) for row in rows] == sorted((row[0], row[2], row[5]) for row in rows)
    assert len(rows) == len(past.points())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mnist", "out.parquet"]


@pytest.mark.promise("S2-047", "X-03")
@pytest.mark.promise("S1-013")
@pytest.mark.parametrize("spelling", ["recorded", "documents"])
def test_the_same_number_everywhere(past, tmp_path, spelling):
    """A metric has the same numbers, bit by bit, in Python, SQL, CSV, JSONL and Parquet."""
    for metric in choose(past, None, spelling):
        target = tmp_path / "out.parquet"
        FORMATS["parquet"].write(past, [metric], target)
        with duckdb.connect() as connection:
            file = connection.execute("SELECT value FROM read_parquet($1)", [str(target)]).fetchall()
        python = past.series(metric.written).value.tolist()
        asked = sql.query(tmp_path, f"SELECT value FROM points WHERE name = '{metric.recorded}' ORDER BY seq")[1]
        assert same([float(row["value"]) for row in table(exported(past, "csv", [metric]))], python)
        assert same([number(entry) for entry in objects(exported(past, "jsonl", [metric]))], python)
        assert same([value for (value,) in file], python)
        assert metric.factor != 1 or same([value for (value,) in asked], python)


def test_portions_bound_what_is_in_memory(past, monkeypatch):
    """Metrics are read in portions, whatever their number, and come out the same."""
    whole = exported(past, "csv")
    asked = []
    monkeypatch.setattr(portions, "PORTION", 3)
    monkeypatch.setattr(csv_format, "CHUNK", 2)
    points = past.points
    monkeypatch.setattr(past, "points", lambda names: asked.append(names) or points(names))
    assert exported(past, "csv") == whole
    assert max(map(len, asked)) < 4


@pytest.fixture(scope="module")
def long_past(tmp_path_factory):
    """A run whose metrics are longer than a portion: two ranks, two attempts, repeated rows, gaps, and a tail."""
    folder = make_run(tmp_path_factory.mktemp("long"))
    second = Writer(WRITER.node, 1)
    for unit in range(3):
        parts = [
            points_of({"loss": values(9000, unit), "lr": values(500, unit)}, rank, 0, unit * 9000) for rank in (0, 1)
        ]
        parts.append(without_steps(points_of({"cpu/usage_ratio": values(5000, unit)}, -1, 0, unit * 5000)))
        seal_points(folder, Points.concat(parts), unit)
    again = values(9000, 2)[6000:] + values(3000, 3)  # salvaged elsewhere: half is there already, and is the same
    seal_points(folder, points_of({"loss": again}, 0, 0, 24_000), 0, Writer("elsewhere", 0))
    seal_points(folder, points_of({"loss": values(4500, 4)}, 0, 1), 0, second)
    leave_tail(folder, [{"loss": float(row), "tail": -row} for row in range(3000)], first=30_000)
    return open_run(folder.path)


def values(count, seed):
    found = np.random.default_rng(seed).standard_normal(count)
    found[::97], found[5::1001] = np.nan, np.inf
    return found.tolist()


def all_of(past, folder):
    """Return everything that is exported of a run, by format."""
    folder.mkdir()
    found = {name: exported(past, name).encode() for name in ("csv", "json", "jsonl")}
    found["wide"] = exported(past, "csv", wide=True).encode()
    for name in ("arrow", "tensorboard", "parquet"):
        form, target = FORMATS[name], folder / name
        if form.target == FOLDER:
            target.mkdir()
        form.write(past, choose(past), target)
        files = sorted(path for path in target.rglob("*") if path.is_file()) if target.is_dir() else [target]
        found[name] = b"".join(path.read_bytes() for path in files)
    return found


@pytest.mark.slow
def test_a_long_metric_is_divided_and_comes_out_the_same(long_past, tmp_path, monkeypatch):
    """A metric that is longer than a portion is read a stretch at a time, and is written the same in every format."""
    parquet = pytest.importorskip("pyarrow.parquet", reason="arrow is written with it")
    whole = all_of(long_past, tmp_path / "whole")
    sizes = []
    monkeypatch.setattr(portions, "PORTION", 5000)
    monkeypatch.setattr(portions, "count", sizes.append)
    divided = all_of(long_past, tmp_path / "divided")
    # DuckDB's threads decide where its row groups end: there the rows count, not the bytes.
    rows = [str(parquet.read_table(io.BytesIO(found.pop("parquet"))).to_pydict()) for found in (whole, divided)]
    assert rows[0] == rows[1]
    assert parquet.read_metadata(tmp_path / "whole" / "parquet").num_rows == len(long_past.points())
    assert [name for name in whole if whole[name] != divided[name]] == []
    assert max(sizes) <= 2 * 5000  # a block of the pyramid is not divided
    assert len(table(divided["csv"].decode())) == len(long_past.points())


def test_what_is_written_is_counted(long_past):
    """Whoever wants to show progress is told of every point once."""
    told = []
    with portions.counting(told.append):
        exported(long_past, "csv")
    exported(long_past, "csv")  # nobody listens any more
    assert sum(told) == len(long_past.points())


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1), st.integers(1, 9)), max_size=30), st.integers(1, 12))
def test_chunks_have_the_size_that_was_asked_for(parts, size):
    """Chunks join and divide portions: all but the last of a series have the size, and no point is lost or moved."""
    found, metric, first = [], ExportedMetric("x", "x"), 0
    for rank, attempt, count in sorted(parts):
        found.append((metric, points_of({"x": [0.0] * count}, rank, attempt, first)))
        first += count
    given_points = Points.concat([points for _, points in found])
    for by_series in (False, True):
        made = [points for _, points in portions.chunks(found, size, by_series=by_series)]
        assert Points.concat(made).seq.tolist() == given_points.seq.tolist()
        assert all(0 < len(points) <= size for points in made)
        short = [points for points in made if len(points) < size]
        series = {(int(points.rank[0]), int(points.attempt[0])) for points in short}
        assert len(short) <= (len(series) if by_series else 1)
