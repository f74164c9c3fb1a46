"""Judge a hang in a short-lived child: the evidence of hundreds of ranks must not hold up the watcher's loop."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.core.spawn import SpawnError, arguments, interpreter
from stepscope.watcher.asked_program import AskedProgram

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
        self._program = AskedProgram(DEADLINE, MOST_BYTES)

    @property
    def busy(self) -> bool:
        """Whether a judgement is under way."""
        return self._program.open

    def start(self, now: float) -> None:
        """Start a judgement; `now` is monotonic, in seconds."""
        if self.busy:
            return
        try:
            self._program.start([interpreter(), *arguments("stepscope.watcher.judging", str(self._run))], now)
        except (OSError, SpawnError) as error:
            self._journal.note(f"cannot judge a hang: {error}; see `stepscope hang`", "judging")

    def poll(self, now: float) -> dict[str, Any] | None:
        """Return the verdict, once, as the fields of an event; None while there is none."""
        answer = self._program.poll(now)
        if answer is None:
            return None
        try:
            return dict(json.loads(answer.output if answer.code == 0 else b""))
        except ValueError:
            why = "it took too long" if answer.code is None else f"exit code {answer.code}"
            self._journal.note(f"cannot judge a hang: {why}; see `stepscope hang`", "judging")
            return None

    def close(self) -> None:
        """End a judgement that is under way."""
        self._program.close()


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
