"""Traces of pipelined trainings that lack values, or hold none."""

from __future__ import annotations

from pathlib import Path

import duckdb
import numpy as np
import pytest

from stepscope.analysis.pipelines.operations import Grid, Operations
from stepscope.core.errors import StepscopeError
from stepscope.importers.traces.pipeline_trace import read_operations
from stepscope.sources.source import resolve

WHOLE = {
    "step": "n // 2",
    "dp_rank": "0",
    "stage": "n % 2",
    "optype": "'forward-compute'",
    "seq_id": "0",
    "start_ts": "1.5 * n",
    "duration": "1.0",
    "mc": "0",
}


def trace(folder: Path, rows: int = 16, **columns: str) -> str:
    """Return a file of operations; `columns` are SQL by the number of the row."""
    path = folder / "trace.parquet"
    asked = ", ".join(f"{sql} AS {name}" for name, sql in (WHOLE | columns).items())
    duckdb.execute(f"COPY (SELECT {asked} FROM range({rows}) AS rows(n)) TO '{path}'")
    return str(path)


@pytest.mark.parametrize("column", ["step", "duration", "optype"])
def test_a_row_without_a_value_is_left_out(tmp_path: Path, column: str) -> None:
    """It does not seem to last zero seconds; pandas writes NaN as such."""
    columns = read_operations(trace(tmp_path, **{column: f"CASE WHEN n % 4 > 0 THEN {WHOLE[column]} END"}))
    assert columns is not None
    assert len(columns["duration"]) == 12
    assert set(columns["duration"]) == {1.0}


def test_what_a_row_may_lack_is_unknown(tmp_path: Path) -> None:
    """A collective that has no part of the model is not of part 0."""
    columns = read_operations(trace(tmp_path, mc="CASE WHEN n > 0 THEN 3 END"))
    assert columns is not None
    assert columns["mc"].tolist() == [-1, *[3] * 15]


@pytest.mark.parametrize("columns", [{"stage": "'pp' || n"}, {"duration": "'long'"}, {"start_ts": "NULL"}])
def test_a_trace_without_numbers_is_refused(tmp_path: Path, columns: dict[str, str]) -> None:
    """The message names the columns to check."""
    with pytest.raises(StepscopeError, match="no row has all numbers of an operation"):
        read_operations(trace(tmp_path, **columns))
    with pytest.raises(StepscopeError, match="no row has all numbers of an operation"):
        read_operations(trace(tmp_path, rows=0))


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"step": "n", "dp_rank": "n"}, "in each of 5000 steps and 5000 replicas"),
        ({"stage": "n"}, "of 5000 stages"),
        ({"seq_id": "n * 1000000000000000"}, "seq_id is beyond"),
        ({"optype": "'sleep'"}, "no operation is of a known kind"),
        ({"duration": "-1.0"}, "no operation is of a known kind and has a duration"),
    ],
)
def test_a_trace_that_cannot_be_replayed_is_refused(tmp_path: Path, columns: dict[str, str], said: str) -> None:
    """Before it takes memory for every operation in every step and replica."""
    found = read_operations(trace(tmp_path, 5000, **columns))
    assert found is not None
    with pytest.raises(StepscopeError, match=said):
        Grid.of(Operations.of(found))


def test_a_folder_is_diagnosed_by_all_its_traces(tmp_path: Path) -> None:
    """Each has its own verdict; other files do not matter."""
    for name in ("b", "a"):
        (tmp_path / name).mkdir()
        Path(trace(tmp_path / name)).rename(tmp_path / f"{name}.parquet")
    (tmp_path / "notes.txt").write_text("two traces")
    found = resolve(tmp_path).diagnoses()
    assert [each["run"]["path"] for each in found] == [str(tmp_path / "a.parquet"), str(tmp_path / "b.parquet")]
    assert [each["steps"] for each in found] == [8, 8]


def test_an_operation_that_ends_before_its_begin_is_not_recorded(tmp_path: Path) -> None:
    """Its place is empty, as its duration is unknown."""
    found = read_operations(trace(tmp_path, duration="CASE WHEN n = 0 THEN -1.0 ELSE 1.0 END"))
    assert found is not None
    grid = Grid.of(Operations.of(found))
    assert int(np.isnan(grid.end).sum()) == 1
