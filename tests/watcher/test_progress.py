"""Whether a process gets anywhere."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.watcher import proc
from stepscope.watcher.proc import (
    ProcessProgress,
    Signals,
    moved,
    parse_stat,
    read_progress,
    read_signals,
    read_stat,
    threads,
    tree,
)

pytestmark = pytest.mark.processes

STAT = (
    b"4242 (a) (b c) S 1 4242 4242 0 -1 4194304 99 0 0 0 11 12 13 14 20 0 3 0 777 1000 55 18446744073709551615 1 1 "
    b"140732748865776 0 0 0 0 0 0 0 0 0 17 1 0 0 0 0 0 0 0 0 0 0 0 0 768\n"
)


def test_a_name_with_brackets_and_blanks_does_not_shift_the_fields():
    """The fields are counted from the last bracket."""
    stat = parse_stat(STAT)
    assert (stat.state, stat.ticks, stat.started, stat.resident_pages) == ("S", 50, 777, 55)
    assert (stat.start_of_stack, stat.exit_code) == (140732748865776, 768)


@given(st.binary())
def test_anything_else_is_a_value_error(data):
    """Whatever stands there, parsing gives a state or ValueError."""
    try:
        found = parse_stat(data)
    except ValueError:
        return
    assert found.state


def test_this_process_is_read():
    """The real /proc has what we look for."""
    assert read_stat(os.getpid()).state in "RS"
    assert read_signals(os.getpid()).catches(2)
    assert threads(os.getpid())[0]["thread"] == os.getpid()


def test_a_process_that_is_gone_is_nothing(tmp_path):
    """No file means no answer, and no exception."""
    gone = str(tmp_path)
    assert (read_stat(1, gone), read_signals(1, gone)) == (None, None)
    assert (threads(1, gone), tree(1, gone), read_progress(1, gone)) == ([], [1], ProcessProgress())


def test_signal_masks_are_read_by_bit(tmp_path):
    """Bit n-1 is signal n; pending are those of the process and of its first thread."""
    folder = tmp_path / "7"
    folder.mkdir()
    (folder / "status").write_text(
        "Name:\tx\nSigPnd:\t0000000000000001\nShdPnd:\t0000040000000000\nSigCgt:\t0000040000000002\n"
    )
    signals = read_signals(7, str(tmp_path))
    assert signals == Signals(0x40000000002, 0x40000000001)
    assert signals.catches(43)
    assert signals.awaits(43)
    assert not signals.catches(42)


@pytest.mark.parametrize(
    ("after", "progress"),
    [
        (ProcessProgress(1.0, 100), False),
        (ProcessProgress(1.01, 100), False),
        (ProcessProgress(1.2, 100), True),
        (ProcessProgress(1.0, 500), False),
        (ProcessProgress(1.0, 9000), True),
        (ProcessProgress(1.0, 100, gpu_busy=True), True),
        (ProcessProgress(0.5, 0), False),
    ],
)
def test_progress_is_more_than_a_process_needs_to_keep_warm(after, progress):
    """A few ticks and bytes of background threads are none; a child that ended takes its counters along."""
    assert moved(ProcessProgress(1.0, 100), after, 2.5) == progress


FAMILY = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "print(sum(range(10**6)), flush=True); import sys; sys.stdin.read()"])
print(child.pid, flush=True)
sys.stdin.read()
"""


def test_the_children_count_with_their_parent():
    """A worker's processor time is progress of the trainer."""
    process = subprocess.Popen([sys.executable, "-c", FAMILY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    lines = {process.stdout.readline().strip(), process.stdout.readline().strip()}
    child = int((lines - {"499999500000"}).pop())
    assert tree(process.pid) == [process.pid, child]
    assert read_progress(process.pid).io_bytes > read_progress(child).io_bytes > 0
    assert tree(process.pid, most=1) == [process.pid]
    process.communicate()
    assert proc.read_stat(process.pid) is None
