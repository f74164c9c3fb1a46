"""Who is late, why, and what it costs: planted in jobs of any size, and nobody in healthy ones."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.analysis.stragglers.course import lateness_of
from stepscope.analysis.stragglers.lateness import Lateness, beyond_others, judge, ranks_in_words
from stepscope.analysis.stragglers.pace import StepTable, StepTiming, paces
from tests.analysis.straggler_rig import USUAL, Job

LATE = 0.1


def found(job: Job) -> Lateness:
    """Return who is late in a job; somebody must be."""
    late = lateness_of(job.table(), LATE)
    assert late is not None
    return late


CLASSES = {"data": "data", "forward": "compute", "optimizer": "compute", "other": "host", "gc": "host"}


@pytest.mark.parametrize("phase", CLASSES)
@pytest.mark.parametrize("ranks", [2, 3, 8, 64])
@pytest.mark.parametrize("meets_in", ["backward", "communication"])
def test_the_late_rank_is_named_with_its_class(phase: str, ranks: int, meets_in: str) -> None:
    """Whatever the number of ranks, and wherever they meet."""
    rank = ranks // 2
    late = found(Job(ranks, slow={(rank, phase): 0.03}, meets_in=meets_in))
    assert [one.rank for one in late.late] == [rank]
    assert (late.first.cause.kind, late.first.phase) == (CLASSES[phase], phase)
    assert late.seconds == pytest.approx(0.03, rel=0.15)


def test_a_slow_backward_pass_is_seen_where_communication_is_timed_by_itself() -> None:
    """Then the pass holds no waiting."""
    late = found(Job(slow={(5, "backward"): 0.03, (5, "forward"): 0.015}, meets_in="communication"))
    assert (late.first.rank, late.first.cause.kind, late.first.phase) == (5, "compute", "backward")
    assert late.seconds == pytest.approx(0.045, rel=0.15)


def test_a_link_is_late_although_its_rank_arrives_on_time() -> None:
    """The exchange with one rank takes longer than all other exchanges, and the others wait at the next meeting."""
    usual = USUAL | {"exchange": 0.005}
    late = found(Job(slow={(3, "exchange"): 0.03}, meets_in="communication", usual=usual))
    assert (late.first.rank, late.first.cause.kind) == (3, "link")


def test_ranks_that_wait_for_a_late_partner_are_not_late_themselves() -> None:
    """A rank that loads slowly holds up its group first, and then everybody else."""
    table = Job(slow={(5, "data"): 0.03}, meets_in="communication", usual=USUAL | {"all_gather": 0.002}).table()
    for rank in (4, 6, 7):  # its group waits in a collective of the group
        for name, sign in (("all_gather", 1), ("communication", -1)):
            table.phases[name][rank] += sign * 0.03
    late = lateness_of(table, LATE)
    assert late is not None
    assert [one.rank for one in late.late] == [5]
    assert late.first.cause.kind == "data"


def test_more_tokens_are_uneven_work() -> None:
    """A rank that computes longer because it has more to compute is not slow."""
    facts = [{"tokens": 3000.0 if rank == 2 else 2000.0} for rank in range(8)]
    late = found(Job(slow={(2, "forward"): 0.02}, facts=facts))
    assert late.first.cause.kind == "work"
    assert "3000 tokens per step, the others 2000" in late.text()


@pytest.mark.parametrize(
    ("fact", "value", "usual", "reason"),
    [
        ("run_wait_ratio", 0.4, 0.02, "other_programs"),
        ("gpu_hot_ratio", 0.8, 0.0, "heat"),
        ("gpu_braked_ratio", 0.5, 0.0, "power"),
        ("gpu_clock_hertz", 1.1e9, 1.7e9, "clock"),
    ],
)
def test_the_reason_of_slow_compute_is_named_where_it_is_seen(
    fact: str, value: float, usual: float, reason: str
) -> None:
    """Other programs, heat, power and a slow clock each have a remedy of their own."""
    facts = [{fact: value if rank == 6 else usual} for rank in range(8)]
    late = found(Job(slow={(6, "forward"): 0.03}, facts=facts))
    assert (late.first.rank, late.first.cause.kind, late.first.cause.reason) == (6, "compute", reason)
    plain = found(Job(slow={(6, "forward"): 0.03}))
    assert late.remedy() != plain.remedy()


@pytest.mark.parametrize(
    ("place", "cause", "reason", "who"),
    [
        ("pipeline", "work", "stage", "pipeline stage 3 (ranks 3 and 7)"),
        ("expert", "work", "experts", "expert group 3 (ranks 3 and 7)"),
        ("numa_node", "compute", "numa", "NUMA node 3 (ranks 3 and 7)"),
    ],
)
def test_what_all_late_ranks_have_in_common_is_the_reason(place: str, cause: str, reason: str, who: str) -> None:
    """If no rank that is on time has it: their stage or experts have more work, or their NUMA node is slow."""
    slow = {(3, "forward"): 0.03, (7, "forward"): 0.03}
    late = found(Job(slow=slow, facts=[{place: float(rank % 4)} for rank in range(8)]))
    assert (late.first.cause.kind, late.first.cause.reason, late.who) == (cause, reason, who)
    assert late.remedy() != found(Job(slow=slow)).remedy()
    for numbers in ([0, 0, 0, 1, 0, 0, 1, 1], [0, 0, 0, 1, 0, 0, 0, 2], [1] * 8):
        other = found(Job(slow=slow, facts=[{place: float(number)} for number in numbers]))
        assert (other.first.cause.kind, other.first.cause.reason, other.group) == ("compute", "", "")


def test_a_reason_that_is_seen_counts_more_than_what_ranks_have_in_common() -> None:
    """Hot GPUs are hot whatever their stage."""
    facts = [{"pipeline": float(rank % 4), "gpu_hot_ratio": 0.9 if rank % 4 == 3 else 0.0} for rank in range(8)]
    late = found(Job(slow={(3, "forward"): 0.03, (7, "forward"): 0.03}, facts=facts))
    assert (late.first.cause.reason, late.group) == ("heat", "")


def test_a_rank_with_more_python_code_does_not_blame_others_for_the_cpu() -> None:
    """Where everybody waits for a CPU as long as it computes, other programs make nobody late."""
    facts = [{"run_wait_ratio": 0.05, "cpu_ratio": 0.1}] * 8
    facts[1] = {"run_wait_ratio": 0.4, "cpu_ratio": 0.8}
    late = found(Job(slow={(1, "other"): 0.05}, facts=facts))
    assert (late.first.rank, late.first.cause.kind) == (1, "host")


def test_the_partners_of_a_slow_link_change() -> None:
    """Each of the others meets the rank with the slow link now and then, and is not late."""
    steps = np.arange(120)
    job = Job(4, 120, meets_in="communication", usual=USUAL | {"exchange": 0.001})
    slow = {(2, "exchange"): np.full(120, 0.03)}
    slow |= {(rank, "exchange"): np.where(steps % 3 == at, 0.03, 0.0) for at, rank in enumerate((0, 1, 3))}
    late = found(replace(job, slow=slow))
    assert [one.rank for one in late.late] == [2]
    assert late.first.cause.kind == "link"


def test_a_slow_gpu_is_seen_by_its_own_clock() -> None:
    """All hosts wait equally long for their GPUs, the slow one for its own passes and the others for the slow one."""
    clocks = {"gpu_clock_hertz": 1.7e9, "gpu_forward_seconds": 0.02}
    facts = [clocks | {"gpu_forward_seconds": 0.02 + 0.0001 * rank} for rank in range(8)]
    assert lateness_of(Job(facts=facts).table(), LATE) is None
    facts[6] = {"gpu_clock_hertz": 1.1e9, "gpu_forward_seconds": 0.031}
    late = found(Job(facts=facts))
    assert (late.first.rank, late.first.cause.kind, late.first.cause.reason) == (6, "compute", "clock")
    assert "forward takes it 31 ms, the others 20" in late.text()
    assert "its GPU runs at 1.1 GHz, the others at 1.7 GHz" in late.text()


def test_a_node_whose_ranks_are_all_late_is_named() -> None:
    """Not its ranks one by one."""
    late = found(Job(32, slow={(rank, "forward"): 0.03 for rank in range(16, 24)}))
    assert late.node == "node-2"
    assert late.text().startswith("the other 24 ranks wait ")
    assert " for node-2 (ranks 16 to 23): forward " in late.text()


def test_the_cost_to_the_job_is_in_one_sentence() -> None:
    """Who waits, how long, of how much, for whom."""
    late = found(Job(64, slow={(17, "data"): 0.041}, noise=0.01))
    text = late.text()
    assert text.startswith("the other 63 ranks wait 4")
    assert " for rank 17 on node-2: data takes it 4" in text


def test_several_stragglers_are_all_named_with_their_own_cause() -> None:
    """Each of them has to be fixed."""
    late = found(Job(16, slow={(3, "data"): 0.04, (9, "forward"): 0.03}))
    assert {one.rank: one.cause.kind for one in late.late} == {3: "data", 9: "compute"}
    assert "for ranks 3 and 9: of rank 3: data takes it" in late.text()
    assert "rank 9: compute (forward)" in late.text()


def test_half_of_the_ranks_may_be_late() -> None:
    """Those that wait less are late."""
    late = found(Job(8, slow={(rank, "data"): 0.03 for rank in (1, 3, 5, 7)}))
    assert sorted(one.rank for one in late.late) == [1, 3, 5, 7]


def test_without_phases_the_cause_cannot_be_seen() -> None:
    """Ranks that wait in no known phase have equal steps; if they do not, only the rank is known."""
    table = Job(4).table()
    equal = StepTable(table.ranks, table.step, table.seconds)
    assert lateness_of(equal, LATE) is None
    table.seconds[2] += 0.05
    late = lateness_of(equal, LATE)
    assert late is not None
    assert (late.first.rank, late.first.cause.kind) == (2, "")
    assert "no phases are recorded, so the cause cannot be seen" in late.text()


def test_a_rank_that_becomes_late_is_late_since_that_step() -> None:
    """The first part of the run does not hide it, nor does the last if it recovers."""
    more = np.where(np.arange(400) >= 300, 0.03, 0.0)
    late = found(Job(steps=400, slow={(4, "forward"): more}))
    assert late.first.rank == 4
    assert (late.since, late.until) == (300, None)
    more = np.where(np.arange(120) >= 70, 0.03, 0.0)
    late = found(Job(steps=120, noise=0.1, slow={(4, "forward"): more}))
    assert late.since is not None
    assert abs(late.since - 70) <= 3
    more = np.where((np.arange(400) >= 100) & (np.arange(400) < 240), 0.03, 0.0)
    late = found(Job(steps=400, slow={(4, "forward"): more}))
    assert (late.since, late.until) == (100, 239)
    assert " from step 100 to 239 for" in late.text() or " from step 100 to 239: " in late.text()


def test_a_rank_that_is_late_in_every_tenth_step_is_named() -> None:
    """If that costs enough altogether."""
    more = np.where(np.arange(300) % 10 == 0, 0.2, 0.0)
    late = found(Job(steps=300, slow={(4, "data"): more}))
    assert (late.first.rank, late.first.cause.kind) == (4, "data")
    assert late.often == pytest.approx(0.1)
    assert "in every 10th step" in late.text()


EVERY_TENTH = np.where(np.arange(200) % 10 == 0, 0.3, 0.0)
HEALTHY = {
    "noise": Job(noise=0.3),
    "much noise among many": Job(512, 60, noise=0.3),
    "two ranks": Job(2, noise=0.3),
    "checkpoints of rank 0": Job(slow={(0, "checkpoint"): EVERY_TENTH}),
    "evaluations of rank 0": Job(slow={(0, "evaluation"): EVERY_TENTH}),
    "rank 0 writes now and then": Job(slow={(0, "other"): EVERY_TENTH}),
    "rank 0 logs a little": Job(slow={(0, "logging"): 0.002}),
    "two ranks take turns": Job(
        slow={(1, "forward"): 0.05 * (np.arange(200) % 2), (2, "forward"): 0.05 * (np.arange(200) % 2 == 0)}
    ),
    "slow first steps": Job(slow={(3, "forward"): np.where(np.arange(200) < 5, 2.0, 0.0)}),
    "one hiccup": Job(slow={(3, "data"): np.where(np.arange(200) == 90, 5.0, 0.0)}),
    "a short last batch": Job(slow={(3, "forward"): np.where(np.arange(200) % 50 == 49, -0.015, 0.0)}),
    "another rank in each step": Job(
        slow={(rank, "forward"): np.where(np.arange(200) % 8 == rank, 0.05, 0.0) for rank in range(8)}
    ),
    "another rank in each part of the run": Job(
        slow={(rank, "forward"): np.where(np.arange(200) // 25 == rank, 0.05, 0.0) for rank in range(8)}
    ),
    "one fast rank": Job(slow={(3, "forward"): -0.015}),
    "few steps": Job(steps=12, noise=0.3),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_nobody_is_late_in_a_healthy_job(name: str) -> None:
    """Noise, planned work of rank 0, first steps and ranks that take turns are nobody's fault."""
    assert lateness_of(HEALTHY[name].table(), LATE) is None


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("ranks", [2, 4, 8, 64])
def test_sequences_of_unequal_length_are_nobodys_fault(ranks: int, seed: int) -> None:
    """Each step has another longest one, whose backward pass takes longest, and the others wait in communication."""
    lengths = np.exp(np.random.default_rng(seed).normal(0, 0.6, (ranks, 40)))
    slow = {(rank, "backward"): 2 * USUAL["backward"] * each for rank, each in enumerate(lengths)}
    assert lateness_of(Job(ranks, 40, slow=slow, meets_in="communication").table(), LATE) is None


