"""Stragglers among real gloo ranks: whether the right rank is named, with the right class of cause, and no other.

`python -m bench stragglers [--only WORD]` prints the figures, and one line per case on stderr.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import stepscope
from bench.figure import Figure, Options
from bench.sandbox import settled
from bench.stragglers.cases import CLASSES, HEALTHY, PLANTED, Case

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

QUICK = ("data-hand-4-3", "healthy-hand-4-none")
MOST_WRONG = 1.0


@dataclass(frozen=True)
class Verdict:
    """What the diagnosis says of a job."""

    case: Case
    ok: bool
    late: tuple[int, ...] = ()
    cause: str = ""
    text: str = ""
    seconds: float = 0.0
    """Duration of the diagnosis."""

    @property
    def right_rank(self) -> bool:
        """Whether exactly the planted ranks are named."""
        return self.late == self.case.late

    @property
    def right_cause(self) -> bool:
        """Whether the class of the cause is right."""
        return self.cause == CLASSES.get(self.case.kind, "")


class Jobs:
    """The process that runs jobs one after the other."""

    def __init__(self, scratch: Path) -> None:
        """Start it: it imports torch once for all."""
        self._scratch = scratch
        words = [sys.executable, "-m", "bench.stragglers.job"]
        self._log = (scratch / "ranks.log").open("wb")
        self._process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True
        )

    def run(self, case: Case, **more: Any) -> tuple[Path, bool]:
        """Run a case; return the folder of its run, and whether all ranks finished."""
        run = self.start(case, **more)
        return run, self.wait()

    def start(self, case: Case, **more: Any) -> Path:
        """Start a case; return the folder of its run."""
        folder = self._scratch / case.name
        folder.mkdir()
        given = {**case._asdict(), "name": case.name, "folder": str(folder), **more}
        if self._process.stdin is None:
            raise RuntimeError("cannot start a job: the process has no input")
        self._process.stdin.write(f"{json.dumps(given)}\n")
        self._process.stdin.flush()
        return folder / "runs" / "stragglers" / case.name

    def wait(self) -> bool:
        """Wait for the end of the case; return whether all ranks finished."""
        if self._process.stdout is None:
            raise RuntimeError("cannot wait for a job: the process has no output")
        answer = self._process.stdout.readline()
        return bool(answer) and bool(json.loads(answer)["ok"])

    def close(self) -> None:
        """End the process."""
        self._process.communicate()
        self._log.close()


def judge(jobs: Jobs, case: Case) -> Verdict:
    """Run a case, and return what the diagnosis says of it."""
    run, ok = jobs.run(case)
    settled(run)
    began = time.monotonic()
    found = stepscope.open(run).diagnose()["findings"]
    seconds = time.monotonic() - began
    late = next((one for one in found if one["kind"] == "straggler"), None)
    if late is None:
        return Verdict(case, ok, seconds=seconds, text=", ".join(one["kind"] for one in found))
    evidence = late["evidence"]
    return Verdict(case, ok, tuple(sorted(evidence["late_ranks"])), evidence["cause"], late["text"], seconds)


def measure(options: Options) -> list[Figure]:
    """Run every case, and count the wrong ones."""
    jobs = Jobs(options.scratch)
    chosen = [case for case in (*PLANTED, *HEALTHY) if options.only in case.name]
    if options.quick:
        chosen = [case for case in chosen if case.name in QUICK]
    verdicts = []
    for case in chosen:
        verdict = judge(jobs, case)
        verdicts.append(verdict)
        mark = "ok   " if _is_right(verdict) else "WRONG"
        print(f"{mark} {case.name:26} {verdict.late} {verdict.cause}: {verdict.text}", file=sys.stderr, flush=True)
    jobs.close()
    return _figures([one for one in verdicts if one.ok], sum(not one.ok for one in verdicts))


def _is_right(verdict: Verdict) -> bool:
    return verdict.ok and verdict.right_rank and verdict.right_cause


def _figures(verdicts: Sequence[Verdict], failed: int) -> list[Figure]:
    planted = [one for one in verdicts if one.case.late]
    healthy = [one for one in verdicts if not one.case.late]
    wrong = [one.case.name for one in planted if not _is_right(one)]
    false = [one.case.name for one in healthy if one.late]
    ranks = sum(one.right_rank for one in planted)
    causes = sum(one.right_cause for one in planted)
    longest = max((one.seconds for one in verdicts), default=None)
    beside = f"right rank {ranks}, right class {causes} of {len(planted)}"
    return [
        Figure("stragglers_wrong", "planted stragglers with a wrong rank or class", len(wrong), "", MOST_WRONG, beside),
        Figure("stragglers_false", "healthy jobs with a straggler", len(false), "", 0.0, f"of {len(healthy)}"),
        Figure("stragglers_failed", "jobs that did not run to their end", failed, "", 0.0),
        Figure("stragglers_seconds", "longest diagnosis", longest, "s"),
    ]
