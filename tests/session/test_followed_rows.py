"""Series of another tool as rows of ours: order, times, and what the store has already."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import stepscope
from stepscope.importers.imported import series_of
from stepscope.session.followed_rows import KnownPoints, SourceChangedError, microseconds, rows_of
from stepscope.session.open_files import is_open
from stepscope.store.layout import RunFolder
from tests.integration.processes import wait_until_written


def test_metrics_of_the_same_moments_share_their_rows():
    """Two metrics with equal steps and times are one row per step."""
    found = {name: series_of(name, [0, 1], [1.0, 2.0], [1.7e9, 1.7e9 + 1]) for name in ("a", "b")}
    assert [(row.step, row.names, row.values) for row in rows_of(found, 0.0, 0.0)] == [
        (0, ("a", "b"), (1.0, 1.0)),
        (1, ("a", "b"), (2.0, 2.0)),
    ]


@given(st.lists(st.lists(st.tuples(st.integers(0, 9), st.floats(1.7e9, 1.7e9 + 9)), max_size=8), max_size=4))
def test_every_series_keeps_its_order(parts):
    """However steps and times repeat or go back, each series is written completely and in its order."""
    found = {}
    for number, points in enumerate(parts):
        steps, times = [step for step, _ in points], [time for _, time in points]
        found[str(number)] = series_of(str(number), steps, range(len(points)), times)
    written = {name: [] for name in found}
    for row in rows_of(found, 0.0, 0.0):
        for name, value in zip(row.names, row.values, strict=True):
            written[name].append((row.step, value))
    for name, series in found.items():
        assert written[name] == list(zip(series.step.tolist(), series.value.tolist(), strict=True))


def test_times_are_dates_or_count_from_the_start():
    """A small time counts from the start of the run, and a missing or absurd one is when the file changed."""
    times = np.array([1.7e9 + 0.123456, 2.5, math.nan, 1e30])
    assert (
        microseconds(times, 1.6e9, 1.5e9).tolist()
        == [1_700_000_000_123_456, 1_600_000_002_500_000] + [10**15 * 3 // 2] * 2
    )


@pytest.fixture
def stored(tmp_path):
    """Return the folder of a run with three losses."""
    run = stepscope.init(dir=tmp_path)
    for step, loss in enumerate([1.0, math.nan, 0.5]):
        run.log({"loss": loss}, step=step)
    run.finish()
    wait_until_written(run)
    return RunFolder(run.path)


@pytest.mark.processes
def test_known_points_are_skipped(stored):
    """A source that is read from its beginning gives only what follows what the store has, in any portions."""
    known = KnownPoints(stored)
    assert known.fresh(series_of("loss", [0], [1.0])) is None
    rest = known.fresh(series_of("loss", [1, 2, 3], [math.nan, 0.5, 0.25]))
    assert rest is not None
    assert (rest.step.tolist(), rest.value.tolist()) == ([3], [0.25])
    assert known.fresh(series_of("other", [0], [1.0])) is not None


@pytest.mark.processes
def test_other_points_than_before_are_noticed(stored):
    """A source with another value, or another step, is not the one that was recorded."""
    for steps, values in (([0, 1], [1.0, 2.0]), ([0, 2], [1.0, math.nan])):
        with pytest.raises(SourceChangedError):
            KnownPoints(stored).fresh(series_of("loss", steps, values))


def test_open_files_are_found_by_their_links(tmp_path):
    """A file that a process has open is found, also below a folder; processes may be left out."""
    path = tmp_path / "a"
    proc = tmp_path / "proc" / "7" / "fd"
    proc.mkdir(parents=True)
    (proc / "3").symlink_to(path)
    for paths in ({str(path)}, {str(tmp_path)}):
        assert is_open(paths, proc=str(tmp_path / "proc"))
        assert not is_open(paths, {7}, str(tmp_path / "proc"))
    assert not is_open({str(tmp_path / "b")}, proc=str(tmp_path / "proc"))
