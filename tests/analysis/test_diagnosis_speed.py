"""What makes steps slow, on runs whose cause is known because it was put there."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from stepscope.analysis.diagnosis.changes import changes
from stepscope.analysis.diagnosis.evidence import RankSteps, Track
from stepscope.analysis.diagnosis.verdict import findings, primary, summary
from tests.analysis.diagnosis_rig import HEALTHY, busy, evidence, falling, steps, track

PLANTED = {
    "input_bound": {"data": 0.05},
    "copy_bound": {"copy": 0.03},
    "host_bound": {"other": 0.05},
    "logging_heavy": {"logging": 0.02},
    "gc_pauses": {"gc": 0.02},
}
COUNT = 200
MODEST = (("gc", 10, 0.04), ("logging", 5, 0.02), ("checkpoint", 100, 0.05))
"""Phases that a healthy run has now and then: how often, and their share of the time."""


def rare(seconds: float, every: int, count: int = COUNT) -> np.ndarray:
    """Return a phase that happens every so many steps."""
    found = np.full(count, np.nan)
    found[every - 1 :: every] = seconds
    return found


@pytest.mark.parametrize("kind", PLANTED)
def test_a_phase_of_every_step_that_takes_too_long_is_the_verdict(kind: str) -> None:
    """The phase that was made slow is named, with the step that remains without it."""
    (phase, seconds) = next(iter(PLANTED[kind].items()))
    found = findings(evidence(steps(HEALTHY | PLANTED[kind])))
    assert primary(found) == kind
    rest = sum(HEALTHY.values()) - HEALTHY.get(phase, 0.0)
    assert found[0].evidence["expected_step_seconds"] == pytest.approx(rest, rel=0.05)
    assert found[0].gain_ratio == pytest.approx(seconds / (rest + seconds), rel=0.05)
    assert found[0].remedy
    assert "→" in found[0].expected_gain


@pytest.mark.parametrize("kind", PLANTED)
def test_the_verdict_is_the_same_on_a_busy_machine(kind: str) -> None:
    """Passes that take thirty times as long in most steps, because others use the processors, change no verdict."""
    chance = np.random.default_rng(0)
    slowed: dict[str, float | np.ndarray] = {
        name: HEALTHY[name] * np.where(chance.random(COUNT) < 0.85, 30.0, 1.0) for name in ("forward", "backward")
    }
    found = findings(evidence(steps({**HEALTHY, **slowed, **PLANTED[kind]}), series=busy()))
    assert primary(found) == kind
    assert found[0].evidence["disturbed_seconds"] > 0
    assert primary(findings(evidence(steps({**HEALTHY, **slowed}), series=busy()))) in ("none", "compute_bound")


def test_a_healthy_run_has_no_finding_and_says_so() -> None:
    """Nothing found is a verdict, too."""
    run = evidence(steps(), series={"loss": falling()})
    assert [one for one in findings(run) if one.severity != "info"] == []
    assert "no problem was found in 200 steps" in summary([], run)


def test_tiny_steps_are_not_called_input_bound() -> None:
    """A millisecond of collating is no cause, though it is a third of a step of three."""
    tiny = {"data": 0.001, "forward": 0.0006, "backward": 0.0008, "optimizer": 0.0005, "other": 0.0002}
    assert findings(evidence(steps(tiny))) == []


def test_checkpoints_and_evaluations_are_a_finding_only_if_they_take_much() -> None:
    """Every phase that happens now and then is told by its share, with how often it happens."""
    heavy = findings(evidence(steps(HEALTHY | {"checkpoint": rare(0.3, 5)})))
    assert primary(heavy) == "checkpoint_heavy"
    assert heavy[0].evidence["every_steps"] == pytest.approx(5, rel=0.1)
    assert primary(findings(evidence(steps(HEALTHY | {"evaluation": rare(0.5, 10)})))) == "evaluation_heavy"
    modest = HEALTHY | {"checkpoint": rare(0.1, 50), "evaluation": rare(0.3, 50)}
    assert [one for one in findings(evidence(steps(modest))) if one.severity != "info"] == []


def test_a_first_compilation_is_warm_up_and_many_are_a_finding() -> None:
    """One long compilation is the price of a compiled model; those that come again are not."""
    first = np.full(COUNT, np.nan)
    first[0] = 20.0
    once = [{"kind": "compile", "recompiled": False, "seconds": 20.0, "time": 1.7e9, "rank": 0}]
    assert [
        one for one in findings(evidence(steps(HEALTHY | {"compile": first}), events=once)) if one.severity != "info"
    ] == []
    again = [{**once[0], "recompiled": True, "seconds": 2.0} for _ in range(8)]
    found = findings(evidence(steps(HEALTHY | {"compile": rare(2.0, 25)}), events=again))
    assert primary(found) == "compile_heavy"
    assert found[0].evidence["recompilations"] == 8


def test_stalls_in_a_rhythm_are_told_apart_from_a_slow_host() -> None:
    """Half a second every twenty steps is a periodic stall, and nothing else."""
    other = np.full(COUNT, 0.001)
    other[19::20] = 0.5
    found = findings(evidence(steps(HEALTHY | {"other": other})))
    assert [one.kind for one in found if one.severity != "info"] == ["periodic_stall"]
    assert found[0].evidence["every_steps"] == 20
    assert found[0].evidence["phase"] == "other"


def test_stalls_are_told_once_on_a_machine_that_others_use() -> None:
    """There too a rhythm is a periodic stall and no slow host, with the cost and the usual step as they are."""
    other = np.full(COUNT, 0.001)
    other[19::20] += 0.5
    slowed = {"forward": 0.01 * np.random.default_rng(1).uniform(1, 4, COUNT)}
    found = findings(evidence(steps(HEALTHY | slowed | {"other": other}), series=busy()))
    assert [one.kind for one in found if one.severity != "info"] == ["periodic_stall"]
    assert found[0].gain_ratio == pytest.approx(0.025 / (0.025 + 0.037), rel=0.1)
    assert "usual 3" in found[0].text


def test_a_stall_takes_nothing_from_another_rhythm() -> None:
    """Batches that come late every fourth step are told beside a stall every twenty, also where others disturb."""
    data, other = np.full(COUNT, 0.001), np.full(COUNT, 0.001)
    data[3::4] += 0.1
    other[18::20] += 0.5
    slowed = {"forward": 0.01 * np.random.default_rng(1).uniform(1, 4, COUNT)}
    found = findings(evidence(steps(HEALTHY | slowed | {"data": data, "other": other}), series=busy()))
    assert {one.kind for one in found if one.severity != "info"} == {"periodic_stall", "input_bound"}


def test_a_stretch_of_slow_steps_is_no_rhythm() -> None:
    """Ten slow steps one after another, each as long as the next, are one change of the run and no periodic stall."""
    data = np.full(COUNT, 0.001)
    data[100:110] = 0.5
    found = findings(evidence(steps(HEALTHY | {"data": data})))
    assert "periodic_stall" not in [one.kind for one in found]


@pytest.mark.parametrize("machine", [{}, busy()], ids=["quiet", "busy"])
@pytest.mark.parametrize(("phase", "kind"), [("data", "input_bound"), ("other", "host_bound")])
def test_a_stretch_of_slow_steps_is_told_with_its_steps(phase: str, kind: str, machine: dict[str, Track]) -> None:
    """Fifty steps that wait four times as long as a step takes cost a tenth of a run; the others are fine."""
    slow = np.full(1000, 0.004)
    slow[280:330] = 0.14
    [found, *_] = findings(evidence(steps(HEALTHY | {phase: slow}, count=1000), series=machine))
    assert (found.kind, found.evidence["cause"], found.evidence["range"]) == (kind, "stretch", [280, 329])
    assert found.cost_seconds == pytest.approx(50 * 0.136, rel=0.05)
    assert "from step 280 to 329" in found.text


def test_a_stretch_in_which_neighbours_slow_everything_is_none_of_the_run() -> None:
    """Passes that take as many times as long say whose it is."""
    times = np.repeat([1.0, 5.0, 1.0], [280, 50, 670])
    slow = {name: times * (0.02 if name == "data" else seconds) for name, seconds in HEALTHY.items()}
    told = findings(evidence(steps(slow, count=1000), series=busy()))
    assert "stretch" not in [one.evidence.get("cause") for one in told]


def test_a_busy_machine_makes_no_garbage_collection() -> None:
    """Pauses that others made six times as long are taken as short as the passes are; all sums are of one machine."""
    chance = np.random.default_rng(0)
    count = 400
    alike = {name: seconds * chance.uniform(1, 12, count) for name, seconds in HEALTHY.items()}
    pauses = np.zeros(count)
    pauses[9::10] = 0.025 * chance.uniform(1, 12, count // 10)  # 6 % of the time
    run = evidence(steps(alike | {"gc": pauses}, count=count), series=busy())
    assert "gc_pauses" not in [one.kind for one in findings(run)]
    worse = evidence(steps(alike | {"gc": 3 * pauses}, count=count), series=busy())
    (found,) = [one for one in findings(worse) if one.kind == "gc_pauses"]
    assert found.evidence["share"] == pytest.approx(0.0075 / (0.0075 + sum(HEALTHY.values())), abs=0.06)


@pytest.mark.parametrize("seed", range(12))
def test_a_busy_machine_makes_no_cause_of_what_is_modest(seed: int) -> None:
    """Other programs come and go; collections, checkpoints, logging and recompilations of a few per cent stay that."""
    chance = np.random.default_rng(seed)
    count, usual = 400, sum(HEALTHY.values())
    here = np.repeat(chance.random(count // 20) < 0.6, 20)
    slower = 1 + here * chance.gamma(2, chance.choice([2, 5, 10]), count)
    lesser = 1 + (slower - 1) * chance.uniform(0.1, 0.6, count)
    made = {name: HEALTHY[name] * (lesser if name in ("data", "other") else slower) for name in HEALTHY}
    for name, every, share in MODEST:
        now = np.arange(count) % every == every - 1
        made[name] = np.where(now, share * usual * every * lesser, np.nan if name == "checkpoint" else 0.0)
    compiled = [{"kind": "compile", "time": 1.7e9, "recompiled": True, "seconds": 0.15 * float(slower.mean())}] * 4
    run = evidence(steps(made, count=count), series=busy(), events=compiled)
    assert [one.kind for one in findings(run) if one.severity != "info"] == []
    assert changes(run) == []


def test_a_summary_reckons_as_its_note_says() -> None:
    """The share of computing is that of undisturbed steps, as all shares are."""
    slowed = {name: HEALTHY[name] * np.repeat([1.0, 30.0], [100, 100]) for name in ("forward", "backward", "optimizer")}
    wait = {"data": 0.008, "other": 0.006}
    run = evidence(steps(HEALTHY | slowed | wait), series=busy())
    assert summary([], run).endswith("72 % of the time is compute")  # not 97


@pytest.mark.parametrize(
    ("other", "passes", "told"),
    [(0.0015, 0.0004, True), (0.0022, 0.003, True), (0.0006, 0.0003, False), (0.001, 0.0015, False)],
    ids=["reads every sample", "reads half of them", "tiny loop", "small model"],
)
def test_a_loop_over_samples_is_told_below_the_floor(other: float, passes: float, *, told: bool) -> None:
    """The more of a step it takes, the shorter it may be; what any loop around a tiny model takes is none."""
    fast = {"data": 0.0001, "forward": passes / 3, "backward": passes / 3, "optimizer": passes / 3, "other": other}
    assert ("host_bound" in [one.kind for one in findings(evidence(steps(fast)))]) is told


@pytest.mark.parametrize(
    ("passes", "update", "nodes", "tensors", "cause"),
    [
        (0.0026, 0.009, 325, 162, "small_updates"),
        (0.02, 0.003, 2500, 20, "small_operations"),
        (0.012, 0.009, 325, 162, None),
        (0.0026, 0.04, 325, 162, None),
        (0.0003, 0.0002, 12, 6, None),
    ],
    ids=["optimizer tensor by tensor", "loop over time", "passes that compute", "updates that compute", "tiny model"],
)
def test_launching_tiny_operations_is_host_bound(
    passes: float, update: float, nodes: int, tensors: int, cause: str | None
) -> None:
    """Those of the optimizer count, too; operations that take longer than their launch do not."""
    made = {"forward": passes / 3, "backward": passes / 1.5, "optimizer": update, "other": 0.0004}
    events = [
        {"kind": "graph", "time": 1.7e9, "nodes": nodes},
        {"kind": "optimizer_setup", "time": 1.7e9, "tensors": tensors, "one_by_one": True},
    ]
    found = [one for one in findings(evidence(steps(made), events=events)) if one.kind == "host_bound"]
    assert [one.evidence["cause"] for one in found] == ([cause] if cause else [])
    if cause == "small_updates":
        assert findings(evidence(steps(made), events=[events[0], {**events[1], "one_by_one": False}])) == []
    if cause == "small_operations":  # the card hides what its host takes
        told = findings(evidence(steps(made), events=events, series={"gpu/0/utilization_ratio": [0.98] * 20}))
        assert "host_bound" not in [one.kind for one in told]


def test_a_stall_is_as_long_as_what_it_adds() -> None:
    """What is told of a stall is how much longer than usual the step takes."""
    other = np.full(COUNT, 0.001)
    other[19::20] = 0.5
    [found, *_] = findings(evidence(steps(HEALTHY | {"other": other})))
    assert abs(found.evidence["stalled_seconds"] - 0.499) < 0.005


def test_stalls_by_chance_are_no_finding() -> None:
    """A neighbour stops a step now and then, without a rhythm."""
    chance = np.random.default_rng(3)
    for _ in range(20):
        other = np.full(COUNT, 0.001)
        other[chance.choice(np.arange(5, COUNT), 6, replace=False)] = chance.uniform(0.1, 0.6, 6)
        found = findings(evidence(steps(HEALTHY | {"other": other}), series=busy()))
        assert [one.kind for one in found if one.severity != "info"] == []


def test_why_data_is_late_is_told_from_what_the_workers_say() -> None:
    """Too few workers, transforms, collating and the trainer itself have remedies of their own."""
    slow = steps(HEALTHY | {"data": 0.08})
    told = {"process/0/workers": [2.0] * 20}
    few = told | {"data/load_seconds": [0.2] * 20, "data/collate_seconds": [0.001] * 20}
    cases = {
        "in_process": {},
        "workers": few,
        "transform": few | {"data/transform_seconds": [0.18] * 20},
        "collate": few | {"data/collate_seconds": [0.4] * 20},
        "disk": few | {"pressure/io_some_stalled_ratio": [0.6] * 20},
    }
    for cause, series in cases.items():
        found = findings(evidence(slow, series=series))
        assert (primary(found), found[0].evidence["cause"]) == ("input_bound", cause)
    assert "num_workers=7 would keep up" in findings(evidence(slow, series=few, processors=8.0))[0].remedy


@pytest.mark.parametrize(
    ("workers", "used", "ranks", "said"),
    [
        (2, 1.9, 1, "more workers do not help, because its share of the CPUs (2) is fully used"),
        (1, 1.9, 1, "use 2, the most this machine can feed"),
        (2, 0.2, 1, "use 8, the most this machine can feed"),
        (2, 0.9, 2, "more workers do not help, because its share of the CPUs (1) is fully used"),
    ],
    ids=["all in use", "one left", "they wait", "two ranks"],
)
def test_nobody_is_told_to_start_more_workers_than_the_processors_feed(
    workers: int, used: float | None, ranks: int, said: str
) -> None:
    """64 workers on two processors make every batch later."""
    told = {"process/0/workers": [float(workers)] * 20, "data/load_seconds": [2.0] * 20}
    told |= {"process/0/tree_cpu_ratio": [used] * 20} if used is not None else {}
    slow = [steps(HEALTHY | {"data": 1.5}, rank=rank) for rank in range(ranks)]
    found = next(one for one in findings(evidence(*slow, series=told)) if one.kind == "input_bound")
    assert found.evidence["cause"] == "workers"
    assert said in found.remedy
    assert "num_workers=" not in found.remedy


def test_a_worker_is_not_slower_than_the_steps_it_feeds() -> None:
    """One worker makes a batch for every step: on a busy machine its times are taken as the steps' are."""
    told = busy() | {"process/0/workers": track([1.0] * 20), "data/load_seconds": track([0.09] * 10 + [5.0] * 10)}
    found = findings(evidence(steps(HEALTHY | {"data": 0.06}), series=told))[0]
    assert found.kind == "input_bound"
    assert "its one worker needs 90 ms per batch" in found.text


