"""The gauntlet: small real trainings with one planted cause each, and healthy ones: what is said of them.

`python -m bench gauntlet [--only WORD] [--loaded]` prints one line per case: our verdict, traceml-ai's of the same
script, the gain that we expect of removing the cause and the gain that removing it brought. A pair of runs of which
others disturbed one more than the other is run again; where that does not help, its gain has a question mark and does
not count. `--loaded` keeps the other core busy meanwhile and compares the verdicts with those of the quiet machine.
"""

from __future__ import annotations

import importlib.util
import os
import statistics
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench.figure import Figure, Options
from bench.gauntlet import peer
from bench.gauntlet.cases import CASES, Case
from bench.gauntlet.trial import Verdict, run

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

QUICK = ("saves too often",)
LIMITS = {"wrong": 5.0, "false": 0.0, "gain": 10.0, "loaded": 5.0}
LOAD = "while True: pass"
EQUALLY_BUSY, TRIES = 0.35, 3
"""Processors by which what others take may differ between the two runs of a pair for their steps to be compared; and
how often a pair is run until it does not."""
LEAST = 0.01
"""A smaller gain counts as this one, so that an expectation that came to nothing is an error and not left out."""


@dataclass(frozen=True)
class Row:
    """One case with everything that was found out about it."""

    case: Case
    ours: Verdict
    peer: str = ""
    after: Verdict | None = None
    loaded: Verdict | None = None
    before: Verdict | None = None
    """The run with the cause that `after` is compared with, where it is another one than `ours`."""

    @property
    def measured(self) -> float | None:
        """Share of a step that the removal of the cause has saved."""
        before = self.before or self.ours
        if self.after is None or not self.after.step or not before.step:
            return None
        return 1 - self.after.step / before.step

    @property
    def expected(self) -> float | None:
        """Share of a step that the removal of the cause was expected to save."""
        return (self.before or self.ours).gain(self.case)

    @property
    def is_fair(self) -> bool:
        """Whether others disturbed both runs of the pair alike."""
        return self.after is not None and is_fair(self.before or self.ours, self.after)

    @property
    def error(self) -> float | None:
        """Distance of the expected from the measured gain, in percent of the latter."""
        expected, measured = self.expected, self.measured
        if expected is None or measured is None or not self.is_fair:
            return None
        return abs(expected - measured) / max(measured, LEAST) * 100

    @property
    def is_run(self) -> bool:
        """Whether this machine could run it."""
        return not self.ours.trouble.startswith("no control group")


def measure(options: Options) -> list[Figure]:
    """Run the cases, print the table, and return the figures."""
    if importlib.util.find_spec("torch") is None:
        return [
            Figure(f"gauntlet_{key}", key, None, "%", limit, "torch not installed") for key, limit in LIMITS.items()
        ]
    chosen = [case for case in CASES if options.only in case.name and (not options.quick or case.name in QUICK)]
    rows = []
    for case in chosen:
        row = trial(case, options)
        rows.append(row)
        print(line(row), file=sys.stderr, flush=True)
    print("\n".join([HEAD, *map(line, rows)]))
    return figures(rows, options)


def is_fair(before: Verdict, after: Verdict) -> bool:
    """Say whether others took as many processors in one run as in the other, as far as anybody knows."""
    if before.others is None or after.others is None:
        return True
    return abs(before.others - after.others) <= EQUALLY_BUSY


def trial(case: Case, options: Options) -> Row:
    """Run one case in all the ways that are asked for."""
    folder = options.scratch
    ours = before = run(case, folder / "quiet")
    after = None
    for number in range(TRIES if case.without is not None and not options.loaded else 0):
        if number:  # the verdict stays that of the first run
            before = run(case, folder / f"again{number}")
        after = run(case, folder / f"without{number}", planted=False)
        if is_fair(before, after):
            break
    said = peer.verdict(case, folder) if not (options.quick or options.loaded) and case.alive is None else ""
    loaded = _under_load(case, folder / "loaded") if options.loaded else None
    return Row(case, ours, said, after, loaded, before)


def _under_load(case: Case, folder: Path) -> Verdict:
    """Run a case while another process keeps one core busy."""
    busy = subprocess.Popen([sys.executable, "-c", LOAD], preexec_fn=_to_last_core)  # noqa: PLW1509 - one thread here
    try:
        return run(case, folder)
    finally:
        busy.kill()
        busy.wait()


def _to_last_core() -> None:
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


def figures(rows: Sequence[Row], options: Options) -> list[Figure]:
    """Return what the rows come to."""
    ran = [row for row in rows if row.is_run]
    healthy = [row for row in ran if row.case.is_healthy]
    false = [f"{row.case.name}: {', '.join(row.ours.false())}" for row in healthy if row.ours.false()]
    errors = [row.error for row in ran if row.error is not None]
    what = f"  healthy scripts with a false finding or alert, of {len(healthy)}"
    return [
        _wrong(ran),
        Figure("gauntlet_false", what, float(len(false)), "", LIMITS["false"], "; ".join(false)),
        Figure(
            "gauntlet_gain",
            f"  expected against measured gain: median error of {len(errors)}",
            statistics.median(errors) if errors else None,
            "%",
            LIMITS["gain"],
            "" if errors else "no gain was measured",
        ),
        *([_loaded(ran)] if options.loaded else []),
    ]


def _wrong(ran: Sequence[Row]) -> Figure:
    wrong = [row.case.name for row in ran if not row.ours.is_right(row.case)]
    said = [row for row in ran if row.peer not in {"", "not installed"}]
    beside = f"{len(ran)} scripts; wrong: {'; '.join(wrong) or 'none'}"
    if said:
        beside += f"; traceml-ai wrong in {sum(not peer.is_right(row.case, row.peer) for row in said)} of {len(said)}"
    return Figure("gauntlet_wrong", "gauntlet: primary verdict wrong", _share(wrong, ran), "%", LIMITS["wrong"], beside)


def _loaded(ran: Sequence[Row]) -> Figure:
    differ = [row.case.name for row in ran if row.loaded is not None and row.loaded.primary != row.ours.primary]
    what = f"  another verdict with the other core busy, of {len(ran)}"
    return Figure("gauntlet_loaded", what, _share(differ, ran), "%", LIMITS["loaded"], "; ".join(differ))


def _share(names: Sequence[str], of: Sequence[Row]) -> float | None:
    return 100.0 * len(names) / len(of) if of else None


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.0%}"


HEAD = (
    f"{'case':<34} {'':<2} {'verdict':<21} {'right':<21} {'traceml-ai':<28} {'expected':>8} {'measured':>8}  also found"
)


def line(row: Row) -> str:
    """Return the line of a case."""
    case, ours = row.case, row.ours
    mark = "  " if ours.is_right(case) and not (case.is_healthy and ours.false()) else "**"
    expected, measured = row.expected, row.measured
    doubt = "?" if measured is not None and not row.is_fair else ""
    also = ", ".join(f"{one['kind']}" for one in ours.findings if one["kind"] != ours.primary)
    also = ", ".join(filter(None, [also, *(f"alert {rule}" for rule in ours.alerts)]))
    if row.loaded is not None:
        also = f"[loaded: {row.loaded.primary or row.loaded.trouble}] {also}"
    cells = [
        f"{case.name:<34} {mark} {ours.primary or '-':<21} {case.kinds[0]:<21} {row.peer:<28}",
        f"{_percent(None if case.is_healthy else expected):>8} {_percent(measured) + doubt:>8}",
        f" {ours.trouble.strip().replace(chr(10), ' ')[-120:]}{also}",
    ]
    return " ".join(cells).rstrip()
