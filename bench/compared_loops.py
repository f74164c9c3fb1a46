"""Torch loops for the gate: one program four times over, as it is, again, and with 3 and 10 % more work.

They run in three orders. *Step by step*: the loops take turns at every step, the closest comparison possible; the gate
is judged against this order. *Run by run*: they take turns as short runs, A B A B, as `docs/howto/compare.md` advises.
*One after the other*: each loop is one run, like two CI jobs. This is the hardest case, because a disturbance of the
machine affects only one of the runs: if the machine's own speed varies by 15 % from second to second, a 3 % increase in
a one-second run must be reported as *undecided*.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from bench.figure import Figure, Options
from bench.processes import python

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from stepscope.analysis.compare.recording import Group

GATE = "step_seconds +3%"
PAIRS, STEPS = 40, 2000
PLANTED = (0.0, 0.0, 0.03, 0.10)
"""Work that each of the four loops has more; the first is A."""
STEP_BY_STEP, RUN_BY_RUN, AFTER = "gate", "gate_turns", "gate_after"
ORDERS = {
    STEP_BY_STEP: "torch loops in turn, step by step",
    RUN_BY_RUN: "in turn as 5 short runs each",
    AFTER: "one after the other, one run each",
}
DRAWN = "gate_drawn"
"""One after the other, with the work added to the recorded times instead of to the program."""
ROUNDS = 5
TOLERATED = 3
"""False failures of 40 that a rate of 2.5 % may show by chance (in 98 of 100 benchmarks)."""
KEYS = [f"{order}_{what}" for order in ORDERS for what in ("equal", "3", "10")] + [f"{DRAWN}_3", f"{DRAWN}_10"]
MOST_SECONDS = 660.0
"""After which no further pair is begun: on a busy machine there are fewer."""

Row = tuple[float, list[float]]
"""When a run began, and the seconds of its steps."""


def loops(options: Options) -> list[Figure]:
    """Return how often the gate fails for equal loops, and how often it misses planted work."""
    pairs, steps = (2, 400) if options.quick else (PAIRS, STEPS)
    told: list[dict[str, Any]] = []
    began = time.monotonic()
    with python("-W", "ignore", "-m", "bench.compared_loops", str(pairs), str(steps), stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        for line in child.stdout:
            told.append(json.loads(line))
            _say(len(told), pairs * len(ORDERS), began)
    if child.returncode:
        raise RuntimeError(f"the loops ended with {child.returncode}")
    figures = []
    for order, what in ORDERS.items():
        mine = [one["loops"] for one in told if one["order"] == order]
        seen = f"{len(mine)} pairs of {steps} steps"
        figures += _figures(order, what, [judged([group(runs) for runs in four]) for four in mine], seen)
    drawn = [judged(_with_work(one["loops"][:2])) for one in told if one["order"] == AFTER]
    return [*figures, *_figures(DRAWN, "one after the other, work added to the times", drawn, "as above")[1:]]


def _say(done: int, all_: int, began: float) -> None:
    """Say on standard error how far the loops are."""
    if done % 6 == 0 or done == all_:
        seconds = time.monotonic() - began
        left = seconds * (all_ - done) / done
        print(
            f"  {done} of {all_} sets of loops, {seconds:.0f} s, about {left:.0f} s left", file=sys.stderr, flush=True
        )


def _figures(key: str, what: str, results: Sequence[list[tuple[str, float]]], seen: str) -> list[Figure]:
    """Return what the gate did with the loops of one order."""
    counts = {word: [sum(row[at][0] == word for row in results) for at in range(3)] for word in ("failed", "undecided")}
    width = float(np.median([row[0][1] for row in results])) * 50
    false, small, large = (100 * count / len(results) for count in counts["failed"])
    unsure = [f"undecided {count} of {len(results)}" for count in counts["undecided"]]
    limits = (10.0, 0.0) if key == STEP_BY_STEP else (None, None)
    unsure[0] = f"{seen}, interval of ±{width:.2g} %, {unsure[0]}"
    return [
        Figure(f"{key}_equal", f"{what}, gate {GATE}: equal ones fail", false, "%", 100 * TOLERATED / PAIRS, unsure[0]),
        Figure(f"{key}_3", f"  3 % more work: missed{_aside(key)}", 100 - small, "%", limits[0], unsure[1]),
        Figure(f"{key}_10", f"  10 % more work: missed{_aside(key)}", 100 - large, "%", limits[1], unsure[2]),
    ]


def _aside(key: str) -> str:
    return " (added to the times)" if key == DRAWN else ""


def judged(groups: Sequence[Group]) -> list[tuple[str, float]]:
    """Return the gate's result, and the width of the interval, of each group beside the first."""
    from stepscope.analysis.compare.comparison import compare_one
    from stepscope.analysis.compare.gate import Gate, judge

    gate = Gate.parse(GATE)
    found = [compare_one(gate.spec, groups[0], other).found for other in groups[1:]]
    return [(judge(gate, one).result, (one.high or 0.0) - (one.low or 0.0)) for one in found]


