"""The grid of ranks and steps, and the levels of the pyramid that are read for many ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from bench.synthetic_ranks import RankRun, make
from stepscope.store.curves import Ask, curves
from stepscope.store.layout import RunFolder
from stepscope.store.points import series_bounds
from stepscope.store.reader import Past

if TYPE_CHECKING:
    from pathlib import Path

PLAN = RankRun(ranks=24, per_node=8, steps=700, late_rank=11)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 24 ranks on three nodes."""
    path = tmp_path_factory.mktemp("ranks") / "ranks" / "many"
    make(path, PLAN, "many")
    return path


def test_grid_holds_every_point(run: Path) -> None:
    """A grid has a row for each rank, and each cell has mean, extremes and number of its points."""
    past = Past(RunFolder(run))
    grid = past.by_rank("phase/forward", buckets=7)
    points = past.points(["phase/forward"])
    assert grid.ranks.tolist() == list(range(24))
    assert int(grid.count.sum()) == len(points)
    assert not grid.by_time
    of = points.rank == 3
    assert float(np.average(grid.mean[3], weights=grid.count[3])) == pytest.approx(float(points.value[of].mean()))
    assert float(grid.high.max()) == pytest.approx(float(points.value.max()))
    assert float(grid.low.min()) == pytest.approx(float(points.value.min()))


def test_grid_shows_the_late_rank(run: Path) -> None:
    """The planted late rank stands out from the step on from which it is late."""
    grid = Past(RunFolder(run)).by_rank("phase/forward", buckets=10)
    late = grid.mean - np.median(grid.mean, axis=0)
    assert grid.ranks[int(np.argmax(late[:, -1]))] == PLAN.late
    assert abs(float(late[PLAN.late, 0])) < 0.05 < float(late[PLAN.late, -1])


def test_grid_of_a_range(run: Path) -> None:
    """A range of steps is shown step by step, and nothing outside of it."""
    grid = Past(RunFolder(run)).by_rank("loss", buckets=50, step_range=(100, 149))
    assert grid.mean.shape == (24, 50)
    assert (int(grid.edges[0]), int(grid.edges[-1])) == (100, 150)
    assert (grid.count == 1).all()


def test_grid_without_steps(run: Path) -> None:
    """Samples of machines have no step: their buckets are of time, one row for each node's watcher."""
    grid = Past(RunFolder(run)).by_rank("gpu/0/temperature_celsius", buckets=5)
    assert grid.by_time
    assert grid.ranks.tolist() == [-3, -2, -1]


def test_curves_of_many_ranks_keep_their_resolution(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of many curves gets about the buckets requested: not a share that shrinks with the number of ranks."""
    monkeypatch.setattr("stepscope.store.curves.MOST_POINTS", 1)
    found = curves(Past(RunFolder(run)), Ask(("loss",), points=10))
    _, lengths = series_bounds(found.blocks)
    assert len(lengths) == 24
    assert lengths.min() >= 5


def test_points_of_many_short_metrics_are_not_read(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Metrics of single ranks are read in blocks if there are many of them, with the same count and extremes."""
    past = Past(RunFolder(run))
    names = [f"process/{rank}/cpu_ratio" for rank in range(24)]
    whole = past.overview(names, points=100)
    monkeypatch.setattr("stepscope.store.curves.MOST_POINTS", 1000)
    few = past.overview(names, points=100)
    for name in names:
        blocks, before = few[name].buckets, whole[name].buckets
        assert blocks is not None
        assert before is not None
        assert len(blocks) == -(-700 // 64)
        assert int(blocks.count.sum()) == int(before.count.sum()) == 700
        assert float(blocks.max.max()) == float(before.max.max())
