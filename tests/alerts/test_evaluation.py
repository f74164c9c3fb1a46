"""What conditions are on real arrays: the same as a plain loop over the points says."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.alerts.evaluation.conditions import EvaluationFrame, Stack, evaluate
from stepscope.alerts.evaluation.series_store import needs_of
from stepscope.alerts.evaluation.series_window import Need, SeriesWindow
from stepscope.alerts.rules.expression import parse
from stepscope.alerts.rules.rule import Rule

VALUES = st.lists(
    st.floats(-1e6, 1e6, width=32) | st.sampled_from([float("nan"), float("inf"), -float("inf")]),
    min_size=1,
    max_size=60,
)


def window_of(values, *, keep=100, axis=1):
    """Return a window that holds values at steps and seconds 0, 1, 2, …"""
    window = SeriesWindow(Need(keep, head=True))
    at = np.arange(len(values), dtype=np.float64)
    window.extend(at, at, np.asarray(values, dtype=np.float64), axis)
    return window


def left_of(text, *series, fresh=None):
    """Return the left side of a condition on series, rows by points."""
    windows = [window_of(values) for values in series]
    frame = EvaluationFrame({"x": Stack.of(windows)}, "x", len(series[0]) if fresh is None else fresh)
    return evaluate(parse(text).operands[0], frame)


def naive(reduce, values, size, least=0.0):
    """Return a reduction of the finite values of each window by a plain loop; NaN until it is full, or of too few."""
    found = []
    for end in range(1, len(values) + 1):
        part = np.asarray(values[max(0, end - size) : end])
        part = part[np.isfinite(part)]
        found.append(reduce(part) if end >= size and len(part) and len(part) >= least * size else np.nan)
    return np.array(found)


@pytest.mark.parametrize(
    ("name", "reduce"),
    [("mean", np.mean), ("median", np.median), ("max", np.max), ("min", np.min), ("std", np.std)],
)
@settings(max_examples=40, deadline=None)
@given(values=VALUES, size=st.integers(1, 20))
def test_windows_are_what_a_loop_says(name, reduce, values, size):
    """Every function over a window equals numpy's on the finite values in it; a level is one of half of it at least."""
    least = 0.5 if name in {"mean", "median"} else 0.0
    found = left_of(f"{name}(x, {size}) > 0", values)
    largest = np.nanmax(np.abs(values), where=np.isfinite(values), initial=1e5)  # whose squares pass through the sums
    assert np.allclose(found[0], naive(reduce, values, size, least), rtol=1e-6, atol=1e-7 * largest, equal_nan=True)


@settings(max_examples=30, deadline=None)
@given(values=st.lists(st.floats(-1e3, 1e3), min_size=3, max_size=40))
def test_percentile_and_slope(values):
    """A percentile is numpy's, a slope that of the least-squares line."""
    found = left_of("percentile(x, 90, 3) > 0", values)[0]
    assert np.allclose(found[2:], [np.percentile(values[at - 2 : at + 1], 90) for at in range(2, len(values))])
    found = left_of("slope(x, 3) > 0", values)[0]
    lines = [np.polyfit([0, 1, 2], values[at - 2 : at + 1], 1)[0] for at in range(2, len(values))]
    assert np.allclose(found[2:], lines, atol=1e-6)


def test_windows_of_time_and_steps():
    """A window of seconds holds what came within them."""
    assert left_of("mean(x, 3s) > 0", [1, 2, 3, 4, 5])[0].tolist()[3:] == [3.0, 4.0]
    assert left_of("max(x, 2 steps) > 0", [5, 1, 1, 1, 2])[0].tolist()[2:] == [1.0, 1.0, 2.0]


def test_rate_survives_a_reset():
    """A counter that begins anew at 0 counts from there."""
    assert left_of("rate(x, 3) > 0", [0, 10, 20, 5, 15])[0].tolist()[2:] == [10.0, 7.5, 7.5]


def test_zscore_counts_the_points_before():
    """The point itself does not widen what it is measured against."""
    values = [1.0, 3.0] * 10 + [12.0]
    assert left_of("zscore(x, 20) > 0", values)[0][-1] == pytest.approx(10.0)


def test_baseline_first_and_extremes():
    """A baseline ends before the newest points; the first points and the extremes are those of the whole run."""
    values = [5.0] * 30 + [1.0] * 30 + [9.0] * 5
    assert left_of("baseline(x, 20, 5) > 0", values)[0][-1] == 1.0
    assert left_of("first(x, 10, 5) > 0", values)[0][-1] == 5.0
    assert left_of("highest(x) > 0", values)[0][[0, -1]].tolist() == [5.0, 9.0]
    assert left_of("lowest(x) > 0", values)[0][-1] == 1.0


