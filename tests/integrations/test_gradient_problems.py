from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from stepscope.integrations.numerics.gradient_problems import DEAD, EXPLODING, NONFINITE, VANISHING, NormHistory


def kinds(norms, shares=None):
    history = NormHistory()
    found = [history.add(norm, share) for norm, share in zip(norms, shares or [None] * len(norms), strict=True)]
    return [(at, each.kind) for at, each in enumerate(found) if each]


def test_episodes_are_told_once():
    """An episode is told when it begins, and again only after it has ended."""
    assert kinds([1.0] * 10 + [50.0, 60.0] + [1.0] * 3 + [50.0]) == [(10, EXPLODING), (15, EXPLODING)]


def test_new_level():
    """A norm that stays at a higher level becomes the usual one."""
    norms = [1.0] * 20 + [30.0] * 300
    history = NormHistory()
    told = [history.add(norm) for norm in norms]
    assert sum(1 for each in told if each) <= 3
    assert history.add(31.0) is None


def test_too_little_to_compare():
    """Nothing explodes before there is enough to compare with: the first steps are wild by nature."""
    assert kinds([1.0, 100.0, 1e4, 1e6]) == []


def test_vanishing():
    """A norm that falls to next to nothing of what it was, several times in a row, is vanishing."""
    assert kinds([1.0] * 20 + [1e-6] * 5) == [(22, VANISHING)]
    assert kinds([1.0] * 20 + [1e-6, 1.0] * 5) == []
    assert kinds([1e-9] * 3) == [(2, VANISHING)]


def test_vanishing_layer():
    """A layer whose gradient per parameter is next to nothing of the model's is vanishing."""
    assert kinds([1e-3] * 4, [1e-7] * 4) == [(2, VANISHING)]
    assert kinds([1e-3] * 4, [0.5] * 4) == []


def test_dead():
    """A gradient that is exactly zero or absent, several times in a row, is dead."""
    assert kinds([0.0] * 5) == [(2, DEAD)]
    assert kinds([None] * 5) == [(2, DEAD)]
    assert kinds([0.0, 0.0, 1.0, 0.0, 0.0]) == []


def test_nonfinite():
    """NaN and infinity are told at once, and spoil no later comparison."""
    assert kinds([1.0] * 10 + [math.nan, math.inf] + [1.0] * 3) == [(10, NONFINITE)]


@given(st.lists(st.none() | st.floats(min_value=0) | st.just(math.nan), max_size=60))
def test_any_norms(norms):
    """Whatever comes, every finding has a cause and a remedy in words."""
    history = NormHistory()
    for norm in norms:
        found = history.add(norm)
        assert found is None or (found.cause and found.remedy)
