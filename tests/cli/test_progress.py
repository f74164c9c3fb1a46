from __future__ import annotations

import argparse
import io
import os
import pty
import subprocess
import sys
import threading

import pytest

from stepscope.cli.text import progress as module
from stepscope.cli.text.progress import Shown, progress

pytestmark = pytest.mark.processes

PROGRAM = """
import sys, time
from stepscope.cli.text import progress as module
module.DELAY = 0.0
with module.progress("export csv", 200, "points") as advance:
    advance(50, "loss")
    sys.stdin.readline()  # until the other side has seen it
    module.EVERY = 0.0
    advance(50, "lr")
    sys.stdin.readline()
print("done")
"""


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self):
        return True


def shown(total=100.0, unit="points", seconds=10.0, done=30.0):
    """Return what is told of work that has taken so long."""
    times = iter([0.0, 0.0, seconds])
    work = Shown("work", total, unit, Terminal(), clock=lambda: next(times))
    work.advance(done)
    return work.told()


def test_progress_is_silent_in_a_pipe(capsys):
    """In a pipe no progress is written, and nothing is loaded for it."""
    code = (
        "import sys; from stepscope.cli.text.progress import progress\n"
        "with progress('work', 10, 'points') as advance: advance(5, 'half')\n"
        "assert not any(name.split('.')[0] == 'rich' for name in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert (done.stdout, done.stderr) == ("", "")


@pytest.mark.parametrize(
    ("options", "environ"),
    [
        (argparse.Namespace(quiet=True), {"TERM": "xterm"}),
        (argparse.Namespace(json=True, quiet=False), {"TERM": "xterm"}),
        (None, {"TERM": "dumb"}),
        (None, {}),
    ],
)
def test_progress_is_silent_where_it_is_not_wanted(options, environ, monkeypatch):
    """With --quiet or --json, and on a terminal that cannot redraw, nothing is shown and no thread begins."""
    stream, before = Terminal(), set(threading.enumerate())
    monkeypatch.setattr(module, "DELAY", 0.0)
    with progress("work", 10, options=options, stream=stream, environ=environ) as advance:
        advance(5)
        assert set(threading.enumerate()) <= before
    assert stream.getvalue() == ""


def test_report_of_json_to_a_file_still_shows_progress():
    """`--json FILE` is no wish for silence: the file is not the screen."""
    stream = Terminal()
    with progress("work", options=argparse.Namespace(json="r.json"), stream=stream, environ={"TERM": "xterm"}) as told:
        assert told != module._silently


def test_rate_and_time_left_are_told():
    """Share, rate and time left are told as far as they are known."""
    assert shown() == "30 %, 3 points/s, 23 s left"
    assert shown(total=1e8, done=3e7) == "30 %, 3M points/s, 23 s left"
    assert shown(unit="bytes", total=2.0**30, done=2.0**29) == "50 %, 51.2 MiB/s, 10 s left"
    assert shown(total=None) == "3 points/s, 10 s"
    assert shown(total=None, done=0.0, seconds=3700.0) == "1 h 1 min"
    assert shown(unit="", done=1.0, seconds=100.0) == "1 %, 2 h 45 min left"


def test_short_work_shows_nothing():
    """Work that is over before the delay writes nothing, however often it tells."""
    stream = Terminal()
    with progress("work", 10, stream=stream, environ={"TERM": "xterm"}) as advance:
        for _ in range(10):
            advance()
    assert stream.getvalue() == ""


def test_progress_on_a_real_terminal():
    """On a terminal the work, its share, rate and time left are shown, on standard error, and are gone at the end."""
    controller, terminal = pty.openpty()
    environ = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    command = [sys.executable, "-c", PROGRAM]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=terminal, env=environ, text=True) as process:
        os.close(terminal)
        seen = read_until(controller, "25 %")
        process.stdin.write("\n")
        process.stdin.flush()
        seen += read_until(controller, "50 %")
        output, _ = process.communicate("\n", timeout=60)
        seen += read_until(controller, None)
    os.close(controller)
    assert output == "done\n"
    assert "export csv: loss" in seen
    assert "export csv: lr" in seen
    assert "points/s" in seen
    assert "left" in seen
    assert seen.rstrip().endswith("\x1b[2K")  # the line is cleared


def read_until(descriptor, word):
    """Return what a terminal shows until a word, or the end, comes."""
    seen = ""
    while word is None or word not in seen:
        try:
            data = os.read(descriptor, 65536)
        except OSError:  # the other side is closed
            break
        if not data:
            break
        seen += data.decode("utf-8", "replace")
    return seen
