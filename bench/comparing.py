"""Does `stepscope compare` tell real differences from noise? On the repeats of real programs, and on torch loops here.

The real runs are the logs of `../shared/data/modded-nanogpt-runs`: repeats of programs before and after a change, with
the authors' own means. The loops are one program four times over: as it is, again, and with 3 and 10 % more work. They
take turns step by step, as a gate on a machine that others use should be measured; one after the other, as two jobs of
CI are, they are measured beside it. Every loop is one run: one against one, the hardest case.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import random
import sys
import time
from typing import TYPE_CHECKING

import numpy as np

from bench.figure import Figure, Options
from bench.processes import ROOT, output_of

if TYPE_CHECKING:
    from pathlib import Path

    from stepscope.analysis.recording import Group, Recording

DATA = ROOT.parent / "shared" / "data" / "modded-nanogpt-runs"
REAL = 0.004
"""Difference of the authors' mean times from which it is held to be real."""
GATE = "step_seconds +3%"
PAIRS = 40
STEPS = 2000
PLANTED = (0.0, 0.0, 0.03, 0.10)
"""Work that each of the four loops has more; the first is A."""
TOLERATED = 3
"""False failures of 40 that a rate of 2.5 % may show by chance (in 98 of 100 benchmarks)."""


def measure(options: Options) -> list[Figure]:
    """Return right directions, false alarms and mixed groups of the real runs, and what the gate does here."""
    return [*real_runs(options), *loops(options)]


def real_runs(options: Options) -> list[Figure]:
    """Return the figures of the logged runs."""
    texts = {
        "compare_wrong": f"real differences above {REAL * 100:g} %: not told, or the wrong way",
        "compare_false": "random halves of one program's repeats: called different",
        "compare_unmixed": "  groups half of another program: not noticed",
    }
    if not DATA.is_dir():
        absent = "not installed: ../shared/data/modded-nanogpt-runs"
        return [Figure(key, what, None, "", 0.0, absent) for key, what in texts.items()]
    groups = programs(DATA)
    pairs = [(a, b) for a, b in itertools.permutations(groups, 2) if a.split("/")[0] == b.split("/")[0]]
    wrong, told = _directions(groups, pairs)
    false, halves, kinds = _halves(groups, 4 if options.quick else 200)
    unnoticed, mixes, pure = _mixes(groups, pairs, 2 if options.quick else 20)
    return [
        Figure("compare_wrong", texts["compare_wrong"], wrong, "", 0.0, told),
        Figure("compare_false", texts["compare_false"], 100 * false / halves, "%", 5.0, f"of {halves}; {kinds}"),
        Figure("compare_unmixed", texts["compare_unmixed"], unnoticed, "", 0.0, f"of {mixes}; {pure}"),
    ]


def programs(folder: Path) -> dict[str, tuple[Recording, ...]]:
    """Return the runs of each program."""
    from stepscope.cli.recordings import group_of

    found = sorted(path for path in folder.glob("*/*") if path.is_dir())
    return {f"{path.parent.name}/{path.name}": group_of(str(path)).runs for path in found}


def _directions(groups: dict[str, tuple[Recording, ...]], pairs: list[tuple[str, str]]) -> tuple[int, str]:
    known = {
        name: facts["train_time_s_mean"] for name, facts in json.loads((DATA / "ground_truth.json").read_text()).items()
    }
    wrong, told = 0, []
    for a, b in pairs:
        real = known[b] / known[a] - 1
        found = _step(groups[a], groups[b])
        wrong += abs(real) > REAL and found.verdict != ("faster" if real < 0 else "slower")
        if real < 0:
            told.append(f"{real:+.2%} as {found.ratio:+.2%} [{found.low:+.2%}, {found.high:+.2%}]")
    return wrong, ", ".join(told)


def _step(a: tuple[Recording, ...], b: tuple[Recording, ...], quantity: str = "step_seconds"):
    from stepscope.analysis.comparison import compare_one
    from stepscope.analysis.quantity import Spec
    from stepscope.analysis.recording import Group

    return compare_one(Spec.parse(quantity), Group("A", a), Group("B", b)).found


