from __future__ import annotations

import os
import threading

import pytest

import stepscope
from stepscope.core import ring, status
from stepscope.core.places import find_places
from stepscope.session.opening import init
from stepscope.session.run import Run
from stepscope.store.salvage import salvage
from tests.recorder.rig import peek


@pytest.fixture
def run(started, tmp_path):
    return init(dir=tmp_path)


def words_of(run):
    return peek(run._mapping.path)[0]


def brought_home(run):
    """End the run's ring as a salvager would, and open the run."""
    salvage(find_places())
    return stepscope.open(run.path)


def test_context_manager(run):
    """A run that is left without an error has finished, and its rows are read back."""
    with run as same:
        same.log({"loss": 0.5})
    past = brought_home(run)
    assert (same is run, past.state) == (True, "finished")
    assert past.series("loss").value.tolist() == [0.5]


def test_exception_on_its_way(run):
    """A run that is left by an exception has failed, with the exception as its cause, which goes on unchanged."""
    with pytest.raises(ValueError, match="NaN"), run:
        raise ValueError("NaN in the loss")
    past = brought_home(run)
    assert past.state == "failed"
    [event] = past.events("exception")
    assert event["error"] == "ValueError: NaN in the loss"
    assert "test_run.py" in event["traceback"]


class MuteError(Exception):
    def __str__(self):
        raise RuntimeError("no words")


def test_exception_that_cannot_be_shown(run):
    """An exception whose text raises is not hidden by that."""
    with pytest.raises(MuteError), run:
        raise MuteError
    assert brought_home(run).events("exception")[0]["error"] == "MuteError: (no text: RuntimeError)"


def test_finishing_twice(run):
    """The second finish does nothing, and after the first every call is a no-op."""
    run.finish()
    run.finish()
    run.log({"late": 1.0})
    assert not run.recording
    assert brought_home(run).names() == []


def test_two_threads_finish(run):
    """Of two threads that finish at once one does it."""
    assert run.stop(None, ring.STATE_FINISHED)
    assert not run.stop(None, ring.STATE_FINISHED)
    run.finish()
    run.let_go(0)


def test_nothing_stays_open(started, tmp_path, open_files):
    """A run that has ended holds no file any more."""
    before = open_files()
    for _ in range(3):
        run = init(dir=tmp_path)
        run.log({"a": 1.0})
        run.finish()
    assert open_files() <= before


def test_last_word_of_the_watcher(run, capsys):
    """What the watcher says at the very end is still told."""
    descriptor = os.open(run._mapping.path, os.O_RDWR)
    ring.RingReader(descriptor).set_word(ring.WORD_STATUS, status.DISK_FULL)
    run.finish()
    assert status.MESSAGES[status.DISK_FULL] in capsys.readouterr().err
    os.close(descriptor)


def test_end_waits_for_a_thread_that_writes(run):
    """A row that another thread is writing when the run ends is finished first."""
    run._tokens.clear()
    timer = threading.Timer(0.005, run._tokens.append, [True])
    timer.start()
    run.finish()
    timer.join()
    assert not run.recording


def test_forked_child_does_not_finish_it(run, monkeypatch):
    """A process that is not the one which began the run does not end it."""
    pid = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: pid + 1)
    run.finish()
    monkeypatch.undo()
    assert run.recording
    assert words_of(run)[ring.WORD_STATE] == ring.STATE_RUNNING


def test_histogram(run):
    """An array becomes an event with the form of its distribution."""
    run.histogram("weights", [1.0, 2.0, 3.0, float("nan")], bins=2)
    run.histogram("weights", [1.0], step=50)
    run.finish()
    first, second = brought_home(run).events("histogram")
    assert (first["name"], first["count"], first["nonfinite"], first["counts"]) == ("weights", 4, 1, [1, 2])
    assert (first["step"], second["step"]) == (0, 50)


def test_histogram_of_many_bins(run):
    """A histogram of more bins than an event holds has fewer, and is whole."""
    run.histogram("weights", list(range(5000)), bins=10**6)
    run.finish()
    [event] = brought_home(run).events("histogram")
    assert len(event["counts"]) == len(event["edges"]) - 1 == 512
    assert sum(event["counts"]) == 5000


@pytest.mark.parametrize("values", [None, "text", [[1], [1, 2]], object(), [1j]])
def test_histogram_of_no_array(run, capsys, values):
    """What is no array is refused and told once."""
    run.histogram("h", values)
    run.histogram("h", values)
    assert words_of(run)[ring.WORD_REFUSED] == 2
    assert capsys.readouterr().err.count("histogram") == 1


def test_names_itself(run):
    """A run says which one it is; one that is off says so."""
    assert repr(run) == f"<stepscope run {run.id} rank 0 in {run.path}>"
    assert "(off)" in repr(Run.off())


def test_interrupted_end(run, monkeypatch):
    """An interrupt in the middle of the end goes on its way, and the run can be ended again."""

    def interrupt(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(run, "_retire", interrupt)
        with pytest.raises(KeyboardInterrupt):
            run.finish()
    run.finish()
    assert not run.recording


def test_end_that_another_thread_is_at(run, monkeypatch):
    """Who finishes while another thread is at it waits for that a moment, and not for ever."""
    run._ends.clear()
    timer = threading.Timer(0.005, run.disarm)
    timer.start()
    run.finish()
    timer.join()
    assert not run.recording
    monkeypatch.setattr("stepscope.session.run.SETTLE_SECONDS", 0)
    run.recording = True
    run.finish()
    assert run.recording  # the other thread never came to its end, and nobody waited for it
    run.recording = False
