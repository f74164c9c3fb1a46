"""What sinks cost the training itself: the speed of its loop, and the time of its end.

The loop records and sends to three sinks. The sender alone is stopped and continued (SIGSTOP, SIGCONT) in blocks of
seconds, in the order ABBA and BAAB in turn. A sender that was stopped sends afterwards what has collected, so a block
in which it runs holds the work of two: the cost that is found is twice the real one at worst, and never less.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import statistics
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bench.figure import Figure
from bench.loop import Training, interval, shown, timed
from bench.processes import SENDER, cpu_seconds, find, kill, output_of, wait_until
from bench.sink_servers import blackhole, free_port, receivers

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bench.figure import Options

LIMIT = 0.5
"""Percent that a loop may be slowed."""
EXIT_LIMIT = 0.5
"""Seconds that the end of a training may take longer."""
BLOCK_SECONDS, QUICK_SECONDS = 5.0, 0.5
FOURS, SAME, QUICK_FOURS = 20, 5, 2
"""Fours (two pairs each) that compare, and that compare nothing with nothing."""
WAYS = {"take": "three sinks", "hang": "three sinks that hang"}
SHORT = """
import json, sys
import stepscope
run = stepscope.init(project="end", dir=sys.argv[1], exporters={"sinks": json.loads(sys.argv[2])})
for number in range(100):
    run.log({"loss": 1 / (number + 1)}, step=number)
