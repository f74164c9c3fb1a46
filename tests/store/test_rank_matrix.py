"""Metrics by rank and bucket of steps, beside a plain scan of every point."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.store import rank_matrix as module
from stepscope.store.layout import Writer
from stepscope.store.rank_matrix import MatrixAsk, rank_matrix, read_matrix
from stepscope.store.reader import Past
from stepscope.store.snapshot import Snapshot
from tests.exporters.recorded import leave_tail, make_run, points_of, seal_points

STEPS = 3000


@pytest.fixture(scope="module")
def past(tmp_path_factory):
    """A run of three ranks in sealed units of different sizes, with spikes, a NaN and a rank that leaves."""
    folder = make_run(tmp_path_factory.mktemp("grid"))
    random = np.random.default_rng(1)
    for rank in range(3):
        value = random.normal(2, 0.1, STEPS if rank < 2 else STEPS // 3)
        value[500 + rank], value[77] = 100.0 + rank, np.nan
        cut = 700 + 11 * rank
        for number, part in enumerate((value[:cut], value[cut:])):
            points = points_of({"loss": part}, rank=rank, first=number * cut)
            seal_points(folder, points, number, writer=Writer(f"node{rank}", 0))
    leave_tail(folder, [{"loss": 5.0}, {"loss": 6.0}], rank=7)
    return Past(folder)


@settings(max_examples=30)
@given(st.integers(0, STEPS), st.integers(0, STEPS), st.integers(1, 300))
def test_cells_of_single_points_are_those_of_a_scan(past, first, length, buckets):
    """Mean, extremes and number of every cell are those of its points."""
    grid = rank_matrix(past, MatrixAsk(("loss",), 0, (first, first + length), buckets))
    assert len(grid.edges) - 1 <= buckets or not len(grid.edges)
    for row, rank in enumerate(grid.ranks.tolist()):
        series = past.series("loss", rank=rank, step_range=(first, first + length))
        for at, (low, high) in enumerate(zip(grid.edges[:-1], grid.edges[1:], strict=True)):
            value = series.value[(series.step >= low) & (series.step < high)]
            value = value[np.isfinite(value)]
            cells = grid.cells["loss"]
            assert cells.count[row, at] == len(value)
            if len(value):
                assert cells.mean[row, at] == pytest.approx(value.mean())
                assert (cells.low[row, at], cells.high[row, at]) == (value.min(), value.max())
            else:
                assert np.isnan(cells.mean[row, at])


@pytest.mark.parametrize(("few", "many"), [(0, 1e9), (0, 0)], ids=["blocks of 64", "blocks of 4096"])
@pytest.mark.parametrize("span", [None, (450, 1600)])
def test_blocks_keep_sums_and_spikes(past, monkeypatch, few, many, span):
    """Cells from blocks hold every point, or every point's share inside the range, and each spike in its bucket."""
    monkeypatch.setattr(module, "FEW_POINTS", few)
    monkeypatch.setattr(module, "MANY_BLOCKS", many)
    grid = rank_matrix(past, MatrixAsk(("loss",), 0, span, 20))
    assert grid.level == (4096 if not many else 64)
    cells = grid.cells["loss"]
    for row, rank in enumerate((0, 1)):
        series = past.series("loss", rank=rank, step_range=span)
        finite = int(np.isfinite(series.value).sum())
        assert cells.count[row].sum() == pytest.approx(finite, rel=0.01)
        place = np.searchsorted(grid.edges, 500 + rank, "right") - 1
        assert cells.high[row, place] == 100.0 + rank
        assert np.nansum(cells.mean[row] * cells.count[row]) == pytest.approx(np.nansum(series.value), rel=0.1)


@pytest.mark.parametrize("few", [0, 1000])
def test_a_tail_counts_like_sealed_points(monkeypatch, few):
    """Rows that are not sealed yet are in the grid, however it is read; a name that was never recorded is left out."""
    monkeypatch.setattr(module, "FEW_POINTS", few)
    tails = points_of({"loss": [5.0, 6.0, 7.0]}, rank=7, first=100)
    ask = MatrixAsk(("loss", "nothing"), steps=(101, 200), buckets=1)
    grid, problems = read_matrix(Snapshot([], tails), None, ask)
    assert (list(grid.cells), grid.ranks.tolist(), grid.steps, problems) == (["loss"], [7], (101, 102), [])
    assert grid.cells["loss"].mean.tolist() == [[6.5]]


def test_points_without_a_step_are_left_out(past):
    """Samples of a machine and rows without a step are in no bucket."""
    assert rank_matrix(past, MatrixAsk(("loss",), 0, None, 1000)).ranks.tolist() == [0, 1, 2]


def test_buckets_of_a_growing_run_stay_where_they_are(past):
    """Widths are powers of two and edges are their multiples."""
    for last in (999, 1200, 1270):
        edges = rank_matrix(past, MatrixAsk(("loss",), 0, (0, last), 20)).edges
        width = int(edges[1] - edges[0])
        assert width == 64
        assert not (edges % width).any()


def test_a_run_without_points_has_an_empty_grid(tmp_path):
    """No points make no buckets and no error."""
    grid = rank_matrix(Past(make_run(tmp_path)), MatrixAsk(("loss",)))
    assert (len(grid.ranks), len(grid.edges), grid.cells, grid.steps) == (0, 0, {}, (0, -1))
