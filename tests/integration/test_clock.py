"""Clocks that jump: durations come from the monotonic clock, and the jump itself is an event of the run."""

from __future__ import annotations

import time

import pytest

import stepscope
from stepscope.core import ring
from stepscope.core.places import HELD
from stepscope.session import opening
from stepscope.session.watching import Watch
from stepscope.store.drain import Stream
from tests.faults.failing import Alone, Clock, SealingHere


class Jumping(Clock):
    """A wall clock that can be set."""

    def __init__(self):
        super().__init__()
        self.offset = 0.0

    def wall_ns(self):
        return super().wall_ns() + int(self.offset * 1e9)


@pytest.fixture
def alone(monkeypatch, tmp_path):
    """A run that this process records and watches, with a clock of its own."""
    monkeypatch.setattr(opening, "Watch", type("NoWatch", (Watch,), {"begin": lambda *_: None}))
    running = lambda stream: stream.reader.words()[ring.WORD_STATE] == ring.STATE_RUNNING  # noqa: E731
    monkeypatch.setattr(Stream, "writer_alive", running)
    made = Alone(tmp_path, "one", SealingHere)
    made.clock = made.watcher._clock = Jumping()
    yield made
    HELD.clear()


def step(run):
    """Record a step that takes about a hundredth of a second."""
    with run.step(samples=1), run.phase("forward"):
        time.sleep(0.01)
        run.log(x=1.0)


@pytest.mark.parametrize("seconds", [3600.0, -3600.0])
def test_a_jump_of_the_wall_clock_leaves_durations_alone_and_is_an_event(alone, seconds):
    """An hour forward or back: every duration stays what it was, and one event tells how far the clock jumped."""
    for _ in range(3):
        step(alone.run)
    alone.tick(0.0)
    alone.clock.offset = seconds
    for _ in range(3):
        step(alone.run)
    alone.tick(1.1)
    alone.run.stop(None, ring.STATE_FINISHED)
    alone.watch()
    alone.run.let_go(0.0)
    past = stepscope.open(alone.run.path)
    jumps = past.events("clock_jump")
    assert [round(jump["seconds"]) for jump in jumps] == [seconds]
    durations = past.series("step_seconds").value
    assert len(durations) == 6
    assert (durations > 0.005).all()
    assert (durations < 1800).all()
    assert past.series("x").step.tolist() == list(range(6))
    assert past.state == "finished"


def test_a_jump_makes_nobody_lost(alone):
    """A watcher whose wall clock jumped is judged by the monotonic clock and counts as alive."""
    step(alone.run)
    alone.tick(0.0)
    alone.clock.offset = -7200.0
    alone.watcher._due["heartbeat"] = 0.0
    alone.tick(0.0)
    assert stepscope.open(alone.run.path).state == "running"
    alone.run.stop(None, ring.STATE_FINISHED)
    alone.watch()
    alone.run.let_go(0.0)


def test_a_stopped_process_is_no_jump(alone):
    """Time that passes on both clocks alike, as while a process is stopped, is no event."""
    step(alone.run)
    alone.tick(0.0)
    alone.tick(600.0)
    step(alone.run)
    alone.run.stop(None, ring.STATE_FINISHED)
    alone.watch()
    alone.run.let_go(0.0)
    assert stepscope.open(alone.run.path).events("clock_jump") == []
