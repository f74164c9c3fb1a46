"""Hangs: how many planted causes are named, how many healthy pauses are left alone, and how long the verdict takes."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from bench.figure import Figure
from bench.planted_hangs import STEP, Planted, Recorders, healthy, planted
from stepscope.analysis.hang.verdict import judge
from stepscope.sources.hang import dump_evidence

if TYPE_CHECKING:
    from bench.figure import Options

SHARED = Path(__file__).parents[2] / "shared" / "data" / "nvrx-flight-recorder"
INJECTED = (9, 14)
SETS = ("lock_gil_1st", "gpu_error_2nd")
MANY = 512
"""Ranks of the largest planted job."""


def measure(options: Options) -> list[Figure]:
    """Return the figures."""
    hangs, calm = planted(), healthy()
    wrong = [case.name for case in hangs if not _is_right(case)]
    false = [case.name for case in calm if not _is_right(case)]
    return [
        Figure("planted", f"{len(hangs)} planted hangs not named right", len(wrong), "", 0, ", ".join(wrong[:5])),
        Figure("false", f"{len(calm)} healthy pauses taken for hangs", len(false), "", 0, ", ".join(false[:5])),
        *_shared(),
        _many(options),
    ]


def _is_right(case: Planted) -> bool:
    found = judge(case.evidence)
    return (found.kind, found.ranks) == (case.kind, case.ranks)


def _shared() -> list[Figure]:
    """Read and judge the shared dumps; each set also without the dumps of the cause, as if it had been killed."""
    if not SHARED.is_dir():
        return [Figure("shared", "shared NVRx dumps (not here)", None)]
    wrong, longest = 0, 0.0
    for name in SETS:
        for lost in ((), INJECTED):
            paths = [SHARED / name / f"_dump_{rank}" for rank in range(16) if rank not in lost]
            started = time.perf_counter()
            evidence, _ = dump_evidence(paths)
            found = judge(evidence)
            longest = max(longest, time.perf_counter() - started)
            wrong += found.ranks != INJECTED
    return [
        Figure(
            "shared", "shared NVRx dumps with other ranks than injected", wrong, "", 0, "2 sets, with and without dumps"
        ),
        Figure("seconds", "reading and judging 16 dumps, the slowest", longest, "s", 1.0),
    ]


def _many(options: Options) -> Figure:
    """Judge the records of a large job, of which one rank never arrived."""
    count = 64 if options.quick else MANY
    late = Recorders(count)
    late.step(*STEP)
    late.only(tuple(range(count - 1)), *STEP)
    evidence = late.evidence()
    started = time.perf_counter()
    found = judge(evidence)
    taken = time.perf_counter() - started
    right = found.ranks == (count - 1,)
    return Figure("many", f"judging the records of {count} ranks", taken if right else None, "s", 2.0)
