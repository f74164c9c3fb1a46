"""What it costs that another tracker's calls are caught, beyond these calls: W&B, SummaryWriter, and a training.

Calls: blocks of them caught or not, in the order ABBA and BAAB in turn, in one process; the CPU time of the thread, so
that the tracker's own threads and processes do not count. Each four gives one difference; their median has a bootstrap
interval. The tracker's call takes fifty times as long as what is measured: so the same wrapper around a call that does
nothing is measured beside it. Loop: as bench/loop.py, a torch network with steps of 2 ms that logs its loss
to a SummaryWriter in each; caught, or to a writer of a copied class that is not.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import sys
from functools import partial
from pathlib import Path
from time import thread_time_ns
from types import FunctionType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from bench.figure import Figure, Options
from bench.loop import BLOCK_SECONDS, Training, four, interval, shown
from bench.peers import KEYS, rows
from bench.processes import output_of

if TYPE_CHECKING:
    from collections.abc import Callable

CALLS = {"wandb": ("wandb.log of 10 scalars", 5.0), "tensorboard": ("SummaryWriter.add_scalar", 2.0)}
"""What is called, and the most microseconds that catching may add."""
LOOP, LOOP_LIMIT = "loop", 0.5
BLOCK, WARM = 40, 20
"""Calls of a block, and of those before it that are not timed."""
FOURS, QUICK_FOURS = {"wandb": 1500, "tensorboard": 3000, LOOP: 1600}, 30


def measure(options: Options) -> list[Figure]:
    """Return the cost of a call of each tracker, and the slow-down of a training that logs."""
    found = []
    for name, (what, limit) in CALLS.items():
        told = _told(options, name)
        if told is None:
            found.append(Figure(f"catch_{name}", f"{what}, caught: more", None, "µs", limit, f"{name} not installed"))
            continue
        middle, low, high = _median(told["more"])
        beside = (
            f"[{low:.2f}, {high:.2f}], of a call of {told['call']:.0f} µs; around an empty call {told['empty']:.2f} µs"
        )
        found.append(Figure(f"catch_{name}", f"{what}, caught: more", middle, "µs", limit, beside))
    what = "torch loop, 2 ms steps, add_scalar of the loss in each, caught: slowed (upper bound)"
    told = _told(options, LOOP)
    if told is None:
        return [*found, Figure("catch_loop", what, None, "%", LOOP_LIMIT, "tensorboard not installed")]
    wall, same = (interval(np.array(told[key])) for key in ("wall", "same"))
    outside = max(0.0, same[1], -same[2]) if same[1] * same[2] > 0 else 0.0
    beside = f"{shown(wall)}, step {told['step'] * 1e3:.2f} ms"
    return [
        *found,
        Figure("catch_loop", what, wall[2], "%", LOOP_LIMIT, beside),
        Figure("catch_loop_aa", "  A/A: distance of its interval from 0", outside, "%", 0.0, shown(same)),
    ]


def _told(options: Options, name: str) -> Any:
    needs = ("wandb",) if name == "wandb" else ("torch", "tensorboard")
    if any(importlib.util.find_spec(one) is None for one in needs):
        return None
    fours = QUICK_FOURS if options.quick else FOURS[name]
    folder = options.scratch / f"catching-{name}"
    folder.mkdir(parents=True)
    printed, _, _ = output_of("-m", "bench.catching", name, str(folder), str(fours), cwd=folder)
    return json.loads(printed.splitlines()[-1])


def _median(values: list[float], seed: int = 0) -> tuple[float, float, float]:
    """Return the median of differences, and its bootstrap interval (95 %)."""
    chance, given = np.random.default_rng(seed), np.array(values)
    drawn = [np.median(given[chance.integers(0, len(given), len(given))]) for _ in range(1000)]
    low, high = np.percentile(drawn, [2.5, 97.5])
    return float(np.median(given)), float(low), float(high)


class Switch:
    """Catching, put on and taken off outside of what is timed; the wrappers stay the same, as in a training."""

    def __init__(self, run: Any) -> None:
        """Catch for `run` what is imported already."""
        run.catch()
        self._wrapped = list(run.catching._patches._done)  # noqa: SLF001 - what it would restore
        self.is_on = True

    def turn(self, *, on: bool) -> None:
        """Catch from now on, or not."""
        if on == self.is_on:
            return
        self.is_on = on
        for owner, name, before, wrapper in self._wrapped:
            setattr(owner, name, wrapper if on else before)


def differences(call: Callable[[int], None], switch: Switch, fours: int) -> tuple[list[float], float]:
    """Return by how many microseconds a caught call is longer, per four blocks; and the length of a call."""
    found, plain = [], []
    for turn in range(fours):
        spent = [0, 0]
        for on in (0, 1, 1, 0) if turn % 2 else (1, 0, 0, 1):
            switch.turn(on=bool(on))
            for at in range(WARM):  # code that was just changed is colder than that of a training
                call(at)
            start = thread_time_ns()
            for at in range(BLOCK):
                call(at)
            spent[on] += thread_time_ns() - start
        found.append((spent[1] - spent[0]) / 2 / BLOCK / 1e3)
        plain.append(spent[0] / 2 / BLOCK / 1e3)
    return found, float(np.median(plain))


def _call_wandb(folder: Path) -> tuple[Callable[[int], None], Callable[[], None]]:
    os.environ.update(WANDB_MODE="offline", WANDB_SILENT="true", WANDB_ERROR_REPORTING="false")
    import wandb

    run = wandb.init(project="p", dir=str(folder))
    data = rows(BLOCK)
    return (lambda at: run.log(data[at])), run.finish


def _call_tensorboard(folder: Path) -> tuple[Callable[[int], None], Callable[[], None]]:
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(folder / "tb"))
    return (lambda at: writer.add_scalar(KEYS[0], at * 0.5, at)), writer.close


class EmptyRun:
    """A stand-in for W&B's run that does nothing."""

    _local_step = 0

    def _log(self, data: Any, step: Any = None, commit: Any = None) -> None: ...


