from __future__ import annotations

import re
import subprocess
import sys

import pytest

import stepscope
from bench.drawn_runs import sick, write
from stepscope.session import card
from tests.integration.processes import until

pytestmark = pytest.mark.processes


class Stream:
    """A terminal, or a pipe, that keeps what is written."""

    def __init__(self, terminal=True):
        self.text, self._terminal = "", terminal

    def isatty(self):
        return self._terminal

    def write(self, text):
        self.text += text

    def flush(self):
        pass


@pytest.fixture(autouse=True)
def in_a_terminal(monkeypatch):
    """Say that the terminal can show something."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "80")


def test_a_card_says_what_the_run_did_and_where_to_look(tmp_path):
    """Steps, time, last loss, parts of the step and the commands that show more are on the card."""
    with stepscope.init(dir=tmp_path, project="p", name="mnist") as run:
        for value in range(5):
            with run.step(), run.phase("forward"):
                run.log({"loss": float(value)})
        until(lambda: len(stepscope.open(run.path).points(["loss"])) == 5, "the rows")
        stream = Stream()
        card.show(run.path, run.name, 5, "failed: exit code 3", stream=stream)
    assert "stepscope mnist failed: exit code 3 " in stream.text
    # The speed is there once the watcher has counted the steps, which this test does not wait for.
    assert re.search(r"5 steps( at [\d.]+k? steps/s)?, ", stream.text)
    assert "loss 4" in stream.text
    assert "forward" in stream.text
    assert " diagnose " in stream.text
    assert " serve " in stream.text
    lines = stream.text.splitlines()
    assert {len(line) for line in lines if line.endswith(("╮", "│", "╯"))} == {80}
    assert [line for line in lines if " diagnose " in line and line.endswith(run.path.name)]


def test_a_card_tells_the_last_alert(tmp_path):
    """What the alerts said last stands on the card."""
    path = write(tmp_path / "p" / "sick", sick("x", steps=100))
    rows = dict(card.lines(path, "x", 100))
    assert "firing" in rows["alerts"]


@pytest.mark.parametrize(("terminal", "rank", "term"), [(False, 0, "xterm"), (True, 1, "xterm"), (True, 0, "dumb")])
def test_no_card_where_nobody_looks(tmp_path, monkeypatch, terminal, rank, term):
    """A pipe, another rank and a dumb terminal get none."""
    monkeypatch.setenv("TERM", term)
    stream = Stream(terminal)
    card.show(write(tmp_path / "p" / "r", sick("x", steps=20)), "x", 20, rank=rank, stream=stream)
    assert stream.text == ""


def test_a_card_that_cannot_be_made_ends_nothing(tmp_path, capsys):
    """Without a run there is a sentence, not an exception."""
    card.show(tmp_path / "absent", "x", 1, stream=Stream())
    assert "cannot show the card" in capsys.readouterr().err


def test_names_cannot_act_on_the_terminal(tmp_path):
    """Escapes in a name are replaced."""
    path = write(tmp_path / "p" / "r", sick("x", steps=20))
    stream = Stream()
    card.show(path, "a\x1b[2Jb", 20, stream=stream)
    assert "\x1b" not in stream.text


def test_a_card_does_not_import_numpy():
    """It would take longer than a summary is worth, and turn the exit code of a Ctrl-C into 1."""
    code = "import sys\nfrom stepscope.session import card\ncard.load()\nsys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=240).returncode == 0
