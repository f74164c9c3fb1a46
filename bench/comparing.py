"""Does `stepscope compare` tell real differences from noise? On the repeats of real programs, and on torch loops here.

The real runs are the logs of `../shared/data/modded-nanogpt-runs`: repeats of programs before and after a change, with
the authors' own means; 3 and 10 % are also added to the steps of one run and held against another of the same program.
The loops are in `bench/compared_loops.py`.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import random
from dataclasses import replace
from typing import TYPE_CHECKING

from bench.compared_loops import GATE, KEYS, PLANTED, loops
from bench.figure import Figure, Options
from bench.processes import ROOT

if TYPE_CHECKING:
    from pathlib import Path

    from stepscope.analysis.compare.recording import Recording

DATA = ROOT.parent / "shared" / "data" / "modded-nanogpt-runs"
REAL = 0.004
"""Difference of the authors' mean times from which it is held to be real."""


def measure(options: Options) -> list[Figure]:
    """Return right directions, false alarms and mixed groups of the real runs, and what the gate does here."""
    if importlib.util.find_spec("torch") is None:
        absent = [Figure(key, f"gate {GATE}", None, "%", None, "torch not installed") for key in KEYS]
        return [*real_runs(options), *absent]
    return [*real_runs(options), *loops(options)]


def real_runs(options: Options) -> list[Figure]:
    """Return the figures of the logged runs."""
    texts = {
        "compare_wrong": f"real differences above {REAL * 100:g} %: not told, or the wrong way",
        "compare_false": "random halves of one program's repeats: called different",
        "compare_unmixed": "  groups half of another program: not noticed",
        "compare_lengths": "programs of other lengths: loss or total time off the published one by over 0.1 %",
        "gate_real": f"real runs, one against one, gate {GATE}: equal ones fail",
        "gate_real_3": "  3 % added to every step: missed",
    }
    if not DATA.is_dir():
        absent = "not installed: ../shared/data/modded-nanogpt-runs"
        return [Figure(key, what, None, "", 0.0, absent) for key, what in texts.items()]
    groups = programs(DATA)
    pairs = [(a, b) for a, b in itertools.permutations(groups, 2) if a.split("/")[0] == b.split("/")[0]]
    wrong, told = _directions(groups, pairs)
    false, halves, kinds = _halves(groups, 4 if options.quick else 200)
    unnoticed, mixes, pure = _mixes(groups, pairs, 2 if options.quick else 20)
    failed, singles = _singles(groups, 3 if options.quick else 30)
    return [
        Figure("compare_wrong", texts["compare_wrong"], wrong, "", 0.0, told),
        Figure("compare_false", texts["compare_false"], 100 * false / halves, "%", 5.0, f"of {halves}; {kinds}"),
        Figure("compare_unmixed", texts["compare_unmixed"], unnoticed, "", 0.0, f"of {mixes}; {pure}"),
        Figure("compare_lengths", texts["compare_lengths"], *_lengths(groups)),
        Figure("gate_real", texts["gate_real"], 100 * failed[0] / singles, "%", 2.5, f"of {singles}"),
        Figure("gate_real_3", texts["gate_real_3"], 100 - 100 * failed[1] / singles, "%", 10.0, f"of {singles}"),
    ]


def programs(folder: Path) -> dict[str, tuple[Recording, ...]]:
    """Return the runs of each program."""
    from stepscope.sources.groups import group_of

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


def _lengths(groups: dict[str, tuple[Recording, ...]]) -> tuple[float, str, float, str]:
    """Return how often runs of other lengths differ otherwise than published, with unit, limit and count."""
    truth = json.loads((DATA / "ground_truth.json").read_text())
    facts = {"val_loss@end": "val_loss_mean", "total_seconds": "train_time_s_mean"}
    pairs = [(a, b) for a, b in itertools.permutations(groups, 2) if _steps(groups[a]) != _steps(groups[b])]
    wrong = 0
    for (a, b), (quantity, fact) in itertools.product(pairs, facts.items()):
        real = truth[b][fact] / truth[a][fact] - 1
        found = _step(groups[a], groups[b], quantity)
        wrong += found.ratio is None or abs(found.ratio - real) > 0.001
    return float(wrong), "", 0.0, f"of {len(facts) * len(pairs)}"


def _steps(runs: tuple[Recording, ...]) -> int:
    return int(runs[0].curves["step_seconds"].step[-1])


def _step(a: tuple[Recording, ...], b: tuple[Recording, ...], quantity: str = "step_seconds"):
    from stepscope.analysis.compare.comparison import compare_one
    from stepscope.analysis.compare.quantity import Spec
    from stepscope.analysis.compare.recording import Group

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
    from stepscope.analysis.compare.comparison import mixtures
    from stepscope.analysis.compare.likeness import unlikeness
    from stepscope.analysis.compare.recording import Group

    group = Group("mix", runs)
    return any(finding.kind == "mixed_group" for finding in (*unlikeness([group]), *mixtures([group])))


def _singles(groups: dict[str, tuple[Recording, ...]], most: int) -> tuple[list[int], int]:
    """Return how often the gate fails for one run against another of its program, and with 3 % added; and of how many.

    Args:
        groups: the runs of each program.
        most: pairs of one program.
    """
    from stepscope.analysis.compare.gate import FAILED, Gate, judge

    gate, failed, total = Gate.parse(GATE), [0, 0], 0
    for runs in groups.values():
        pairs = list(itertools.permutations(runs, 2))
        for first, second in random.Random(0).sample(pairs, min(most, len(pairs))):
            total += 1
            for at, more in enumerate((0.0, PLANTED[2])):
                found = judge(gate, _step((first,), (_longer(second, more),)))
                failed[at] += found.result == FAILED
    return failed, total


def _longer(run: Recording, more: float) -> Recording:
    curve = run.curves["step_seconds"]
    return replace(run, curves={**run.curves, "step_seconds": replace(curve, value=curve.value * (1 + more))})