@pytest.mark.parametrize(("ranks", "workers", "cause"), [(1, 0, "threads"), (2, 0, None), (1, 1, None)])
def test_threads_are_advised_up_to_the_processors_of_a_rank(ranks: int, workers: int, cause: str | None) -> None:
    """Two ranks on two processors have one each, and a worker of the loader needs one as well."""
    setup = {"kind": "torch_setup", "time": 1.7e9, "threads": 1, "device": "cpu"}
    loader = {"kind": "loader", "time": 1.7e9, "workers": workers}
    heavy = [steps(HEALTHY | {"forward": 0.1}, rank=rank) for rank in range(ranks)]
    found = next(one for one in findings(evidence(*heavy, events=[setup, loader])) if one.kind == "compute_bound")
    assert ("torch.set_num_threads(2)" in found.remedy) is (cause == "threads")


def test_workers_that_start_anew_in_every_epoch_are_told_apart() -> None:
    """They wait in a rhythm, though each batch is made in no time; persistent ones do not start."""
    data = np.full(COUNT, 0.001)
    data[4::8] = 0.4
    series = {"data/load_seconds": [0.001] * 20, "data/collate_seconds": [0.001] * 20}
    loader = {"kind": "loader", "workers": 2, "persistent": False, "evaluates": False, "time": 1.7e9}
    found = findings(evidence(steps(HEALTHY | {"data": data}), series=series, events=[loader]))
    assert (primary(found), found[0].evidence["cause"]) == ("input_bound", "start")
    assert "persistent_workers=True" in found[0].remedy
    kept = findings(evidence(steps(HEALTHY | {"data": data}), series=series, events=[{**loader, "persistent": True}]))
    assert kept[0].evidence.get("cause") != "start"