"""
PAIRS, QUICK_PAIRS = 10, 2
AA = "  A/A: distance of its interval from 0"


def urls(port: int, other: int | None = None, third: int | None = None) -> list[str]:
    """Return the addresses of three sinks."""
    return [
        f"otlp+http://127.0.0.1:{port}",
        f"prometheus+http://127.0.0.1:{other or port}/api/v1/write",
        f"mlflow+http://127.0.0.1:{third or port}",
    ]


def slowed(options: Options) -> list[Figure]:
    """Return by how much sinks slow a loop, while they take everything and while they hang."""
    found = []
    for how, what in WAYS.items():
        title = f"torch loop, 2 ms steps, {what}: slowed (upper bound)"
        if importlib.util.find_spec("torch") is None:
            found.append(Figure(f"sink_loop_{how}", title, None, "%", LIMIT, "torch not installed"))
            found.append(Figure(f"sink_loop_{how}_aa", AA, None, "%", None, "torch not installed"))
            continue
        with receivers(how) as port:
            folder = options.scratch / f"loop-{how}"
            seconds, fours, same = (
                (QUICK_SECONDS, QUICK_FOURS, QUICK_FOURS) if options.quick else (BLOCK_SECONDS, FOURS, SAME)
            )
            printed, _, _ = output_of(
                "-m", "bench.sink_loop", str(folder), str(seconds), str(fours), str(same), *urls(port)
            )
        told = json.loads(printed.splitlines()[-1])
        wall, cpu, aa = (interval(np.array(told[key])) for key in ("wall", "cpu", "same"))
        beside = f"{shown(wall)}, thread CPU {shown(cpu)}, {len(told['wall'])} pairs of {seconds:g} s"
        beside += f", step {told['step'] * 1e3:.2f} ms; sender {told['share']:.1f} % of a core while it runs"
        outside = max(0.0, aa[1], -aa[2]) if aa[1] * aa[2] > 0 else 0.0
        found.append(Figure(f"sink_loop_{how}", title, wall[2], "%", LIMIT, beside))
        found.append(Figure(f"sink_loop_{how}_aa", AA, outside, "%", 0.0, f"{shown(aa)}, {len(told['same'])} pairs"))
    return found


def ends(options: Options) -> list[Figure]:
    """Return how much longer a short training takes if its three sinks are dead: refused, hanging, a black hole."""
    took: tuple[list[float], list[float]] = ([], [])
    with receivers("hang") as port, blackhole() as hole:
        dead = urls(port, free_port(), hole)
        for turn in range(QUICK_PAIRS if options.quick else PAIRS):
            for which in (0, 1) if turn % 2 else (1, 0):
                folder = options.scratch / f"end-{turn}-{which}"
                _, _, seconds = output_of("-c", SHORT, str(folder), json.dumps(dead if which else []))
                took[which].append(seconds)
                quiet(folder, has_sinks=bool(which))
    differences = [other - one for one, other in zip(*took, strict=True)]
    median, most = statistics.median(differences), max(differences)
    beside = f"whole script {statistics.median(took[0]):.2f} s without sinks, {len(differences)} pairs"
    what = "a training with three dead sinks takes longer by"
    return [
        Figure("sink_end", f"{what} (median)", median, "s", EXIT_LIMIT, beside),
        Figure("sink_end_most", "  at most", most, "s", EXIT_LIMIT, ", ".join(f"{one:+.2f}" for one in differences)),
    ]


def quiet(folder: Path, *, has_sinks: bool) -> None:
    """Wait for the watcher of a run to end, and end its sender."""
    from bench.sandbox import settled

    if has_sinks:
        wait_until(lambda: bool(find(SENDER, folder)), 15.0, 0.05)
    settled(folder)
    for pid in find(SENDER, folder):
        kill(pid)


@contextlib.contextmanager
def stopping(pid: int) -> Iterator[None]:
    """Let a process go on at the end, whatever happens."""
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def pairs(training: Training, pid: int, steps: int, usual: float, order: Sequence[bool | None]) -> list[np.ndarray]:
    """Return the ratios (wall, CPU) of running to stopped for the blocks of an order, two and two; None runs, too."""
    found = []
    for one, other in zip(order[::2], order[1::2], strict=True):
        clocks = []
        for runs in (one, other):
            os.kill(pid, signal.SIGSTOP if runs is False else signal.SIGCONT)
            training.on(5)
            clocks.append(np.array(timed(training.on, steps, usual)))
        found.append(clocks[0] / clocks[1] if one else clocks[1] / clocks[0])
    return found


def main(arguments: list[str]) -> int:
    """Train in this process and print the ratios as JSON."""
    import torch

    import stepscope

    seconds, fours, same = float(arguments[1]), int(arguments[2]), int(arguments[3])
    torch.set_num_threads(1)
    run = stepscope.init(project="loop", dir=Path(arguments[0]), exporters={"sinks": arguments[4:]})
    training = Training(torch, run)
    usual = training.calibrate()
    steps = max(1, round(seconds / usual))
    if not wait_until(lambda: bool(find(SENDER, Path(run.path))), 30.0):
        raise RuntimeError("there is no sender")
    (pid,) = find(SENDER, Path(run.path))
    training.on(max(10, round(min(seconds, 3.0) / usual)))
    compared, nothing = [], []
    spent, began = sum(cpu_seconds(pid)), time.monotonic()
    with stopping(pid):
        for turn in range(fours):
            order = (True, False, False, True) if turn % 2 else (False, True, True, False)
            compared += pairs(training, pid, steps, usual, order)
            if len(nothing) < 2 * same and turn * same // fours >= len(nothing) // 2:
                os.kill(pid, signal.SIGCONT)
                training.on(round(min(seconds, 2.5) / usual))  # until the sender has caught up
                both = [None if runs is False else runs for runs in order]
                nothing += pairs(training, pid, steps, usual, both)
    share = 100 * (sum(cpu_seconds(pid)) - spent) / (time.monotonic() - began)
    share *= (fours + same) / (fours / 2 + same)
    run.finish()
    kill(pid)
    wall, cpu = zip(*(one.tolist() for one in compared), strict=True)
    same_wall = [float(one[0]) for one in nothing]
    print(json.dumps({"wall": wall, "cpu": cpu, "same": same_wall, "step": usual, "share": share}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