@pytest.mark.parametrize("part", [slice(0, 100), slice(50, 100), slice(30, 75)])
def test_what_all_ranks_have_in_common_hides_nobody(part: slice) -> None:
    """Steps differ by a factor of two or more, of all ranks alike; one rank is late by a fifth of a step."""
    factor = np.exp(np.random.default_rng(0).normal(0, 0.4, 100))
    slow = {(rank, "forward"): 2 * USUAL["forward"] * factor for rank in range(8)}
    more = np.zeros(100)
    more[part] = 0.025
    late = found(Job(8, 100, noise=0.02, slow=slow | {(5, "data"): more}))
    assert [one.rank for one in late.late] == [5]
    assert late.first.cause.kind == "data"


@given(
    ranks=st.integers(2, 24),
    rank=st.integers(0, 23),
    phase=st.sampled_from(["data", "forward", "other"]),
    share=st.floats(0.3, 3.0),
    noise=st.floats(0.0, 0.15),
    seed=st.integers(0, 1000),
)
def test_any_rank_is_found(ranks: int, rank: int, phase: str, share: float, noise: float, seed: int) -> None:
    """A rank that adds a third of a step or more is named, and no other."""
    more = share * sum(USUAL.values())
    late = found(Job(ranks, 60, noise=noise, seed=seed, slow={(rank % ranks, phase): more}))
    assert [one.rank for one in late.late] == [rank % ranks]
    assert late.first.phase == phase


