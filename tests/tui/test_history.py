from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stepscope.tui.braille import drawn, picture, scale_of
from stepscope.views.terminal_history import ROOM, History, HistoryBuckets
from tests.tui.scenes import history


def points(steps, values, attempt=0):
    size = len(steps)
    return HistoryBuckets.of_points(np.asarray(steps, float), np.asarray(values, float), np.full(size, attempt))


@given(st.lists(st.floats(width=32), min_size=1, max_size=400), st.integers(1, 400), st.integers(1, 40))
def test_no_extreme_is_lost_however_coarse(values, stride, parts):
    """Lowest, highest and the number of points that are not finite are exact after any number of halvings."""
    made = History()
    for at in range(0, len(values), parts):
        part = values[at : at + parts]
        made.add(points((np.arange(len(part)) + at) * stride, part))
    finite = [value for value in values if math.isfinite(value)]
    shape = made.columns(64)
    assert len(made) <= ROOM
    assert made.points == len(values)
    assert sum(row["nonfinite"] for row in made.rows()) == len(values) - len(finite)
    if finite:
        assert (made.lowest, made.highest) == (min(finite), max(finite))
        assert np.nanmin(shape.low) == min(finite)
        assert np.nanmax(shape.high) == max(finite)


def test_memory_is_bounded():
    """A million steps take no more buckets than a thousand."""
    made = History()
    for start in range(0, 1_000_000, 100_000):
        made.add(points(np.arange(start, start + 100_000), np.ones(100_000)))
    assert len(made) <= ROOM
    assert made.points == 1_000_000


def test_a_newer_attempt_takes_the_place_of_the_steps_it_repeats():
    """After a restart the steps that are made again show the new values, the others stay."""
    made = History()
    made.add(points(range(100), np.full(100, 5.0)))
    made.add(points(range(50, 80), np.full(30, 1.0), attempt=1))
    rows = {row["x"]: row["mean"] for row in made.rows()}
    assert (rows[49], rows[50], rows[79], rows[80]) == (5.0, 1.0, 1.0, 5.0)


def test_ranks_fall_into_the_same_bucket():
    """Points of several ranks at one step give its band and its mean."""
    made = History()
    made.add(points([3, 3, 3], [1.0, 2.0, 6.0]))
    assert made.rows()[0] | {"x": 3.0} == made.rows()[0]
    assert (made.rows()[0]["min"], made.rows()[0]["mean"], made.rows()[0]["max"]) == (1.0, 3.0, 6.0)


def test_an_empty_history_draws_nothing():
    """Without a point there is no shape and a blank picture."""
    assert History().columns(10) is None
    assert picture(History(), 10, 3, "line0").top is None


@given(st.lists(st.floats(width=32), min_size=1, max_size=300), st.integers(1, 60), st.integers(1, 12))
def test_pictures_fill_their_room(values, width, height):
    """Whatever the values, a picture has as many rows and columns as it was given."""
    lines = picture(history(values), width, height, "line0").lines
    assert len(lines) == height
    assert {sum(len(text) for text, _ in line) for line in lines} == {width}


def test_a_spike_of_one_step_is_drawn():
    """One step of 100 000 that is ten times as high as the others has a column of its own."""
    values = np.ones(100_000) + np.random.default_rng(0).normal(0, 0.01, 100_000)
    values[70_000] = 10.0
    rows = ["".join(text for text, _ in line) for line in picture(history(values), 60, 6, "line0").lines]
    assert any("▲" in row or row[42:43].strip() for row in rows[:1])


def test_what_is_not_finite_has_a_mark():
    """NaN and infinity are red marks at the top of their columns."""
    line = picture(history([1.0] * 50 + [math.nan] * 50), 20, 4, "line0").lines[0]
    assert ("!" * 10, "bad") in line


def test_rare_outliers_do_not_flatten_the_curve():
    """A scale leaves out a few columns that are far beyond the others."""
    values = np.sin(np.arange(400) / 20) + 2
    values[200] = 1e6
    assert scale_of(drawn(history(values).columns(100))).high < 10


def test_a_sparse_metric_is_one_line():
    """A metric that is logged now and then is drawn through, where it is not broken."""
    made = History()
    made.add(points(range(0, 1000, 100), range(10)))
    assert np.isfinite(drawn(made.columns(100)).low).sum() > 80
