"""Many series read together are the same as each read alone."""

from __future__ import annotations

import numpy as np
import pytest

from stepscope.store.layout import RunFolder
from stepscope.store.points import NO_NS, Points
from stepscope.store.reader import Past
from stepscope.store.sealed import write_sealed

COUNTS = {"few": 5, "some": 900, "many": 9000}


@pytest.fixture
def past(tmp_path):
    """Make a run of three metrics in two sealed units, a spike and a NaN among them."""
    folder = RunFolder(tmp_path / "p" / "r")
    folder.make()
    folder.describe({"format": 1, "id": "r", "name": "r", "project": "p", "created": 0})
    for unit in range(2):
        parts = [_points(name, count, unit) for name, count in COUNTS.items()]
        write_sealed(tmp_path / "p" / "r" / "metrics", f"h.0-0-{unit}-{unit}", Points.concat(parts), last_seq={"0": 1})
    return Past(folder)


def _points(name, count, unit):
    step = np.arange(count) + unit * count
    value = np.sin(step / 50.0)
    value[count // 2], value[count // 3] = 1e6, np.nan
    zero = np.zeros(count, np.int32)
    return Points([name], zero, zero, zero, step, step, step * 1000, value, np.full(count, NO_NS))


@pytest.mark.parametrize("points", [1, 20, 300, 5000])
def test_an_overview_is_what_series_gives_for_each(past, points):
    """Every array of every series is equal, however coarse."""
    together = past.overview(points=points)
    assert set(together) == set(COUNTS)
    for name, found in together.items():
        alone = past.series(name, points=points)
        for column in ("step", "time", "value", "rank", "attempt"):
            np.testing.assert_array_equal(getattr(found, column), getattr(alone, column))


def test_an_overview_of_a_damaged_pyramid(past, tmp_path):
    """A name that only a unit without a pyramid has is found, and the others keep their points."""
    folder = tmp_path / "p" / "r" / "metrics"
    write_sealed(folder, "h.0-0-2-2", _points("a", 9000, 0), last_seq={"0": 1})
    (folder / "h.0-0-2-2.blocks.parquet").unlink()
    counts = {name: int(series.buckets.count.sum()) for name, series in past.overview(["a", "many"], 20).items()}
    assert counts == {"a": 9000, "many": 18000}


def test_an_overview_leaves_out_what_is_not_there(past):
    """Names that the run does not have are left out; the others come."""
    assert set(past.overview(["few", "nothing"])) == {"few"}
