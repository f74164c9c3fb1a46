"""The first true error among 512 simulated ranks, beside the rules that people use."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

from bench import failure_cases, real_failures
from bench.failure_cases import drawn
from bench.figure import Figure, Options
from stepscope.analysis.first_error.judge import first_error, launcher_choice

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bench.drawn_failures import Failure
    from stepscope.analysis.first_error.evidence import ErrorEvidence

SETS = (
    ("cases", 22, failure_cases.CASES),
    ("held out", 31337, failure_cases.CASES),
    ("from real life", 7, real_failures.CASES),
)
"""Name, seed and cases: the seed that the rules were made with, one that they were not, and what people reported."""
COUNT, MOST_WRONG = 40, 0.05
ERROR = re.compile(r"error|exception|traceback|fatal", re.IGNORECASE)


def measure(options: Options) -> list[Figure]:
    """Judge the cases of each set."""
    figures: list[Figure] = []
    for name, seed, kinds in SETS:
        cases = drawn(seed, 10 if options.quick else COUNT, cases=kinds)
        started = time.perf_counter()
        wrong = [case.name for case in cases if not is_right(case)]
        each = (time.perf_counter() - started) / len(cases)
        beside = f"earliest line {_wrong(cases, _earliest)}, torchrun's {_wrong(cases, launcher_choice)} wrong"
        figures += [
            Figure(
                f"wrong_{seed}",
                f"wrong of {len(cases)} failures of 512 ranks, {name}",
                float(len(wrong)),
                "",
                MOST_WRONG * len(cases),
                "; ".join([beside, *wrong]),
            ),
            Figure(f"seconds_{seed}", "  time of a verdict", each, "s", 5.0),
        ]
    return figures


def is_right(case: Failure) -> bool:
    """Return whether the verdict names the ranks that began it and no other, and the kind of the error."""
    found = first_error(case.evidence)
    return found is not None and set(found.ranks) == case.ranks and found.kind in case.kinds


def _wrong(cases: Sequence[Failure], rule: Callable[[ErrorEvidence], int | None]) -> int:
    return sum(rule(case.evidence) not in case.ranks for case in cases)


def _earliest(evidence: ErrorEvidence) -> int | None:
    """Return the rank with the earliest line that looks like an error, as one would search for it."""
    lines = [line for rank, lines in evidence.lines.items() if rank >= 0 for line in lines if ERROR.search(line.text)]
    return min(lines, key=lambda line: line.time).rank if lines else None
