"""Offsets of clocks, from the ends of steps and from heartbeats."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.analysis.clocks import ClockOffset, StepEnds, difference, from_steps, judged, sentence


def ends(seconds, offset=0.0, drift=0.0, jitter=0.0, first=0, seed=0):
    """Return when steps ended that took these seconds, by a clock that is ahead and drifts."""
    true = 1e9 + np.cumsum(seconds)
    noise = np.random.default_rng(seed).uniform(0, jitter, len(seconds)) if jitter else 0.0
    return StepEnds(np.arange(first, first + len(seconds)), true + offset + drift * (true - true[0]) + noise)


def durations(number=64, mean=1.0, spread=0.02, seed=1):
    """Return the seconds of some steps, no two alike."""
    return np.random.default_rng(seed).normal(mean, spread, number)


@given(st.floats(-3600, 3600), st.floats(0, 0.01), st.integers(0, 1000))
def test_offset_of_synchronous_steps(offset, jitter, seed):
    """Steps that end at once on two nodes tell the difference of their clocks, within what they end apart."""
    steps = durations(seed=seed)
    found = from_steps(ends(steps, offset, jitter=jitter, seed=seed), ends(steps))
    assert found is not None
    assert found.source == "steps"
    assert abs(found.seconds - offset) <= jitter + 1e-5
    assert found.spread_seconds <= jitter + 1e-5


def test_drift_is_part_of_the_spread():
    """A clock that drifts is estimated in the middle, and the spread says how far it went."""
    steps = durations(10_000)
    found = from_steps(ends(steps, 5.0, drift=2e-5), ends(steps))
    assert found is not None
    assert found.seconds == pytest.approx(5.1, abs=0.01)
    assert 0.04 <= found.spread_seconds <= 0.11


@pytest.mark.parametrize("number", [200, 5000])
def test_ranks_that_do_not_meet_tell_nothing(number):
    """Ranks that run on their own drift apart by their steps: that is no clock."""
    own, other = durations(number, spread=0.1, seed=1), durations(number, mean=1.01, spread=0.1, seed=2)
    assert from_steps(ends(own), ends(other)) is None


def test_too_few_common_steps_tell_nothing():
    """Nodes that share hardly any steps are not compared by them."""
    assert from_steps(ends(durations(10), first=8), ends(durations(10))) is None


def test_heartbeat_decides_where_steps_do_not():
    """Steps are more exact; a heartbeat that contradicts them wins, and without either the offset is unknown."""
    steps = ClockOffset(12.0, 0.001, "steps")
    assert judged(steps, 11.4) == steps
    assert judged(steps, None) == steps
    assert judged(steps, 0.2).source == "heartbeat"
    assert judged(None, 7.0) == ClockOffset(7.0, 1.0, "heartbeat")
    assert judged(None, None) == ClockOffset(0.0, 0.0, "unknown")


def test_people_are_told_only_if_it_matters():
    """A difference of clocks is said in one sentence, if it is more than half a second."""
    near, far = ClockOffset(0.3, 0.0, "steps"), ClockOffset(-40.7, 0.0, "steps")
    assert sentence({"a": ClockOffset(0.0, 0.0, "reference"), "b": near}) == ""
    assert difference({"a": near, "b": far}) == pytest.approx(41.0)
    assert "differ by up to 41 s" in sentence({"a": near, "b": far})
