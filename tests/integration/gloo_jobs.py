"""Jobs of several real gloo ranks with a planted fault, and what Stepscope says of them while they run."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import stepscope
from tests.integration.processes import SOURCE, kill, of_module, until

PROGRAM = Path(__file__).with_name("gloo_trainer.py")
KINDS = {
    **dict.fromkeys(("loader_stands", "sleeps", "computes_forever"), "never_arrived"),
    **dict.fromkeys(("waits_for_lock", "waits_for_queue", "opens_fifo", "is_stopped", "is_traced"), "outside_torch"),
    **dict.fromkeys(("keeps_gil_computing", "keeps_gil_sleeping"), "outside_torch"),
    **dict.fromkeys(("other_collective", "other_order", "skips_one"), "desynchronised"),
    "dies": "dead_rank",
    "network_down": "collective_stuck",
}
"""The kind of hang that each fault of `gloo_trainer.py` is."""


class GlooJob:
    """One job; a context manager that leaves nothing running."""

    def __init__(self, folder, fault, ranks, culprit=None, prefix=(), environ=None):
        """Start it; `folder` is new, and its name is the id of the run."""
        folder.mkdir(parents=True)
        self.fault, self.ranks, self.culprit = fault, ranks, ranks - 1 if culprit is None else culprit
        self.folder = folder
        paths = os.pathsep.join([str(SOURCE), str(SOURCE.parent)])
        settings = {**os.environ, "PYTHONPATH": paths, "STEPSCOPE_DIR": str(folder / "runs"), "OMP_NUM_THREADS": "1"}
        settings |= {"STEPSCOPE_RUNTIME_DIR": str(folder / "runtime"), **(environ or {})}
        command = [*prefix, sys.executable, str(PROGRAM), str(folder), fault, str(ranks), str(self.culprit)]
        with open(folder / "err", "wb") as errors:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=settings)
        self.path = self.value("path")

    def value(self, name):
        """Return the rest of the next line that begins with `name`."""
        for line in self.process.stdout:
            if line.startswith(f"{name} "):
                return line.split(maxsplit=1)[1].strip()
        raise AssertionError(f"the job ended: {(self.folder / 'err').read_text()[-3000:]}")

    def verdicts(self):
        """Return the verdicts on it so far, as events."""
        return stepscope.open(self.path).events("hang_verdict")

    def named(self, seconds=60.0):
        """Return the first right verdict, and the seconds from the fault until it was written."""
        began = float(self.value("fault"))
        found = until(lambda: [one for one in self.verdicts() if self.is_right(one)], self.told, seconds, every=0.25)
        return found[0], found[0]["time"] - began

    def told(self):
        """Return the last verdict as text."""
        return f"a right verdict on {self.fault}; the last: {(self.verdicts() or [{}])[-1]}"

    def is_right(self, verdict):
        """Return whether a verdict has the kind and the rank of the planted fault.

        Of two ranks in different collectives nobody can say which is wrong: then both may be named.
        """
        kind, named = KINDS[self.fault], verdict["ranks"]
        if kind == "desynchronised" and self.ranks == 2:
            return verdict["verdict"] == kind and self.culprit in named
        return (verdict["verdict"], named) == (kind, [] if kind == "collective_stuck" else [self.culprit])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        """Kill all of its processes."""
        pids = [self.process.pid, *self.pids(), *of_module("stepscope.watcher.process", str(self.folder))]
        for pid in pids:
            kill(pid)
        self.process.communicate()

    def pids(self):
        """Return its ranks, and what they have forked."""
        mark, found = os.fsencode(f"{self.folder}"), []
        for entry in os.scandir("/proc"):
            with contextlib.suppress(OSError):
                if entry.name.isdigit() and mark in Path(entry.path, "cmdline").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
        return [pid for pid in found if pid != os.getpid()]


def wait_for_end(job, seconds=240.0):
    """Wait until a healthy job has ended."""
    end = time.monotonic() + seconds
    while job.process.poll() is None and time.monotonic() < end:
        time.sleep(0.2)
    if job.process.poll() is None:
        job.process.send_signal(signal.SIGKILL)
        raise AssertionError(f"{job.fault} did not end within {seconds:g} s")
