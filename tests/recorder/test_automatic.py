"""Phases and steps that hooks make: marks become phases, and the user's own always win."""

from __future__ import annotations

import threading

import pytest

from stepscope.core.ring import WORD_PHASE
from stepscope.recorder.automatic import MOST_MARKS, AutomaticSteps, charge
from tests.recorder.rig import Rig

MILLISECOND = 1_000_000


@pytest.fixture
def ticks(monkeypatch, hot):
    now = [1_000]
    for module in ("automatic", "hotpath"):
        monkeypatch.setattr(f"stepscope.recorder.{module}.monotonic_ns", lambda: now[0])
    if hot is not None:
        hot.set_clock(lambda: now[0])
    yield now
    if hot is not None:
        hot.set_clock(None)


@pytest.fixture
def rig(tmp_path, ticks):
    return Rig(tmp_path)


@pytest.fixture
def steps(rig):
    return AutomaticSteps(rig.run)


def spend(ticks, milliseconds):
    ticks[0] += milliseconds * MILLISECOND


def phases(rig):
    """Return the phases of each step, in ms."""
    return [
        {name.removeprefix("phase/"): value // MILLISECOND for name, value in values.items() if name != "samples"}
        for _, values in rig.rows()
        if "step_seconds" in values
    ]


def test_nested_marks_are_charged_their_own_time(rig, steps, ticks):
    """Communication inside a forward pass is communication; the rest of the pass is forward, the rest other."""
    forward, wire = charge(steps, "forward"), charge(steps, "communication")
    steps.open()
    spend(ticks, 1)
    assert forward.begin()
    spend(ticks, 2)
    assert wire.begin()
    spend(ticks, 4)
    wire.end()
    spend(ticks, 8)
    forward.end()
    steps.close(None)
    assert phases(rig) == [{"step_seconds": 15, "other": 1, "forward": 10, "communication": 4}]


def test_a_phase_may_go_on_over_the_end_of_a_step(rig, steps, ticks):
    """What is open when a step ends is charged to it so far, and to the next one from then on."""
    optimizer = charge(steps, "optimizer")
    steps.open()
    optimizer.begin()
    spend(ticks, 3)
    steps.close(None, again=True)
    spend(ticks, 5)
    optimizer.end()
    spend(ticks, 1)
    steps.close(None)
    assert [step.get("optimizer") for step in phases(rig)] == [3, 5]
    assert [step["step_seconds"] for step in phases(rig)] == [3, 6]


def test_another_thread_charges_nothing(rig, steps, ticks):
    """Only the thread that trains makes marks."""
    found = []
    thread = threading.Thread(target=lambda: found.append(charge(steps, "forward").begin()))
    thread.start()
    thread.join()
    assert found == [False]
    assert steps.marks == []


def test_very_many_marks_are_folded(rig, steps, ticks):
    """A step with more phases than anybody counts keeps their sums, and what is open stays open."""
    forward, evaluation = charge(steps, "forward"), charge(steps, "evaluation")
    steps.open()
    evaluation.begin()
    for _ in range(MOST_MARKS):
        forward.begin()
        spend(ticks, 1)
        forward.end()
        spend(ticks, 1)
        assert len(steps.marks) <= MOST_MARKS + 40
    evaluation.end()
    steps.close(None)
    (found,) = phases(rig)
    assert (found["forward"], found["evaluation"]) == (MOST_MARKS, MOST_MARKS)


def test_a_long_phase_is_published(rig, steps):
    """While an evaluation goes on the ring's header says so: the watcher takes its silence for none."""
    evaluation = charge(steps, "evaluation")
    assert evaluation.begin()
    assert rig.reader.words()[WORD_PHASE] == 1
    evaluation.end()
    assert rig.reader.words()[WORD_PHASE] == 0


def test_bare_steps_are_written_at_once(rig, steps, ticks):
    """A step that nobody measured is in the ring when it has ended: its duration and its samples, in order."""
    steps.open()
    for number in range(10):
        spend(ticks, number + 1)
        assert steps.note(number)
        assert len(rig.rows()) == number + 1
    spend(ticks, 100)
    steps.close(7)
    rows = [(index, values["step_seconds"] // MILLISECOND, values["samples"]) for index, values in rig.rows()]
    assert rows == [*((number, number + 1, number) for number in range(10)), (10, 100, 7)]


def test_a_step_of_the_users_own_takes_over(rig, steps, ticks):
    """The first `with run.step()` makes all steps the script's: numbered from 0, what hooks charged before is kept."""
    forward = charge(steps, "forward")
    steps.open()
    forward.begin()
    spend(ticks, 2)
    forward.end()
    with rig.run.step():
        spend(ticks, 1)
    steps.close(None)
    with rig.run.step():
        forward.begin()
        spend(ticks, 4)
        forward.end()
    assert [index for index, _ in rig.rows()] == [0, 1]
    assert [step["forward"] for step in phases(rig)] == [2, 4]
    assert steps.yielded


def test_followers_hear_of_every_step(rig, steps):
    """Whoever follows a run is told of the hooks' steps and of the script's own alike."""

    class Follower:
        count = 0

        def step_ended(self):
            self.count += 1

        def run_ended(self):
            """Not asked here."""

    follower = Follower()
    rig.run.follow(follower)
    steps.close(None)
    with rig.run.step():
        assert steps.yielded
    with rig.run.step():
        assert follower.count == 2
    assert follower.count == 3


def test_a_row_logged_between_two_steps_belongs_to_the_last(rig, steps):
    """Outside of any step a value takes the index of the last one; inside, that of the one that is open."""
    steps.open()
    rig.run.log({"inside": 1})
    steps.close(None)
    rig.run.log({"between": 1})
    steps.open()
    rig.run.log({"inside": 2})
    steps.unopen()
    rig.run.log({"between": 2})
    found = [(index, *values) for index, values in rig.rows() if "step_seconds" not in values]
    assert found == [(0, "inside"), (0, "between"), (1, "inside"), (0, "between")]


def test_time_before_the_first_step_belongs_to_no_step(rig, steps, ticks):
    """`start` begins the first step now, and does nothing once there is one."""
    charge(steps, "data").begin()
    spend(ticks, 5)
    steps.start()
    spend(ticks, 2)
    steps.start()
    steps.open()
    steps.close(None)
    steps.mark()
    spend(ticks, 1)
    steps.close(None)
    assert [step["step_seconds"] for step in phases(rig)] == [2, 1]


def test_inside_a_phase_of_the_users_own_hooks_charge_nothing(rig, steps, ticks):
    """From the first step with a phase of the user's own on, hooks charge only outside of such phases."""
    forward = charge(steps, "forward")
    for _ in range(2):
        steps.open()
        with rig.run.phase("mine"):
            if forward.begin():
                forward.end()
            spend(ticks, 2)
        assert forward.begin()
        assert not steps.note(None)
        spend(ticks, 3)
        assert steps.marking or not forward.begin()
        forward.end()
        steps.close(4)
    first, second = phases(rig)
    assert first["mine"] == second["mine"] == 2
    assert second["forward"] == 3
    assert [values["samples"] for _, values in rig.rows()] == [4, 4]


@pytest.mark.parametrize("own", [False, True])
def test_a_reset_closes_what_an_interrupt_left_open(rig, steps, ticks, own):
    """Phases that a hook could not close end at the reset, with and without phases of the user's own."""
    forward, wire = charge(steps, "forward"), charge(steps, "communication")
    if own:
        with rig.run.phase("mine"):
            spend(ticks, 1)
        steps.close(None)
    steps.open()
    forward.begin()
    wire.begin()
    spend(ticks, 2)
    steps.reset()
    spend(ticks, 3)
    steps.close(None)
    found = phases(rig)[-1]
    assert (found["communication"], found["other"], found["step_seconds"]) == (2, 3, 5)


def test_a_phase_that_is_open_when_the_user_takes_over_goes_on(rig, steps, ticks):
    """The first step of the user's own counts an open phase from its start to its end."""
    forward = charge(steps, "forward")
    steps.open()
    forward.begin()
    spend(ticks, 2)
    with rig.run.step():
        spend(ticks, 3)
        forward.end()
        spend(ticks, 1)
    steps.give_way()
    steps.fold()
    steps.open()
    assert phases(rig) == [{"step_seconds": 6, "other": 1, "forward": 5}]
