"""Every command of the mission's documents is run here, by its equivalent, on a tiny run in a folder of its own."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import urllib.error
import urllib.request

import pytest

from tests.documents import seeds
from tests.integration.processes import free_port, until

pytestmark = pytest.mark.skipif(not seeds.documents(), reason=seeds.ABSENT)

SKIPPED = {
    "pip": "installs",
    "git": "installs",
    "cd": "goes into the author's folder",
    "black": "formats the author's own code",
    "flake8": "checks the author's own code",
    "lsof": "looks for a port of the author's machine",
    "monitor.system_monitor": "a line of Python among commands, which runs in tests of the system monitor",
}
"""Commands that are not run, by their first word, and why."""
PYTHON, ROOT = sys.executable, str(seeds.ROOT)
EQUIVALENTS = {
    "python -m monitoring.gpu_monitor": [PYTHON, "-m", "monitoring.gpu_monitor"],
    "python -m monitoring.gpu_dashboard": [PYTHON, "-m", "monitoring.gpu_dashboard"],
    "python scripts/monitor_training_example.py": [PYTHON, f"{ROOT}/scripts/monitor_training_example.py"],
    "python scripts/monitor_training.py": [PYTHON, f"{ROOT}/scripts/monitor_training.py"],
    # Only collected: the suite that this test belongs to runs them itself.
    "python -m pytest": [PYTHON, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--rootdir={ROOT}", "--collect-only"],
    "uv run python runners/train.py": [PYTHON, f"{ROOT}/examples/lightning_example.py"],
}
"""Commands of the documents, and what is run for them: the same names where we have them, else what does the same."""
OWN_WORDS = ("data=", "project_name=", "exp_name=")
"""Overrides of the author's own program; the project is told by ours, too."""
ENDLESS = ("gpu_monitor", "gpu_dashboard", "mode dashboard", "mode monitor")
"""Commands that go on until Ctrl-C, which they get when they have said something."""
SERVING = ("--dashboard_port",)
"""Commands that serve a page until Ctrl-C, which they get when it was answered."""


def commands():
    """Return the commands of all shell blocks, with continued lines joined, without comments."""
    found = []
    for block in seeds.blocks("bash"):
        for line in re.sub(r"\\\n\s*", " ", block.code).splitlines():
            words = re.sub(r"(^|\s)#.*", "", line).strip().removeprefix("sudo ")
            if words:
                found.append((words, f"{block.place} {words[:40]}"))
    return found


def why_not(line):
    """Return why a command is not run; nothing if it is."""
    later = next((why for word, why in seeds.LATER.items() if word in line), "")
    return later or SKIPPED.get(line.split()[0], "")


def equivalent(line):
    """Return the arguments of the program that is run for a command, its files ours and its ports free."""
    theirs = next(name for name in EQUIVALENTS if line.startswith(name))
    words = []
    for word in shlex.split(line[len(theirs) :]):
        ours = os.path.join(ROOT, word)
        if words and words[-1].endswith("port"):
            words.append(str(free_port()))
        elif not word.startswith("-") and os.path.exists(ours):
            words.append(ours)
        elif "runners" not in theirs or not word.startswith(OWN_WORDS[:1]):
            words.append(word)
    return [*EQUIVALENTS[theirs], *words]


def test_what_is_not_run_is_named():
    """Every command is run, or skipped by its name with the reason; every entry of the tables is needed."""
    lines = [line for line, _ in commands()]
    assert {line.split()[0] for line in lines if why_not(line) and line.split()[0] in SKIPPED} == set(SKIPPED)
    run = [line for line in lines if not why_not(line)]
    assert all(any(line.startswith(name) for name in EQUIVALENTS) for line in run)
    assert all(any(line.startswith(name) for line in run) for name in EQUIVALENTS)


@pytest.mark.promise("X-13")
@pytest.mark.timeout(900)
@pytest.mark.parametrize("line", [pytest.param(line, id=name) for line, name in commands() if not why_not(line)])
def test_commands_run(line, tmp_path):
    """The command does what the document says of it, and ends well: by itself, or with Ctrl-C once it has worked."""
    if "runners/" in line:
        pytest.importorskip("lightning", reason="the callbacks are Lightning's")
        pytest.importorskip("hydra", reason="the command line is Hydra's")
    arguments = equivalent(line)
    environ = {**os.environ, "PYTHONPATH": f"{ROOT}/src:{ROOT}", "STEPSCOPE_DIR": str(tmp_path / "runs")}
    place = ROOT if "pytest" in line else tmp_path
    with open(tmp_path / "said", "wb") as said:
        process = subprocess.Popen(arguments, cwd=place, env=environ, stdout=said, stderr=subprocess.STDOUT)
        try:
            answered(process, arguments, line, tmp_path / "said")
            process.wait(timeout=600)
        finally:
            process.kill()
            process.wait()
    text = (tmp_path / "said").read_text(encoding="utf-8", errors="replace")
    assert process.returncode in {0, 130}, f"{arguments}:\n{text[-3000:]}"
    assert "Traceback" not in text
    assert text
    if "runners/" in line:
        assert any((tmp_path / "runs").glob("*/*/run.json"))


@pytest.fixture(autouse=True)
def _interruptible():
    """Let the children take Ctrl-C as at a terminal, whoever started the tests and with whatever signals."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def answered(process, arguments, line, said):
    """Wait until a command that goes on has worked, and give it Ctrl-C."""
    if any(word in line for word in SERVING) and "--simulate" not in line:
        url = f"http://127.0.0.1:{arguments[-1]}/healthz"
        until(lambda: process.poll() is not None or answers(url), f"an answer of {url}")
    elif any(word in line for word in ENDLESS) or "mode dashboard" in line:
        until(lambda: process.poll() is not None or said.stat().st_size > 0, "something to read")
    else:
        return
    process.send_signal(signal.SIGINT)


def answers(url):
    """Say whether a page is served there."""
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return answer.status == 200
    except (urllib.error.URLError, OSError):
        return False
