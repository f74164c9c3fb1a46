"""Several ranks: who is late, and what they spend on talking."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from stepscope.analysis.diagnosis.verdict import findings, primary
from tests.analysis.diagnosis_rig import HEALTHY, evidence, steps, track

if TYPE_CHECKING:
    from stepscope.analysis.diagnosis.evidence import Steps

SLOW = 0.03


def ranks(late: int | None, phase: str, count: int = 4) -> list[Steps]:
    """Return ranks of which one is late in a phase; the others wait for it inside the backward pass."""
    made = []
    for rank in range(count):
        mine = dict(HEALTHY)
        if late is not None:
            where = phase if rank == late else "backward"
            mine[where] += SLOW
        made.append(steps(mine, rank=rank))
    return made


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
