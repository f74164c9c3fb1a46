"""The step that a row belongs to."""

from __future__ import annotations

import numpy as np
import pytest


def steps(rig, name="a"):
    return [step for step, row in rig.rows() if name in row]


def test_without_steps_each_log_counts_up(rig):
    """In a run that never calls step() each log takes the next index."""
    for _ in range(3):
        rig.run.log({"a": 1})
    assert steps(rig) == [0, 1, 2]


def test_explicit_step_never_moves_the_counter(rig):
    """An explicit step= always wins, and the count goes on where it was."""
    rig.run.log({"a": 1})
    rig.run.log({"a": 1}, step=100)
    rig.run.log({"a": 1}, step=-5)
    rig.run.log({"a": 1})
    assert steps(rig) == [0, 100, -5, 1]


def test_inside_a_step(rig):
    """Inside step() every log takes that step's index, however many there are."""
    for _ in range(2):
        with rig.run.step():
            rig.run.log({"a": 1})
            rig.run.log({"a": 1})
    assert steps(rig) == [0, 0, 1, 1]


def test_after_a_step(rig):
    """Outside, after a step has run, log takes the last one's index."""
    with rig.run.step():
        rig.run.log({"a": 1})
    rig.run.log({"a": 1})
    with rig.run.step():
        pass
    rig.run.log({"a": 1})
    assert steps(rig) == [0, 0, 1]


def test_explicit_step_inside_and_after_a_step(rig):
    """An explicit step= wins inside a step and after it, and moves neither."""
    with rig.run.step():
        rig.run.log({"a": 1}, step=50)
        rig.run.log({"a": 1})
    rig.run.log({"a": 1}, step=60)
    rig.run.log({"a": 1})
    with rig.run.step():
        rig.run.log({"a": 1})
    assert steps(rig) == [50, 0, 60, 0, 1]


def test_steps_begin_at_zero_after_counting(rig):
    """The first step() of a run is step 0, whatever was logged before it."""
    rig.run.log({"a": 1})
    rig.run.log({"a": 1})
    with rig.run.step():
        rig.run.log({"a": 1})
    assert steps(rig) == [0, 1, 0]


def test_index_of_a_resumed_run(rig):
    """step(index=) sets the index; the next step goes on from it, forwards or back."""
    for index in (1000, None, 3, None):
        with rig.run.step(index=index):
            rig.run.log({"a": 1})
    assert steps(rig) == [1000, 1001, 3, 4]
    assert steps(rig, "step_seconds") == [1000, 1001, 3, 4]


@pytest.mark.parametrize(("given", "taken"), [(np.int32(7), 7), (7.0, 7), (True, 1), (np.array(7), 7)])
def test_steps_of_other_types(rig, given, taken):
    """A step may be any kind of whole number, in log and in step()."""
    rig.run.log({"a": 1}, step=given)
    with rig.run.step(index=given):
        rig.run.log({"a": 1})
    assert steps(rig) == [taken, taken]


class Unsteady:
    def __index__(self):
        raise RuntimeError("no")

    __repr__ = __index__


@pytest.mark.parametrize("given", ["ten", float("nan"), float("inf"), [3], Unsteady(), 1j])
def test_steps_that_are_none(rig, given):
    """What is no whole number is refused as a step, counted, and the row takes its place in the count."""
    rig.run.log({"a": 1}, step=given)
    rig.run.log({"a": 1}, step=given)
    with rig.run.step(index=given):
        rig.run.log({"a": 1})
    with rig.run.step():
        rig.run.log({"a": 1})
    assert steps(rig) == [0, 1, 0, 1]
    assert rig.complaints() == {"step": 3}
    assert rig.said.getvalue().count("\n") == 1


@pytest.mark.parametrize("given", [2**63, -(2**63) - 1, 2**200])
def test_steps_beyond_64_bits(rig, given):
    """A step that 64 bits cannot hold costs its row, which is counted, and nothing is raised."""
    rig.run.log({"a": 1}, step=given)
    rig.run.log({"a": 1})
    assert steps(rig) == [0]
    assert (rig.refused, rig.complaints()) == (1, {"range": 1})


def test_kwargs_and_dict(rig):
    """log(dict), log(**values) and both together are one row each; a keyword wins over the dict."""
    rig.run.log({"a": 1})
    rig.run.log(a=2, b=3)
    rig.run.log({"a": 4, "b": 5}, b=6)
    assert [row for _, row in rig.rows()] == [{"a": 1}, {"a": 2, "b": 3}, {"a": 4, "b": 6}]


def test_times_are_those_of_the_calls(rig, ticks):
    """A row carries the monotonic time of its call."""
    for moment in (5, 9):
        ticks[0] = moment
        rig.run.log({"a": 1})
    assert [now for _, _, now, _, _ in rig.records()] == [5, 9]


@pytest.mark.parametrize("index", [2**62, -(2**62), 2**200])
def test_index_from_which_nobody_can_count_on(rig, index):
    """An index so large that later steps would not fit is refused, counted, and the count goes on."""
    with rig.run.step(index=index):
        rig.run.log({"a": 1})
    with rig.run.step():
        rig.run.log({"a": 1})
    assert steps(rig) == [0, 1]
    assert rig.complaints() == {"step": 1}
