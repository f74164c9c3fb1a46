"""What a tight loop of calls costs and keeps: a million `run.log` of one and of ten values, right after `init`.

Wall time of the loop by the number of calls: whatever a call waits for is in it. Lost are calls whose last value the
logger's own reader does not give back after the run has ended; ours is read at once, as `stepscope.open` does it.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

from bench.figure import Figure, Options
from bench.peers import KEYS, OURS, PEERS, Stepscope, rows
from bench.processes import environment, output_of
from bench.sandbox import settled

CALLS, QUICK_CALLS = 1_000_000, 100_000
PEER_SECONDS = 3.0
"""A peer logs for so long; none of them makes a million calls in it."""
LIMIT = 3.0
"""Microseconds that a call may take on average."""


class Burst(NamedTuple):
    """What came of one loop."""

    calls: int
    mean: float
    """Microseconds."""
    longest: float
    """Milliseconds of the slowest thousand calls; of a peer, of its slowest call."""
    lost: int


def measure(options: Options) -> list[Figure]:
    """Return what a call costs on average, and how many rows are lost."""
    calls = QUICK_CALLS if options.quick else CALLS
    found = []
    for width in (1, len(KEYS)):
        ours = _burst(OURS, options.scratch / "bursts" / f"{OURS}-{width}", calls, width)
        values = "one value" if width == 1 else f"{width} values"
        beside = f"the slowest thousand {ours.longest:.0f} ms"
        if width > 1:
            beside = ", ".join([beside, *_peers(options)])
        what = f"{calls} run.log of {values} in a loop, mean"
        found += [
            Figure(f"mean_{width}", what, ours.mean, "µs", LIMIT, beside),
            Figure(f"lost_{width}", "  rows lost", float(ours.lost), "", 0.0, ""),
        ]
    return found


def _peers(options: Options) -> list[str]:
    said = []
    for name, peer in PEERS.items():
        if name != OURS and peer.missing():
            said.append(f"{peer.title} not installed")
        elif name != OURS:
            burst = _burst(name, options.scratch / "bursts" / name, 0, len(KEYS))
            said.append(f"{peer.title} {burst.mean:.0f} µs, lost {burst.lost} of {burst.calls}")
    return said


def _burst(name: str, folder: Path, calls: int, width: int) -> Burst:
    """Let a fresh process log; return what it measured, and what can be read of it."""
    (folder / "home").mkdir(parents=True)
    (folder / "run").mkdir()
    command = ("-m", "bench.bursts", name, str(folder / "run"), str(calls), str(width))
    options = {"cwd": folder, "env": environment(HOME=str(folder / "home")), "stderr": subprocess.DEVNULL}
    printed, _, _ = output_of(*command, **options)
    made, mean, longest, read = json.loads(printed.splitlines()[-1])
    settled(folder)
    shutil.rmtree(folder, ignore_errors=True)
    return Burst(made, mean, longest, made - read)


def main(arguments: list[str]) -> int:
    """Log so many rows of so many values (0 rows: for PEER_SECONDS), end the run, and print what became of it."""
    name, folder, calls, width = arguments[0], Path(arguments[1]), int(arguments[2]), int(arguments[3])
    peer = PEERS[name]()
    keys = KEYS[:width]
    data = [{key: row[key] for key in keys} for row in rows(1000)]
    peer.start(folder)
    started = before = time.perf_counter()
    made, longest = 0, 0.0
    while made < calls or (not calls and before - started < PEER_SECONDS):
        if isinstance(peer, Stepscope):  # as a program does it, without a step
            log = peer.run.log
            for row in data:
                log(row)
            made += len(data)
        else:
            peer.log(made, data[made % len(data)])
            made += 1
        now = time.perf_counter()
        before, longest = now, max(longest, now - before)
    mean = (before - started) / made
    peer.close()
    print(json.dumps([made, mean * 1e6, longest * 1e3, peer.read(folder, keys[-1])]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
