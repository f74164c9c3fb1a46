"""Followers and writers of tests, in processes of their own, and what was recorded."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import stepscope
from tests.integration.processes import SOURCE, wait_until_written


class Followers:
    """Starts followers, and ends those that are left."""

    def __init__(self, folder):
        self.folder, self.started = folder, []
        self.environ = {**os.environ, "PYTHONPATH": str(SOURCE), "CUDA_VISIBLE_DEVICES": ""}

    def follow(self, path, *options):
        """Start `stepscope follow`."""
        return self._start("-m", "stepscope", "follow", str(path), "--json", *options)

    def write(self, script, *arguments, python=sys.executable):
        """Start a program that writes."""
        return self._start("-c", script, *map(str, arguments), python=python)

    def _start(self, *command, python=sys.executable):
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "env": self.environ}
        self.started.append(subprocess.Popen([python, *command], cwd=self.folder, **options))
        return self.started[-1]

    def close(self):
        for process in self.started:
            process.kill()
            process.communicate()


def ended(process):
    """Return the events that a follower printed until its end, which must be a good one."""
    out, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    return [json.loads(line) for line in out.splitlines()]


def followed():
    """Return the one run that was followed; None as long as there is none."""
    found = [info for info in stepscope.runs() if info.state != "broken"]  # just being created
    return stepscope.open(found[0].path) if found else None


def count(name):
    """Return how many points of a metric are recorded so far."""
    past = followed()
    return len(past.series(name)) if past is not None and name in past.names() else 0


def series(name):
    found = wait_until_written(followed()).series(name)
    return list(zip(found.step.tolist(), found.value.tolist(), strict=True))


def points(first, last):
    return [(step, 1 / (step + 1)) for step in range(first, last)]
