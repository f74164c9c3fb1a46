"""Stacks of a trainer: reading a dump, knowing a prompt, and asking a real process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.session import stacks as session_stacks
from stepscope.watcher import asking
from stepscope.watcher.asking import Asking, find_spy
from stepscope.watcher.death import Trainee
from stepscope.watcher.proc import read_signals
from stepscope.watcher.stacks import StackAnswer, at_prompt, digest, parse_dump, parse_spy, trim
from tests.integration.processes import SOURCE, until

pytestmark = pytest.mark.processes

DUMP = """Thread 0x00007f1 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 324 in wait
  File "/usr/lib/python3.11/threading.py", line 1002 in _bootstrap

Current thread 0x00007f2 [main] (most recent call first):
  File "/home/a "b", line 3 in c/train.py", line 12 in <lambda>
  File ???, line ??? in ???
  ...
"""


def test_a_dump_is_read():
    """Threads with their frames, innermost first; odd paths and unknown frames do not confuse it."""
    assert parse_dump(DUMP) == [
        {
            "thread": "0x00007f1",
            "frames": [
                {"file": "/usr/lib/python3.11/threading.py", "line": 324, "function": "wait"},
                {"file": "/usr/lib/python3.11/threading.py", "line": 1002, "function": "_bootstrap"},
            ],
        },
        {
            "thread": "0x00007f2",
            "name": "main",
            "current": True,
            "frames": [
                {"file": '/home/a "b", line 3 in c/train.py', "line": 12, "function": "<lambda>"},
                {"file": "", "line": 0, "function": "???"},
            ],
        },
    ]


FRAMES = st.lists(
    st.fixed_dictionaries(
        {
            "file": st.from_regex(r"\A[\x20-\x7e]{1,40}\Z").filter(lambda name: '"' not in name),
            "line": st.integers(0, 10**6),
            "function": st.from_regex(r"\A[a-z_<>]{1,20}\Z"),
        }
    ),
    max_size=6,
)


@given(st.lists(FRAMES, max_size=5))
def test_what_was_written_is_read_again(threads):
    """A dump of any stacks gives these stacks."""
    text = "\n".join(
        f"Thread 0x{number:016x} (most recent call first):\n"
        + "".join(f'  File "{frame["file"]}", line {frame["line"]} in {frame["function"]}\n' for frame in frames)
        + ("" if frames else "  <no Python frame>\n")
        for number, frames in enumerate(threads)
    )
    assert [thread["frames"] for thread in parse_dump(text)] == threads


@given(st.text(), st.text())
def test_any_text_is_survived(before, after):
    """Whatever a process wrote into its file, reading raises nothing, and whole threads in it are found."""
    whole = {thread["thread"] for thread in parse_dump(DUMP)}
    assert whole <= {thread["thread"] for thread in parse_dump(before + "\n" + DUMP + "\n" + after)}


@given(
    st.text()
    | st.recursive(st.none() | st.integers() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)).map(
        json.dumps
    )
)
def test_output_of_py_spy_that_is_something_else_is_a_value_error(text):
    """Another version's output is refused, not misread."""
    try:
        assert isinstance(parse_spy(text), list)
    except ValueError:
        return


def test_the_output_of_py_spy_is_read():
    """The same plain data as from a dump, with the thread's name."""
    frame = {"name": "f", "filename": "a.py", "module": None, "short_filename": "a.py", "line": 3, "locals": None}
    text = json.dumps([{"pid": 1, "thread_id": 255, "thread_name": "MainThread", "active": True, "frames": [frame]}])
    expected = {"thread": "0xff", "name": "MainThread", "frames": [{"file": "a.py", "line": 3, "function": "f"}]}
    assert parse_spy(text) == [expected]


def of(*frames):
    """Return the stacks of a process whose main thread has these frames, innermost first."""
    made = [{"file": file, "line": 1, "function": function} for file, function in frames]
    return [
        {"thread": "0x1", "frames": [{"file": "w.py", "line": 1, "function": "wait"}]},
        {"thread": "0x2", "frames": made},
    ]


LIB = "/usr/lib/python3.11"
KERNEL = [
    (f"{LIB}/asyncio/base_events.py", "_run_once"),
    (f"{LIB}/asyncio/base_events.py", "run_forever"),
    ("/x/site-packages/tornado/platform/asyncio.py", "start"),
    ("/x/site-packages/ipykernel/kernelapp.py", "start"),
    ("/x/site-packages/traitlets/config/application.py", "launch_instance"),
    ("<frozen runpy>", "_run_code"),
]
CELL = [
    ("/tmp/ipykernel_7/1.py", "<module>"),
    ("/x/site-packages/IPython/core/interactiveshell.py", "run_code"),
    ("/x/site-packages/IPython/core/interactiveshell.py", "run_cell"),
    ("/x/site-packages/ipykernel/ipkernel.py", "do_execute"),
]


