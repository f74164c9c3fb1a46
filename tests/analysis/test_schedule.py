from __future__ import annotations

import json
from functools import partial

import numpy as np
import pytest

from stepscope.analysis.compare.comparison import compare, compare_one
from stepscope.analysis.compare.difference import difference
from stepscope.analysis.compare.level import Level
from stepscope.analysis.compare.quantity import LOSS, TIME, Spec
from stepscope.analysis.compare.recording import Curve, Group, Recording
from stepscope.analysis.compare.schedule import EQUAL, OTHER, UNKNOWN, schedule_of
from tests.importers.foreign import shared


def training(seed, plan=1000, upto=None, better=0.0, pace=1.0, planned=True, rate=False, facts=None):
    """Return a run whose loss and step time go by share of its plan, with the noise of its seed and steps."""
    draw = np.random.default_rng(seed)
    step = np.arange(upto or plan)
    share = step / plan
    level = (1 - better) * (1 + draw.normal(0, 0.002))
    loss = (2.5 + 2 * np.exp(-8 * share) + 0.6 * (1 - share)) * level
    seconds = pace * np.select([share < 0.33, share < 0.66], [0.05, 0.08], 0.1) * (1 + draw.normal(0, 0.01, len(step)))
    clock = np.cumsum(seconds)
    evaluated = np.arange(plan // 20 - 1, len(step), plan // 20)
    curves = {
        "step_seconds": Curve(step, clock, seconds),
        "loss": Curve(step, clock, loss * (1 + draw.normal(0, 0.02, len(step)))),
        "val_loss": Curve(evaluated, clock[evaluated], loss[evaluated]),
    }
    if rate:
        curves["learning_rate"] = Curve(step, clock, np.minimum(1, step / 50) * (1 + np.cos(np.pi * share)) * 1e-3)
    return Recording(f"r{seed}", curves, facts or {}, None, plan if planned else None)


def pair(a, b, number=3, seed=0):
    """Return two groups of runs."""
    return tuple(
        Group(name, tuple(make(1000 * seed + 100 * at + place) for place in range(number)))
        for at, (name, make) in enumerate([("a", a), ("b", b)])
    )


def verdicts(groups):
    return {item.quantity: item.found.verdict for item in compare(*groups).quantities}


WAYS = {
    "equal": (partial(training), partial(training), EQUAL),
    "unfinished": (partial(training), partial(training, upto=600), EQUAL),
    "shorter": (partial(training), partial(training, plan=700), OTHER),
    "shorter and unfinished": (partial(training), partial(training, plan=1400, upto=840), OTHER),
    "shorter by rate": (
        partial(training, planned=False, rate=True),
        partial(training, plan=700, planned=False, rate=True),
        OTHER,
    ),
    "unfinished by rate": (
        partial(training, planned=False, rate=True),
        partial(training, upto=600, planned=False, rate=True),
        EQUAL,
    ),
    "shorter or unfinished": (partial(training, planned=False), partial(training, plan=700, planned=False), UNKNOWN),
    "unfinished or shorter": (partial(training, planned=False), partial(training, upto=600, planned=False), UNKNOWN),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("number", [1, 3])
def test_equal_programs_of_any_length_are_not_called_different(way, number):
    """Losses and step times of one program are equal whether a run is shorter by plan or only not finished yet."""
    a, b, kind = WAYS[way]
    groups = pair(a, b, number)
    assert schedule_of(groups).kind == kind
    seen = verdicts(groups)
    assert {name.partition("@")[0] for name in seen} >= {"step_seconds", "loss", "val_loss"}
    told = {verdict for name, verdict in seen.items() if name != "total_seconds"}
    assert told <= {"no difference", "not comparable"}
    assert "not comparable" not in told or kind == UNKNOWN


@pytest.mark.parametrize("way", [name for name, (_, _, kind) in WAYS.items() if kind != UNKNOWN])
def test_a_real_difference_is_told_at_any_length(way):
    """A loss that is 3 % lower, and steps that are 3 % longer, are told in each of these."""
    a, b, _ = WAYS[way]
    seen = verdicts(pair(a, partial(b, better=0.03, pace=1.03)))
    assert seen["step_seconds"] == "slower"
    assert {verdict for name, verdict in seen.items() if "loss@" in name} == {"better"}


def test_final_quality_and_total_time_stand_as_such():
    """Finished runs of other lengths are compared by their last loss and by the time that they took."""
    seen = compare(*pair(*WAYS["shorter"][:2]))
    assert seen.quantity("total_seconds").found.ratio == pytest.approx(-0.3, abs=0.02)
    assert "1000 steps against 700" in seen.quantity("total_seconds").definition
    assert abs(seen.quantity("val_loss@end").found.ratio) < 0.01
    assert "of each run" in seen.quantity("val_loss@end").definition


def test_a_number_that_cannot_be_told_is_refused_with_both_readings():
    """Where nothing tells what a shorter run is, equal steps and equal shares are both named."""
    found = compare(*pair(*WAYS["shorter or unfinished"][:2])).quantity("val_loss@699").found
    assert found.verdict == "not comparable"
    assert "at equal steps B is better, at equal shares no different" in found.why
    assert found.a is not None
    assert found.b is not None


def test_an_end_that_was_not_reached_is_refused():
    """`loss@end` of a run that stopped on its way is not comparable, nor is its total time."""
    groups = pair(*WAYS["unfinished"][:2])
    for quantity in ("val_loss@end", "total_seconds"):
        found = compare_one(Spec.parse(quantity), *groups).found
        assert found.verdict == "not comparable"
        assert "60 %" in found.why


@pytest.mark.parametrize("text", ["loss@end", "loss@50%", "loss@12.5%"])
def test_shares_are_read_and_written(text):
    """A share of a run is written in percent; the end is all of it."""
    assert Spec.parse(text).text == text
    with pytest.raises(ValueError, match="at most 100"):
        Spec.parse("loss@101%")


@pytest.mark.slow
@pytest.mark.parametrize("deviation", [0.0003, 0.002, 0.005, 0.02])
@pytest.mark.parametrize(("first", "second"), [(2, 2), (3, 3), (3, 4), (5, 5), (2, 6)])
def test_seeds_of_any_noise_keep_the_stated_level(deviation, first, second):
    """Losses of equal programs are called different in at most 5 % of comparisons, however much a seed matters."""
    draw = np.random.default_rng(first * 10 + second)
    wrong = 0
    for _ in range(400):
        levels = [[Level(3 * (1 + deviation * each)) for each in draw.normal(size=size)] for size in (first, second)]
        wrong += difference(*levels, LOSS).verdict != "no difference"
    assert wrong <= 400 * 0.05 + 2 * (400 * 0.05 * 0.95) ** 0.5


def test_the_interval_of_two_runs_does_not_depend_on_rounding():
    """The interval of one run against one is the same number of deviations for every noise."""
    seen = [difference([Level(1.0, error)], [Level(1.0, error)], TIME) for error in np.linspace(0.001, 0.1, 60)]
    reaches = [np.log1p(one.high) / one.noise for one in seen]
    assert reaches == pytest.approx([reaches[0]] * 60, rel=1e-6)


def test_a_loss_with_a_huge_error_has_an_interval():
    """A loss whose error is 1e100 times its value is no different, instead of an overflow."""
    found = difference([Level(-1.0, 1e100)], [Level(2.0, 1e100)], LOSS)
    assert found.verdict == "no difference"
    assert found.low < -1e99 < 1e99 < found.high


def test_single_runs_of_a_small_model_are_not_told_apart_by_one_evaluation():
    """Evaluations that jump by a tenth from one to the next tell less than 10 %; steady ones tell 3 %."""
    steady = np.geomspace(0.5, 0.1, 12)
    seen = []
    for noise in (0.1, 0.0005):
        wrong = 0
        for seed in range(40):
            draw = np.random.default_rng(seed)
            runs = [
                Recording(
                    name,
                    {"val_loss": Curve(np.arange(12), np.arange(12.0), steady * ratio * draw.normal(1, noise, 12))},
                )
                for name, ratio in (("a", 1.0), ("b", 1.03))
            ]
            groups = [Group(run.label, (run,)) for run in runs]
            wrong += compare_one(Spec("val_loss"), *groups).found.verdict == "worse"
        seen.append(wrong)
    assert seen[0] <= 2
    assert seen[1] >= 38


def test_records_of_other_lengths_have_the_losses_that_their_authors_state():
    """Programs of 1 845 and 1 490 steps: no loss 4 % better at step 1 250, and the published times."""
    from stepscope.sources.groups import group_of

    folder = shared("modded-nanogpt-runs")
    truth = json.loads((folder / "ground_truth.json").read_text())
    names = ["2025-12-31_GatesToCompiledAdam/12-31-gates-to-adam", "2026-02-16_FlattenForward/baseline"]
    seen = compare(*(group_of(str(folder / name)) for name in names))
    for quantity, fact in (("val_loss@end", "val_loss_mean"), ("total_seconds", "train_time_s_mean")):
        ratio = truth[names[1]][fact] / truth[names[0]][fact] - 1
        assert seen.quantity(quantity).found.ratio == pytest.approx(ratio, abs=0.0005)
    assert seen.quantity("val_loss@end").found.verdict == "no difference"
    assert seen.quantity("total_seconds").found.verdict == "faster"
