"""A small real training with planted faults: the program that `stepscope demo` starts and watches.

A two-layer numpy network learns to classify four spirals. Every recorded value is measured; only the pace is set by
short sleeps, so that a person can watch. The same seed gives the same loss curve.
"""

from __future__ import annotations

import json
import math
import os
import resource
import signal
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import numpy as np

from stepscope.session.opening import init

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from stepscope.session.run import Run

    Array = NDArray[np.float64]
    Batch = tuple[Array, NDArray[np.int64]]

CLASSES = 4
BATCH = 256
WIDTH = 128
PEAK_RATE = 1.0
MOMENTUM = 0.9
LEAK_BYTES = 96 << 10
"""Bytes that the leak keeps at each step."""
PACE = {"data": 0.005, "forward": 0.012, "backward": 0.020, "optimizer": 0.006, "evaluation": 0.3, "checkpoint": 0.15}
"""Seconds of sleep per phase at speed 1, beside its real work."""
STALL_SECONDS = 0.14
"""Further seconds that each batch of the stall waits, at speed 1."""
READY = "recording "
"""Start of the line on stdout that names the run's folder."""


@dataclass(frozen=True)
class DemoSettings:
    """Settings of a training."""

    steps: int
    seed: int = 1
    speed: float = 1.0
    project: str = "demo"
    dir: str | None = None

    def encode(self) -> str:
        """Return the settings as one argument."""
        return json.dumps(asdict(self))


@dataclass(frozen=True)
class Plan:
    """At which steps the faults are planted; `range` where a fault lasts."""

    stall: range
    spike: int
    leak: range
    checkpoint: int
    evaluations: range