@pytest.mark.parametrize(
    ("frames", "idle"),
    [
        ([], True),
        ([(f"{LIB}/selectors.py", "select"), *KERNEL], True),
        (KERNEL, True),
        ([*CELL, *KERNEL], False),
        ([(f"{LIB}/selectors.py", "select"), *CELL, *KERNEL], False),
        (
            [(f"{LIB}/selectors.py", "select"), (f"{LIB}/asyncio/runners.py", "run"), ("/me/train.py", "<module>")],
            False,
        ),
        ([(f"{LIB}/threading.py", "wait"), ("/me/train.py", "<module>")], False),
        ([(f"{LIB}/_pyrepl/unix_console.py", "wait"), (f"{LIB}/_pyrepl/readline.py", "input")], True),
        ([(f"{LIB}/code.py", "raw_input"), (f"{LIB}/code.py", "interact"), ("/me/shell.py", "<module>")], True),
        ([("/me/train.py", "f"), (f"{LIB}/code.py", "runcode"), (f"{LIB}/code.py", "interact")], False),
        ([(f"{LIB}/cmd.py", "cmdloop"), (f"{LIB}/pdb.py", "_cmdloop"), ("/me/train.py", "<module>")], True),
        ([("/x/ray/_private/worker.py", "main_loop"), ("/x/ray/_private/workers/default_worker.py", "<module>")], True),
        ([("/me/ipykernel_launcher_notes/train.py", "<module>")], False),
        ([("/me/barcode.py", "scan")], False),
    ],
)
def test_a_prompt_is_known_by_its_stack(frames, idle):
    """A person is waited for where no frame of theirs runs: at a prompt, a debugger, an idle notebook."""
    assert at_prompt(of(*frames)) == idle


def test_no_stacks_are_no_prompt():
    """Who did not answer is not idle."""
    assert not at_prompt([])


def test_a_digest_tells_places_apart_and_nothing_else():
    """The same places give the same digest in any order of threads; another line another one; silence has one too."""
    found = parse_dump(DUMP)
    same = StackAnswer("faulthandler", list(reversed(found)), [])
    assert same.digest == StackAnswer("faulthandler", found, [{"thread": 1}]).digest
    moved = parse_dump(DUMP.replace("line 324", "line 325"))
    assert StackAnswer("faulthandler", moved, []).digest != same.digest
    waits = [{"thread": 1, "name": "python", "state": "T", "waits_in": "do_signal_stop"}]
    assert (
        StackAnswer("", [], waits, "stopped").digest
        == StackAnswer("", [], [{**waits[0], "state": "t"}], "stopped").digest
    )
    assert digest([1]) != digest([2])


def test_an_event_gets_the_main_thread_and_the_innermost_frames():
    """Of hundreds of threads and frames the useful ones are kept."""
    many = [{"thread": hex(n), "frames": [{"file": "a", "line": n, "function": "f"}] * 100} for n in range(100)]
    kept = trim(many, most_threads=3, most_frames=5)
    assert [len(thread["frames"]) for thread in kept] == [5, 5, 5]
    assert kept[0]["thread"] == hex(99)


TRAINER = """
import ctypes, fcntl, os, pathlib, sys, threading, time
from stepscope.session.answering import Answering
from stepscope.session.stacks import register

ring, mode = pathlib.Path(sys.argv[1]), sys.argv[2]

def deadlock():
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()

def keeping_the_interpreter():
    while True:  # a signal wakes it, and it sleeps again
        ctypes.PyDLL(None).sleep(600)

descriptor = os.open(ring, os.O_RDWR | os.O_CREAT)
fcntl.lockf(descriptor, fcntl.LOCK_EX, 1, 0)
kept = register(ring.with_suffix(".stacks")) if mode != "off" else None
if mode != "alone":
    threading.Thread(target=deadlock, daemon=True).start()
answering = Answering(ring)
if mode not in ("off", "unanswered"):
    answering.look()
    tasks = pathlib.Path("/proc/self/task")
    while mode == "keeping" and "stepscope-reply\\n" not in [path.read_text() for path in tasks.glob("*/comm")]:
        time.sleep(0.01)
print("ready", flush=True)
keeping_the_interpreter() if mode == "keeping" else deadlock()
"""