@given(seed=st.integers(0, 10_000), ranks=st.integers(2, 64), noise=st.floats(0.0, 0.35), steps=st.integers(10, 120))
def test_noise_is_nobodys_fault(seed: int, ranks: int, noise: float, steps: int) -> None:
    """However many ranks and steps there are."""
    assert lateness_of(Job(ranks, steps, noise=noise, seed=seed).table(), LATE) is None


def test_a_pace_survives_its_way_through_a_file() -> None:
    """With four significant digits; what is not a pace is none."""
    for pace in paces(Job(facts=[{"tokens": 7.0}] * 8).table()):
        again = StepTiming.of(pace.as_dict())
        assert again is not None
        assert again.own_seconds == pytest.approx(pace.own_seconds, rel=1e-3)
        assert (again.rank, again.node, again.steps) == (pace.rank, pace.node, pace.steps)
    assert judge([], LATE) is None


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(max_size=3),
        lambda inner: (
            st.lists(inner, max_size=2)
            | st.dictionaries(st.sampled_from(["rank", "seconds", "own_seconds", "phases", "facts", "node"]), inner)
        ),
    )
)
def test_any_data_is_a_pace_or_none(data: object) -> None:
    """A node's file may hold anything, and a judgement of it never fails."""
    pace = StepTiming.of(data)
    judge([one for one in (pace, pace) if one is not None], LATE)


@given(st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=30))
def test_each_value_is_compared_with_the_median_of_the_others(values: list[float]) -> None:
    """As by the plain definition."""
    away = beyond_others(np.array(values))
    for at, value in enumerate(values):
        assert away[at] == pytest.approx(value - np.median(np.delete(values, at)), abs=1e-9)


def test_ranks_are_named_in_few_words() -> None:
    """One, two, a range, or the first of many."""
    assert ranks_in_words([3]) == "rank 3"
    assert ranks_in_words([3, 5]) == "ranks 3 and 5"
    assert ranks_in_words([8, 9, 10, 11, 12]) == "ranks 8 to 12"
    assert ranks_in_words([1, 4, 6, 9, 11]) == "ranks 1, 4, 6, 9 and 1 more"
