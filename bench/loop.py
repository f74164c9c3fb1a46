"""How much a real training loop is slowed: torch on one CPU thread, 2 ms steps, 10 scalars and 3 phases per step.

Blocks of about 8 ms, recorded or not, in the order ABBA and BAAB in turn, in one process; after every few such fours
come four blocks that compare nothing with nothing (A/A), and four that call a recorder which does nothing. The median
ratio of the fours comes with a bootstrap interval (95 %). What neighbours on a shared machine do changes from second to
second: blocks are short, and many. The first step of a block is not timed: after a change its code is colder than
that of a training, which never changes (measured: 18 us instead of 11). A step that another program has stopped, five
times as long as the usual one, counts as those five.
"""

from __future__ import annotations

import copy
import importlib.util
import json
import sys
import time
from pathlib import Path
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any

import numpy as np

from bench.figure import Figure, Options
from bench.processes import output_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

BLOCK_SECONDS = 0.008
STEP_SECONDS = 0.002
FOURS, BESIDE_EVERY = 4800, 3
"""Fours that compare; and after how many of them the ones beside."""
RESAMPLES = 4000
LONGEST = 5.0
"""Usual steps that one counts at most: nothing of ours takes so long, but being stopped does."""
Clocks = tuple[float, float]
"""Wall seconds and CPU seconds of the thread."""


def measure(options: Options) -> list[Figure]:
    """Return the slow-down, and what the same reckoning says where nothing differs."""
    what = "torch CPU loop, 2 ms steps: slowed (upper bound)"
    if importlib.util.find_spec("torch") is None:
        return [Figure(key, what, None, "%", None, "torch not installed") for key in ("loop", "loop_aa", "loop_empty")]
    fours = 60 if options.quick else FOURS
    printed, _, _ = output_of("-m", "bench.loop", str(options.scratch / "loop"), str(fours))
    told = json.loads(printed.splitlines()[-1])
    wall, cpu, same, empty = (interval(np.array(told[key])) for key in ("wall", "cpu", "same", "empty"))
    beside = f"{shown(wall)}, thread CPU {shown(cpu)}, {4 * fours} blocks, step {told['step'] * 1e3:.2f} ms"
    outside = max(0.0, same[1], -same[2]) if same[1] * same[2] > 0 else 0.0
    return [
        Figure("loop", what, wall[2], "%", 1.0, beside),
        Figure("loop_aa", "  A/A: distance of its interval from 0", outside, "%", 0.0, shown(same)),
        Figure("loop_empty", "  the same calls of a recorder that does nothing", empty[2], "%", None, shown(empty)),
    ]


def interval(
    ratios: NDArray[np.float64], middle: Callable[[NDArray[np.float64]], Any] = np.median, seed: int = 0
) -> tuple[float, float, float]:
    """Return the middle of ratios as percent above 1, and its bootstrap interval (95 %).

    The median is the sharper one where all blocks are alike; where a few are to count for what they are, it is a
    (geometric) mean. Of noise the arithmetic mean of ratios makes more than 1, also where nothing differs.
    """
    chance, logs = np.random.default_rng(seed), np.log(ratios)
    drawn = [middle(logs[chance.integers(0, len(logs), len(logs))]) for _ in range(RESAMPLES)]
    low, high = np.percentile(drawn, [2.5, 97.5])
    return tuple(float(np.expm1(one) * 100) for one in (middle(logs), low, high))  # type: ignore[return-value]


def trimmed(logs: NDArray[np.float64]) -> float:
    """Return the mean without the lowest and highest fifth, which on a shared machine are the neighbours' doing."""
    out = len(logs) // 5
    return float(np.sort(logs)[out : len(logs) - out].mean())


def shown(found: tuple[float, float, float]) -> str:
    """Return a difference with its interval, in percent."""
    return f"{found[0]:+.2f} % [{found[1]:+.2f}, {found[2]:+.2f}]"