def _halves(groups: dict[str, tuple[Recording, ...]], most: int) -> tuple[int, int, str]:
    """Return false alarms, comparisons, and both by quantity, over all halves of every group."""
    counted: dict[str, list[int]] = {}
    for runs in groups.values():
        splits = list(itertools.combinations(range(len(runs)), len(runs) // 2))
        for chosen in random.Random(0).sample(splits, min(most, len(splits))):
            halves = tuple(runs[at] for at in chosen), tuple(run for at, run in enumerate(runs) if at not in chosen)
            for quantity in ("step_seconds", "val_loss", "memory/peak_bytes"):
                tally = counted.setdefault(quantity, [0, 0])
                tally[0] += _step(*halves, quantity).verdict != "no difference"
                tally[1] += 1
    false, total = (sum(tally[at] for tally in counted.values()) for at in (0, 1))
    return false, total, ", ".join(f"{name} {bad} of {whole}" for name, (bad, whole) in counted.items())


def _mixes(groups: dict[str, tuple[Recording, ...]], pairs: list[tuple[str, str]], times: int) -> tuple[int, int, str]:
    """Return unnoticed mixes, mixes, and how many pure groups were called mixed."""
    draw = random.Random(0)
    unnoticed = total = false = pure = 0
    real = [(a, b) for a, b in pairs if a < b and abs(_step(groups[a], groups[b]).ratio) > REAL]
    for (a, b), size, _ in itertools.product(real, (2, 3, 4), range(times)):
        total += 1
        unnoticed += not _mixed(tuple(draw.sample(groups[a], size) + draw.sample(groups[b], size)))
    for runs in groups.values():
        for size in range(4, len(runs) + 1):
            some = list(itertools.combinations(runs, size))
            for chosen in draw.sample(some, min(times, len(some))):
                pure += 1
                false += _mixed(chosen)
    return unnoticed, total, f"called mixed of {pure} that are not: {false}"


def _mixed(runs: tuple[Recording, ...]) -> bool:
    from stepscope.analysis.comparison import mixtures
    from stepscope.analysis.likeness import unlikeness
    from stepscope.analysis.recording import Group

    group = Group("mix", runs)
    return any(finding.kind == "mixed_group" for finding in (*unlikeness([group]), *mixtures([group])))


def loops(options: Options) -> list[Figure]:
    """Return how often the gate fails for equal loops, and how often it misses planted work."""
    pairs, steps = (2, 300) if options.quick else (PAIRS, STEPS)
    if importlib.util.find_spec("torch") is None:
        keys = [f"{key}_{what}" for key in ("gate", "gate_after") for what in ("equal", "3", "10")]
        return [Figure(key, f"gate {GATE}", None, "%", None, "torch not installed") for key in keys]
    printed, _, _ = output_of("-W", "ignore", "-m", "bench.comparing", str(pairs), str(steps))
    told = [json.loads(line) for line in printed.splitlines()]
    seen = f"{pairs} pairs of {steps} steps"
    return [*_gate_figures(told, seen, in_turn=True), *_gate_figures(told, seen, in_turn=False)]


def _gate_figures(told: list[dict], seen: str, *, in_turn: bool) -> list[Figure]:
    """Return what the gate did with the loops of one order."""
    results = [judged(one["rows"], in_turn=in_turn) for one in told if one["in_turn"] == in_turn]
    counts = {word: [sum(row[at][0] == word for row in results) for at in range(3)] for word in ("failed", "undecided")}
    width = float(np.median([row[0][1] for row in results])) * 50
    false, small, large = (100 * count / len(results) for count in counts["failed"])
    unsure = [f"undecided {count}" for count in counts["undecided"]]
    unsure[0] = f"{seen}, interval of ±{width:.2g} %, {unsure[0]}"
    key, what = ("gate", "torch loops in turn") if in_turn else ("gate_after", "one after the other")
    limits = (100 * TOLERATED / PAIRS, 10.0, 0.0) if in_turn else (None, None, None)
    return [
        Figure(f"{key}_equal", f"{what}, gate {GATE}: equal ones fail", false, "%", limits[0], unsure[0]),
        Figure(f"{key}_3", "  3 % more work: missed", 100 - small, "%", limits[1], unsure[1]),
        Figure(f"{key}_10", "  10 % more work: missed", 100 - large, "%", limits[2], unsure[2]),
    ]


def judged(rows: list[list[float]], *, in_turn: bool) -> list[tuple[str, float]]:
    """Return the gate's result, and the width of the interval, of each loop beside the first."""
    from stepscope.analysis.comparison import compare
    from stepscope.analysis.gate import Gate

    first, *others = (_group(row, 0 if in_turn else place) for place, row in enumerate(rows))
    found = []
    for other in others:
        comparison = compare(first, other, gates=[Gate.parse(GATE)])
        seen = comparison.quantities[0].found
        found.append((comparison.gates[0].result, seen.high - seen.low))
    return found


def _group(seconds: list[float], begin: float) -> Group:
    from stepscope.analysis.recording import Curve, Group, Recording

    value = np.array(seconds)
    curve = Curve(np.arange(len(value)), np.cumsum(value), value)
    return Group("loop", (Recording("run", {"step_seconds": curve}, span=(begin, begin + 1)),))


class Loop:
    """A small training, with some work more."""

    def __init__(self, torch, more: float = 0.0) -> None:
        torch.manual_seed(0)
        layers = torch.nn.Linear(128, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10)
        self._model = torch.nn.Sequential(*layers)
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=0.01)
        self._data = torch.randn(64, 128), torch.randint(0, 10, (64,))
        self._loss = torch.nn.functional.cross_entropy
        self._turns = 0
        if more:
            usual = float(np.quantile([self.step() for _ in range(300)], 0.1))
            self._turns = round(more * usual / _turn_seconds())

    def step(self) -> float:
        """Return the seconds of one step."""
        started = time.perf_counter()
        self._optimizer.zero_grad()
        loss = self._loss(self._model(self._data[0]), self._data[1])
        loss.backward()
        self._optimizer.step()
        loss.item()
        _work(self._turns)
        return time.perf_counter() - started


def _work(turns: int) -> None:
    for _ in range(turns):
        pass


def _turn_seconds() -> float:
    spans = []
    for _ in range(200):
        started = time.perf_counter()
        _work(2000)
        spans.append(time.perf_counter() - started)
    return min(spans) / 2000


def main(arguments: list[str]) -> int:
    """Train four loops for each pair, in turn and one after the other; print their step times, a line each."""
    import torch

    torch.set_num_threads(1)
    pairs, steps = map(int, arguments)
    draw = random.Random(0)
    for _ in range(pairs):
        for in_turn in (True, False):
            four = [Loop(torch, more) for more in PLANTED]
            rows = taking_turns(four, steps, draw) if in_turn else [[one.step() for _ in range(steps)] for one in four]
            print(json.dumps({"in_turn": in_turn, "rows": rows}), flush=True)
    return 0


def taking_turns(four: list[Loop], steps: int, draw: random.Random) -> list[list[float]]:
    """Return the step times of loops that take turns; none may always follow itself, for it would be warm."""
    rows: list[list[float]] = [[] for _ in four]
    for _ in range(steps):
        for place in draw.sample(range(len(four)), len(four)):
            rows[place].append(four[place].step())
    return rows


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