class EmptyWriter:
    """A stand-in for a SummaryWriter that does nothing."""

    log_dir = "runs"

    def add_scalar(self, tag: Any, scalar_value: Any, global_step: Any = None) -> None:
        """Do nothing."""


def empty(name: str, run: Any) -> float:
    """Return the microseconds that the same wrapper adds to a call that does nothing."""
    from stepscope.integrations.catching import tensorboard, wandb
    from stepscope.integrations.catching.caught import Caught
    from stepscope.integrations.torch.patches import Patches

    data, caught = rows(BLOCK), Caught(run, lambda _: None)
    one, writer = EmptyRun(), EmptyWriter()
    calls = {
        "wandb": lambda at: one._log(data=data[at], step=None, commit=None),  # noqa: SLF001 - what W&B calls
        "tensorboard": lambda at: writer.add_scalar(KEYS[0], at * 0.5, at),
    }

    def block() -> float:
        start = thread_time_ns()
        for at in range(BLOCK):
            calls[name](at)
        return (thread_time_ns() - start) / BLOCK / 1e3

    plain = float(np.median([block() for _ in range(500)]))
    catch: Callable[..., None] = wandb.catch if name == "wandb" else tensorboard.catch
    module: Any = SimpleNamespace(__name__=f"torch.{name}", Run=EmptyRun, SummaryWriter=EmptyWriter)
    catch(module, caught, Patches())
    return float(np.median([block() for _ in range(500)])) - plain


def own_code(function: Any) -> Any:
    """Return a copy of a function whose code is its own: Python specializes code for the types that it meets."""
    made = FunctionType(
        function.__code__.replace(), function.__globals__, function.__name__, closure=function.__closure__
    )
    made.__defaults__, made.__kwdefaults__ = function.__defaults__, function.__kwdefaults__
    return made


def twin_of(kind: type) -> type:
    """Return a copy of a class that stays as it is when the class is wrapped."""
    content = {name: own_code(one) if isinstance(one, FunctionType) else one for name, one in vars(kind).items()}
    return type(
        kind.__name__, kind.__bases__, {key: content[key] for key in content.keys() - {"__dict__", "__weakref__"}}
    )


def train(training: Training, writer: Any, steps: int) -> None:
    """Train as any script does; each step logs the loss."""
    loss_of = training.torch.nn.functional.cross_entropy
    for step in range(steps):
        training.optimizer.zero_grad()
        loss = loss_of(training.net(training.x), training.y)
        loss.backward()
        training.optimizer.step()
        writer.add_scalar("train/loss", loss.item(), step)


def loop(torch: Any, folder: Path, run: Any, fours: int) -> dict[str, Any]:
    """Return the ratios of blocks caught and not caught, and of equal blocks."""
    from torch.utils.tensorboard import SummaryWriter

    torch.set_num_threads(1)
    training = Training(torch, run)
    step = training.calibrate()
    plain, writer = twin_of(SummaryWriter)(str(folder / "plain")), SummaryWriter(str(folder / "tb"))
    run.catch()
    off, on = (partial(own_code(train), training, one) for one in (plain, writer))
    steps = max(1, round(BLOCK_SECONDS / step))
    compared = [four(off, on, steps, turn, step)[0] for turn in range(fours)]
    same = [four(off, off, steps, turn, step)[0] for turn in range(fours // 2)]
    return {"wall": compared, "same": same, "step": step}


def main(arguments: list[str]) -> int:
    """Measure in this process and print the result as JSON."""
    import stepscope

    name, folder, fours = arguments[0], Path(arguments[1]), int(arguments[2])
    run = stepscope.init(project="catching", dir=folder / "runs")
    with contextlib.redirect_stdout(sys.stderr):
        if name == LOOP:
            import torch

            told = loop(torch, folder, run, fours)
        else:
            call, end = (_call_wandb if name == "wandb" else _call_tensorboard)(folder)
            more, length = differences(call, Switch(run), fours)
            end()
            told = {"more": more, "call": length, "empty": empty(name, run)}
    run.finish()
    print(json.dumps(told))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
