"""The thread that answers the watcher: it starts only beside others, tells the truth, and never holds a process up."""

from __future__ import annotations

import _thread
import json
import os
import subprocess
import sys
import threading
import time

import pytest

from stepscope.core.spawn import SpawnError
from stepscope.session import answering
from stepscope.session.answering import Answering, stacks_of
from tests.integration.processes import SOURCE, until

pytestmark = pytest.mark.processes


def run(tmp_path, code, **environ):
    """Run a few lines in a process of their own; return its exit code."""
    program = [sys.executable, "-c", START + code, str(tmp_path)]
    environ = {**os.environ, "PYTHONPATH": str(SOURCE), **environ}
    return subprocess.run(program, env=environ, check=False, timeout=240).returncode


START = """
import os, pathlib, sys, threading, time
from stepscope.session.answering import Answering

ring = pathlib.Path(sys.argv[1]) / "a.ring"
answering = Answering(ring)

def park():
    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
    answering.look()
    assert ring.with_suffix(".ask").exists()

def names():
    found = []
    for task in os.listdir("/proc/self/task"):
        try:
            found.append(pathlib.Path(f"/proc/self/task/{task}/comm").read_text().strip())
        except OSError:  # it has just ended
            continue
    return found

def until(condition):
    while not condition():
        time.sleep(0.01)
"""


def test_a_process_with_one_thread_gets_no_second_one(tmp_path):
    """Python 3.12 warns at a fork beside other threads: ours must not be the first."""
    code = """
answering.look()
assert not ring.with_suffix(".ask").exists() and len(names()) == 1
park()
until(lambda: "stepscope-reply" in names())
answering.look()
assert len(names()) == 3
assert len(threading.enumerate()) == 2
answering.stop()
until(lambda: "stepscope-reply" not in names())
answering.look()
assert "stepscope-reply" not in names()
"""
    assert run(tmp_path, code) == 0


def test_the_thread_does_not_keep_a_process_from_exiting(tmp_path):
    """The exit code is the script's own, although the thread still sleeps."""
    assert run(tmp_path, "park(); sys.exit(7)") == 7


def test_a_forked_child_has_its_own_way(tmp_path):
    """It has no thread, and forgets the FIFO; the parent's thread still answers."""
    code = """
park()
pid = os.fork()
if not pid:
    before = len(os.listdir("/proc/self/fd"))
    answering.forget()
    answering.forget()
    os._exit(0 if len(os.listdir("/proc/self/fd")) == before - 1 else 1)
assert os.waitpid(pid, 0)[1] == 0
os.write(os.open(ring.with_suffix(".ask"), os.O_WRONLY), b"5 stacks\\n")
until(ring.with_suffix(".answer").exists)
"""
    assert run(tmp_path, code) == 0


def test_a_descriptor_that_other_code_closed_is_left_alone(tmp_path):
    """A daemon closes everything; what has the same number afterwards is neither read nor closed."""
    code = """
park()
until(lambda: "stepscope-reply" in names())
asking = os.open(ring.with_suffix(".ask"), os.O_WRONLY)
number = answering._descriptor
os.close(number)
read, write = os.pipe()
assert read == number
os.write(write, b"mine")
os.write(asking, b"5 stacks\\n")
until(lambda: "stepscope-reply" not in names())
answering.stop()
assert os.read(read, 4) == b"mine"
"""
    assert run(tmp_path, code) == 0


def test_a_program_with_thousands_of_open_files_ends_as_any_other(tmp_path):
    """A large DataLoader has that many."""
    code = """
import resource
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 2048), hard))
files = [os.open("/dev/null", os.O_RDONLY) for _ in range(1100)]
park()
until(lambda: "stepscope-reply" in names())
answering.stop()
until(lambda: "stepscope-reply" not in names())
"""
    assert run(tmp_path, code) == 0


def test_nothing_is_started_where_threads_are_replaced(tmp_path, monkeypatch):
    """Under gevent a thread that waits in the kernel would stop all others."""
    monkeypatch.setattr(_thread, "start_new_thread", lambda *_: None)
    thread = Answering(tmp_path / "a.ring")
    monkeypatch.setattr(answering, "TASKS", str(_folder_of(tmp_path, 5)))
    thread.look()
    thread.stop()
    assert not (tmp_path / "a.ask").exists()


