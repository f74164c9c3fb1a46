"""Judge a hang in a short-lived child: the evidence of hundreds of ranks must not hold up the watcher's loop."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.core.spawn import SpawnError, arguments, interpreter

if TYPE_CHECKING:
    from stepscope.watcher.journal import Journal

DEADLINE = 60.0
"""Seconds that a judgement may take."""
MOST_BYTES = 1 << 20
MOST_SENTENCES, MOST_TEXT = 20, 500
"""Sentences of each source in an event, and characters of each."""
NICE = 5


class Judging:
    """At most one child at a time."""

    def __init__(self, run: Path, journal: Journal) -> None:
        """Judge the run in this folder."""
        self._run, self._journal = run, journal
        self._child: subprocess.Popen[bytes] | None = None
        self._output, self._until = -1, 0.0

    @property
    def busy(self) -> bool:
        """Whether a judgement is under way."""
        return self._child is not None

    def start(self, now: float) -> None:
        """Start a judgement; `now` is monotonic, in seconds."""
        if self.busy:
            return
        nowhere = subprocess.DEVNULL
        try:
            command = [interpreter(), *arguments("stepscope.watcher.judging", str(self._run))]
            self._output = os.memfd_create("verdict")  # nobody would read a pipe, which is full at 64 KiB
            self._child = subprocess.Popen(command, stdin=nowhere, stdout=self._output, stderr=nowhere, cwd="/")
            self._until = now + DEADLINE
        except (OSError, SpawnError) as error:
            self._journal.note(f"cannot judge a hang: {error}; see `stepscope hang`", "judging")
            self.close()

    def poll(self, now: float) -> dict[str, Any] | None:
        """Return the verdict, once, as the fields of an event; None while there is none."""
        if self._child is None or (self._child.poll() is None and now < self._until):
            return None
        code = self._child.poll()
        text = os.pread(self._output, MOST_BYTES, 0) if code == 0 else b""
        self.close()
        try:
            return dict(json.loads(text))
        except ValueError:
            why = "it took too long" if code is None else f"exit code {code}"
            self._journal.note(f"cannot judge a hang: {why}; see `stepscope hang`", "judging")
            return None

    def close(self) -> None:
        """End a judgement that is under way."""
        if self._child is not None:
            self._child.kill()
            self._child.wait()
        if self._output >= 0:
            os.close(self._output)
        self._child, self._output = None, -1


def verdict_of(run: str) -> dict[str, Any]:
    """Return the verdict on the run in a folder, as the fields of an event that fit into one."""
    from stepscope.analysis.hang.verdict import judge
    from stepscope.sources.hang import hang_evidence
    from stepscope.store.layout import RunFolder
    from stepscope.store.reader import Past

    facts = judge(hang_evidence(Past(RunFolder(Path(run))))).as_dict()
    facts["verdict"] = facts.pop("kind")  # an event has a kind of its own
    shown = facts["evidence"].items()
    facts["evidence"] = {source: [one[:MOST_TEXT] for one in found[:MOST_SENTENCES]] for source, found in shown}
    return facts


def main(given: list[str]) -> int:
    """Print the verdict on a run as JSON."""
    os.nice(NICE)
    sys.stdout.write(json.dumps(verdict_of(given[0])))
    return 0