class Stuck:
    """A process that stands still in one of several ways, and what asks it."""

    def __init__(self, folder, mode="answering", spy=""):
        ring_path, self.path = folder / "a.ring", str(folder / "a.stacks")
        environ = {**os.environ, "PYTHONPATH": str(SOURCE)}
        command = [sys.executable, "-c", TRAINER, str(ring_path), mode]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environ)
        assert self.process.stdout.readline() == "ready\n"
        self.descriptor = os.open(ring_path, os.O_RDWR)
        self.trainee = Trainee.find(self.descriptor)
        self.asking = Asking(self.trainee, self.path, spy=spy)

    def ask(self):
        self.asking.ask(time.monotonic_ns())
        return until(lambda: self.asking.answer(time.monotonic_ns()), "an answer")

    def locked(self):
        """Return its stacks once both threads are in the deadlock, or none are given."""
        answer = self.ask()
        whole = functions(answer).count("deadlock") == 2 and answer.stacks[0]["frames"][-1]["function"] == "<module>"
        return answer if not answer.stacks or whole else None

    def close(self):
        self.asking.close()
        self.trainee.close()
        os.close(self.descriptor)
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def stuck(tmp_path, monkeypatch):
    """Make processes that stand still, of which nothing is left; they have all the time that they want to answer."""
    monkeypatch.setattr(asking, "PATIENCE_SECONDS", 60.0)
    made = []

    def make(**options):
        made.append(Stuck(tmp_path, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()


def functions(answer):
    return [frame["function"] for thread in answer.stacks for frame in thread["frames"]]


def test_a_process_in_a_deadlock_shows_its_stacks_again_and_again(stuck):
    """All threads but the one that answers, twice the same; no signal is sent, and no file is left."""
    each = stuck()
    first, asked = until(each.locked, "the deadlock"), []
    assert (first.source, len(first.stacks), first.stacks[0]["name"]) == ("trainer", 2, "MainThread")

    def same_and_asleep():  # at once, unless the machine took the processor from it in the middle of its answer
        asked.append(each.ask())
        return asked[-1].digest == first.digest and {wait["state"] for wait in asked[-1].waits} == {"S"}

    until(same_and_asleep, "the same answer")
    assert os.stat(each.path).st_size == 0
    assert sorted(path.name for path in Path(each.path).parent.glob("a.*")) == ["a.ask", "a.ring", "a.stacks"]
    assert each.process.poll() is None


def test_a_process_whose_interpreter_is_kept_is_asked_by_the_signal(stuck, monkeypatch):
    """Its thread asks for the lock in vain, so no frame moves: now the handler may read them."""
    monkeypatch.setattr(asking, "ANSWER_SECONDS", 0.2)
    each = stuck(mode="keeping")
    answer = until(lambda: (one := each.ask()).source == "faulthandler" and one, "its stacks")
    assert answer.why == asking.HELD_UP
    assert "keeping_the_interpreter" in functions(answer)


def test_a_process_without_its_thread_is_not_sent_the_signal(stuck):
    """Its other threads may run: the handler would read frames that change, and the process could die of it."""
    each = stuck(mode="unanswered")
    answer = each.ask()
    assert (answer.stacks, answer.why) == ([], "no thread of the process answers")
    assert os.stat(each.path).st_size == 0


def test_a_process_that_is_too_slow_is_given_up(stuck, monkeypatch):
    """A stopped clock stands for a busy machine: without proof that no frame moves, there are no stacks."""
    monkeypatch.setattr(asking, "PATIENCE_SECONDS", 0.0)
    monkeypatch.setattr(asking, "ANSWER_SECONDS", 0.0)
    each = stuck()
    monkeypatch.setattr(each.asking._question, "reply", lambda: None)
    assert each.ask().why == "no thread of the process answers"


def test_a_full_file_of_dumps_is_emptied(stuck, monkeypatch):
    """It lies in shared memory; a process with one thread is asked by the signal, which interrupts only itself."""
    monkeypatch.setattr(asking, "FULL_BYTES", 10)
    each = stuck(mode="alone")
    until(lambda: each.ask().stacks and os.stat(each.path).st_size == 0, "an empty file")
    assert each.ask().source == "faulthandler"


def test_a_stopped_process_is_not_sent_anything(stuck):
    """SIGSTOP: no answer, no signal that waits for it, and what the kernel tells is the same each time."""
    each = stuck()
    os.kill(each.process.pid, signal.SIGSTOP)
    until(each.asking._is_stopped, "the stop")
    answer = each.ask()
    assert (answer.source, answer.stacks, answer.why) == ("", [], "the process is stopped")
    until(lambda: each.ask().digest == each.ask().digest, "two answers alike")
    assert not read_signals(each.process.pid).awaits(session_stacks.SIGNAL)


def test_without_the_handler_the_signal_is_never_sent(stuck):
    """It would end a process that does not catch it; the state of the threads is told instead."""
    each = stuck(mode="off")
    answer = each.ask()
    assert (answer.stacks, answer.why) == ([], "no thread of the process answers")
    assert answer.waits
    assert each.asking._send() == "stacks are switched off"
    Path(each.path).touch()  # a file alone is no proof either
    assert each.asking._send() == "the process does not catch the signal any more"
    assert each.process.poll() is None


@pytest.mark.skipif(not find_spy(), reason="py-spy is not installed")
def test_py_spy_is_asked_where_the_signal_is_not_caught(stuck):
    """The second source gives the same kind of stacks."""
    each = stuck(mode="off", spy=find_spy())
    answer = until(each.locked, "the deadlock")
    if not answer.stacks:
        pytest.skip("py-spy may not look into other processes here")
    assert answer.source == "py-spy"
    assert functions(answer).count("deadlock") == 2


@pytest.mark.parametrize("body", ["sleep 600", "echo not json", "exit 1"])
def test_a_py_spy_that_fails_or_hangs_is_given_up(stuck, tmp_path, monkeypatch, body):
    """It has its deadline, and no process of it is left."""
    monkeypatch.setattr(asking, "SPY_SECONDS", 0.05 if "sleep" in body else 600.0)
    script = tmp_path / "py-spy"
    script.write_text(f"#!/bin/sh\nexec {body}\n" if "sleep" in body else f"#!/bin/sh\n{body}\n")
    script.chmod(0o755)
    each = stuck(mode="off", spy=str(script))
    answer = each.ask()
    assert (answer.stacks, each.asking._spying.open) == ([], False)
    assert answer.why


def test_a_question_is_open_until_it_is_answered(stuck):
    """A second question meanwhile is the same one."""
    each = stuck()
    now = time.monotonic_ns()
    assert each.asking.answer(now) is None
    each.asking.ask(now)
    each.asking.ask(now + 1)
    assert each.asking.open
    assert until(lambda: each.asking.answer(time.monotonic_ns()), "an answer").stacks
    assert not each.asking.open


REGISTERING = """
import os, signal, sys, threading
from stepscope.session.stacks import SIGNAL, register

def caught():
    masks = dict(line.split(":", 1) for line in open("/proc/self/status") if line.startswith("Sig"))
    return bool(int(masks["SigCgt"], 16) >> (SIGNAL - 1) & 1)

folder = sys.argv[1]
"""


def register_in_a_process(tmp_path, code):
    """Run a few lines in a process of their own; return its exit code."""
    environ = {**os.environ, "PYTHONPATH": str(SOURCE)}
    program = [sys.executable, "-c", REGISTERING + code, str(tmp_path)]
    return subprocess.run(program, env=environ, check=False, timeout=240).returncode


@pytest.mark.parametrize("place", ["", "in a thread"])
def test_a_late_signal_never_ends_the_process(tmp_path, place):
    """The watcher may have looked just before the handler went: the signal is then ignored or still caught."""
    body = """
def life():
    kept = register(folder + "/one")
    assert kept and caught() and register(folder + "/two") is None
    kept.unregister()
    os.kill(os.getpid(), SIGNAL)
    again = register(folder + "/three")
    os.kill(os.getpid(), SIGNAL)
    assert open(folder + "/three").read().count("most recent call first")
    again.unregister()
    again.unregister()
    os.kill(os.getpid(), SIGNAL)
"""
    call = "t = threading.Thread(target=life); t.start(); t.join()" if place else "life()"
    assert register_in_a_process(tmp_path, body + call) == 0


def test_a_forked_child_has_no_handler(tmp_path):
    """What the parent registered is forgotten in the child and kept in the parent."""
    code = """
kept = register(folder + "/one")
pid = os.fork()
if not pid:
    kept.forget()
    os._exit(caught())
assert os.waitpid(pid, 0)[1] == 0 and caught()
"""
    assert register_in_a_process(tmp_path, code) == 0


def test_a_handler_of_the_user_is_left_alone(tmp_path):
    """The signal belongs to whoever had it first; a path that exists is not overwritten."""
    code = """
open(folder + "/there", "w").close()
assert register(folder + "/there") is None
signal.signal(SIGNAL, lambda *_: None)
assert register(folder + "/one") is None and not os.path.exists(folder + "/one")
"""
    assert register_in_a_process(tmp_path, code) == 0
