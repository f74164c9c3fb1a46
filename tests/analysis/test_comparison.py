from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.analysis.compare.baseline import from_facts, ranges, to_facts
from stepscope.analysis.compare.comparison import compare, compare_one, measure, mixtures
from stepscope.analysis.compare.gate import Gate, aim, judge
from stepscope.analysis.compare.likeness import unlikeness
from stepscope.analysis.compare.quantity import Spec
from stepscope.analysis.compare.recording import Curve, Recording
from tests.analysis.comparison_rig import curve, group, repeats, run, steps

DATA = Path(__file__).resolve().parents[3] / "shared" / "data" / "modded-nanogpt-runs"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="../shared/data/modded-nanogpt-runs is absent")


def found(a, b, quantity="step_seconds", **options):
    return compare_one(Spec.parse(quantity), a, b, **options).found


@pytest.mark.promise("S0-085")
@pytest.mark.parametrize(("factor", "verdict"), [(1.05, "slower"), (0.95, "faster"), (1.0, "no difference")])
def test_repeats_tell_a_difference(factor, verdict):
    """A change of 5 % in five repeats is told with its direction; none is told where there is none."""
    seen = found(repeats("a"), repeats("b", 0.1 * factor, seed=1))
    assert seen.verdict == verdict
    assert seen.low <= factor - 1 <= seen.high


@pytest.mark.slow
def test_equal_groups_differ_no_more_often_than_stated():
    """Of 300 comparisons of equal groups at most one in twenty says that they differ."""
    said = sum(
        found(repeats("a", number=3, seed=2 * at), repeats("b", number=3, seed=2 * at + 1)).verdict != "no difference"
        for at in range(300)
    )
    assert said <= 15


def test_one_run_each_does_not_trust_its_steps():
    """Ten thousand equal steps do not make two runs different that lie 0.3 % apart."""
    a, b = (
        group(name, run(step_seconds=steps(level, 1, 10_000, 0.001, 0))) for name, level in (("a", 0.1), ("b", 0.1003))
    )
    assert found(a, b).verdict == "no difference"
    assert "nothing is repeated" in found(a, b).why


def test_runs_in_turn_share_their_disturbances():
    """Two runs that took turns on a busy machine are told apart by less than two that ran one after the other."""
    mood = 1 + np.abs(np.cumsum(np.random.default_rng(5).normal(0, 0.01, 600)))
    runs = [run(step_seconds=steps(level, at, 600, 0.02, 0) * mood) for at, level in enumerate((0.1, 0.1))]
    ways = [[replace(one, span=(at * apart, at * apart + 60.0)) for at, one in enumerate(runs)] for apart in (1, 100)]
    widths = [seen.high - seen.low for seen in (found(group("a", a), group("b", b)) for a, b in ways)]
    assert widths[0] < 0.8 * widths[1]


def test_schedules_are_no_noise():
    """What all runs do at a step, such as a batch that grows by schedule, does not widen the interval."""
    schedule = np.repeat([1.0, 2.0, 5.0], 200)
    a, b = (
        group(name, *(run(step_seconds=steps(level, 10 * at + len(name), 600) * schedule) for at in range(3)))
        for name, level in (("a", 0.1), ("bb", 0.102))
    )
    assert found(a, b).verdict == "slower"


def test_busy_moments_give_way_to_quiet_steps():
    """Where many steps are disturbed the quiet ones are compared, as the definition says; the mean stands beside."""
    draw = np.random.default_rng(0)

    def disturbed(level, seed):
        value = steps(level, seed, 1200, 0.003)
        busy = np.repeat(draw.random(60) < 0.4, 20)
        return value * np.where(busy & (draw.random(1200) < 0.6), draw.uniform(1.2, 3, 1200), 1)

    a, b = (
        group(name, run(step_seconds=disturbed(level, at)))
        for at, (name, level) in enumerate([("a", 0.1), ("b", 0.105)])
    )
    whole = compare(a, b)
    assert whole.quantity("step_seconds").found.verdict == "slower"
    assert "disturbed" in whole.quantity("step_seconds").definition
    assert whole.quantity("step_seconds/mean").found.verdict == "no difference"