def test_a_heavy_model_is_compute_bound_for_information() -> None:
    """It is no fault; what remains is told: threads that are not used, too much precision."""
    heavy = steps({name: seconds * 10 for name, seconds in HEALTHY.items() if name != "data"} | {"data": 0.001})
    setup = [{"kind": "torch_setup", "threads": 1, "dtype": "torch.float32", "device": "cpu", "time": 1.7e9}]
    found = findings(evidence(heavy, events=setup))
    assert [(one.kind, one.severity) for one in found] == [("compute_bound", "info")]
    assert "torch.set_num_threads(2)" in found[0].remedy


def test_padding_is_a_finding_from_well_above_what_chance_makes() -> None:
    """Batches of even lengths have up to one half."""
    assert primary(findings(evidence(steps(), series={"padding_ratio": [0.85] * 20}))) == "padding_waste"
    assert findings(evidence(steps(), series={"padding_ratio": [0.48] * 20, "loss": falling()})) == findings(
        evidence(steps())
    )


def test_thinned_phases_and_blocks_of_steps_give_the_same_shares() -> None:
    """Where one step of four is measured, or a row stands for a hundred steps, the share is the same."""
    whole = steps(HEALTHY | {"data": 0.05}, count=2000)
    thin = {name: np.where(np.arange(2000) % 4 == 0, seconds, np.nan) for name, seconds in whole.phases.items()}
    blocks = {name: seconds.reshape(-1, 100).mean(axis=1) for name, seconds in whole.phases.items()}
    joined = RankSteps(
        *(0, whole.step[99::100], whole.end[99::100], whole.seconds.reshape(-1, 100).mean(axis=1), blocks),
        weight=np.full(20, 100.0),
    )
    for one in (whole, replace(whole, phases=thin), joined):
        (found,) = (each for each in findings(evidence(one)) if each.kind == "input_bound")
        assert found.evidence["share"] == pytest.approx(0.05 / (0.05 + sum(HEALTHY.values()) - 0.001), rel=0.03)


