from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

import stepscope
from stepscope.analysis.series.forecast import total_steps
from stepscope.cli.commands import demo
from stepscope.store.states import read_nodes
from tests.fakes import readable
from tests.integration.processes import until

pytestmark = pytest.mark.processes

ROOT = Path(__file__).resolve().parents[2]
MAIN = "import sys; from stepscope.cli.main import main; sys.exit(main())"
SHORT = ["--steps", "30", "--speed", "50"]
SECONDS = 240
HIDE, SHOW = "\x1b[?25l", "\x1b[?25h"


def command(*arguments):
    return [sys.executable, "-c", MAIN, "demo", *arguments]


def environment(root, **more):
    return {**os.environ, "STEPSCOPE_DIR": str(root), "PYTHONPATH": str(ROOT / "src"), "TERM": "xterm", **more}


def run_plain(root, *arguments):
    return subprocess.run(
        command(*arguments),
        env=environment(root),
        cwd=root,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )


def only_run(root):
    [info] = stepscope.runs(root)
    return stepscope.open(info.path)


def ended_run(root):
    until(lambda: only_run(root).state != "running", "the end of the run")
    return only_run(root)


def processes_about(root):
    """Return the processes whose command line names the folder."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if str(root).encode() in entry.read_bytes():
                found.append(int(entry.parent.name))
    return found


def wait_gone(pids):
    """Wait until all of these processes have ended; return those that have not."""
    left = []
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            descriptor = os.pidfd_open(pid)
            ready = readable(descriptor, SECONDS)
            os.close(descriptor)
            left += [] if ready else [pid]
    return left


class OnTerminal:
    """The demo in a pseudo-terminal."""

    def __init__(self, root, *arguments, **environ):
        self.ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
        self.written = b""
        self.process = subprocess.Popen(
            command(*arguments),
            env=environment(root, **environ),
            cwd=root,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)

    def read_until(self, text):
        while text.encode() not in self.written:
            assert readable(self.ours, SECONDS), self.written[-2000:].decode(errors="replace")
            self.written += self._chunk()

    def end(self, number):
        """Send a signal, read to the end and return the exit code."""
        self.process.send_signal(number)
        while chunk := self._chunk():
            self.written += chunk
        return self.process.wait(SECONDS)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait(SECONDS)
        os.close(self.ours)

    def _chunk(self):
        try:
            return os.read(self.ours, 1 << 16)
        except OSError:  # the other end is closed
            return b""


@pytest.mark.promise("S1-041")
@pytest.mark.parametrize(
    "spelling", [["--steps", "30"], ["--simulate", "--simulate_steps", "30"]], ids=["own", "documents'"]
)
def test_demo_ends_by_itself_in_a_pipe(tmp_path, spelling):
    """Without a terminal the demo trains, says what came of it, ends with exit code 0, and the run is complete."""
    done = run_plain(tmp_path, *spelling, "--speed", "50")
    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout
    assert "finished after 30 steps" in done.stdout
    past = ended_run(tmp_path)
    assert str(past.path) in done.stdout
    assert f"stepscope show {past.id}" in done.stdout
    assert (past.state, past.project, len(past.series("loss"))) == ("finished", "demo", 30)
    assert total_steps(past.config) == 30  # so that the page says how far it is


def test_demo_leaves_no_process(tmp_path):
    """When the demo has ended its training has too, and the watcher follows."""
    assert run_plain(tmp_path, *SHORT).returncode == 0
    [node], _ = read_nodes(only_run(tmp_path)._folder)
    with pytest.raises(ProcessLookupError):
        os.kill(node.ranks[0].pid, 0)
    assert wait_gone(processes_about(tmp_path)) == []


@pytest.mark.slow
def test_demo_stays_on_a_terminal_until_it_is_left(tmp_path):
    """On a terminal the demo is the dashboard, stays when the training is over, and then ends with 0 and a summary."""
    with OnTerminal(tmp_path, *SHORT) as terminal:
        terminal.read_until("finished")
        assert terminal.process.poll() is None
        assert terminal.end(signal.SIGINT) == 0
    text = terminal.written.decode()
    assert "Overview" in text
    assert text.rfind(SHOW) > text.rfind(HIDE)
    assert "finished after 30 steps" in text


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupted_training_ends_cleanly(tmp_path, number, code):
    """A signal during the training stops it, restores the cursor, and keeps the run, which is finished."""
    with OnTerminal(tmp_path, "--steps", "100000", "--dir", str(tmp_path)) as terminal:
        terminal.read_until("Overview")
        assert terminal.end(number) == code
    assert terminal.written.decode().rfind(SHOW) > terminal.written.decode().rfind(HIDE)
    assert wait_gone(processes_about(tmp_path)) == []
    past = ended_run(tmp_path)
    assert past.state == "finished"
    assert len(past.events("stopped")) == 1


def test_demo_says_why_it_cannot_record(tmp_path):
    """Where the run cannot be written the demo says why and what to do, and exits with 1."""
    blocked = tmp_path / "file"
    blocked.write_text("")
    done = run_plain(tmp_path, *SHORT, "--dir", str(blocked))
    assert done.returncode == 1
    assert done.stderr.startswith("stepscope: cannot record")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    "wrong", [["--steps", "0"], ["--steps", "x"], ["--speed", "0"], ["--speed", "nan"], ["--seed", "-1"]], ids=" ".join
)
def test_wrong_options_are_refused(wrong, capsys):
    """Options that make no training are refused with exit code 2."""
    parser = argparse.ArgumentParser()
    demo.prepare(parser)
    with pytest.raises(SystemExit) as stop:
        parser.parse_args(wrong)
    assert stop.value.code == 2
    assert wrong[0] in capsys.readouterr().err


def test_help_hides_the_documents_spelling():
    """The spelling of the documents is accepted but not advertised."""
    parser = argparse.ArgumentParser()
    demo.prepare(parser)
    assert "simulate" not in parser.format_help()
    assert parser.parse_args(["--simulate", "--simulate-steps", "7"]).steps == 7
