"""Whether the hanging rank of a real gloo job is named while it hangs, how soon, and whether healthy jobs are blamed.

`--only WORD` runs the cases with this word in their name, such as `sleeps` or `8 ranks`, or the `healthy` jobs.
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

from bench.figure import Figure, Options
from tests.integration.gloo_jobs import KINDS, GlooJob, wait_for_end
from tests.integration.gloo_trainer import PAUSES

if TYPE_CHECKING:
    from pathlib import Path

FAULTS = {
    2: ("loader_stands", "waits_for_lock", "keeps_gil_computing", "dies", "other_collective", "network_down"),
    4: (*KINDS,),
    8: ("sleeps", "computes_forever", "opens_fifo", "is_stopped", "other_order", "skips_one", "dies", "network_down"),
}
"""The planted faults, by number of ranks."""
PATIENCE, LIMIT = 60.0, 20.0
"""Seconds until a case is given up, and until the rank must be named: 20 s, more than 20 steps of 0.1 s."""
AT_ONCE = 2
"""Jobs that run side by side."""
CALM = ("none", "unknown")
"""Verdicts that blame nobody."""


class Case(NamedTuple):
    """The result of one job."""

    name: str
    is_right: bool
    seconds: float | None
    """From the fault to the first right verdict."""
    told: str
    """What else was told."""


def measure(options: Options) -> list[Figure]:
    """Return the figures."""
    root = options.scratch / "hangs"
    planted = [(fault, ranks) for ranks, faults in FAULTS.items() for fault in faults]
    healthy = [(name, 2 + 2 * (number % 2)) for number, name in enumerate(PAUSES)]
    if options.quick:
        planted, healthy = planted[:2], healthy[:1]
    if options.only == "healthy":
        planted = []
    elif options.only:
        planted, healthy = ([case for case in cases if options.only in _name(*case)] for cases in (planted, healthy))
    with ThreadPoolExecutor(AT_ONCE) as pool:
        hung = list(pool.map(lambda case: _planted(root, *case), planted))
        left = list(pool.map(lambda case: _healthy(root, *case), healthy))
    return [*_figures(hung), _false(left)]


def _figures(cases: list[Case]) -> list[Figure]:
    right = [one for one in cases if one.is_right]
    late = [one for one in right if one.seconds is not None and one.seconds > LIMIT]
    slowest = max((one.seconds or 0.0 for one in right), default=None)
    wrong = "; ".join(f"{one.name}: {one.told}" for one in cases if not one.is_right)
    kinds = len({KINDS[one.name.partition(",")[0]] for one in cases})
    beside = wrong or f"{len(right)} of {len(cases)} right, {kinds} kinds"
    return [
        Figure("hangs_wrong", "planted hangs not named right", len(cases) - len(right), "", 0, beside),
        Figure("hangs_late", f"of these, named later than {LIMIT:g} s", len(late), "", 0, ", ".join(map(_timed, late))),
        Figure("hangs_seconds", "from the fault until the rank is named, slowest", slowest, "s", LIMIT),
    ]


def _false(cases: list[Case]) -> Figure:
    false = [one for one in cases if not one.is_right]
    said = "; ".join(f"{one.name}: {one.told}" for one in false)
    return Figure("hangs_false", f"of {len(cases)} healthy jobs with long pauses, blamed", len(false), "", 0, said)


def _name(fault: str, ranks: int) -> str:
    return f"{fault}, {ranks} ranks"


def _timed(case: Case) -> str:
    return f"{case.name}: {case.seconds:.0f} s"


def _planted(root: Path, fault: str, ranks: int) -> Case:
    name = _name(fault, ranks)
    with GlooJob(root / f"{fault}-{ranks}", fault, ranks) as job:
        try:
            verdict, seconds = job.named(PATIENCE)
            before = [one for one in job.verdicts() if one["time"] < verdict["time"] and one["verdict"] not in CALM]
            told = "; ".join(f"before: {one['verdict']} {one['ranks']}" for one in before)
            found = Case(name, is_right=True, seconds=seconds, told=told)
        except AssertionError as error:
            found = Case(name, is_right=False, seconds=None, told=str(error)[:600])
    return _report(found)


def _healthy(root: Path, fault: str, ranks: int) -> Case:
    name = _name(fault, ranks)
    with GlooJob(root / f"{fault}-{ranks}", fault, ranks) as job:
        wait_for_end(job)
        told = [one for one in job.verdicts() if one["verdict"] not in CALM]
        said = "; ".join(str(one["text"]) for one in told)
    return _report(Case(name, is_right=not told, seconds=None, told=said))


def _report(case: Case) -> Case:
    took = "" if case.seconds is None else f" in {case.seconds:.1f} s"
    print(f"{case.name}: {'right' if case.is_right else 'WRONG'}{took} {case.told}", file=sys.stderr, flush=True)
    return case
