"""A real terminal: tmux, as people have it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys

import pytest

from bench.drawn_runs import sick, write
from tests.integration.processes import until

pytestmark = [
    pytest.mark.skipif(shutil.which("tmux") is None, reason="needs tmux: apt-get install tmux"),
    pytest.mark.processes,
]


class Terminal:
    """A window of a tmux server of its own."""

    def __init__(self, folder, *arguments, size=(100, 30), environ=()):
        self._socket = str(folder / "tmux")
        command = ["env", *environ, sys.executable, "-m", "stepscope", "top", *arguments]
        place = ["-x", str(size[0]), "-y", str(size[1])]
        script = 'echo before; "$@"; echo "left $?"; cat'
        self.tmux("new-session", "-d", "-s", "t", *place, "sh", "-c", script, "sh", *command)

    def tmux(self, *words):
        command = ["tmux", "-S", self._socket, "-f", "/dev/null", *words]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout

    def screen(self):
        return self.tmux("capture-pane", "-p", "-t", "t")

    def shows(self, text):
        until(lambda: text in self.screen(), f"{text!r} on the screen")

    def keys(self, *keys):
        self.tmux("send-keys", "-t", "t", *keys)

    def alternate(self):
        return self.tmux("display-message", "-p", "-t", "t", "#{alternate_on} #{cursor_flag} #{mouse_any_flag}").strip()

    def child(self):
        parent = int(self.tmux("display-message", "-p", "-t", "t", "#{pane_pid}"))
        listed = ["ps", "-o", "pid=", "--ppid", str(parent)]
        return int(subprocess.run(listed, capture_output=True, text=True, check=True).stdout.split()[0])

    def close(self):
        subprocess.run(["tmux", "-S", self._socket, "kill-server"], capture_output=True, check=False, timeout=120)


@pytest.fixture
def terminal(tmp_path):
    """Open windows; all are closed at the end."""
    opened = []
    run = write(tmp_path / "runs" / "demo" / "sick", sick("gpt-small", steps=300))

    def make(*arguments, **options):
        opened.append(Terminal(tmp_path, *(arguments or (str(run),)), **options))
        return opened[-1]

    yield make
    for one in opened:
        one.close()


@pytest.mark.slow
@pytest.mark.promise("S2-010", "S2-012")
def test_a_run_is_shown_resized_and_left(terminal):
    """The dashboard draws, follows the size, goes through views, and gives the terminal back."""
    window = terminal()
    window.shows("╭─ loss")
    assert window.alternate().startswith("1 ")
    window.tmux("resize-window", "-t", "t", "-x", "80", "-y", "24")
    until(lambda: max(map(len, window.screen().splitlines())) <= 80 and "╭─ loss" in window.screen(), "the new size")
    window.keys("4")
    window.shows("mostly in")
    window.keys("q")
    window.shows("left 0")
    assert "before" in window.screen()
    assert window.alternate() == "0 1 0"


@pytest.mark.slow
@pytest.mark.promise("S2-012")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_the_terminal_comes_back_whatever_ends_it(terminal, number):
    """A signal ends the dashboard, and the cursor, the screen and the mouse are as before."""
    window = terminal()
    window.shows("╭─ loss")
    os.kill(window.child(), number)
    window.shows("left ")
    assert window.alternate() == "0 1 0"


@pytest.mark.promise("S2-012")
def test_a_dumb_terminal_gets_lines(terminal):
    """Where nothing can be drawn a line is printed."""
    window = terminal(environ=["TERM=dumb"])
    window.shows("left 0")
    assert "oom-killed" in window.screen()
    assert "╭" not in window.screen()


@pytest.mark.promise("S2-009")
def test_the_machine_alone(terminal):
    """`--machine --gpu 0 --interval 0.5` shows this machine, whatever runs on it."""
    window = terminal("--machine", "--gpu", "0", "--interval", "0.5", environ=["NO_COLOR=1"])
    window.shows("this machine")
    window.shows("cpu")
    window.keys("q")
    window.shows("left 0")
    assert window.alternate() == "0 1 0"