def group(runs: Sequence[Row]) -> Group:
    """Return the runs of one loop."""
    from stepscope.analysis.compare.recording import Curve, Group, Recording

    found = []
    for begin, seconds in runs:
        value = np.array(seconds)
        curve = Curve(np.arange(len(value)), np.cumsum(value), value)
        found.append(Recording("run", {"step_seconds": curve}, span=(begin, begin + float(value.sum()))))
    return Group("loop", tuple(found))


def _with_work(two: Sequence[Sequence[Row]]) -> list[Group]:
    """Return two equal loops, and the second again with 3 and 10 % of an undisturbed step added to every step."""
    first, second = two
    usual = float(np.quantile(np.concatenate([seconds for _, seconds in first]), 0.01))
    longer = [
        group([(begin, [one + more * usual for one in seconds]) for begin, seconds in second]) for more in PLANTED[1:]
    ]
    return [group(first), *longer]


class Loop:
    """A small training, with some work more."""

    def __init__(self, torch: Any, more: float = 0.0) -> None:
        torch.manual_seed(0)
        layers = torch.nn.Linear(128, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10)
        self._model = torch.nn.Sequential(*layers)
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=0.01)
        self._data = torch.randn(64, 128), torch.randint(0, 10, (64,))
        self._loss = torch.nn.functional.cross_entropy
        self._more = more

    def step(self) -> float:
        """Return the seconds of one step; work more is a share of what this very step took, whatever disturbed it."""
        started = time.perf_counter()
        self._optimizer.zero_grad()
        loss = self._loss(self._model(self._data[0]), self._data[1])
        loss.backward()
        self._optimizer.step()
        loss.item()
        now = time.perf_counter()
        end = started + (now - started) * (1 + self._more)
        while now < end:
            now = time.perf_counter()
        return now - started


def main(arguments: list[str]) -> int:
    """Train four loops for each pair, in each order; print their runs, a line each."""
    import torch

    torch.set_num_threads(1)
    pairs, steps = map(int, arguments)
    draw = random.Random(0)
    orders: dict[str, Callable[[list[Loop], int, random.Random], list[list[Row]]]]
    orders = {STEP_BY_STEP: step_by_step, RUN_BY_RUN: run_by_run, AFTER: one_after_the_other}
    end = time.monotonic() + MOST_SECONDS
    for number in range(pairs):
        if number > 1 and time.monotonic() > end:
            break
        for name, order in orders.items():
            four = [Loop(torch, more) for more in PLANTED]
            print(json.dumps({"order": name, "loops": order(four, steps, draw)}), flush=True)
    return 0


def step_by_step(four: list[Loop], steps: int, draw: random.Random) -> list[list[Row]]:
    """Let loops take turns with every step; none may always follow itself, for it would be warm."""
    began = time.time()
    rows: list[list[float]] = [[] for _ in four]
    for _ in range(steps):
        for place in draw.sample(range(len(four)), len(four)):
            rows[place].append(four[place].step())
    return [[(began, row)] for row in rows]


def run_by_run(four: list[Loop], steps: int, draw: random.Random) -> list[list[Row]]:
    """Let loops take turns with short runs, each round in an order of its own."""
    rows: list[list[Row]] = [[] for _ in four]
    for _ in range(ROUNDS):
        for place in draw.sample(range(len(four)), len(four)):
            rows[place].append((time.time(), [four[place].step() for _ in range(steps // ROUNDS)]))
    return rows


def one_after_the_other(four: list[Loop], steps: int, draw: random.Random) -> list[list[Row]]:
    """Let each loop be one run; the first stays the first, as the runs of a baseline do."""
    rows: list[list[Row]] = [[] for _ in four]
    for place in (0, *draw.sample(range(1, len(four)), len(four) - 1)):
        rows[place].append((time.time(), [four[place].step() for _ in range(steps)]))
    return rows


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