def plan(steps: int) -> Plan:
    """Return the plan of a training: the same shares of any number of steps."""
    stall = steps * 28 // 100
    return Plan(
        stall=range(stall, min(steps, stall + max(1, steps // 20))),
        spike=steps * 48 // 100,
        leak=range(steps * 55 // 100, steps),
        checkpoint=steps * 70 // 100,
        evaluations=range(max(1, steps // 5), steps, max(1, steps // 5)),
    )


def learning_rate(step: int, steps: int) -> float:
    """Return the learning rate of a step: linear warm-up over a tenth of the run, then half a cosine down to 0."""
    warm = max(1, steps // 10)
    if step < warm:
        return PEAK_RATE * (step + 1) / warm
    return PEAK_RATE * 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, steps - warm)))


def spirals(random: np.random.Generator, count: int) -> Batch:
    """Return `count` noisy points of each spiral, and which spiral each is on."""
    along = random.random((CLASSES, count))
    turn = np.arange(CLASSES)[:, None] * 2 * np.pi / CLASSES
    angle = turn + along * 5.5 + random.normal(0, 0.16, along.shape)
    radius = 0.15 + along
    points = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=-1)
    return points.reshape(-1, 2), np.repeat(np.arange(CLASSES), count)


class Loader:
    """Batches of noisy points; slow for a while, with one corrupted batch."""

    def __init__(
        self, points: Batch, steps: int, faults: Plan, random: np.random.Generator, pause: Callable[[float], None]
    ) -> None:
        """Draw `steps` batches from `points`; `pause` sleeps so many seconds."""
        self._points, self._steps, self._faults, self._random, self._pause = points, steps, faults, random, pause

    def __len__(self) -> int:
        """Return the number of batches."""
        return self._steps

    def __iter__(self) -> Iterator[Batch]:
        """Yield inputs and labels."""
        points, labels = self._points
        for step in range(self._steps):
            chosen = self._random.integers(0, len(labels), BATCH)
            x, y = points[chosen] + self._random.normal(0, 0.02, (BATCH, 2)), labels[chosen]
            if step == self._faults.spike:
                x, y = x * 4, self._random.permutation(y)
            self._pause(PACE["data"] + STALL_SECONDS * (step in self._faults.stall))
            yield x, y


class Network:
    """Two layers with tanh between them and softmax behind, trained by gradient descent with momentum."""

    def __init__(self, random: np.random.Generator) -> None:
        """Start from random weights."""
        self.weights: list[Array] = [
            random.normal(0, 1.5, (2, WIDTH)),
            random.normal(0, 1, WIDTH),
            random.normal(0, WIDTH**-0.5, (WIDTH, CLASSES)),
            np.zeros(CLASSES),
        ]
        self._moving = [np.zeros_like(weight) for weight in self.weights]

    def forward(self, x: Array) -> tuple[Array, Array]:
        """Return the hidden layer and the probability of each class."""
        first, first_bias, second, second_bias = self.weights
        hidden = np.tanh(x @ first + first_bias)
        scores = hidden @ second + second_bias
        powers = np.exp(scores - scores.max(axis=1, keepdims=True))
        return hidden, powers / powers.sum(axis=1, keepdims=True)

    def backward(self, x: Array, y: NDArray[np.int64], hidden: Array, found: Array) -> list[Array]:
        """Return the gradient of the mean cross-entropy."""
        error = found.copy()
        error[np.arange(len(y)), y] -= 1
        error /= len(y)
        inner = (error @ self.weights[2].T) * (1 - hidden * hidden)
        return [x.T @ inner, inner.sum(axis=0), hidden.T @ error, error.sum(axis=0)]

    def update(self, gradient: list[Array], rate: float) -> None:
        """Move the weights against the gradient."""
        for place, slope in enumerate(gradient):
            self._moving[place] = MOMENTUM * self._moving[place] - (1 - MOMENTUM) * rate * slope
            self.weights[place] += self._moving[place]


def loss_of(found: Array, y: NDArray[np.int64]) -> float:
    """Return the mean cross-entropy."""
    return float(-np.log(found[np.arange(len(y)), y] + 1e-12).mean())


def accuracy_of(found: Array, y: NDArray[np.int64]) -> float:
    """Return the share of right answers."""
    return float((found.argmax(axis=1) == y).mean())


def resident_bytes(statm: str = "/proc/self/statm") -> int:
    """Return the resident memory of this process in bytes; its peak where the system reports no current value."""
    try:
        with open(statm, encoding="ascii") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except (OSError, ValueError, IndexError):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


class Training:
    """A training with planted faults."""

    def __init__(self, run: Run, settings: DemoSettings, stopped: Callable[[], bool] = lambda: False) -> None:
        """Prepare data and network; `stopped` is asked before each step."""
        self.run, self.settings, self._stopped = run, settings, stopped
        self.faults = plan(settings.steps)
        seeds = np.random.SeedSequence(settings.seed).spawn(4)
        data, held_out, batches, weights = (np.random.default_rng(seed) for seed in seeds)
        self._held_out = spirals(held_out, 500)
        self._loader = Loader(spirals(data, 2000), settings.steps, self.faults, batches, self._pause)
        self._network = Network(weights)
        self._leak: list[Array] = []

    def _pause(self, seconds: float) -> None:
        time.sleep(seconds / self.settings.speed)

    def all(self) -> bool:
        """Train to the end; return False if stopped before."""
        for step, (x, y) in enumerate(self.run.data(self._loader)):
            if self._stopped():
                self.run.event("stopped", step=step)
                return False
            with self.run.step(samples=len(y)):
                self._step(step, x, y)
                self._plant(step)
            self._between(step)
        self._evaluate()
        return True

    def _step(self, step: int, x: Array, y: NDArray[np.int64]) -> None:
        run, network = self.run, self._network
        rate = learning_rate(step, self.settings.steps)
        with run.phase("forward"):
            hidden, found = network.forward(x)
            loss = loss_of(found, y)
            self._pause(PACE["forward"])
        with run.phase("backward"):
            gradient = network.backward(x, y, hidden, found)
            norm = math.sqrt(sum(float((part * part).sum()) for part in gradient))
            self._pause(PACE["backward"])
        with run.phase("optimizer"):
            network.update(gradient, rate)
            self._pause(PACE["optimizer"])
        if step in self.faults.leak:
            self._leak.append(hidden.ravel()[: LEAK_BYTES // hidden.itemsize].copy())
        values = {"loss": loss, "accuracy": accuracy_of(found, y), "learning_rate": rate, "grad_norm": norm}
        run.log({**values, "process/memory_bytes": resident_bytes()})

    def _plant(self, step: int) -> None:
        """Record the fault planted at this step as an event, so that detectors can be checked against it."""
        faults, event = self.faults, self.run.event
        if step == faults.stall.start:
            event("planted", what="data stall", until=faults.stall.stop - 1, why="the loader waits before each batch")
        if step == faults.spike:
            event("planted", what="loss spike", why="one corrupted batch: inputs times 4, labels shuffled")
        if step == faults.leak.start:
            event("planted", what="memory leak", until=faults.leak.stop - 1, why="a list keeps 96 KiB of every step")

    def _between(self, step: int) -> None:
        """Run what happens between two steps: evaluation and checkpoint."""
        if step + 1 in self.faults.evaluations:
            self.run.event("planted", what="evaluation", why="held-out data, between two steps")
            self._evaluate()
        if step == self.faults.checkpoint:
            self._save()

    def _evaluate(self) -> None:
        with self.run.phase("evaluation"):
            x, y = self._held_out
            _, found = self._network.forward(x)
            self._pause(PACE["evaluation"])
        self.run.log({"validation/loss": loss_of(found, y), "validation/accuracy": accuracy_of(found, y)})

    def _save(self) -> None:
        with self.run.phase("checkpoint"), tempfile.TemporaryFile() as file:
            np.savez(file, *self._network.weights)
            size = file.tell()
            os.fsync(file.fileno())
            self._pause(PACE["checkpoint"])
        self.run.event("checkpoint", bytes=size, why="weights written and synced")


def main(arguments: list[str]) -> int:
    """Train; return 0 at the end, 130 if stopped before, 1 if nothing can be recorded."""
    settings, parent, signals = DemoSettings(**json.loads(arguments[0])), os.getppid(), list[int]()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: signals.append(number))
    given = {"--steps": settings.steps, "--seed": settings.seed, "--speed": settings.speed}
    words = (str(word) for pair in given.items() for word in pair)
    sys.argv = ["stepscope", "demo", *words]  # the process that started the run
    config: dict[str, float] = {"max_steps": settings.steps, "seed": settings.seed, "batch": BATCH}
    config |= {"width": WIDTH, "peak_rate": PEAK_RATE, "classes": CLASSES}
    with init(project=settings.project, name="demo", config=config, dir=settings.dir) as run:
        if not run.recording:
            return 1
        sys.stdout.write(f"{READY}{run.path}\n")
        sys.stdout.flush()
        training = Training(run, settings, lambda: bool(signals) or os.getppid() != parent)  # or the parent is gone
        return 0 if training.all() else 130
