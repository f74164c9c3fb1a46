from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.analysis.cost.ledger import CLASSES, LONGEST_RESTART, Attempt, charge, stalls_of
from stepscope.core.ring import NO_STEP

NAN = np.nan


def attempt(number=0, started=100.0, *, before=2.0, steps=10, seconds=1.0, first=0, after=0.0, **more):
    """Return an attempt whose steps follow each other without a gap, after `before` seconds and until `after`."""
    end = started + before + seconds * np.arange(1, steps + 1)
    ended = started + before + seconds * steps + after
    facts = {"end": end, "seconds": np.full(steps, seconds), "step": np.arange(first, first + steps)}
    return Attempt(number, more.pop("rank", 0), started, ended, **{**facts, **more})


def spent(*attempts):
    """Return the seconds of the classes that are not empty; they must sum to the wall clock."""
    ledger = charge(attempts)
    assert sum(ledger.seconds.values()) == pytest.approx(ledger.wall_seconds, abs=1e-6)
    return {name: pytest.approx(seconds, abs=1e-6) for name, seconds in ledger.seconds.items() if seconds > 1e-9}


def test_phases_of_steps_are_classes():
    """The phases of a step go to their classes, the user's own and the rest of the step to productive."""
    phases = {"data": 0.2, "copy": 0.1, "forward": 0.3, "mine": 0.1, "logging": 0.05, "checkpoint": 0.05}
    found = spent(attempt(phases={name: np.full(10, seconds) for name, seconds in phases.items()}))
    assert found == {
        "start": 2.0,
        "data": 2.0,
        "copy": 1.0,
        "productive": 6.0,
        "other": 0.5,
        "checkpoint": 0.5,
    }


def test_steps_without_phases_are_productive():
    """A run that only calls step() was productive in its steps, started before them, and did other things after."""
    assert spent(attempt(after=3.0)) == {"start": 2.0, "productive": 10.0, "other": 3.0}


def test_steps_that_were_not_measured_are_like_the_others():
    """Where only some steps have phases the others are split as these, without the rare ones."""
    data, forward, checkpoint = np.full(10, NAN), np.full(10, NAN), np.full(10, NAN)
    data[:2], forward[:2], checkpoint[0] = 0.4, 0.4, 0.2
    forward[1] = 0.6
    found = spent(attempt(phases={"data": data, "forward": forward, "checkpoint": checkpoint}, before=0.0))
    assert found["checkpoint"] == 0.2
    assert found["data"] == 0.8 + 8 * 0.8 / 1.8


def test_run_without_steps_is_not_told():
    """A run of which no step is known has spent its time on other things, not on starting."""
    silent = attempt(steps=0, before=0.0, after=7.0)
    assert spent(silent) == {"other": 7.0}
    assert (charge([silent]).goodput_ratio, charge([silent]).wasted) == (None, {})


def test_restart_and_redone_work():
    """What a crashed attempt did after its checkpoint is redone work, and so is the step that broke off."""
    crashed = attempt(steps=10, after=0.5, state="killed")
    again = attempt(1, started=120.0, first=6)
    found = spent(crashed, again)
    assert found == {"start": 2.0, "productive": 6.0 + 10.0, "redone": 4.0 + 0.5, "restart": 120 - 112.5 + 2.0}


def test_work_lost_twice_counts_twice():
    """An attempt that dies before it has caught up loses its own work too; what was lost stays lost."""
    one = attempt(steps=10, state="killed")
    two = attempt(1, started=115.0, first=4, steps=3, state="oom-killed")
    three = attempt(2, started=125.0, first=4, steps=8)
    assert spent(one, two, three)["redone"] == 6.0 + 3.0


def test_attempt_that_ended_well_lost_nothing():
    """A finished attempt keeps its work, whatever is started later; nobody waited for that."""
    found = spent(attempt(), attempt(1, started=130.0))
    assert "redone" not in found
    assert found["away"] == 18.0


def test_long_pause_between_attempts_is_not_paid():
    """Attempts that are hours apart were away: that is part of the wall clock, but not of what the machine was held."""
    ledger = charge([attempt(state="killed"), attempt(1, started=112.0 + LONGEST_RESTART + 1, first=10)])
    assert ledger.seconds["away"] == pytest.approx(LONGEST_RESTART + 1)
    assert ledger.paid_seconds == pytest.approx(24.0)
    assert ledger.goodput_ratio == pytest.approx(20 / 24)


