"""Whether a pause of 20 ms, planted in one phase of some steps, is found there to the millisecond, and in no other.

A real torch training under `stepscope run`, with a loader, a checkpoint, an evaluation and log lines. Each phase has
its turn; steps with and without the pause alternate, so that a slow moment of the machine meets both.
"""

from __future__ import annotations

import importlib.util
import logging
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from bench.figure import Figure, Options
from bench.processes import environment, output_of

PAUSE = 0.02
"""Seconds that are planted."""
PHASES = ("data", "forward", "backward", "optimizer", "checkpoint", "evaluation", "logging", "other")
BETWEEN = ("checkpoint", "evaluation", "logging")
"""What lies between two steps here, and so belongs to the one that it delays."""
PAIRS, QUICK_PAIRS = 24, 4
LIMIT_MS = 1.0


def measure(options: Options) -> list[Figure]:
    """Return the largest error of a planted pause in its own phase, and the most that another phase got of it."""
    found, leaked = "planted 20 ms: error in its phase", "  most that another phase got"
    if importlib.util.find_spec("torch") is None:
        missing = "torch not installed"
        return [
            Figure("planted", found, None, "ms", LIMIT_MS, missing),
            Figure("planted_elsewhere", leaked, None, "ms", LIMIT_MS, missing),
        ]
    pairs = QUICK_PAIRS if options.quick else PAIRS
    root = options.scratch / "phases"
    arguments = ("-m", "stepscope", "run", "--dir", str(root), "--project", "planted", "-m", "bench.phases", str(pairs))
    quiet = {"OMP_NUM_THREADS": "1", "STEPSCOPE_RECORDER_OVERHEAD_BUDGET": "1"}
    output_of(*arguments, env=environment(**quiet))
    longer = differences(root, pairs)
    own = {phase: abs(by_name[phase] - PAUSE * 1e3) for phase, by_name in longer.items()}
    other = {
        (phase, name): abs(value)
        for phase, by_name in longer.items()
        for name, value in by_name.items()
        if name != phase
    }
    worst, most = max(own, key=lambda phase: own[phase]), max(other, key=lambda pair: other[pair])
    return [
        Figure("planted", found, own[worst], "ms", LIMIT_MS, f"worst in {worst}; {', '.join(own)}"),
        Figure("planted_elsewhere", leaked, other[most], "ms", LIMIT_MS, f"of {most[0]}, in {most[1]}"),
    ]


def differences(root: Path, pairs: int) -> dict[str, dict[str, float]]:
    """Return for each planted phase how much longer each phase is with the pause, as the median over pairs, in ms."""
    import stepscope

    [info] = stepscope.runs(root)
    past = stepscope.open(info.path)
    steps = len(PHASES) * pairs * 2
    table = {}
    for name in PHASES:
        series = past.series(f"phase/{name}")
        table[name] = np.zeros(steps + 1)
        table[name][series.step] = series.value * 1e3
    found = {}
    for at, phase in enumerate(PHASES):
        first = at * pairs * 2 + (phase in BETWEEN)
        rows = {name: row[first : first + pairs * 2].reshape(pairs, 2) for name, row in table.items()}
        found[phase] = {name: float(np.median(row[:, 1] - row[:, 0])) for name, row in rows.items()}
    return found


class Plan:
    """Which step has its pause where."""

    def __init__(self, pairs: int) -> None:
        """Give each phase so many pairs of steps."""
        self.pairs, self.step = pairs, 0

    def pause(self, phase: str) -> None:
        """Pause if it is this phase's turn in a step that has one."""
        turn, rest = divmod(self.step, self.pairs * 2)
        if turn < len(PHASES) and PHASES[turn] == phase and rest % 2:
            time.sleep(PAUSE)


def items(torch: Any, plan: Plan) -> Any:
    """Return a dataset with four items for every step; the first of them may take its time."""

    class Items(torch.utils.data.Dataset):  # type: ignore[misc, name-defined]
        def __len__(self) -> int:
            return (len(PHASES) * plan.pairs * 2 + 1) * 4

        def __getitem__(self, index: int) -> Any:
            if index % 4 == 0:
                plan.pause("data")
            return torch.full((32,), float(index % 7)), index % 2

    return Items()


def network(torch: Any, plan: Plan) -> Any:
    """Return a network whose passes may take their time."""

    class Slow(torch.autograd.Function):  # type: ignore[misc, name-defined]
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:  # noqa: ARG004 - torch's shape
            plan.pause("forward")
            return x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:  # noqa: ARG004 - torch's shape
            plan.pause("backward")
            return gradient

    class Net(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 2))

        def forward(self, x: Any) -> Any:
            return Slow.apply(self.layers(x)) if self.training else self.layers(x)

    return Net()


def optimizer_of(torch: Any, plan: Plan, model: Any) -> Any:
    """Return an optimizer whose steps may take their time."""

    class Optimizer(torch.optim.SGD):  # type: ignore[misc, name-defined]
        def step(self, closure: Any = None) -> Any:
            plan.pause("optimizer")
            return super().step(closure)

    return Optimizer(model.parameters(), lr=0.01)


class Saved:
    """Something whose saving may take its time."""

    def __init__(self, plan: Plan) -> None:
        """Ask `plan`."""
        self._plan = plan

    def __reduce__(self) -> tuple[Any, ...]:
        """Be saved as a number."""
        self._plan.pause("checkpoint")
        return int, (1,)


class Lines(logging.Handler):
    """A handler that may take its time."""

    def __init__(self, plan: Plan) -> None:
        """Ask `plan`."""
        super().__init__()
        self._plan = plan

    def emit(self, record: logging.LogRecord) -> None:  # noqa: ARG002 - nobody reads it
        """Write nothing."""
        self._plan.pause("logging")


def train(torch: Any, plan: Plan, folder: Path) -> None:
    """Train: every step has every phase."""
    logger = logging.getLogger("planted")
    logger.addHandler(Lines(plan))
    model = network(torch, plan)
    optimizer, loss_of = optimizer_of(torch, plan, model), torch.nn.functional.cross_entropy
    held_out = torch.utils.data.DataLoader([torch.zeros(32)] * 4, batch_size=4)
    for x, y in torch.utils.data.DataLoader(items(torch, plan), batch_size=4):
        optimizer.zero_grad()
        loss_of(model(x), y).backward()
        optimizer.step()
        plan.pause("other")
        model.eval()
        with torch.no_grad():
            for batch in held_out:
                model(batch)
                plan.pause("evaluation")
        model.train()
        torch.save(Saved(plan), folder / "weights.pt")
        logger.warning("a line")
        plan.step += 1


def main(arguments: list[str]) -> int:
    """Train in this process, which `stepscope run` has instrumented."""
    import torch

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        train(torch, Plan(int(arguments[0])), Path(folder))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
