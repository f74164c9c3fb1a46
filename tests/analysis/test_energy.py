from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.analysis.cost.energy import JOULES_PER_KWH, from_counter, from_power, measure, split
from stepscope.analysis.cost.ledger import Attempt, charge

TIME = np.arange(0.0, 101.0)


def ledger():
    """Return that of one attempt: 20 s of start, then 80 steps of a second, half of each for data."""
    end, seconds = np.arange(21.0, 101.0), np.ones(80)
    return charge([Attempt(0, 0, 0.0, 100.0, "finished", end, seconds, np.arange(80), {"data": seconds / 2})])


def test_counter_is_exact_and_survives_a_reset():
    """A counter gives its increments; where it begins anew nothing is added and nothing taken away."""
    assert from_counter(TIME, 5e6 + 300 * TIME).joules[-1] == pytest.approx(30_000)
    joules = np.concatenate([1000 + 10 * TIME[:50], 10 * TIME[:51]])
    assert from_counter(TIME, joules).joules[-1] == pytest.approx(49 * 10 + 50 * 10)


def test_power_is_integrated_between_close_samples():
    """Power gives the area below it; what lies in a long gap is left out, and so are samples that are no numbers."""
    assert from_power(TIME, 200 + 2 * TIME).joules[-1] == pytest.approx(200 * 100 + 100**2)
    watts = np.full(101, 100.0)
    watts[7] = np.nan
    assert from_power(TIME, watts).joules[-1] == pytest.approx(10_000)
    assert from_power([0, 10, 1000, 1010], [100.0] * 4).joules[-1] == pytest.approx(2000)


def test_energy_follows_the_power_of_each_span():
    """Idle seconds get what was drawn in them: the start at 50 W, the steps at 400 W, split like their time."""
    watts = np.where(TIME <= 20, 50.0, 400.0)
    meter = from_counter(TIME, np.concatenate([[0.0], np.cumsum(watts[1:])]))
    found = split(ledger(), [meter])
    assert found["start"] == pytest.approx(20 * 50)
    assert found["data"] == found["productive"] == pytest.approx(40 * 400)
    assert sum(found.values()) == pytest.approx(meter.joules[-1])


def test_ranks_share_the_meters():
    """Several ranks do not multiply what the meters counted."""
    ranks = [Attempt(0, rank, 0.0, 100.0) for rank in range(4)]
    assert sum(split(charge(ranks), [from_power(TIME, np.full(101, 10.0))]).values()) == pytest.approx(1000)


def test_kwh_and_co2():
    """Energy is told in kWh, with the CO₂ of the region, its sources, and how much of the time they saw."""
    power = from_power(TIME[:51], np.full(51, JOULES_PER_KWH / 50))
    found = measure(ledger(), [("gpu 0", power)], 400.0, "world")
    assert found.kwh == pytest.approx(1.0)
    assert found.co2_kg == pytest.approx(0.4)
    assert found.covered_ratio == pytest.approx(0.5)
    assert found.facts()["sources"] == ["gpu 0"]


def test_no_meter_no_energy():
    """Without a meter, or with a single sample, there is no figure: never 0."""
    assert measure(ledger(), []) is None
    assert measure(ledger(), [("gpu 0", from_power([1.0], [5.0]))]) is None
    assert measure(charge([]), [("gpu 0", from_power(TIME, TIME))]) is None


@given(st.lists(st.tuples(st.floats(allow_nan=True), st.floats(-1e9, 1e9) | st.just(np.nan)), max_size=40))
def test_any_samples_make_a_meter_that_never_falls(rows):
    """Whatever was sampled, the meter only grows."""
    for make in (from_counter, from_power):
        meter = make([row[0] for row in rows], [row[1] for row in rows])
        assert (np.diff(meter.joules) >= 0).all()