def contended(level, seed, count=4000):
    """Return the steps of a run on processors that others use nearly all the time, now more and now less."""
    draw = np.random.default_rng(seed)
    crowd = np.repeat(draw.gamma(1.0, 0.4, count // 50), 50)
    free = np.repeat(draw.random(count // 20) < 0.15, 20)
    return steps(level, seed, count, 0.004) * (1 + np.where(free, 0.0, crowd * draw.uniform(0.5, 1.5, count)))


def test_fastest_steps_stand_for_a_run_on_a_crowded_machine():
    """Where hardly a step is undisturbed, those few tell 5 %, and the definition says that they do."""
    base = group("a", run(step_seconds=contended(0.1, 1)))
    seen = {level: compare(base, group("b", run(step_seconds=contended(level, 2)))) for level in (0.1, 0.105)}
    assert {"fastest 1 %" in one.quantity("step_seconds").definition for one in seen.values()} == {True}
    assert [one.quantity("step_seconds").found.verdict for one in seen.values()] == ["no difference", "slower"]
    assert seen[0.1].quantity("step_seconds/mean").found.high > 0.05


def test_losses_of_other_steps_are_compared_at_the_last_that_both_have():
    """Losses that two runs logged at steps of their own, some of them the same, are compared at the last of these."""
    value = np.linspace(3, 2, 100)
    curves = [Curve(np.arange(100) * every, np.arange(100.0), value) for every in (6, 7)]
    a, b = (
        group(name, Recording(name, {"loss": curve}, planned=1000)) for name, curve in zip("ab", curves, strict=True)
    )
    seen = compare(a, b).quantity("loss@588")
    assert seen.found.verdict != "not comparable"


def test_a_run_disturbed_for_a_while_is_judged_by_the_rest():
    """A run three eighths of which a neighbour slowed by half from beginning to end tells 3 % as well as another."""
    base, slower = contended(0.1, 1), contended(0.103, 2)
    slower[: 3 * len(slower) // 8] *= 1.5
    seen = compare(group("a", run(step_seconds=base)), group("b", run(step_seconds=slower)))
    found = seen.quantity("step_seconds").found
    assert found.verdict == "slower"
    assert 0.02 < found.ratio < 0.04


def test_fastest_steps_do_not_hide_what_they_do_not_share():
    """A change that half of the steps have is told by all of them, though the fastest are as fast as before."""
    some = contended(0.1, 1)
    slow = np.where(np.arange(len(some)) % 2, 1.0, 4.0) * contended(0.1, 2)
    seen = compare(group("a", run(step_seconds=some)), group("b", run(step_seconds=slow))).quantity("step_seconds")
    assert seen.found.verdict == "slower"
    assert "fastest" not in seen.definition


def test_a_share_of_scheduled_steps_is_even():
    """Steps that get five times as long by schedule, all 3 % slower in one of two runs, are told by one against one."""
    schedule = np.repeat([1.0, 2.0, 5.0], 400)
    a, b = (
        group(name, run(step_seconds=steps(level, at, 1200, 0.005, 0) * schedule))
        for at, (name, level) in enumerate([("a", 0.1), ("b", 0.103)])
    )
    assert found(a, b).verdict == "slower"
    assert compare(a, b, gates=[Gate.parse("step_seconds +2%")]).gates[0].result == "failed"


def test_runs_that_took_turns_share_the_drift():
    """A B A B on a machine that gets slower by the hour: the pairs tell what the groups alone cannot."""

    def runs(name, level, places):
        some = (run(f"{name}{at}", step_seconds=steps(level * (1 + 0.02 * at), at, 400, 0.01, 0)) for at in places)
        return [replace(one, span=(100.0 * at, 100.0 * at + 60)) for at, one in zip(places, some, strict=True)]

    a, b = runs("a", 0.1, (0, 3, 4, 7)), runs("b", 0.102, (1, 2, 5, 6))
    seen = compare(group("a", *a), group("b", *b)).quantity("step_seconds")
    assert "took turns" in seen.definition
    alone = found(group("a", *a), group("b", *(replace(one, span=None) for one in b)))
    assert seen.found.high - seen.found.low < 0.8 * (alone.high - alone.low)
    assert seen.found.ratio == pytest.approx(alone.ratio)


def test_throughput_looks_at_the_fast_side():
    """Quiet steps are those of the highest rate, so time and throughput agree."""
    draw = np.random.default_rng(3)
    value = steps(0.1, 1, 1200, 0.003) * np.where(draw.random(1200) < 0.4, draw.uniform(1.2, 3, 1200), 1)
    other = steps(0.11, 2, 1200, 0.003) * np.where(draw.random(1200) < 0.4, draw.uniform(1.2, 3, 1200), 1)
    a, b = (
        group(name, run(step_seconds=some, samples_per_second=32 / some)) for name, some in (("a", value), ("b", other))
    )
    assert found(a, b, "samples_per_second").ratio == pytest.approx(1 / (1 + found(a, b).ratio) - 1, abs=0.01)


def test_other_batches_make_step_times_incomparable():
    """Steps of 32 and of 64 samples are not compared by their time, but by their throughput."""
    a = group("a", run(step_seconds=steps(0.1, 1), samples=np.full(400, 32.0), samples_per_second=32 / steps(0.1, 1)))
    b = group("b", run(step_seconds=steps(0.2, 2), samples=np.full(400, 64.0), samples_per_second=64 / steps(0.2, 2)))
    seen = compare(a, b)
    assert seen.quantity("step_seconds").found.verdict == "not comparable"
    assert "32 samples a step against 64" in seen.quantity("step_seconds").found.why
    assert seen.quantity("samples_per_second").found.verdict == "no difference"


def test_loss_at_equal_step_and_at_equal_time():
    """A slower run with the same loss a step is no worse at an equal step, and worse at an equal time."""

    def losses(seed):
        return 2 * np.exp(-np.arange(1000) / 300) + 1 + np.random.default_rng(seed).normal(0, 0.01, 1000)

    a, b = (
        group(name, *(run(loss=curve(losses(10 * at + place), seconds=pace)) for at in range(3)))
        for place, (name, pace) in enumerate([("a", 1.0), ("b", 2.0)])
    )
    assert found(a, b, "loss@600").verdict == "no difference"
    assert found(a, b, "loss@600s").verdict == "worse"
    assert found(a, b, "loss@5000").verdict == "not comparable"
    assert {"loss@999", "loss@1000s"} <= {item.quantity for item in compare(a, b).quantities}


def test_evaluations_are_taken_point_by_point():
    """A metric of few points is read at the step itself, not as a mean over a window."""
    a, b = (group(name, run(val_loss=curve(np.array([5.0, 4.0, last])))) for name, last in (("a", 3.0), ("b", 2.5)))
    seen = found(a, b, "val_loss@2")
    assert (seen.a, seen.b) == (pytest.approx(3.0), pytest.approx(2.5))
    assert seen.verdict == "better"


def test_memory_is_the_peak():
    """Memory is compared by its highest value, with the noise that allocators have."""
    a, b = (group(name, run(memory__peak_bytes=[1e9, high, 1e9])) for name, high in (("a", 2e9), ("b", 2.4e9)))
    assert found(a, b, "memory/peak_bytes").ratio == pytest.approx(0.2)
    assert found(a, b, "memory/peak_bytes").verdict == "worse"


@pytest.mark.parametrize(
    ("a", "b", "why"),
    [
        ({"step_seconds": [1.0] * 50}, {}, "b has no metric step_seconds"),
        ({"step_seconds": [1.0] * 50}, {"step_seconds": curve([1.0] * 50, first=100)}, "0 steps in common"),
        ({"step_seconds": [1.0] * 9}, {"step_seconds": [1.0] * 9}, "6 steps in common"),
        ({"step_seconds": [0.0] * 90}, {"step_seconds": [1.0] * 90}, "A is zero"),
        ({"step_seconds": []}, {"step_seconds": []}, "0 steps in common"),
    ],
)
def test_what_cannot_be_compared_says_why(a, b, why):
    """Missing, disjoint, short and zero series are not comparable, for a reason that is given."""
    seen = found(group("a", run(**a)), group("b", run(**b)))
    assert seen.verdict == "not comparable"
    assert why in seen.why


@settings(max_examples=60)
@given(
    st.lists(st.floats(-1e300, 1e300), max_size=90),
    st.lists(st.floats(-1e300, 1e300), max_size=90),
    st.sampled_from(["step_seconds", "loss", "samples_per_second", "memory/peak_bytes", "norm"]),
)
def test_any_series_is_defined(first, second, name):
    """Whatever finite values runs have, a comparison gives a verdict and JSON, never an error or a warning."""
    a, b = (group(label, run(**{name.replace("/", "__"): some})) for label, some in (("a", first), ("b", second)))
    assert json.dumps(compare(a, b, asked=[Spec(name)]).facts(), allow_nan=False)
    assert json.dumps([item.facts() for item in ranges(a)], allow_nan=False)


@pytest.mark.parametrize(
    ("text", "name", "rises", "limit"),
    [
        ("step_seconds +3%", "step_seconds", True, 0.03),
        (" loss@1000   +1 % ", "loss@1000", True, 0.01),
        ("samples_per_second -2.5%", "samples_per_second", False, 0.025),
        ("accuracy@60s 1%", "accuracy@60s", False, 0.01),
        ("train_loss +0%", "loss", True, 0.0),
    ],
)
def test_gates_are_read(text, name, rises, limit):
    """A gate is a quantity and how much worse it may get; without a sign the worse side is known from the metric."""
    gate = Gate.parse(text)
    assert (gate.spec.text, gate.rises, gate.limit) == (name, rises, pytest.approx(limit))
    assert Gate.parse(gate.text) == gate


@pytest.mark.parametrize(
    "text", ["", "loss", "loss +3", "loss@x +3%", "loss@1.5 +1%", "norm 3%", "a b +3%", "loss ++3%"]
)
def test_what_is_no_gate_is_refused(text):
    """A text that is no gate is a ValueError that shows what one looks like."""
    with pytest.raises(ValueError, match=r"as in|whole number"):
        Gate.parse(text)


@pytest.mark.parametrize(
    ("factor", "limit", "result"),
    [
        (1.0, 3, "passed"),
        (1.03, 3, "failed"),
        (1.1, 3, "failed"),
        (1.01, 3, "passed"),
        (0.9, 3, "passed"),
        (1.02, 0, "failed"),
    ],
)
def test_gate_stops_what_it_names(factor, limit, result):
    """Equal runs pass, a rise of the size that the gate names fails, one that is certainly smaller passes."""
    seen = found(repeats("a", number=8), repeats("b", 0.1 * factor, 8, seed=1))
    assert judge(Gate.parse(f"step_seconds +{limit}%"), seen).result == result


def test_undecided_gate_says_how_many_runs_would_tell():
    """Noise that hides both nothing and 3 % passes unless strict, and the reason names the runs that it would take."""
    noisy = [run(step_seconds=steps(level, 1)) for level in (0.1, 0.11)]
    seen = judge(Gate.parse("step_seconds +3%"), found(group("a", *noisy), group("b", *noisy)))
    assert seen.result == "undecided"
    assert "runs of each would tell" in seen.why
    assert not seen.stops()
    assert seen.stops(strict=True)


def test_gate_on_what_is_not_there_stops():
    """A gate that cannot be judged is not passed: a metric that is gone must not open it."""
    seen = compare(repeats("a"), repeats("b"), gates=[Gate.parse("loss +1%")])
    assert seen.gates[0].result == "not judged"
    assert seen.gates[0].stops()


def test_unlike_groups_are_named():
    """Other hardware and batches are warnings, another build is what one compares; repeats must not mix any of them."""
    first = group(
        "a", *(run(facts={"hardware/gpus": 8, "build/commit": commit, "config/seed": commit}) for commit in "xy")
    )
    second = group("b", run(facts={"hardware/gpus": 4, "build/commit": "z"}))
    kinds = {(item.kind, item.severity) for item in unlikeness([first, second])}
    assert kinds == {("mixed_group", "warning"), ("unlike_groups", "warning"), ("changed", "info")}
    assert not any("seed" in item.text for item in unlikeness([first, second]))


def profiled(seed, shift=0.0, burst=0.0):
    """Return step times with small run-long noise, a shift, and a disturbance in a part of the run."""
    value = steps(0.1 * (1 + shift), seed, 800, 0.01, 0.0005)
    value[300:340] *= 1 + burst
    return run(f"r{seed}", step_seconds=value)


def test_mixed_programs_are_noticed_in_spite_of_an_outlier():
    """Half of a group being 1 % slower is noticed, also beside a disturbed run; repeats of one program are not."""
    mixed = group("m", *(profiled(at, 0.01 * (at % 2), 2.0 * (at == 3)) for at in range(7)))
    pure = group("p", *(profiled(at, 0.0, 2.0 * (at == 3)) for at in range(7)))
    assert [item.kind for item in mixtures([mixed])] == ["mixed_group"]
    assert not list(mixtures([pure]))


def test_run_that_stands_apart_is_named():
    """One run 5 % slower than all others is named."""
    odd = group("o", *(profiled(at, 0.05 * (at == 2)) for at in range(6)))
    (finding,) = mixtures([odd])
    assert finding.kind == "outlier_run"
    assert "r2" in finding.text


@pytest.mark.promise("S0-084")
def test_baseline_is_its_runs():
    """A baseline, as a file and back, compares as the runs that it was made of, and its ranges hold the next run."""
    made = repeats("main")
    kept = from_facts(json.loads(json.dumps(to_facts(made))))
    assert found(kept, repeats("b", 0.11, seed=1)) == found(made, repeats("b", 0.11, seed=1))
    (step, *_) = ranges(kept)
    inside = [
        step.low <= measure(Spec("step_seconds"), [repeats("n", number=1, seed=at)]).groups[0][0].value <= step.high
        for at in range(1, 41)
    ]
    assert sum(inside) >= 36


@pytest.mark.parametrize(
    "facts",
    [
        None,
        [],
        {},
        {"format": "stepscope-baseline"},
        {"format": "stepscope-baseline", "version": 99, "name": "x", "runs": []},
    ]
    + [
        {"format": "stepscope-baseline", "version": 1, "name": "x", "runs": runs}
        for runs in (
            3,
            [{}],
            [{"label": "r", "facts": {}, "curves": {"a": {"step": [2, 1], "elapsed": [0, 0], "value": [1, 2]}}}],
        )
    ],
)
def test_damaged_baselines_are_refused(facts):
    """What is no baseline is a ValueError, whatever it is."""
    with pytest.raises(ValueError, match="it "):
        from_facts(facts)


@pytest.mark.promise("S0-084")
@pytest.mark.parametrize(
    ("quantity", "target", "result"),
    [
        ("step_seconds", 0.2, "met"),
        ("step_seconds", 0.05, "missed"),
        ("step_seconds", 0.1, "too close to tell"),
        ("samples_per_second", 200.0, "missed"),
        ("samples_per_second", 100.0, "met"),
    ],
)
def test_targets_are_met_or_missed(quantity, target, result):
    """A target is at most, at least for throughput, and too close to tell inside the noise."""
    value = steps(0.1, 1)
    runs = group("a", run(step_seconds=value, samples_per_second=16 / value))
    assert aim(quantity, target, measure(Spec(quantity), [runs]).groups[0]).result == result
    assert aim(quantity, target, ()).result == "not measured"


@pytest.fixture(scope="module")
def programs():
    """The runs of each program in the real logs."""
    from stepscope.sources.groups import group_of

    folders = sorted(path for path in DATA.glob("*/*") if path.is_dir())
    return {f"{path.parent.name}/{path.name}": group_of(str(path)) for path in folders}


@needs_data
def test_real_differences_have_their_direction(programs):
    """Programs that differ by more than 0.4 % by their authors' means are told apart, the right way round."""
    truth = json.loads((DATA / "ground_truth.json").read_text())
    known = {name: facts["train_time_s_mean"] for name, facts in truth.items()}
    for a, b in itertools.permutations(programs, 2):
        real = known[b] / known[a] - 1
        if a.partition("/")[0] == b.partition("/")[0] and abs(real) > 0.004:
            seen = found(programs[a], programs[b])
            assert seen.verdict == ("faster" if real < 0 else "slower")
            assert math.isclose(seen.ratio, real, abs_tol=0.002)


@pytest.mark.slow
@needs_data
def test_real_repeats_do_not_differ(programs):
    """Halves of one program's repeats differ no more often than one time in twenty; no such group is mixed."""
    said = []
    for whole in programs.values():
        for chosen in itertools.combinations(range(len(whole.runs)), len(whole.runs) // 2):
            a = group("a", *(whole.runs[at] for at in chosen))
            b = group("b", *(one for at, one in enumerate(whole.runs) if at not in chosen))
            said.append(found(a, b).verdict != "no difference")
        assert not [item for item in mixtures([whole]) if item.kind == "mixed_group"]
    assert sum(said) <= 0.05 * len(said)


@needs_data
def test_real_mixtures_are_noticed(programs):
    """A group half of one program and half of one 0.5 or 1.1 % faster is mixed, though their logs say the same."""
    for record in ("2026-02-28_TransposeCopyBackward", "2026-02-16_FlattenForward"):
        before, after = (whole for name, whole in programs.items() if name.startswith(record))
        mixed = group("m", *before.runs[:3], *after.runs[:3])
        assert [item.kind for item in mixtures([mixed])] == ["mixed_group"]
