"""Real programs for the tests to start, kill and ask: trainers, and the processes that stepscope puts beside them."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import stepscope
from stepscope.core.places import find_places

SOURCE = Path(__file__).resolve().parents[2] / "src"
WATCHER, SEALER = "stepscope.watcher.process", "stepscope.store.seal"
PATIENCE = 120.0
"""Seconds that a condition may take on a machine that is slow and that others use too: no measure of ours."""


def until(condition, what="the condition", seconds=PATIENCE, every=0.02):
    """Return the first true result of `condition`; fail when it takes too long. `what` may be a function."""
    end = time.monotonic() + seconds
    while True:
        found = condition()
        if found:
            return found
        assert time.monotonic() < end, f"{what() if callable(what) else what} did not come true within {seconds:g} s"
        time.sleep(every)


def wait_until_written(run):
    """Return a run (or the run in a folder) opened for reading, once its watcher has written its end."""
    path = getattr(run, "path", run)
    return until(lambda: (past := stepscope.open(path)).state != "running" and past, "the end of the run")


def left_behind():
    """Return what runs have left in their runtime folders, but for the list of folders of runs, which stays."""
    found = [(root, path) for root in find_places().roots() for path in root.rglob("*")]
    return [path for root, path in found if path.relative_to(root).parts[0] != "roots"]


def ended_runs():
    """Return all runs, when none is running any more."""
    until(lambda: stepscope.runs() and all(info.state != "running" for info in stepscope.runs()), "the end")
    return [stepscope.open(info.path) for info in stepscope.runs()]


def the_run():
    """Return the one run, when it has ended."""
    (past,) = ended_runs()
    return past


PATIENT = """
import stepscope.session.current, stepscope.session.run
stepscope.session.current.END_SECONDS = stepscope.session.run.END_SECONDS = 60.0
"""


def patient_site(folder):
    """Return a folder for PYTHONPATH: `patient_end` for programs that read their own run right after its end."""
    site = Path(folder) / "patient-site"
    site.mkdir(exist_ok=True)
    (site / "sitecustomize.py").write_text(PATIENT, encoding="utf-8")
    return str(site)


def free_port():
    """Return a port that nobody listens on, and that the system gives to nobody who asks for just any."""
    while True:
        port = random.SystemRandom().randrange(12_000, 32_000)  # ports for just anybody begin at 32768
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def of_module(module, *roots):
    """Return the pids of our own programs that run `module` for a run below any of `roots`."""
    found = []
    roots = tuple(map(os.fsencode, roots))
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            words = Path(entry.path, "cmdline").read_bytes().split(b"\0")
            if module.encode() in words and any(word.startswith(roots) for word in words):
                found.append(int(entry.name))
    return found


def watchers(*roots):
    """Return the pids of the watchers of runs below `roots`."""
    return of_module(WATCHER, *roots)


def sealers(*roots):
    """Return the pids of the sealing children of runs below `roots`."""
    return of_module(SEALER, *roots)


def kill(pid, number=signal.SIGKILL):
    """Send a signal to one process, which may be gone already."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


class Trainer:
    """A training script as a process of its own."""

    def __init__(self, path, environ, arguments, prefix, **options):
        """Start the script at `path`; `prefix` is a command that runs it, such as unshare."""
        command = [*prefix, sys.executable, *options.pop("interpreter", ()), str(path), *map(str, arguments)]
        streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        self.process = subprocess.Popen(command, env=environ, text=True, **{**streams, **options})
        self.pid = self.process.pid
        self.out, self.err = "", ""

    def wait(self, seconds=240.0):
        """Wait for the end and keep what was printed; return the exit code."""
        self.out, self.err = self.process.communicate(timeout=seconds)
        return self.process.returncode

    def line(self):
        """Return the next line that the script prints."""
        return self.process.stdout.readline().strip()

    def facts(self, seconds=240.0):
        """Return the last printed line, as JSON, of a script that must end well."""
        code = self.wait(seconds)
        assert code == 0, f"exit code {code}\n{self.out}\n{self.err}"
        return json.loads(self.out.splitlines()[-1])

    def complaints(self):
        """Return what stepscope said on stderr."""
        return [line for line in self.err.splitlines() if line.startswith("stepscope: ")]


class Bench:
    """Starts trainers in folders of one test, and leaves nothing running."""

    def __init__(self, folder):
        """Use the environment of this moment, which the fixtures have made private."""
        self.folder = folder
        self.roots = (os.environ["STEPSCOPE_DIR"], folder)
        self.trainers = []

    def start(self, code, *arguments, environ=None, prefix=(), name="train.py", cwd=None, **options):
        """Write a script and start it; the working directory is the test's own."""
        path, text = self.folder / name, textwrap.dedent(code)
        if not path.exists() or path.read_text(encoding="utf-8") != text:  # an earlier process may be about to read it
            path.write_text(text, encoding="utf-8")
        paths = os.pathsep.join([str(SOURCE), str(SOURCE.parent)])
        settings = {**os.environ, "PYTHONPATH": paths, "PYTHONWARNINGS": "error", **(environ or {})}
        trainer = Trainer(path, settings, arguments, prefix, cwd=cwd or self.folder, **options)
        self.trainers.append(trainer)
        return trainer

    def run(self, code, *arguments, **options):
        """Run a script to its end."""
        trainer = self.start(code, *arguments, **options)
        trainer.wait()
        return trainer

    def watcher(self):
        """Return the pid of the one watcher, when it is there."""
        return until(lambda: watchers(*self.roots), "a watcher")[0]

    def heard(self, path):
        """Wait until the watcher of the run at `path` has written that it is there."""
        until(lambda: list(Path(path, "nodes").glob("[!.]*.json")), "the watcher's first word")

    def quiet(self):
        """Wait until no process of ours works for this test any more."""
        until(lambda: not (watchers(*self.roots) or sealers(*self.roots)), "the end of watcher and sealing")

    def close(self):
        """Kill what is left."""
        for trainer in self.trainers:
            if trainer.process.poll() is None:
                trainer.process.kill()
            trainer.process.communicate()
        for pid in [*watchers(*self.roots), *sealers(*self.roots)]:
            kill(pid)