def test_stall_is_taken_from_the_phase_that_stood_still():
    """A step that hung in its data phase was stalled for that long, and waited for data for the rest."""
    data = np.full(10, 0.2)
    seconds = np.ones(10)
    data[5], seconds[5] = 50.2, 51.0
    end = 102.0 + np.cumsum(seconds)
    one = Attempt(0, 0, 100.0, 162.0, "finished", end, seconds, np.arange(10), {"data": data}, [(108.0, 158.0)])
    found = spent(one)
    assert found["stall"] == 50.0
    assert found["data"] == 10 * 0.2


def test_stall_until_the_end():
    """A hang that ends with a kill is a stall, not redone work; overlapping stalls count once."""
    hung = attempt(after=60.0, state="killed", stalls=[(112.0, 172.0), (115.0, 160.0)])
    assert spent(hung) == {"start": 2.0, "productive": 10.0, "stall": 60.0}


def test_evaluation_is_never_a_stall():
    """Time that the run said it evaluates or writes a checkpoint stays what it is."""
    found = spent(attempt(phases={"evaluation": np.full(10, 1.0)}, stalls=[(103.0, 106.0)]))
    assert found["evaluation"] == 10.0


def test_ranks_are_averaged():
    """Each rank is classified for the whole attempt; the ledger is their mean and sums to the wall clock."""
    slow = attempt(rank=0, steps=10, phases={"data": np.full(10, 0.5)})
    late = attempt(rank=1, started=104.0, steps=4)
    ledger = charge([slow, late])
    assert ledger.ranks == 2
    assert ledger.seconds["data"] == pytest.approx(2.5)
    assert sum(ledger.seconds.values()) == pytest.approx(12.0) == ledger.wall_seconds


def test_gaps_between_steps_are_other():
    """Time that lies in no step is told as such."""
    end = np.array([103.0, 105.0, 109.0])
    found = spent(Attempt(0, 0, 100.0, 109.0, "finished", end, np.ones(3), np.arange(3)))
    assert found == {"start": 2.0, "productive": 3.0, "other": 4.0}


def test_stalls_come_from_events():
    """A stall begins at the last step before it was seen, and ends when it is over, or with the rank."""
    events = [
        {"kind": "stalled", "time": 50.0, "seconds": 12.0},
        {"kind": "hung", "time": 60.0, "seconds": 22.0},
        {"kind": "recovered", "time": 70.0},
        {"kind": "stalled", "time": 100.0, "seconds": 10.0},
    ]
    assert stalls_of(events, 130.0) == [(38.0, 70.0), (90.0, 130.0)]
    assert stalls_of([], 5.0) == []


def test_nothing_is_an_empty_ledger():
    """Without attempts there is a ledger of no seconds, with every class."""
    ledger = charge([])
    assert (ledger.wall_seconds, ledger.goodput_ratio, set(ledger.seconds)) == (0.0, None, set(CLASSES))
    assert charge([Attempt(0, 0, NAN, NAN)]).wall_seconds == 0.0


FLOATS = st.floats(-50, 500) | st.just(NAN) | st.just(np.inf)


@given(
    st.lists(st.tuples(FLOATS, FLOATS, st.integers(-3, 30) | st.just(NO_STEP), FLOATS, st.integers(0, 2)), max_size=30)
)
def test_whatever_was_recorded_sums_to_the_wall_clock(rows):
    """Steps out of order, of impossible length, outside of their attempt or without a number: the sum holds."""
    attempts = []
    for number in range(3):
        own = [row for row in rows if row[4] == number]
        columns = [np.array([row[at] for row in own], np.float64) for at in (0, 1, 3)]
        step = np.array([row[2] for row in own], np.int64)
        state = ("killed", "running", "finished")[number]
        phases = {"data": columns[2], "evaluation": columns[2] / 2}
        begin = 100.0 * number
        stalls = [(begin + 10, begin + 30)]
        attempts.append(Attempt(number, 0, begin, begin + 80, state, columns[0], columns[1], step, phases, stalls))
    ledger = charge(attempts)
    assert sum(ledger.seconds.values()) == pytest.approx(ledger.wall_seconds, rel=1e-9)
    assert all(seconds >= -1e-9 for seconds in ledger.seconds.values())


@pytest.mark.slow
def test_many_steps_are_cheap():
    """A million steps take moments, and so do a hundred thousand gaps between them."""
    steps = 1_000_000
    seconds = np.full(steps, 0.001)
    end = 100 + np.cumsum(np.where(np.arange(steps) % 10 == 0, 0.01, 0.001))
    one = Attempt(0, 0, 100.0, float(end[-1]), "finished", end, seconds, np.arange(steps), {"data": seconds / 2})
    assert charge([one]).seconds["other"] == pytest.approx(99_999 * 0.009, rel=1e-3)
