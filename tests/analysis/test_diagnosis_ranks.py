"""Several ranks: who is late, and what they spend on talking."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from stepscope.analysis.diagnosis.rank_facts import rank_facts
from stepscope.analysis.diagnosis.verdict import findings, primary
from stepscope.core.numbers import format_value
from tests.analysis.diagnosis_rig import HEALTHY, busy, evidence, steps, track

if TYPE_CHECKING:
    from stepscope.analysis.diagnosis.evidence import RankSteps, Track

SLOW = 0.03


def ranks(late: int | None, phase: str, count: int = 4) -> list[RankSteps]:
    """Return ranks of which one is late in a phase; the others wait for it inside the backward pass."""
    made = []
    for rank in range(count):
        mine = dict(HEALTHY)
        if late is not None:
            where = phase if rank == late else "backward"
            mine[where] += SLOW
        made.append(steps(mine, rank=rank))
    return made


def test_a_straggler_is_told_with_one_step_time() -> None:
    """Sentence, gain and evidence have the same, also where neighbours make some steps far longer."""
    for machine in ({}, busy()):
        found = findings(evidence(*ranks(2, "forward"), series=machine))[0]
        step = format_value(found.evidence["step_seconds"], "seconds")
        assert f" in a step of {step} for rank 2: " in found.text
        assert found.expected_gain.startswith(f"step {step} → ")


@pytest.mark.parametrize("phase", ["forward", "data", "other"])
def test_the_rank_that_is_late_is_named_with_its_phase(phase: str) -> None:
    """All steps are equally long; what a rank does before it meets the others tells them apart."""
    found = findings(evidence(*ranks(2, phase)))
    assert primary(found) == "straggler"
    assert (found[0].rank, found[0].evidence["phase"]) == (2, phase)
    assert found[0].evidence["late_seconds"] == pytest.approx(SLOW, rel=0.1)
    assert "rank 2" in found[0].remedy


def test_equal_ranks_have_no_straggler() -> None:
    """Noise is nobody's fault."""
    for seed in range(10):
        equal = [steps(rank=rank, seed=seed, noise=0.3) for rank in range(4)]
        assert [one for one in findings(evidence(*equal)) if one.severity != "info"] == []


def test_collectives_that_take_the_time_are_communication() -> None:
    """Those that are seen, and those inside a backward pass by DDP's own clock: of the rank that waits least."""
    talking = [steps(HEALTHY | {"communication": 0.05}, rank=rank) for rank in range(2)]
    assert primary(findings(evidence(*talking))) == "communication_bound"
    inside = [steps(HEALTHY | {"backward": 0.06}, rank=rank) for rank in range(2)]
    exposed = {rank: track(np.full(20, 0.04 + 0.01 * rank)) for rank in range(2)}
    found = findings(evidence(*inside, series={"communication/exposed_seconds": exposed}))
    assert primary(found) == "communication_bound"
    assert found[0].evidence["inside_backward_seconds"] / found[0].evidence["steps"] == pytest.approx(0.04)


def exposed(*ranks: list[float]) -> dict[str, dict[int, Track]]:
    """Return what DDP's clock has seen of reductions, of each rank."""
    return {"communication/exposed_seconds": {rank: track(values) for rank, values in enumerate(ranks)}}


DDP = {"data": 0.001, "forward": 0.01, "backward": 0.09, "optimizer": 0.004, "other": 0.001}
SETUP = {"kind": "torch_setup", "time": 1.7e9, "device": "cpu", "threads": 1}


def test_a_reduction_on_processors_costs_all_that_makes_the_pass_longer() -> None:
    """It computes beside the pass: by DDP's clock half of it is hidden, and yet nothing of it is free."""
    told = findings(evidence(steps(DDP), steps(DDP, rank=1), series=exposed([0.04] * 9, [0.05] * 9), events=[SETUP]))
    assert [one.kind for one in told] == ["communication_bound"]
    assert told[0].gain_ratio == pytest.approx(0.07 / sum(DDP.values()), rel=0.05)
    there = findings(evidence(steps(DDP), steps(DDP, rank=1), series=exposed([0.04] * 9, [0.05] * 9)))
    assert there[0].gain_ratio == pytest.approx(0.04 / sum(DDP.values()), rel=0.05)


