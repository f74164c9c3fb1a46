"""What a call costs the training thread: `run.log`, `run.step`, and the peers' calls in the same run.

Every logger lives in a process of its own; the parent lets them run one short block after another, round and round,
so all see the same machine. A block is CPU time of the calling thread, less that of the same loop without the call.
"""

from __future__ import annotations

import itertools
import os
import statistics
import subprocess
import sys
from pathlib import Path
from time import thread_time_ns
from typing import TYPE_CHECKING

from bench.figure import ONE_OVER, Figure, Options
from bench.peers import OURS, PEERS, Peer, Stepscope, rows
from bench.processes import environment, python

if TYPE_CHECKING:
    from collections.abc import Callable

STEP = "step"
"""The worker that measures `with run.step()`; it is ours too."""
STEPS = 1000


class Worker:
    """A process that measures one block each time it is asked."""

    def __init__(self, name: str, folder: Path) -> None:
        """Start it; `ready` waits until it can measure."""
        folder.mkdir(parents=True)
        reply, theirs = os.pipe()
        with (folder / "stderr").open("wb") as errors:
            self._process = python(
                *("-m", "bench.hotpath", name, str(folder), str(theirs)),
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                pass_fds=[theirs],
                cwd=folder,
                env=environment(),
            )
        os.close(theirs)
        self._reply = os.fdopen(reply, encoding="ascii")
        self.nanoseconds: list[float] = []

    def ready(self) -> bool:
        """Wait until it has started; say whether it could."""
        return self._reply.readline() == "ready\n"

    def block(self) -> None:
        """Measure one block and keep its nanoseconds per call."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")
        self._process.stdin.flush()
        self.nanoseconds.append(float(self._reply.readline()))

    def median(self) -> float:
        """Return microseconds per call."""
        return statistics.median(self.nanoseconds) / 1e3

    def close(self) -> None:
        """Let it end."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reply.close()


def measure(options: Options) -> list[Figure]:
    """Return the figures of the calls."""
    rounds = 15 if options.quick else 80
    names = [name for name, peer in PEERS.items() if not peer.missing()]
    workers = {name: Worker(name, options.scratch / "hotpath" / name) for name in [*names, STEP]}
    try:
        ready = {name: worker for name, worker in workers.items() if worker.ready()}
        for turn in range(rounds):
            for name, worker in ready.items():
                if name in (OURS, STEP) or turn % 2 == 0:
                    worker.block()
    finally:
        for worker in workers.values():
            worker.close()
    cost = {name: worker.median() for name, worker in ready.items()}
    return _figures(cost, {name: min(ready[name].nanoseconds) / 1e3 for name in (OURS, STEP)})


def _figures(cost: dict[str, float], fastest: dict[str, float]) -> list[Figure]:
    ours = cost[OURS]
    said = [
        f"{peer.title} {cost[name]:.0f} µs" if name in cost else f"{peer.title} not installed"
        for name, peer in PEERS.items()
        if name != OURS
    ]
    best = {name: f"fastest block {seconds:.2f} µs" for name, seconds in fastest.items()}
    found = [
        Figure("log", "run.log of 10 floats, thread CPU", ours, "µs", 2.0, ", ".join([best[OURS], *said])),
        Figure("step", "run.step with three phases, thread CPU", cost[STEP], "µs", 6.0, best[STEP]),
    ]
    for name, limit in (("tensorboard", 1 / 80), ("wandb", 1 / 40)):
        ratio = ours / cost[name] if name in cost else None
        beside = "" if name in cost else f"{PEERS[name].title} not installed"
        found.append(Figure(f"log_over_{name}", f"  of that of {PEERS[name].title}", ratio, ONE_OVER, limit, beside))
    return found


def _our_block(peer: Stepscope) -> Callable[[], float]:
    data, log = rows(peer.calls), peer.run.log

    def block() -> float:
        start = thread_time_ns()
        for row in data:
            log(row)
        middle = thread_time_ns()
        for _ in data:
            pass
        return (2 * middle - start - thread_time_ns()) / len(data)

    return block


def _peer_block(peer: Peer) -> Callable[[], float]:
    data, log, steps = rows(peer.calls), peer.log, itertools.count()

    def block() -> float:
        numbered = [(next(steps), row) for row in data]
        start = thread_time_ns()
        for step, row in numbered:
            log(step, row)
        middle = thread_time_ns()
        for _ in numbered:
            pass
        return (2 * middle - start - thread_time_ns()) / len(data)

    return block


def _step_block(peer: Stepscope) -> Callable[[], float]:
    run = peer.run

    def block() -> float:
        start = thread_time_ns()
        for _ in range(STEPS):
            with run.step():
                with run.phase("forward"):
                    pass
                with run.phase("backward"):
                    pass
                with run.phase("optimizer"):
                    pass
        middle = thread_time_ns()
        for _ in range(STEPS):
            pass
        return (2 * middle - start - thread_time_ns()) / STEPS

    return block


def main(arguments: list[str]) -> int:
    """Be a worker: one block for each line on stdin, its nanoseconds per call to the descriptor given."""
    name, folder, descriptor = arguments[0], Path(arguments[1]), int(arguments[2])
    peer = PEERS.get(name, Stepscope)()
    peer.start(folder)
    if isinstance(peer, Stepscope):
        block = _step_block(peer) if name == STEP else _our_block(peer)
    else:
        block = _peer_block(peer)
    block()
    with os.fdopen(descriptor, "w", encoding="ascii") as reply:
        print("ready", file=reply, flush=True)
        for _ in sys.stdin:
            print(block(), file=reply, flush=True)
    peer.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
