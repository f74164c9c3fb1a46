from __future__ import annotations

import atexit
import multiprocessing.process
import multiprocessing.util
import os
import sys

import pytest

import stepscope
from stepscope.core import ring
from stepscope.session import current
from stepscope.session.opening import init
from stepscope.session.run import Run
from tests.recorder.rig import peek


def state_of(run, path):
    return peek(path)[0][ring.WORD_STATE]


@pytest.fixture
def run(started, tmp_path):
    return init(dir=tmp_path)


@pytest.fixture
def path(run):
    return run._mapping.path


def test_calls_without_a_run(started):
    """Before init every call of the package goes nowhere."""
    stepscope.log({"a": 1})
    with stepscope.step(samples=1), stepscope.phase("x"):
        assert list(stepscope.data([1, 2])) == [1, 2]
    stepscope.watch(object())
    stepscope.finish()


def test_calls_go_to_the_current_run(run):
    """The package's functions are those of the run that was begun last."""
    for _ in stepscope.data([1]):
        with stepscope.step(samples=2), stepscope.phase("forward"):
            stepscope.log({"a": 1.0}, b=2.0)
    assert peek(run._mapping.path)[0][ring.WORD_HEAD] == 48 + 32 + 5 * 8
    stepscope.watch()
    stepscope.finish()
    assert not run.recording


def test_end_of_the_process(run, path):
    """A process that ends without finish ends its run as one that exited."""
    current.CURRENT._at_exit()
    assert state_of(run, path) == ring.STATE_EXITED
    assert not run.recording


def test_end_by_an_exception(run, path, monkeypatch):
    """A process that ends by an uncaught exception ends its run as failed."""
    monkeypatch.setattr(sys, "last_value", KeyError("x"), raising=False)
    current.CURRENT._at_exit()
    assert state_of(run, path) == ring.STATE_FAILED


def test_exceptions_that_ended_nothing(started, tmp_path, monkeypatch):
    """An exception from before the run, or at a prompt, is not the end of the run."""
    monkeypatch.setattr(sys, "last_value", KeyError("old"), raising=False)
    first = init(dir=tmp_path)
    place = first._mapping.path
    current.CURRENT._at_exit()
    assert state_of(first, place) == ring.STATE_EXITED
    second = init(dir=tmp_path)
    place = second._mapping.path
    monkeypatch.setattr(sys, "last_value", KeyError("at the prompt"))
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    current.CURRENT._at_exit()
    assert state_of(second, place) == ring.STATE_EXITED


def test_at_a_prompt_a_new_run_ends_the_one_before(started, tmp_path, monkeypatch, capsys):
    """A cell that is run again leaves no run behind; a program may record several at a time."""
    first, second = init(dir=tmp_path, name="first"), init(dir=tmp_path, name="second")
    assert (first.recording, second.recording) == (True, True)
    monkeypatch.setattr(sys, "ps1", "In [1]: ", raising=False)
    third = init(dir=tmp_path)
    assert (second.recording, third.recording) == (False, True)
    assert "run second is ended: a new one begins" in capsys.readouterr().err


def test_finished_runs_are_left_alone(run, path):
    """A run that has finished is not ended again by the process' end."""
    run.finish()
    current.CURRENT._at_exit()
    assert state_of(run, path) == ring.STATE_FINISHED


def test_after_a_fork(run):
    """In a forked child every run is inert."""
    current.CURRENT._after_fork()
    run.log({"a": 1.0})
    assert not run.recording


def test_hooks_are_set_once(monkeypatch, started, tmp_path):
    """The process is hooked once, at the first run that records."""
    hooks = []
    monkeypatch.setattr(os, "register_at_fork", lambda **_: hooks.append("fork"))
    monkeypatch.setattr(atexit, "register", lambda _: hooks.append("exit"))
    fresh = current.Current()
    fresh.adopt(Run.off())
    assert hooks == []
    fresh.adopt(init(dir=tmp_path))
    fresh.adopt(init(dir=tmp_path))
    assert hooks == ["fork", "exit"]


def test_children_of_multiprocessing(monkeypatch, run):
    """A child of multiprocessing, which runs no atexit function, ends its run by multiprocessing's own means."""
    asked = []
    monkeypatch.setattr(multiprocessing.process, "parent_process", lambda: "a parent")
    monkeypatch.setattr(multiprocessing.util, "Finalize", lambda *_, **more: asked.append(more))
    current.CURRENT.adopt(run)
    assert asked == [{"exitpriority": 0}]


def test_public_names():
    """The package has ten names at the top, listed, and no other."""
    assert set(stepscope.__all__) < set(dir(stepscope))
    assert len(stepscope.__all__) == 10
    with pytest.raises(AttributeError, match="colour"):
        _ = stepscope.colour
