from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.metrics import ScoreDistributionTracker
from stepscope.trackers.metrics.score_distribution import MOST_VALUES, OTHER


@pytest.mark.promise("S4-016", "S4-027", "S4-028")
def test_the_documents_example():
    """The sample of the document gives its figures."""
    tracker = ScoreDistributionTracker()
    tracker.update([1.0, 0.5, None, 1.0, 0.0])
    found = tracker.get_distribution()
    assert {key: found[key] for key in ("total", "valid_count", "invalid_count", "invalid_rate", "mean_score")} == {
        "total": 5,
        "valid_count": 4,
        "invalid_count": 1,
        "invalid_rate": 0.2,
        "mean_score": 0.625,
    }
    assert list(found["score_counts"].items()) == [("0.0", 1), ("0.5", 1), ("1.0", 2)]


@pytest.mark.promise("S4-029")
def test_invalid_scores_and_none_at_all():
    """NaN, infinities and texts are invalid; without scores nothing divides by zero."""
    tracker = ScoreDistributionTracker()
    assert tracker.get_distribution()["invalid_rate"] == 0.0
    assert tracker.get_distribution()["mean_score"] is None
    tracker.update([])
    tracker.update(None)
    tracker.update([math.nan, math.inf, "1.0", object()])
    assert tracker.get_distribution()["invalid_count"] == 4
    assert tracker.newest == {"step": None, "total": 4, "invalid_rate": 1.0, "mean_score": None}


@pytest.mark.promise("S4-029")
def test_quality_is_seen_over_time():
    """Every batch has its own rate and mean, in order."""
    tracker = ScoreDistributionTracker(history=2)
    for step in range(3):
        tracker.update([1.0] * (3 - step) + [None] * step, step)
    assert [(entry["step"], entry["invalid_rate"]) for entry in tracker.get_history()] == [
        (1, pytest.approx(1 / 3)),
        (2, pytest.approx(2 / 3)),
    ]


def test_many_different_scores_stay_bounded():
    """Beyond a bound further scores are counted together."""
    tracker = ScoreDistributionTracker()
    tracker.update([float(number) for number in range(MOST_VALUES + 5)])
    counts = tracker.get_distribution()["score_counts"]
    assert (len(counts), counts[OTHER], list(counts)[-1]) == (MOST_VALUES + 1, 5, OTHER)


@given(st.lists(st.floats() | st.none() | st.integers() | st.booleans()))
def test_every_score_is_counted_once(scores):
    """Valid and invalid ones add up to all, and the counts to the valid ones."""
    tracker = ScoreDistributionTracker()
    tracker.update(scores)
    found = tracker.get_distribution()
    assert found["total"] == len(scores) == found["valid_count"] + found["invalid_count"]
    assert sum(found["score_counts"].values()) == found["valid_count"]