def test_on_a_busy_machine_one_quick_reduction_does_not_hide_the_others() -> None:
    """Of each step the rank that waits least counts, and of the steps the usual one, as a share of its pass."""
    chance = np.random.default_rng(0)
    slowed = DDP | {name: DDP[name] * chance.uniform(1.0, 3.0, 200) for name in ("forward", "backward")}
    series = exposed([0.13, 0.11, 0.02, 0.09, 0.03, 0.09, 0.06, 0.09], [0.1, 0.11, 0.08, 0.07, 0.003, 0.08, 0.05, 0.14])
    told = findings(evidence(steps(slowed), steps(slowed, rank=1), series={**series, **busy()}, events=[SETUP]))
    assert primary(told) == "communication_bound"


def test_small_reductions_between_processes_are_no_finding() -> None:
    """On one machine any reduction takes some milliseconds, of a small model half of a step; the first take longer."""
    small = {"data": 0.001, "forward": 0.0014, "backward": 0.0078, "optimizer": 0.0007, "other": 0.0006}
    series = exposed([0.013, 0.009, 0.0035, 0.0035, 0.0034, 0.0033, 0.003], [0.01, 0.009, *[0.0036] * 5])
    told = findings(evidence(steps(small), steps(small, rank=1), series=series, events=[SETUP]))
    assert [one.kind for one in told if one.severity != "info"] == []


def test_ranks_that_hardly_talk_are_none() -> None:
    """Most of it is hidden."""
    told = findings(evidence(steps(), steps(rank=1), series=exposed([0.003] * 9, [0.004] * 9), events=[SETUP]))
    assert [one.kind for one in told if one.severity != "info"] == []


def test_places_and_clocks_of_ranks_are_known_from_events_and_samples() -> None:
    """Stages from events, whatever else they hold; NUMA node and CPU clock from the samples of the rank's machine."""
    placed = [{"kind": "rank_placed", "rank": rank, "coordinates": {"pipeline": rank % 2}} for rank in range(4)]
    placed += [{"kind": "rank_placed", "rank": 9, "coordinates": {}}, {"kind": "rank_placed", "coordinates": "x"}]
    series = {
        "process/3/numa_node": {-2: track([1.0] * 9)},
        "process/3/cpu_ratio": {-2: track([0.5] * 9)},
        "cpu/frequency_hertz": {-1: track([3e9] * 9), -2: track([2e9] * 9)},
    }
    found = rank_facts(evidence(*ranks(None, ""), events=placed, series=series))
    assert found[3] == {"pipeline": 1.0, "numa_node": 1.0, "cpu_ratio": 0.5, "cpu_clock_hertz": 2e9}
    assert found[2] == {"pipeline": 0.0}


def test_a_pipeline_stage_with_more_work_is_named() -> None:
    """All its ranks are late and no others; the remedy is about layers."""
    made = ranks(None, "")
    for rank in (1, 3):
        made[rank] = steps(HEALTHY | {"forward": HEALTHY["forward"] + SLOW}, rank=rank)
    for rank in (0, 2):
        made[rank] = steps(HEALTHY | {"backward": HEALTHY["backward"] + SLOW}, rank=rank)
    placed = [
        {"kind": "rank_placed", "time": 1.7e9, "rank": rank, "coordinates": {"pipeline": rank % 2}} for rank in range(4)
    ]
    found = findings(evidence(*made, events=placed))[0]
    assert (found.evidence["cause"], found.evidence["reason"]) == ("work", "stage")
    assert " for pipeline stage 1 (ranks 1 and 3): all ranks of pipeline stage 1 are late, and no other; " in found.text
    assert "fewer layers" in found.remedy
