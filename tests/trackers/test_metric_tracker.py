from __future__ import annotations

import math
import statistics

import numpy as np
import pytest

from stepscope.metrics import MetricTracker
from stepscope.trackers.metrics import metric_tracker
from tests.trackers.fakes import Gpu, Stubborn

FIGURES = {"count", "mean", "std", "min", "max", "p50", "p95", "p99", "last", "nonfinite"}


def filled(values, **options):
    tracker = MetricTracker(**options)
    for step, value in enumerate(values):
        tracker.update("loss", value, step=step)
    return tracker


@pytest.mark.promise("S4-017")
def test_values_come_one_by_one_or_in_a_batch():
    """Both ways of giving values reach the same figures."""
    tracker = MetricTracker()
    tracker.update("loss", 0.25, step=99)
    tracker.update_batch({"loss": 0.5, "reward": 0.8, "kl_div": 0.01}, step=100)
    assert tracker.names() == ["loss", "reward", "kl_div"]
    assert (tracker.get_mean("loss"), tracker.last_step("loss")) == (0.375, 100)


@pytest.mark.promise("S4-018", "S4-046")
def test_figures_exist_overall_and_over_the_newest_values():
    """A window looks at the newest values only, without it all count."""
    tracker = filled([0.8] * 900 + [0.2, 0.4] * 50)
    assert tracker.get_mean("loss", window=100) == pytest.approx(0.3)
    assert tracker.get_std("loss", window=100) == pytest.approx(0.1)
    assert tracker.get_mean("loss") == pytest.approx(0.75)
    assert tracker.get_std("loss") > 0.1


@pytest.mark.promise("S4-019")
def test_the_summary_has_the_documented_figures():
    """Count, mean, std, min, max and p95 are numpy's own for the same values."""
    values = [math.sin(step) for step in range(1000)]
    summary = filled(values).get_summary("loss")
    assert set(summary) == FIGURES
    expected = [1000, np.mean(values), np.std(values), min(values), max(values), np.percentile(values, 95)]
    assert [summary[name] for name in ("count", "mean", "std", "min", "max", "p95")] == pytest.approx(expected)


@pytest.mark.promise("S4-020")
def test_the_standard_deviation_is_the_populations_everywhere():
    """get_std, its window and the summary divide by n, not by n - 1."""
    tracker = filled([1.0, 2.0, 4.0])
    expected = pytest.approx(statistics.pstdev([1.0, 2.0, 4.0]))
    assert tracker.get_std("loss") == expected
    assert tracker.get_std("loss", window=3) == expected
    assert tracker.get_summary("loss")["std"] == expected
    assert filled([5.0]).get_std("loss") == 0.0


def test_a_windowed_summary_is_about_the_window_alone():
    """Every figure of a windowed summary comes from the newest values."""
    summary = filled([100.0, 1.0, 3.0]).get_summary("loss", window=2)
    assert (summary["count"], summary["max"], summary["mean"], summary["last"]) == (2, 3.0, 2.0, 3.0)


def test_nonfinite_values_do_not_poison():
    """NaN and infinities are counted apart, and shown as the last value when they are."""
    summary = filled([1.0, math.inf, 3.0, math.nan]).get_summary("loss")
    assert (summary["count"], summary["mean"], summary["p50"], summary["nonfinite"]) == (4, 2.0, 2.0, 2)
    assert math.isnan(summary["last"])


@pytest.mark.parametrize("window", [None, 5, 0, -1])
def test_an_unknown_name_is_absent(window):
    """What was never given has count 0 and no figures."""
    tracker = MetricTracker()
    assert (tracker.get_mean("x", window), tracker.get_std("x", window)) == (None, None)
    assert tracker.get_summary("x", window) == {"count": 0, "nonfinite": 0} | dict.fromkeys(
        FIGURES - {"count", "nonfinite"}
    )
    assert tracker.names() == []


def test_memory_is_bounded_and_figures_stay_exact():
    """Past its capacity a tracker forgets values for percentiles only."""
    summary = filled(range(100), capacity=10).get_summary("loss")
    assert (summary["count"], summary["mean"], summary["min"]) == (100, 49.5, 0)
    assert summary["p50"] == 94.5


def test_device_tensors_are_read_only_when_asked():
    """Updating with a GPU tensor does not wait for the GPU."""
    gpu = Gpu()
    tracker = filled([gpu.tensor(1.0), gpu.tensor(3.0)])
    assert gpu.waits == 0
    assert tracker.get_mean("loss") == 2.0


def test_bad_input_is_counted_and_said_once(capsys, monkeypatch):
    """Values without a number, empty names and too many names never raise."""
    monkeypatch.setattr(metric_tracker, "MAX_NAMES", 2)
    tracker = MetricTracker()
    tracker.update_batch({"a": Stubborn(), "": 1.0, "b": 1, "c": 2, "d": 3, "e": 4})
    tracker.update("a", "text")
    tracker.update(b"\xff", 1.0)
    assert tracker.names() == ["b", "c"]
    assert tracker.refused == 6
    assert capsys.readouterr().err.count("cannot take metric") == 2
