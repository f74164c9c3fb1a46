"""Kill parts of recorded runs at random moments and compare what was acknowledged with what can be read.

The trainer writes a row's step and value to its ledger, by a raw write, after each `log()` has returned. Whatever
stands in the ledger must be read back once and bit for bit. The one row that was being logged at the kill may be
there or not. Nothing here prints; `bench/kills.py` and the tests call `kill_all`.
"""

from __future__ import annotations

import math
import os
import random
import struct
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bench.processes import SEALER, WATCHER, alive, children, find, kill, python, tree, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepscope.store.reader import Past

RATES = (1, 10, 1000)
"""Rows per second."""
TRAINER, TREE, WATCHING, SEALING = VICTIMS = ("trainer", "tree", "watcher", "watcher while sealing")
ENTRY = struct.Struct("<qd")
"""One acknowledged row in the ledger: step and value."""
COLUMNS: dict[str, Callable[[int, float], float]] = {
    "value": lambda _, value: value,
    "opposite": lambda _, value: -value,
    "number": lambda step, _: float(step),
}
"""What a row holds, made of its step and value."""
Read = dict[str, list[tuple[int, float]]]
"""Steps and values of each column, as read."""
ODD = (math.nan, math.inf, -math.inf, -0.0, 5e-324)
START_SECONDS, END_SECONDS, RESTART_SECONDS = 60.0, 90.0, 60.0
"""How long a loaded machine may take to start a trainer, to end a run, and to have the watcher restarted."""


@dataclass(frozen=True)
class Case:
    """One kill."""

    number: int
    rate: int
    victim: str
    seed: int


@dataclass(frozen=True)
class Outcome:
    """What a kill did to the acknowledged rows."""

    case: Case
    rows: int
    lost: int
    duplicated: int
    altered: int
    state: str
    problems: tuple[str, ...] = ()
    failure: str = ""
    """Why the kill could not be carried out as meant; empty is good."""

    @property
    def harmless(self) -> bool:
        """Say whether the kill happened, and every row is there once, as it was."""
        return not (self.lost or self.duplicated or self.altered or self.failure)


def cases(kills: int, seed: int = 0) -> list[Case]:
    """Return so many kills, spread evenly over rates and victims, the long ones first."""
    made = [Case(n, RATES[n % len(RATES)], VICTIMS[n % len(VICTIMS)], seed + n) for n in range(kills)]
    return sorted(made, key=lambda case: -VICTIMS.index(case.victim))


def kill_all(wanted: list[Case], root: Path, at_once: int = 10) -> list[Outcome]:
    """Carry out kills, some at once, each on a run of its own below `root`."""
    with ThreadPoolExecutor(at_once) as pool:
        return list(pool.map(lambda case: kill_one(case, root), wanted))


def kill_one(case: Case, root: Path) -> Outcome:
    """Start a run, kill the victim at a random moment, wait for the end, compare."""
    folder = root / f"case-{case.number}"
    folder.mkdir(parents=True)
    ledger, run = folder / "ledger", folder / "kill" / "run"
    failure = ""
    with (folder / "stderr").open("wb") as errors:
        trainer = python(
            *("-m", "bench.killing", str(folder), str(case.rate), str(case.seed), case.victim),
            stdin=subprocess.DEVNULL,
            stderr=errors,
        )
    try:
        if not wait_until(lambda: ledger.exists() and ledger.stat().st_size > 0, START_SECONDS):
            return Outcome(case, 0, 0, 0, 0, "", failure=f"no trainer: {(folder / 'stderr').read_text()[-500:]}")
        failure = _strike(case, trainer, run)
        (folder / "stop").touch()
        trainer.wait(END_SECONDS)
        if not wait_until(lambda: not find(WATCHER, run) and not find(SEALER, run), END_SECONDS, 0.1):
            failure = failure or f"the watcher still runs {END_SECONDS:.0f} s later"
    finally:
        trainer.kill()
        trainer.wait()
    return _outcome(case, ledger, run, failure)


def _strike(case: Case, trainer: subprocess.Popen[bytes], run: Path) -> str:
    """Kill what the case names; if the trainer lives, let it go on until it has a new watcher. Return what failed."""
    draw = random.Random(case.seed)
    time.sleep(draw.uniform(0.0, 8.0 if case.rate < 10 else 4.0))
    if case.victim == TRAINER:
        trainer.kill()
        return ""
    if case.victim == TREE:
        victims = [*tree(trainer.pid), *(one for pid in find(WATCHER, run) for one in tree(pid))]
        draw.shuffle(victims)
        for pid in victims:
            kill(pid)
        return ""
    return _strike_watcher(case, run, draw)