@pytest.mark.parametrize("count", [0, 1, 3, 7])
def test_few_steps_are_not_judged(count: int) -> None:
    """No finding without data for it."""
    assert findings(evidence(steps({"data": 1.0, "forward": 0.001, "other": 0.0}, count=count))) == []


@pytest.mark.parametrize(("phase", "kind"), [("evaluation", "evaluation_heavy"), ("checkpoint", "checkpoint_heavy")])
def test_what_an_evaluation_does_between_its_passes_is_its_own(phase: str, kind: str) -> None:
    """The program's own Python in the same steps is no stall of its own, and is saved with the rest."""
    own = HEALTHY["other"] + np.nan_to_num(rare(0.3, 15))
    found = findings(evidence(steps(HEALTHY | {phase: rare(0.4, 15), "other": own})))
    assert [one.kind for one in found if one.severity != "info"] == [kind]
    whole = 0.7 / 15
    assert found[0].gain_ratio == pytest.approx(whole / (whole + sum(HEALTHY.values())), rel=0.12)


def test_a_stall_of_other_steps_than_the_evaluations_is_told() -> None:
    """What happens by itself stays a finding by itself."""
    own = HEALTHY["other"] + np.nan_to_num(rare(0.3, 20))
    evaluated = np.roll(rare(0.05, 20), 7)
    found = findings(evidence(steps(HEALTHY | {"evaluation": evaluated, "other": own})))
    assert [one.kind for one in found if one.severity != "info"] == ["periodic_stall"]


