"""The ledger of a scripted job with a kill and a restart: its sum beside a watch, its classes beside the script."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from bench.figure import Figure, Options
from bench.processes import kill, python, wait_until
from bench.sandbox import settled

if TYPE_CHECKING:
    from collections.abc import Iterator

STEP = {"data": 0.01, "copy": 0.005, "forward": 0.02, "backward": 0.02}
EVERY = {"checkpoint": 0.05, "evaluation": 0.04}
"""Seconds of the phases of a step, and of those of every tenth."""
START, COMPILE, BROKEN = 0.3, 0.2, 0.4
"""Seconds before the first step, of compiling in it, and of the step that the kill breaks off."""


def measure(options: Options) -> list[Figure]:
    """Return by how much the ledger differs from a watch of our own, in all and in its worst class."""
    kept, lost, rest = (30, 6, 30) if options.quick else (300, 16, 300)
    run = options.scratch / "runs" / "ledger" / "job"
    begin = _killed(options.scratch, kept + lost)
    if not wait_until(lambda: _state(run) == "killed", 30.0, 0.05):
        raise RuntimeError(f"nobody saw the kill: see {run}")
    child = python(
        "-m", "bench.ledger", str(options.scratch), str(kept), str(kept + rest), "-1", stdout=subprocess.PIPE
    )
    printed, _ = child.communicate(timeout=300)
    end = float(printed.split()[-1])
    settled(run)
    return list(_figures(run, end - begin, (kept, lost, rest), quick=options.quick))


def _killed(scratch: Path, steps: int) -> float:
    """Run a job until its last step, kill it in the next, and return when it began to record."""
    child = python("-m", "bench.ledger", str(scratch), "0", str(steps + 10), str(steps - 1), stdout=subprocess.PIPE)
    assert child.stdout is not None
    begin = float(child.stdout.readline())
    child.stdout.readline()
    time.sleep(BROKEN)
    kill(child.pid)
    child.wait()
    child.stdout.close()
    return begin


def _state(run: Path) -> str:
    from stepscope.sources.opened_run import open_run

    return open_run(run).state


def _figures(run: Path, watched: float, steps: tuple[int, int, int], *, quick: bool) -> Iterator[Figure]:
    from stepscope.analysis.cost.ledger import charge
    from stepscope.sources.attempts import attempts_of
    from stepscope.sources.opened_run import open_run

    ledger = charge(attempts_of(open_run(run)))
    total = sum(ledger.seconds.values())
    kept, lost, rest = steps
    usual = sum(STEP.values())
    scripted = {
        **{name: (kept + rest) * STEP[name] for name in ("data", "copy")},
        **{name: (kept + rest) // 10 * seconds for name, seconds in EVERY.items()},
        "productive": (kept + rest) * (STEP["forward"] + STEP["backward"]),
        "redone": lost * usual + lost // 10 * sum(EVERY.values()) + BROKEN,
        "compile": COMPILE,
    }
    beside = f"{total:.3f} s in the ledger, {watched:.3f} s by our watch"
    # The shorter job leaves the 0.02 s that an end takes to be seen above the limit.
    limit = None if quick else 0.1
    off = 100 * abs(total - ledger.wall_seconds) / ledger.wall_seconds
    yield Figure("ledger_sum", "ledger: sum of the classes off the wall clock", off, "%", 0.1, f"{total:.3f} s")
    apart = 100 * abs(total - watched) / watched
    yield Figure("ledger_watch", "  off a watch of our own, from init to finish", apart, "%", limit, beside)
    worst = max(scripted, key=lambda name: abs(ledger.seconds[name] - scripted[name]))
    told = ", ".join(f"{name} {ledger.seconds[name]:.2f}/{seconds:.2f}" for name, seconds in scripted.items())
    gap = 100 * abs(ledger.seconds[worst] - scripted[worst]) / watched
    yield Figure("ledger_class", "  worst class off its script, of all time", gap, "%", None, told)


def job(scratch: Path, first: int, last: int, hang: int) -> None:
    """Do steps of known phases; after the step `hang`, begin one that never ends."""
    import stepscope

    run = stepscope.init(project="ledger", run_id="job", dir=scratch / "runs")
    print(time.time(), flush=True)
    time.sleep(START)
    for index in range(first, last):
        for name, seconds in STEP.items():
            if name == "data":
                with run.phase(name):
                    time.sleep(seconds)
        with run.step(index=index):
            parts = {**STEP, **(EVERY if index % 10 == 9 else {}), **({"compile": COMPILE} if not index else {})}
            for name, seconds in parts.items():
                if name != "data":
                    with run.phase(name):
                        time.sleep(seconds)
        if index == hang:
            print("there", flush=True)
            time.sleep(600)
    run.finish()
    print(time.time(), flush=True)


if __name__ == "__main__":
    job(Path(sys.argv[1]), *map(int, sys.argv[2:5]))