def test_windows_that_repeat_and_skip():
    """Where another metric drives, a window may count twice and another never; as many as there are, but not these."""
    values, driver = window_of([5, 1, 9, 2, 8, 3, 7]), SeriesWindow(Need(100))
    moments = np.array([2.1, 2.2, 4.1, 5.1, 6.1])
    driver.extend(moments, moments, np.zeros(5), 2)
    frame = EvaluationFrame({"y": Stack.of([driver]), "x": Stack.of([values])}, "y", 5)
    assert evaluate(parse("median(x, 3) > y").operands[0], frame)[0].tolist() == [5, 5, 8, 3, 7]


def test_a_long_baseline_is_taken_anew_at_times():
    """A baseline of 40 points is taken at every second one; between them it stands still."""
    values = np.random.default_rng(0).normal(size=90)
    found = left_of("baseline(x, 40, 3) > 0", values)[0]
    for at in range(50, 90):
        end = (at + 1 - 3) // 2 * 2
        assert found[at] == np.median(values[max(0, end - 40) : end])


def test_what_cannot_change_a_truth_is_left_out():
    """Where the first part of an `and` is false everywhere, nobody asks for the second unless a baseline is wanted."""
    condition = parse("x > 5 and x > 2 * baseline(x, 20, 3)")
    for lazy, asked in ((True, 0), (False, 1)):
        frame = EvaluationFrame({"x": Stack.of([window_of([1.0] * 50)])}, "x", 20, lazy=lazy)
        assert not evaluate(condition, frame).any()
        assert len(frame.baselines) == asked


def test_unknown_is_neither_true_nor_false():
    """A window that is not full makes a comparison unknown; what is known decides `and` and `or` all the same."""
    window = window_of([1.0])
    frame = EvaluationFrame({"x": Stack.of([window]), "y": None}, "x", 1)
    assert np.isnan(evaluate(parse("mean(x, 5) > 0"), frame)[0, 0])
    assert evaluate(parse("x > 5 and y > 1"), frame)[0, 0] == 0.0
    assert evaluate(parse("x > 0 or y > 1"), frame)[0, 0] == 1.0
    assert np.isnan(evaluate(parse("x > 0 and y > 1"), frame)[0, 0])
    assert np.isnan(evaluate(parse("not y > 1"), frame)[0, 0])


def test_division_by_zero_is_unknown():
    """What cannot be divided is unknown and no alarm."""
    assert np.isnan(left_of("1 / x > 5", [0.0])[0, 0])


def test_finite_sees_what_comparisons_cannot():
    """NaN is not finite, and that is known."""
    frame = EvaluationFrame({"x": Stack.of([window_of([1.0, np.nan, np.inf])])}, "x", 3)
    assert evaluate(parse("not finite(x)"), frame)[0].tolist() == [0.0, 1.0, 1.0]


def test_many_series_at_once_are_as_one_by_one():
    """Rows that are judged together give what each gives alone."""
    noise = np.random.default_rng(0).normal(size=(7, 50))
    for text in ("mean(x, 9) > 0", "max(x, 9) > 0", "median(x, 9) > 0", "zscore(x, 9) > 0", "baseline(x, 20, 3) > 0"):
        together = left_of(text, *noise)
        alone = np.concatenate([left_of(text, row) for row in noise])
        assert np.allclose(together, alone, equal_nan=True), text


@pytest.mark.parametrize("text", ["mean(x, 5) > median(x, 7)", "median(x, 5) > baseline(x, 40, 3)"])
@settings(max_examples=30, deadline=None)
@given(values=st.lists(st.integers(-100, 100).map(float), min_size=30, max_size=90), cut=st.integers(1, 29))
def test_batches_do_not_matter(text, values, cut):
    """Points that are judged in two batches give what they give in one, also when old points were forgotten.

    Of whole numbers: a mean that equals a median up to the last bit may lie on either side of it.
    """
    condition = parse(text)
    need = needs_of(Rule("any", when=text))["x"]
    expected = evaluate(condition, EvaluationFrame({"x": Stack.of([window_of(values)])}, "x", len(values)))[0]
    window, found, at = SeriesWindow(need), [], np.arange(len(values), dtype=np.float64)
    for start in range(0, len(values), cut):
        part = slice(start, start + cut)
        window.extend(at[part], at[part], np.asarray(values[part]), start)
        frame = EvaluationFrame({"x": Stack.of([window], need.points + window.fresh)}, "x", window.fresh)
        found += evaluate(condition, frame)[0].tolist()
        window.fresh = 0
    assert np.array_equal(found, expected, equal_nan=True)


def test_memory_is_bounded():
    """A window forgets what nobody looks at, and still knows the extremes."""
    window = SeriesWindow(Need(50))
    for start in range(0, 20_000, 100):
        at = np.arange(start, start + 100, dtype=np.float64)
        window.extend(at, at, at, start)
        window.fresh = 0
    assert len(window) < 500
    assert window.lowest == 0.0
    assert window.total == 20_000