def sampled(run: RankSteps, every: int, length: int = 2) -> RankSteps:
    """Return a run in which only some steps in a row, of so many, have their phases measured."""
    left_out = np.arange(len(run)) % every >= length
    return replace(run, phases={name: np.where(left_out, np.nan, seconds) for name, seconds in run.phases.items()})


def test_a_rhythm_of_steps_without_phases_is_enough() -> None:
    """Short steps are measured now and then; the durations of all show what happens every 30 steps."""
    stalls = np.zeros(COUNT)
    stalls[29::30] = 0.4
    run = sampled(steps(HEALTHY | {"other": HEALTHY["other"] + stalls}), 8)
    assert not (run.measured & (stalls > 0)).sum() >= 4
    found = findings(evidence(run))
    assert primary(found) == "periodic_stall"
    assert found[0].evidence["every_steps"] == 30
    assert found[0].gain_ratio == pytest.approx(stalls.sum() / run.total, rel=0.1)
    collected = np.full(COUNT, np.nan)
    collected[::8] = 0.3
    known = replace(run, phases={**run.phases, "gc": collected})
    told = findings(evidence(replace(known, seconds=known.seconds + np.nan_to_num(collected))))
    assert "gc_pauses" in {one.kind for one in told}


def test_a_rhythm_that_half_of_the_measured_steps_show_is_told_whole() -> None:
    """Where phases are measured at every second stall, all stalls count, and the program's own time is nothing else."""
    stalls = np.zeros(240)
    stalls[19::20] = 0.5
    whole = steps(HEALTHY | {"other": HEALTHY["other"] + stalls}, count=240)
    seen = (np.arange(240) // 20 % 2 == 0) & (np.arange(240) % 4 == 3)
    run = replace(whole, phases={name: np.where(seen, each, np.nan) for name, each in whole.phases.items()})
    assert (run.measured & (stalls > 0)).sum() == 6
    found = findings(evidence(run))
    assert [one.kind for one in found if one.severity != "info"] == ["periodic_stall"]
    assert found[0].evidence["every_steps"] == 20
    assert found[0].gain_ratio == pytest.approx(stalls.sum() / run.total, rel=0.1)
