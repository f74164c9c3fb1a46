"""How often something is measured keeps to its share of the training's time."""

from __future__ import annotations

from stepscope.integrations.numerics.cadence import OPENING_SECONDS, Cadence
from tests.fakes import Clock


def measured(cost, step, steps, skipped=0, budget=0.001):
    """Return how many of `steps` looks were measured; between two looks `skipped` steps go by unseen."""
    clock = Clock()
    cadence = Cadence(1, budget, clock)
    found = 0
    for number in range(steps):
        clock.now += skipped * step
        if skipped:
            cadence.step(skipped)
        if cadence.due():
            start = cadence.start()
            clock.now += cost(number)
            cadence.stop(start)
            found += 1
        clock.now += step
        cadence.step()
    return found


def test_costs_stay_within_the_share():
    """A measurement of 1 ms in steps of 10 ms is made in one of a hundred at a budget of 0.1 %."""
    opening = OPENING_SECONDS / 0.001
    assert 8 <= measured(lambda _: 0.001, 0.01, 1000) - opening <= 12


def test_one_cheap_measurement_makes_the_others_no_cheaper():
    """One of ten that costs a tenth changes little: the mean counts, not the cheapest."""
    opening = OPENING_SECONDS / 0.001
    assert measured(lambda number: 0.0001 if number % 10 == 5 else 0.001, 0.01, 2000) - opening <= 30


def test_steps_that_nobody_looked_at_count_for_what_they_are():
    """The one step that was measured, ten times as long for that, is not taken for the usual one."""
    looks = measured(lambda _: 0.018, 0.002, 400, skipped=99)
    assert looks <= 400 * 100 * 0.002 * 0.001 / 0.018 + 5
