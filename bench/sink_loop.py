"""What sinks cost the training itself: the speed of its loop, and the time of its end.

The loop records and sends to three sinks. The sender alone is stopped and continued (SIGSTOP, SIGCONT) in blocks of
8 ms, in the order ABBA and BAAB in turn, as `bench.loop` does it. Bursts of the sender must count for what they are, so
the middle is a (geometric) mean and no median. A sender that was stopped does the work of both kinds of blocks while it
runs, about twice its usual work in that time: the slow-down that is found is multiplied by its usual share of a core
over its share in the blocks that were timed. Both are printed.
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
from bench.loop import BLOCK_SECONDS, Training, interval, shown, timed
from bench.loop import four as loop_four
from bench.processes import SENDER, find, kill, output_of, wait_until
from bench.sink_servers import blackhole, free_port, receivers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.figure import Options
    from bench.loop import Clocks

LIMIT = 0.5
"""Percent that a loop may be slowed."""
EXIT_LIMIT = 0.5
"""Seconds that the end of a training may take longer."""
FOURS, QUICK_FOURS, SAME_EVERY = 6000, 40, 3
"""Fours that compare; and after how many of them comes one that compares nothing with nothing."""
USUAL_SECONDS, QUICK_SECONDS = 10.0, 1.0
"""Seconds of training in which the usual share of the sender is measured, before and after."""
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
            folder, fours = options.scratch / f"loop-{how}", QUICK_FOURS if options.quick else FOURS
            seconds = QUICK_SECONDS if options.quick else USUAL_SECONDS
            printed, _, _ = output_of("-m", "bench.sink_loop", str(folder), str(fours), str(seconds), *urls(port))
        told = json.loads(printed.splitlines()[-1])
        wall, cpu, aa = (interval(np.array(told[key]), np.mean) for key in ("wall", "cpu", "same"))
        scale = min(1.0, told["usual_share"] / told["share"]) if told["share"] > 0 else 1.0
        real = (wall[0] * scale, wall[1] * scale, wall[2] * scale)
        beside = f"{shown(real)}; sender {100 * told['usual_share']:.1f} % of a core. While it does the work of both"
        beside += f" kinds of blocks, {100 * told['share']:.1f} %: wall {shown(wall)}, thread CPU {shown(cpu)},"
        beside += f" {4 * fours} blocks, step {told['step'] * 1e3:.2f} ms"
        outside = max(0.0, aa[1], -aa[2]) if aa[1] * aa[2] > 0 else 0.0
        found.append(Figure(f"sink_loop_{how}", title, real[2], "%", LIMIT, beside))
        found.append(Figure(f"sink_loop_{how}_aa", AA, outside, "%", 0.0, f"{shown(aa)}, {len(told['same'])} fours"))
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


class Sending:
    """The sender of a run, which can be stopped."""

    def __init__(self, folder: Path) -> None:
        """Wait for it."""
        if not wait_until(lambda: bool(find(SENDER, folder)), 30.0):
            raise RuntimeError("there is no sender")
        (self.pid,) = find(SENDER, folder)

    def seconds(self) -> float:
        """Return the CPU seconds that it has used, to the nanosecond."""
        return time.clock_gettime((~self.pid << 3) | 2)  # the clock of another process: clock_getcpuclockid(3)

    def let(self, *, run: bool) -> None:
        """Let it go on, or stop it."""
        os.kill(self.pid, signal.SIGCONT if run else signal.SIGSTOP)

    def share(self, training: Training, seconds: float) -> float:
        """Train for so long; return the share of a core that the sender uses meanwhile."""
        used, began = self.seconds(), time.monotonic()
        while time.monotonic() - began < seconds:
            training.on(10)
        return (self.seconds() - used) / (time.monotonic() - began)


def four(training: Training, sender: Sending, turn: int, steps: int, usual: float) -> tuple[Clocks, float, float]:
    """Return the ratios (wall, CPU) of running to stopped; the sender's CPU seconds while timed, and that time."""
    total, used = np.zeros((2, 2)), 0.0
    for runs in (1, 0, 0, 1) if turn % 2 else (0, 1, 1, 0):
        sender.let(run=bool(runs))
        training.on(1)
        before = sender.seconds()
        total[runs] += timed(training.on, steps, usual)
        used += runs * (sender.seconds() - before)
    wall, cpu = total[1] / total[0]
    sender.let(run=True)
    return (float(wall), float(cpu)), used, float(total[1][0])


def main(arguments: list[str]) -> int:
    """Train in this process and print the ratios as JSON."""
    import torch

    import stepscope

    fours, seconds = int(arguments[1]), float(arguments[2])
    torch.set_num_threads(1)
    run = stepscope.init(project="loop", dir=Path(arguments[0]), exporters={"sinks": arguments[3:]})
    training = Training(torch, run)
    usual = training.calibrate()
    steps = max(1, round(BLOCK_SECONDS / usual))
    sender = Sending(Path(run.path))
    sender.share(training, min(seconds, 3.0))
    compared, same, used, while_timed = [], [], 0.0, 0.0
    shares = [sender.share(training, seconds)]
    with stopping(sender.pid):
        for turn in range(fours):
            ratios, seconds_used, seconds_timed = four(training, sender, turn, steps, usual)
            compared.append(ratios)
            used, while_timed = used + seconds_used, while_timed + seconds_timed
            if turn % SAME_EVERY == 0:
                same.append(loop_four(training.on, training.on, steps, turn // SAME_EVERY, usual)[0])
    sender.share(training, min(seconds, 3.0))
    shares.append(sender.share(training, seconds))
    run.finish()
    kill(sender.pid)
    wall, cpu = zip(*compared, strict=True)
    told = {"wall": wall, "cpu": cpu, "same": same, "step": usual}
    print(json.dumps({**told, "usual_share": statistics.mean(shares), "share": used / while_timed}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
