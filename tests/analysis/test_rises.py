"""Lasting rises of a loss: told where the series' own noise cannot explain them, and only while they last."""

from __future__ import annotations

import math

import numpy as np
import pytest

from stepscope.analysis.series.rises import begun_at, growth, lasting_rise


def noisy(level, count, share, seed):
    """Return a level with Gaussian noise, relative to it."""
    return level * (1 + share * np.random.default_rng(seed).normal(size=count))


def falling(count, seed, share=0.05):
    """Return a loss that falls from 2.5 to 0.5."""
    course = 0.5 + 2 * np.exp(-np.arange(count) / (count / 8))
    return course * (1 + share * np.random.default_rng(seed).normal(size=count))


def ever(values, every=25):
    """Say whether a rise was told at any time while the series grew."""
    return any(lasting_rise(values[:end]) for end in range(120, len(values) + 1, every))


@pytest.mark.parametrize("seed", range(5))
def test_a_step_is_told_where_it_is(seed):
    """By the level before and after, and its very point."""
    values = np.concatenate([falling(800, seed), noisy(0.75, 200, 0.05, seed)])
    found = lasting_rise(values)
    assert found is not None
    assert found.index == pytest.approx(800, abs=3)
    assert found.before == pytest.approx(0.5, rel=0.05)
    assert found.now == pytest.approx(0.75, rel=0.05)
    assert not lasting_rise(values[:800])
    assert not lasting_rise(values, share=1.0)


@pytest.mark.parametrize("seed", range(8))
def test_healthy_losses_are_not_told(seed):
    """Noise of every kind, cycles of the learning rate, adversaries: at no time while they grow."""
    draw = np.random.default_rng(seed)
    count = 1500
    cycle = 0.5 * (1 + np.cos(np.pi * (np.arange(count) % 300) / 300))
    wander = np.zeros(count)
    for at in range(1, count):
        wander[at] = 0.95 * wander[at - 1] + 0.03 * draw.normal()
    base = falling(count, seed, 0.0)
    for values in (
        base * (1 + 0.3 * draw.normal(size=count)),
        base * np.exp(draw.normal(size=count)),
        base * draw.gamma(1.0, 1.0, count),
        base * np.exp(wander),
        base * (1 + 0.3 * cycle) * (1 + 0.05 * draw.normal(size=count)),
        draw.normal(size=count) + 0.3 * np.sin(np.arange(count) / 40),
    ):
        assert not ever(values)


@pytest.mark.parametrize("seed", range(4))
def test_a_harder_stage_is_not_told(seed):
    """A loss that falls after its rise is being learned, though it ends above where it was before."""
    stage = 0.4 + 0.8 * np.exp(-np.arange(400) / 150)
    values = np.concatenate([stage, 1.5 * stage, 2.2 * stage])
    assert not ever(values * (1 + 0.03 * np.random.default_rng(seed).normal(size=len(values))))


def test_a_rise_that_it_always_came_back_from_is_not_told():
    """Until it is much higher than those before."""
    hills = np.tile(np.concatenate([np.full(150, 1.0), np.full(150, 1.5)]), 5)
    values = hills * (1 + 0.02 * np.random.default_rng(0).normal(size=len(hills)))
    assert lasting_rise(values) is None
    assert lasting_rise(np.concatenate([values, noisy(3.0, 200, 0.02, 1)])) is not None


def test_divergence_is_what_undoes_the_learning():
    """Small losses double by little of what was learned; a loss far above its beginning has diverged."""
    small = lasting_rise(np.concatenate([falling(800, 0), noisy(0.9, 200, 0.05, 0)]))
    assert small is not None
    assert small.is_divergence(begun=2.5)
    assert not small.is_divergence(begun=11.0)
    blown = lasting_rise(np.concatenate([noisy(2.0, 400, 0.02, 0), 2.0 * np.exp(np.arange(150) / 10)]))
    assert blown is not None
    assert blown.is_divergence(begun_at(noisy(2.0, 400, 0.02, 0)))


def test_values_that_are_no_numbers_are_left_out():
    """NaN and infinity neither hide a rise nor make one; indices are those of the whole series."""
    values = np.concatenate([noisy(2.0, 500, 0.02, 0), noisy(3.0, 200, 0.02, 1)])
    holes = np.insert(values, range(0, 700, 7), np.nan)
    found = lasting_rise(holes)
    assert found is not None
    assert holes[found.index] > 2.5
    assert lasting_rise(np.full(500, np.nan)) is None
    assert lasting_rise(np.array([])) is None
    assert math.isnan(begun_at([math.nan]))


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (2.0, 2.68, ", by 34 %"),
        (0.1, 6.0, ", 60 times as high"),
        (2.0, 1e30, ""),
        (0.0, 3.0, ""),
        (-1.0, 3.0, ""),
        (2.0, math.nan, ""),
    ],
)
def test_growth_is_said_as_people_say_it(before, after, said):
    """Percent up to tenfold, then a multiple; nothing where a share means nothing."""
    assert growth(before, after) == said