def _strike_watcher(case: Case, run: Path, draw: random.Random) -> str:
    if not wait_until(lambda: bool(find(WATCHER, run)), START_SECONDS):
        return "there is no watcher"
    old = find(WATCHER, run)[0]
    if case.victim == SEALING:
        sealer = _sealer(old, draw)
        if sealer is None:
            return "the watcher seals nothing"
        if draw.random() < 0.5:
            kill(sealer)
    kill(old)
    if not wait_until(lambda: any(pid != old and alive(pid) for pid in find(WATCHER, run)), RESTART_SECONDS, 0.2):
        return f"no new watcher within {RESTART_SECONDS:.0f} s"
    time.sleep(draw.uniform(0.0, 2.0))
    return ""


def _sealer(watcher: int, draw: random.Random) -> int | None:
    """Wait for a random moment in the life of a sealing child and return it."""
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end:
        for child in children(watcher)[:1]:
            time.sleep(draw.uniform(0.0, 0.6))
            if alive(child):
                return child
        time.sleep(0.002)
    return None


def _outcome(case: Case, ledger: Path, run: Path, failure: str) -> Outcome:
    """Compare; while rows are missing look again for a moment, for another run's watcher may be salvaging them."""
    import stepscope

    data = ledger.read_bytes()
    acknowledged = dict(ENTRY.iter_unpack(data[: len(data) // ENTRY.size * ENTRY.size]))
    end = time.monotonic() + 15.0
    while True:
        past = stepscope.open(run)
        lost, duplicated, altered = compare(acknowledged, _read(past), case.seed)
        if not lost or time.monotonic() > end:
            break
        time.sleep(0.5)
    return Outcome(case, len(acknowledged), lost, duplicated, altered, past.state, tuple(past.problems()), failure)


def _read(past: Past) -> Read:
    known = past.names()
    found = {name: past.series(name) for name in COLUMNS if name in known}
    return {name: list(zip(one.step.tolist(), one.value.tolist(), strict=True)) for name, one in found.items()}


def compare(acknowledged: dict[int, float], read: Read, seed: int) -> tuple[int, int, int]:
    """Return how many rows are lost, duplicated and altered; an invented row counts as altered."""
    lost: set[int] = set()
    duplicated: set[int] = set()
    altered: set[int] = set()
    expected = dict(acknowledged)
    being_logged = len(acknowledged)
    expected[being_logged] = value_of(seed, being_logged)
    for name, of_row in COLUMNS.items():
        pairs = read.get(name, [])
        counts = Counter(step for step, _ in pairs)
        lost |= acknowledged.keys() - counts.keys()
        duplicated |= {step for step, count in counts.items() if count > 1}
        for step, value in pairs:
            if step not in expected or _bits(value) != _bits(of_row(step, expected[step])):
                altered.add(step)
    return len(lost), len(duplicated), len(altered)


def _bits(value: float) -> bytes:
    return struct.pack("<d", value)


def value_of(seed: int, step: int) -> float:
    """Return the value of a row: any double, now and then an odd one."""
    draw = random.Random(seed * 1_000_003 + step)
    return draw.choice(ODD) if step % 50 == 7 else draw.uniform(-1e6, 1e6)


def main(arguments: list[str]) -> int:
    """Be the trainer: log rows at a rate until told to stop, and keep the ledger."""
    import stepscope

    folder, rate, seed, victim = Path(arguments[0]), int(arguments[1]), int(arguments[2]), arguments[3]
    often = {"seal_bytes": 64 << 10, "seal_interval": 1.0 if victim == SEALING else 3.0}
    run = stepscope.init(project="kill", dir=folder, run_id="run", store=often)
    ledger = os.open(folder / "ledger", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    stop, started, step = str(folder / "stop"), time.monotonic(), 0
    while not os.path.exists(stop):
        value = value_of(seed, step)
        run.log({name: of_row(step, value) for name, of_row in COLUMNS.items()})
        os.write(ledger, ENTRY.pack(step, value))
        step += 1
        time.sleep(max(0.0, started + step / rate - time.monotonic()))
    run.finish()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
