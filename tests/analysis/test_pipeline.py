"""What-if replays of pipelined trainings: a stage that was made slow, and the published trace with its known answer."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

from stepscope.analysis.diagnosis.pipeline import Operations, what_if
from stepscope.importers.traces.pipeline_trace import read_operations
from stepscope.sources.diagnosis import diagnose_operations
from tests.analysis.pipeline_rig import Pipeline

PUBLISHED = Path(__file__).parents[3] / "shared" / "data" / "bytedance-straggler-ST" / "trace-ST.parquet"
STAGES, BATCHES, STEPS = 3, 4, 5


def pipeline(slow: int | None, factor: float = 2.0) -> Operations:
    """Return a training of three stages in which all forward passes come before all backward ones."""
    rows = []
    for step in range(STEPS):
        for stage in range(STAGES):
            long = factor if stage == slow else 1.0
            for batch in range(BATCHES):
                rows.append((step, 0, stage, "forward-compute", batch, batch * 1.0, 0.01 * long))
                rows.append((step, 0, stage, "backward-compute", batch, 100 + batch * 1.0, 0.02 * long))
    columns = list(zip(*rows, strict=True))
    steps, replica, stages, sequence = (np.array(columns[at], np.int64) for at in (0, 1, 2, 4))
    start, seconds = (np.array(columns[at], np.float64) for at in (5, 6))
    return Operations(steps, replica, stages, np.array(columns[3], object), sequence, start, seconds)


def test_equal_stages_have_no_slowdown() -> None:
    """The replay takes as long as the ideal one."""
    found = what_if(pipeline(None))
    assert found.slowdown == pytest.approx(1.0)
    assert found.seconds == pytest.approx((BATCHES + STAGES - 1) * 0.03)
    assert found.finding() is None


@pytest.mark.parametrize("stage", range(STAGES))
def test_the_stage_that_was_made_slow_is_named(stage: int) -> None:
    """It explains the slowdown, and the others do not."""
    found = what_if(pipeline(stage))
    finding = found.finding()
    assert finding is not None
    assert finding.evidence["late_stage"] == stage
    assert found.stages[stage] > 0.9
    assert all(share < 0.3 for other, share in found.stages.items() if other != stage)


def replicated(factor: dict[tuple[int, int], float], spread: float = 0.0, replicas: int = 4) -> Operations:
    """Return a training of several replicas, some of whose workers are slower; `spread` makes micro-batches uneven."""
    chance = np.random.default_rng(0)
    rows = []
    for step in range(8):
        for replica in range(replicas):
            work = np.exp(chance.normal(0, spread, BATCHES))
            for stage in range(STAGES):
                long = factor.get((stage, replica), factor.get((stage, -1), factor.get((-1, replica), 1.0)))
                for batch in range(BATCHES):
                    each = long * work[batch]
                    rows.append((step, replica + 10, stage, "forward-compute", batch, batch * 1.0, 0.01 * each))
                    rows.append((step, replica + 10, stage, "backward-compute", batch, 100 + batch * 1.0, 0.02 * each))
                rows.append((step, replica + 10, stage, "grads-reduce-scatter", 0, 300.0, 0.001))
    columns = list(zip(*rows, strict=True))
    steps, replica, stages, sequence = (np.array(columns[at], np.int64) for at in (0, 1, 2, 4))
    start, seconds = (np.array(columns[at], np.float64) for at in (5, 6))
    return Operations(steps, replica, stages, np.array(columns[3], object), sequence, start, seconds)


@pytest.mark.parametrize(
    ("factor", "spread", "cause", "said"),
    [
        ({(1, 2): 2.0}, 0.0, "worker", "stage 1 of replica 12 explains"),
        ({(2, -1): 2.0}, 0.0, "stage", "the last pipeline stage 2 explains"),
        ({(0, -1): 2.0}, 0.0, "stage", "the first pipeline stage 0 explains"),
        ({(-1, 3): 2.0}, 0.0, "replica", "replica 13 explains"),
        ({}, 0.4, "work", "micro-batches with unequal work explain"),
        ({(1, 2): 3.0}, 0.05, "worker", "stage 1 of replica 12 explains"),
    ],
    ids=["worker", "last stage", "first stage", "replica", "sequence lengths", "worker among noise"],
)
def test_the_smallest_part_that_explains_the_slowdown_is_named(
    factor: dict[tuple[int, int], float], spread: float, cause: str, said: str
) -> None:
    """One worker, a stage, a replica, or work that is uneven over all of them; replicas by their own numbers."""
    finding = what_if(replicated(factor, spread)).finding()
    assert finding is not None
    assert finding.evidence["cause"] == cause
    assert said in finding.text
    assert finding.remedy


def test_equal_replicas_are_no_finding() -> None:
    """A little noise of every pass is no straggler."""
    assert what_if(replicated({}, 0.01)).finding() is None


SHAPES = [(2, 4, 4), (4, 4, 8), (8, 2, 8), (4, 1, 8), (1, 4, 8)]
"""Replicas, stages and micro-batches."""
FAULTS = {
    "": {},
    "stage": {"slow": {(-2, -1): 1.4}},
    "worker": {"slow": {(-2, 0): 1.6}},
    "replica": {"slow": {(-1, 0): 1.4}},
    "work": {"lengths": 0.4},
    "gc": {"pauses": 0.25},
}


@pytest.mark.parametrize("cause", FAULTS)
@pytest.mark.parametrize(("replicas", "stages", "batches"), SHAPES)
def test_any_schedule_gives_its_slowdown_and_cause(cause: str, replicas: int, stages: int, batches: int) -> None:
    """Within 1 % of a simulator of the schedule; a single stage or replica is never the cause."""
    if (cause in ("worker", "replica") and replicas == 1) or (cause in ("stage", "replica") and stages == 1):
        pytest.skip("there is nothing else to be slower than")
    given = dict(FAULTS[cause])
    if "slow" in given:  # -2 stands for the last stage
        given["slow"] = {(stages - 1 if at == -2 else at, who): by for (at, who), by in given["slow"].items()}
    operations, slowdown = Pipeline(replicas, stages, batches, **given).operations()
    found = what_if(operations)
    assert found.slowdown == pytest.approx(slowdown, rel=0.01)
    finding = found.finding()
    assert (finding.evidence["cause"] if finding is not None else "") == cause


def test_a_collection_that_is_timed_by_itself_is_the_cause() -> None:
    """One worker collects in one step, another in the next."""
    plain, _ = Pipeline().operations()
    at = list(itertools.product(range(12), range(2), range(4)))
    steps, replicas, stages = (np.array(column) for column in zip(*at, strict=True))
    paused = np.array([0.4 if (replica, stage) == (step % 2, step % 4) else 0.0 for step, replica, stage in at])
    whole = Operations(
        np.concatenate([plain.step, steps]),
        np.concatenate([plain.replica, replicas]),
        np.concatenate([plain.stage, stages]),
        np.concatenate([plain.kind, np.array(["gc"] * len(at), object)]),
        np.concatenate([plain.sequence, np.zeros(len(at), np.int64)]),
        np.concatenate([plain.start, steps * 10 + 1.0]),
        np.concatenate([plain.seconds, paused]),
    )
    finding = what_if(whole).finding()
    assert finding is not None
    assert finding.evidence["cause"] == "gc"


@pytest.mark.skipif(not PUBLISHED.exists(), reason="the published trace is not on this machine")
def test_the_published_trace_gives_the_published_slowdown() -> None:
    """ByteDance's own analysis says 1.1787, and the last stage (1.219 of it)."""
    columns = read_operations(str(PUBLISHED))
    assert columns is not None
    told = diagnose_operations(str(PUBLISHED), columns)
    (found,) = told["findings"]
    assert told["primary"] == "straggler"
    assert found["evidence"]["late_stage"] == 3
    assert found["evidence"]["slowdown"] == pytest.approx(1.1787, rel=0.02)
    assert found["evidence"]["stages"]["3"] == pytest.approx(1.219, rel=0.05)
    assert found["evidence"]["cause"] == "stage"
    assert max(found["evidence"]["workers"].values()) == pytest.approx(0.031, abs=0.005)  # M_W
    assert "the last pipeline stage 3 explains all of it" in found["text"]