def test_nothing_is_started_without_the_interpreter_lock(tmp_path, monkeypatch):
    """In a free-threaded build frames move while a thread reads them."""
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: False, raising=False)
    monkeypatch.setattr(answering, "TASKS", str(_folder_of(tmp_path, 5)))
    Answering(tmp_path / "a.ring").look()
    assert not (tmp_path / "a.ask").exists()


def test_without_a_place_or_a_thread_there_are_no_answers(tmp_path, monkeypatch):
    """A FIFO that exists, a folder that is gone, no more threads: nothing is raised, nothing stays open."""
    monkeypatch.setattr(answering, "TASKS", str(_folder_of(tmp_path, 5)))
    (tmp_path / "a.ask").touch()
    for name in ("a.ring", "gone/b.ring", "c.ring"):
        thread = Answering(tmp_path / name)
        monkeypatch.setattr(answering.os, "mkfifo", os.mkfifo if name != "c.ring" else _refuse)
        thread.look()
        assert thread._descriptor == -1
        thread.look()
        thread.stop()


def _refuse(*_):
    raise SpawnError("can't start new thread")


def _folder_of(tmp_path, links):
    """Return a folder with so many links, as /proc/self/task of a process with two threads less."""
    folder = tmp_path / "tasks"
    for number in range(links - 2):
        (folder / str(number)).mkdir(parents=True)
    return folder


def test_the_stacks_are_those_of_all_threads():
    """The main thread first, frames innermost first, with file, line and function."""

    def standing_here(event):
        event.wait()

    event = threading.Event()
    other = threading.Thread(target=standing_here, args=(event,), name="standing")
    other.start()
    try:
        until(lambda: "standing_here" in str(stacks_of(sys._current_frames())), "the other thread")
        found = stacks_of(sys._current_frames())
    finally:
        event.set()
        other.join()
    assert found[0]["name"] == threading.main_thread().name
    assert found[0]["frames"][0]["function"] == "test_the_stacks_are_those_of_all_threads"
    (standing,) = [thread for thread in found if thread.get("name") == "standing"]
    functions = [frame["function"] for frame in standing["frames"]]
    assert functions.index("standing_here") < functions.index("run")
    assert standing["frames"][functions.index("standing_here")]["file"] == __file__


def test_an_answer_names_its_question_and_carries_the_record(tmp_path, monkeypatch):
    """The newest question counts; torch's record follows in a file of its own, or an empty one if torch refuses."""

    class Torch:
        def _dump_fr_trace(self, *, includeStackTraces):  # noqa: N803 - torch's spelling
            assert not includeStackTraces
            return records.pop()

    records = [b"pickled"]
    monkeypatch.setitem(sys.modules, answering.C10D, Torch())
    thread = Answering(tmp_path / "a.ring")
    for record in (b"pickled", b""):
        thread._reply(b"7 stacks\n8 record\n")
        facts = json.loads((tmp_path / "a.answer").read_bytes())
        assert (facts["number"], facts["has_record"]) == ("8", True)
        assert (tmp_path / "a.flight").read_bytes() == b"8\n" + record
    thread._reply(b"9 stacks\n")
    facts = json.loads((tmp_path / "a.answer").read_bytes())
    assert (facts["number"], facts["has_record"]) == ("9", False)
    assert facts["monotonic_ns"] <= time.monotonic_ns()


def test_the_records_of_nccl_and_of_other_backends_are_both_dumped(tmp_path, monkeypatch):
    """torch keeps them apart; one that takes no arguments or fails costs nothing else."""

    class Torch:
        def _dump_nccl_trace(self):  # as in old versions
            return b"nccl"

        def _dump_fr_trace(self, *, includeStackTraces):  # noqa: N803 - torch's spelling
            return b"others" if not fails else 1 / 0

    thread = Answering(tmp_path / "a.ring")
    monkeypatch.setitem(sys.modules, answering.C10D, Torch())
    for fails, told in ((False, b"8\nncclothers"), (True, b"8\nnccl")):
        thread._reply(b"8 record\n")
        assert (tmp_path / "a.flight").read_bytes() == told, fails


def test_an_answer_that_cannot_be_written_leaves_nothing(tmp_path):
    """A full shared memory, or a folder that is gone."""
    answering._put(str(tmp_path / "gone" / "a.answer"), b"{}")
    (tmp_path / "a.answer").mkdir()
    answering._put(str(tmp_path / "a.answer"), b"{}")
    assert [path.name for path in tmp_path.iterdir()] == ["a.answer"]
