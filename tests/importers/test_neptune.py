from __future__ import annotations

import math
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some

from stepscope.core.errors import StepscopeError
from stepscope.importers import formats
from stepscope.importers.run_builder import RunBuilder
from stepscope.importers.trackers import steps
from tests.importers.tracker_files import FILES, NEPTUNE, parquet
from tests.importers.vendors import texts

pa = pytest.importorskip("pyarrow", reason="the package pyarrow is not there")


def part(rows):
    """Return the bytes of a part as the exporter writes it, by its own schema."""
    text, stamp = pa.string(), pa.timestamp("ms", tz="UTC")
    names = ("project_id", "run_id", "attribute_path", "attribute_type")
    histogram = pa.struct([("type", text), ("edges", pa.list_(pa.float64())), ("values", pa.list_(pa.float64()))])
    schema = pa.schema(
        [
            *((name, text) for name in names),
            *(("step", pa.decimal128(18, 6)), ("timestamp", stamp), ("int_value", pa.int64())),
            *(("float_value", pa.float64()), ("string_value", text), ("bool_value", pa.bool_())),
            *(("datetime_value", stamp), ("string_set_value", pa.list_(text))),
            *(("file_value", pa.struct([("path", text)])), ("histogram_value", histogram)),
        ]
    )
    from pyarrow import parquet as files

    target = pa.BufferOutputStream()
    files.write_table(pa.Table.from_pylist(rows, schema=schema), target)
    return target.getvalue().to_pybytes()


def row(name, kind, run="VIS-1", **values):
    return {"project_id": "team/vision", "run_id": run, "attribute_path": name, "attribute_type": kind, **values}


def point(name, step, value, run="VIS-1"):
    at = {"step": Decimal(step), "timestamp": 1700000000500}
    return row(name, "float_series", run, float_value=value, **at)


def test_an_export_written_by_its_own_schema_is_read(tmp_path):
    """Series by run, in order, with names, tags, notes, times and parameters; other kinds are counted."""
    rows = [
        point("train/é", "0", 1.0),
        point("train/é", "2", math.nan),
        point("train/é", "1", -math.inf),
        point("acc", "7", 0.5, "VIS-2"),
        row("sys/name", "string", string_value="first é"),
        row("sys/description", "string", string_value="a note"),
        row("sys/tags", "string_set", string_set_value=["b", "a"]),
        row("sys/group_tags", "string_set", string_set_value=["seeds"]),
        row("sys/creation_time", "datetime", datetime_value=1700000000000),
        row("sys/failed", "bool", bool_value=True),
        row("params/epochs", "int", int_value=3),
        row("params/lr", "float", float_value=0.1),
        row("hist", "histogram_series", step=Decimal(1)),
        row("model", "file", file_value={"path": "x"}),
    ]
    (tmp_path / "part_0.parquet").write_bytes(part(rows))
    first, second = formats.read(str(tmp_path))
    assert (first.key, second.key) == ("VIS-1", "VIS-2")
    series = first.series("train/é")
    assert series.step.tolist() == [0, 2, 1]
    assert texts(series.value) == ["1.0", "nan", "-inf"]
    assert series.time.tolist() == [1700000000.5] * 3
    facts = {"name": "first é", "project": "team/vision", "notes": "a note", "tags": ["b", "a"], "group": "seeds"}
    more = {"created": 1700000000.0, "state": "failed", "config": {"params/epochs": 3, "params/lr": 0.1}}
    assert first.facts.items() >= {**facts, **more}.items()
    assert any("kind file, left out: model" in note for note in first.notes)
    assert any("kind histogram_series, left out: hist" in note for note in first.notes)


def test_fractional_steps_are_kept_beside_the_metric(tmp_path):
    """A point lies at the integer part of its step; a series beside the metric has the true step of each point."""
    steps_written = ["0", "1.000001", "1.5", "999999999.25", "3"]
    for number, some_steps in enumerate((steps_written[:1], steps_written[1:])):
        rows = [point("x", step, float(at)) for at, step in enumerate(some_steps)]
        (tmp_path / f"part_{number}.parquet").write_bytes(part(rows))
    (run,) = formats.read(str(tmp_path))
    assert run.series("x").step.tolist() == [0, 1, 1, 999999999, 3]
    assert run.series("x/fractional_step").value.tolist() == [float(step) for step in steps_written]
    assert run.series("x/fractional_step").step.tolist() == run.series("x").step.tolist()
    assert any("fractional steps" in note for note in run.notes)


@given(some.lists(some.lists(some.floats(allow_subnormal=False), min_size=1), min_size=1, max_size=4))
def test_no_step_is_lost_whatever_it_is(batches):
    """Whole steps are the steps; with one fractional step, the series beside has every true step in order."""
    run = RunBuilder()
    for batch in batches:
        step = np.array(batch, np.float64)
        steps.extend(run, "x", step, step, step)
    true = np.concatenate([np.array(batch, np.float64) for batch in batches])
    beside = run.columns.get("x/fractional_step")
    if beside is None:
        usable = np.abs(true) < 2**62
        assert (np.array(run.columns["x"].step)[usable] == true[usable]).all()
    else:
        shown, usable = np.array(beside.value), np.abs(true) < 2**62
        assert len(shown) == len(true)
        assert (shown[usable] == true[usable]).all()


def test_parts_are_read_in_the_order_of_their_numbers(tmp_path):
    """Part 10 follows part 9; one that is damaged costs only itself."""
    for number in (10, 9, 2):
        (tmp_path / f"part_{number}.parquet").write_bytes(part([point("x", number, 1.0)]))
    (tmp_path / "part_3.parquet").write_bytes(FILES["neptune"][:-20])
    (run,) = formats.read(str(tmp_path))
    assert run.series("x").step.tolist() == [2, 9, 10]
    assert any("part_3.parquet" in note for note in run.notes)


def test_a_path_with_signs_of_a_pattern_is_a_path(tmp_path):
    """DuckDB would read every file that matches."""
    (tmp_path / "run[1]*").mkdir()
    path = tmp_path / "run[1]*" / "part_0.parquet"
    path.write_bytes(FILES["neptune"])
    assert len(formats.read(str(path))[0].series("acc")) == 2


def test_parquet_of_other_tables_is_none_of_ours(tmp_path):
    """A table with other columns is no run, and a part without numbers is refused."""
    (tmp_path / "a").write_bytes(parquet("CREATE TABLE part AS SELECT 1 AS x"))
    (tmp_path / "b").write_bytes(parquet(NEPTUNE + "DELETE FROM part WHERE attribute_type = 'float_series'"))
    for name, cause in (("a", "no format"), ("b", "no series of numbers")):
        with pytest.raises(StepscopeError, match=cause):
            formats.read(str(tmp_path / name))