class Training:
    """A small network on one thread, wide enough that a step takes about two milliseconds."""

    def __init__(self, torch: Any, run: Any) -> None:
        """Build it for a first guess of the width."""
        self.torch, self.run = torch, run
        self.build(384)

    def build(self, width: int) -> None:
        """Make the network anew."""
        torch, nn = self.torch, self.torch.nn
        torch.manual_seed(0)
        self.width = width
        self.net = nn.Sequential(
            nn.Linear(256, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10)
        )
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=1e-3)
        self.x, self.y = torch.randn(64, 256), torch.randint(0, 10, (64,))

    def calibrate(self) -> float:
        """Choose the width for steps of two milliseconds; return what they take, in seconds."""
        took = 0.0
        for _ in range(20):
            self.off(20)
            took = float(np.median([timed(self.off, 10)[0] / 10 for _ in range(25)]))
            if abs(took / STEP_SECONDS - 1) < 0.04:
                break
            self.build(max(16, round(self.width * (STEP_SECONDS / took) ** 0.6)))
        return took

    def off(self, steps: int) -> None:
        """Train without a recorder."""
        loss_of = self.torch.nn.functional.cross_entropy
        for _ in range(steps):
            self.optimizer.zero_grad()
            loss = loss_of(self.net(self.x), self.y)
            loss.backward()
            self.optimizer.step()
            loss.item()

    def on(self, steps: int) -> None:
        """Train and record: a step, three phases, ten scalars."""
        loss_of, run = self.torch.nn.functional.cross_entropy, self.run
        for at in range(steps):
            with run.step(samples=64):
                with run.phase("forward"):
                    self.optimizer.zero_grad()
                    loss = loss_of(self.net(self.x), self.y)
                with run.phase("backward"):
                    loss.backward()
                with run.phase("optimizer"):
                    self.optimizer.step()
                value = loss.item()
                run.log(
                    {
                        "loss": value,
                        "learning_rate": 1e-3,
                        "grad_norm": value * 2,
                        "accuracy": 0.5,
                        "epoch": 1,
                        "tokens": at,
                        "scale": 1.0,
                        "ema": value * 0.9,
                        "kl": 0.1,
                        "entropy": 2.3,
                    }
                )

    def beside(self, run: Any) -> Callable[[int], None]:
        """Return `on` for another recorder, as code of its own: the interpreter specialises each for what it calls."""
        other = copy.copy(self)
        other.run = run
        own = FunctionType(Training.on.__code__.replace(), globals())
        return MethodType(own, other)


class Empty:
    """A recorder that does nothing: what the calls themselves cost in Python."""

    def step(self, samples: float | None = None) -> Empty:  # noqa: ARG002 - as a run has it
        """Return a context."""
        return self

    def phase(self, name: str) -> Empty:  # noqa: ARG002 - likewise
        """Return a context."""
        return self

    def log(self, values: dict[str, float]) -> None:
        """Forget the values."""

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(self, *_: object) -> None:
        """Do nothing."""


def timed(block: Callable[[int], None], steps: int, usual: float = float("inf")) -> Clocks:
    """Return what a block takes, steps far longer than the `usual` seconds cut."""
    clock, longest = time.perf_counter, LONGEST * usual
    wall, cpu = 0.0, time.thread_time()
    for _ in range(steps):
        begun = clock()
        block(1)
        wall += min(longest, clock() - begun)
    return wall, time.thread_time() - cpu


def four(
    one: Callable[[int], None], other: Callable[[int], None], steps: int, turn: int, usual: float = float("inf")
) -> Clocks:
    """Return the ratio other/one over the blocks one, other, other, one (or the reverse, in turn)."""
    order = (0, 1, 1, 0) if turn % 2 else (1, 0, 0, 1)
    total = np.zeros((2, 2))
    for which in order:
        block = other if which else one
        block(1)
        total[which] += timed(block, steps, usual)
    wall, cpu = total[1] / total[0]
    return float(wall), float(cpu)


def main(arguments: list[str]) -> int:
    """Train in this process and print the ratios as JSON."""
    import torch

    import stepscope

    torch.set_num_threads(1)
    run = stepscope.init(project="loop", dir=Path(arguments[0]))
    training = Training(torch, run)
    step = training.calibrate()
    steps = max(1, round(BLOCK_SECONDS / step))
    training.on(steps)
    nothing = training.beside(Empty())
    nothing(steps)
    compared, same, empty = [], [], []
    for turn in range(int(arguments[1])):
        compared.append(four(training.off, training.on, steps, turn, step))
        if turn % BESIDE_EVERY == 0:
            other = turn // BESIDE_EVERY
            same.append(four(training.off, training.off, steps, other, step)[0])
            empty.append(four(training.off, nothing, steps, other, step)[0])
    run.finish()
    wall, cpu = zip(*compared, strict=True)
    print(json.dumps({"wall": wall, "cpu": cpu, "same": same, "empty": empty, "step": step}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
