"""Stragglers among real gloo ranks: whether the right rank is named, with the right class of cause, and no other.

`python -m bench stragglers [--only WORD]` prints the figures, and one line per case on stderr; `--only live` times the
alert.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import stepscope
from bench.figure import Figure, Options
from bench.sandbox import settled
from bench.stragglers.cases import CLASSES, HEALTHY, PLANTED, Case
from bench.stragglers.jobs import Jobs
from bench.stragglers.live import measure_live

if TYPE_CHECKING:
    from collections.abc import Sequence

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
    live = measure_live(jobs) if not options.quick and options.only in "live" else []
    jobs.close()
    return [*_figures([one for one in verdicts if one.ok], sum(not one.ok for one in verdicts)), *live]


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
