"""Memory of the trainer, and what the watcher and its sealing child take."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from bench.figure import Figure, Options
from bench.peers import rows
from bench.processes import WATCHER, children, cpu_seconds, find, kib, output_of, python, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

RATE = 1000
"""Steps per second of ten metrics."""
WARM = 100_000
"""Rows until every page of the ring has been touched."""
POLL = 0.002


def measure(options: Options) -> list[Figure]:
    """Return the figures of memory, and of the watcher's CPU."""
    calls, seconds = (200_000, 4.0) if options.quick else (3_000_000, 30.0)
    root = options.scratch / "memory"
    grown = json.loads(output_of("-m", "bench.memory", "grow", str(root), str(calls))[0])
    growth = grown["kib"] / 1024 / (calls / 1e6)
    cpu, sealing, pss = _watched(root, seconds)
    peak, sealed = _sealer_peak(root, 100_000 if options.quick else 400_000)
    return [
        Figure(
            "growth", "trainer memory per million log calls", growth, "MiB", 2.0, f"RSS {grown['rss'] / 1024:.0f} MiB"
        ),
        Figure(
            *("watcher_cpu", f"watcher, {RATE} steps/s of 10 metrics", cpu, "% of a core", 10.0),
            f"over {seconds:.0f} s; its sealing children another {sealing:.1f} %",
        ),
        Figure("watcher_pss", "  its PSS", pss / 1024, "MiB", 60.0),
        Figure("sealer", "  sealing child, peak RSS", peak / 1024, "MiB", 200.0, f"{sealed} children seen"),
    ]


def _watched(root: Path, seconds: float) -> tuple[float, float, int]:
    """Return the watcher's CPU and its ended children's, in percent of a core, and its largest PSS in KiB."""
    trainer = python("-m", "bench.memory", "pace", str(root), str(RATE), stdin=subprocess.PIPE)
    run = root / "memory" / "pace"
    try:
        wait_until(lambda: bool(find(WATCHER, run)), 20.0)
        time.sleep(2.0)
        [watcher] = find(WATCHER, run)
        start, before, pss = time.monotonic(), cpu_seconds(watcher), 0
        while time.monotonic() - start < seconds:
            time.sleep(0.5)
            pss = max(pss, kib(watcher, "Pss", "smaps_rollup"))
        after, took = cpu_seconds(watcher), time.monotonic() - start
    finally:
        trainer.communicate()
    own, theirs = ((after[at] - before[at]) / took * 100 for at in (0, 1))
    return own, theirs, pss


def _sealer_peak(root: Path, count: int) -> tuple[int, int]:
    """Record enough for some tails of full size; return the largest peak RSS of a sealing child, in KiB."""
    trainer = python("-m", "bench.memory", "burst", str(root), str(count), stdin=subprocess.DEVNULL)
    run = root / "memory" / "burst"
    peaks: dict[int, int] = {}
    wait_until(lambda: bool(find(WATCHER, run)), 20.0)
    for watcher in find(WATCHER, run):
        while kib(watcher, "VmRSS"):
            for child in children(watcher):
                peaks[child] = max(peaks.get(child, 0), kib(child, "VmHWM"))
            time.sleep(POLL)
    trainer.wait()
    if not peaks:
        raise RuntimeError(f"no sealing child was seen: see {run}/watcher.log")
    return max(peaks.values()), len(peaks)


def _grow(root: Path, calls: int) -> None:
    import stepscope

    run = stepscope.init(project="memory", dir=root, run_id="grow")
    data = rows(100)
    for row in itertools.islice(itertools.cycle(data), WARM):
        run.log(row)
    before = kib("self", "VmRSS")
    for row in itertools.islice(itertools.cycle(data), calls):
        run.log(row)
    after = kib("self", "VmRSS")
    run.finish()
    print(json.dumps({"kib": after - before, "rss": after}))


def _pace(root: Path, rate: int) -> None:
    """Record steps of ten metrics at a rate until stdin ends."""
    import select

    import stepscope

    run = stepscope.init(project="memory", dir=root, run_id="pace")
    for at, row in zip(_ticks(rate), itertools.cycle(rows(100)), strict=False):
        with run.step():
            run.log(row)
        if at % 100 == 0 and select.select([sys.stdin], [], [], 0)[0]:
            break
    run.finish()


def _ticks(rate: int) -> Iterator[int]:
    started = time.monotonic()
    for at in itertools.count():
        yield at
        time.sleep(max(0.0, started + (at + 1) / rate - time.monotonic()))


def _burst(root: Path, count: int) -> None:
    """Record rows about as fast as they can be drained."""
    import stepscope

    run = stepscope.init(project="memory", dir=root, run_id="burst")
    for at, row in enumerate(itertools.islice(itertools.cycle(rows(1000)), count)):
        run.log(row)
        if at % 4000 == 0:
            time.sleep(0.15)
    run.finish()


def main(arguments: list[str]) -> int:
    """Be one of the trainers."""
    {"grow": _grow, "pace": _pace, "burst": _burst}[arguments[0]](Path(arguments[1]), int(arguments[2]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
