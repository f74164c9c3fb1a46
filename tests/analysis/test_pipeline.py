"""What-if replays of pipelined trainings: a stage that was made slow, and the published trace with its known answer."""

from __future__ import annotations

import itertools
import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stepscope.analysis.diagnosis.pipeline import finding_of
from stepscope.analysis.pipelines.operations import TRANSFERS, Grid, OperationKey, Operations
from stepscope.analysis.pipelines.replay import Replay
from stepscope.analysis.pipelines.what_if import what_if
from stepscope.importers.traces.pipeline_trace import read_operations
from stepscope.sources.diagnosis import diagnose_operations
from tests.analysis.pipeline_rig import Pipeline

PUBLISHED = Path(__file__).parents[3] / "shared" / "data" / "bytedance-straggler-ST" / "trace-ST.parquet"
STAGES, BATCHES, STEPS = 3, 4, 5
PASSES_AND_REDUCTIONS = [
    ("forward-compute", 0, 0.0, 1.0),
    ("backward-compute", 0, 1.0, 1.0),
    ("grads-reduce-scatter", 0, 1.2, 0.5),
    ("grads-reduce-scatter", 1, 2.0, 0.5),
    ("separate-grads-all-reduce", 0, 2.5, 0.25),
]
"""Kind, number, start and seconds of a step whose gradients are reduced while its passes go on."""

BATCHED = [
    ("forward-compute", 0, 0, 0.0, 1.0, 0),
    ("forward-send", 0, 0, 1.0, 0.1, -1),
    ("forward-recv", 1, 0, 0.0, 1.1, -1),
    ("forward-compute", 1, 0, 1.1, 1.0, 1),
    ("forward-send", 1, 0, 2.1, 1.2, -1),
    ("forward-recv", 0, 0, 1.0, 1.2, -1),
    ("forward-compute", 0, 1, 2.2, 1.0, 2),
    ("forward-send", 0, 1, 3.2, 0.1, -1),
    ("forward-recv", 1, 1, 2.1, 1.2, -1),
    ("forward-compute", 1, 1, 3.3, 1.0, 3),
]
"""Kind, stage, number, start, seconds, part of the model: one micro-batch forward through two virtual stages each."""


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
    assert finding_of(found) is None


@pytest.mark.parametrize("stage", range(STAGES))
def test_the_stage_that_was_made_slow_is_named(stage: int) -> None:
    """It explains the slowdown, and the others do not."""
    found = what_if(pipeline(stage))
    finding = finding_of(found)
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
        ({}, 0.4, "work", "micro-batches with unequal work, such as"),
        ({(1, 2): 3.0}, 0.05, "worker", "stage 1 of replica 12 explains"),
    ],
    ids=["worker", "last stage", "first stage", "replica", "sequence lengths", "worker among noise"],
)
def test_the_smallest_part_that_explains_the_slowdown_is_named(
    factor: dict[tuple[int, int], float], spread: float, cause: str, said: str
) -> None:
    """One worker, a stage, a replica, or work that is uneven over all of them; replicas by their own numbers."""
    finding = finding_of(what_if(replicated(factor, spread)))
    assert finding is not None
    assert finding.evidence["cause"] == cause
    assert said in finding.text
    assert finding.remedy


def test_equal_replicas_are_no_finding() -> None:
    """A little noise of every pass is no straggler."""
    assert finding_of(what_if(replicated({}, 0.01))) is None


SHAPES = [(2, 4, 4, 1), (4, 4, 8, 1), (8, 2, 8, 1), (4, 1, 8, 1), (1, 4, 8, 1), (4, 4, 8, 2), (6, 2, 4, 3)]
"""Replicas, stages, micro-batches, and parts of the model in each stage."""
FAULTS: dict[str, dict[str, Any]] = {
    "": {},
    "stage": {"slow": {(-2, -1): 1.4}},
    "worker": {"slow": {(-2, 0): 1.6}},
    "replica": {"slow": {(-1, 0): 1.4}},
    "work": {"lengths": 0.4},
    "gc": {"pauses": 0.25},
    "link": {"link": (-2, 0, 0.2)},
}


@pytest.mark.parametrize("cause", FAULTS)
@pytest.mark.parametrize(("replicas", "stages", "batches", "chunks"), SHAPES)
def test_any_schedule_gives_its_slowdown_and_cause(
    cause: str, replicas: int, stages: int, batches: int, chunks: int
) -> None:
    """The slowdown as by a simulator of the schedule; a single stage or replica is never the cause."""
    if (cause in ("worker", "replica", "link") and replicas == 1) or (
        cause in ("stage", "replica", "link") and stages == 1
    ):
        pytest.skip("there is nothing else to be slower than")
    given = dict(FAULTS[cause])
    if "slow" in given:  # -2 stands for the last stage
        given["slow"] = {(stages - 1 if at == -2 else at, who): by for (at, who), by in given["slow"].items()}
    if "link" in given:
        given["link"] = stages - 1, *given["link"][1:]
    operations, slowdown = Pipeline(replicas, stages, batches, chunks=chunks, **given).operations()
    found = what_if(operations)
    assert found.slowdown == pytest.approx(slowdown, rel=0.001)
    finding = finding_of(found)
    assert (finding.evidence["cause"] if finding is not None else "") == cause


def test_the_workers_of_a_slow_node_are_named_together() -> None:
    """With their ranks; others of their stage are faster, so the stage is not the cause."""
    late = [(1, 4), (1, 5), (1, 6)]
    operations, _ = Pipeline(12, 2, 4, slow=dict.fromkeys(late, 1.5)).operations()
    finding = finding_of(what_if(operations))
    assert finding is not None
    assert finding.evidence["cause"] == "worker"
    assert {(stage, replica) for stage, replica in finding.evidence["late_workers"]} <= set(late)
    assert {12 + replica for _, replica in late} >= set(finding.evidence["late_ranks"])


def test_the_ends_of_a_slow_link_are_named() -> None:
    """Both stages and the replica, not the stage that waits for its input."""
    operations, _ = Pipeline(4, 4, 8, link=(2, 1, 0.1)).operations()
    finding = finding_of(what_if(operations))
    assert finding is not None
    assert finding.evidence["late_link"] == [[1, 1], [2, 1]]
    assert "communication, most between stages 1 and 2 of replica 1, explains" in finding.text


@pytest.mark.parametrize("apart", [0.004, 0.5, 3600.0])
def test_clocks_of_workers_may_differ(apart: float) -> None:
    """Each worker's is as much ahead of the one before; all end the clipping of gradients at once."""
    whole, slowdown = Pipeline(4, 4, 8, slow={(1, 2): 1.6}).operations()
    assert whole.rank is not None
    found = what_if(replace(whole, start=whole.start + apart * whole.rank))
    assert found.slowdown == pytest.approx(slowdown, rel=0.02)
    assert found.late == ((1, 2),)


def test_small_errors_of_clocks_cancel_out() -> None:
    """A transfer that seems to end before its begin comes with a longer one back."""
    whole, _ = Pipeline(1, 2, 8).operations()
    behind = replace(whole, start=whole.start - 0.004 * (whole.stage == 1))
    assert what_if(behind).seconds == pytest.approx(what_if(whole).seconds, rel=0.001)


def test_a_replica_may_begin_late() -> None:
    """The others wait for it in the collective, which takes no longer."""
    whole, slowdown = Pipeline(4, 4, 8, slow={(3, -1): 1.4}).operations()
    ends = np.isin(whole.kind, ["optimizer-clip-main-grad", "optimizer"])
    waits = (whole.kind == "grads-reduce-scatter") & (whole.replica != 1)
    found = what_if(
        replace(whole, start=whole.start + 0.5 * (ends | (whole.replica == 1)), seconds=whole.seconds + 0.5 * waits)
    )
    assert found.slowdown == pytest.approx(slowdown, rel=0.001)


def test_a_link_from_the_last_stage_to_the_first_has_two_ends() -> None:
    """With virtual stages, the first one receives from the last one."""
    operations, _ = Pipeline(4, 4, 8, chunks=2, link=(0, 1, 0.1)).operations()
    finding = finding_of(what_if(operations))
    assert finding is not None
    assert finding.evidence["late_link"] == [[0, 1], [3, 1]]


def test_pauses_do_not_hide_that_micro_batches_are_uneven() -> None:
    """A tenth of the forward passes is much longer, and yet long ones have long backward passes."""
    operations, _ = Pipeline(2, 2, 4, lengths=0.3, pauses=0.5).operations()
    assert what_if(operations).pass_correlation > 0.8
    operations, _ = Pipeline(2, 2, 4, pauses=0.5).operations()
    assert what_if(operations).pass_correlation < 0.2


@pytest.mark.parametrize(("factor", "lengths", "cause"), [(1.2, 0.15, "work"), (1.4, 0.1, "stage")])
def test_a_slow_stage_is_not_blamed_for_unequal_work(factor: float, lengths: float, cause: str) -> None:
    """Its ideal replay has no long micro-batches either, so that it explains more than half in both cases."""
    operations, _ = Pipeline(4, 4, 8, slow={(3, -1): factor}, lengths=lengths).operations()
    found = what_if(operations)
    assert found.stages[3] > max(0.5, found.uneven)
    finding = finding_of(found)
    assert finding is not None
    assert finding.evidence["cause"] == cause


def test_of_several_causes_the_largest_is_named() -> None:
    """It explains less than half, and it is less sure."""
    operations, _ = Pipeline(8, 4, 8, slow={(2, 5): 1.35}, lengths=0.25).operations()
    finding = finding_of(what_if(operations))
    assert finding is not None
    assert finding.evidence["cause"] == "work"
    assert finding.evidence["uneven_work"] < 0.5
    assert finding.confidence < 0.9


def test_several_small_causes_are_no_cause() -> None:
    """What nothing explains is a finding only if it costs more than noise does."""
    small = {(0, 1): 1.15, (2, 5): 1.15, (3, 9): 1.15, (1, 12): 1.15}
    operations, slowdown = Pipeline(16, 4, 8, slow=small, noise=0.05).operations()
    assert slowdown > 1.05
    finding = finding_of(what_if(operations))
    assert finding is None or "cause" not in finding.evidence or finding.evidence["cause"] == "worker"
    operations, slowdown = Pipeline(32, 4, 4, 4, noise=0.08).operations()
    assert slowdown > 1.05
    assert finding_of(what_if(operations)) is None


@pytest.mark.parametrize("cause", ["stage", "worker", "work"])
def test_missing_operations_change_little(cause: str) -> None:
    """Every fiftieth row is lost; a collective of which a part is lost does not seem long."""
    given = {"stage": {"slow": {(3, -1): 1.4}}, "worker": {"slow": {(3, 0): 1.6}}, "work": {"lengths": 0.4}}[cause]
    whole, slowdown = Pipeline(4, 4, 8, **given).operations()
    kept = np.random.default_rng(0).random(len(whole.step)) > 0.02
    columns = {one.name: getattr(whole, one.name) for one in fields(whole)}
    found = what_if(Operations(**{name: None if each is None else each[kept] for name, each in columns.items()}))
    assert found.slowdown == pytest.approx(slowdown, rel=0.02)
    finding = finding_of(found)
    assert finding is not None
    assert finding.evidence["cause"] == cause


def test_virtual_stages_pass_on_from_the_last_stage_to_the_first() -> None:
    """Two stages with two parts of the model each: the second part begins once the first has left the last stage."""
    rows = []
    for step, (stage, part) in itertools.product(range(3), itertools.product(range(2), range(2))):
        chunk = 2 * part + stage
        rows.append((step, 0, stage, "forward-compute", part, 10.0 * step + chunk, 1.0, chunk, 0))
        rows.append((step, 0, stage, "backward-compute", 1 - part, 10.0 * step + 7 - chunk, 1.0, chunk, 0))
    columns = [np.array(column) for column in zip(*rows, strict=True)]
    columns[3] = columns[3].astype(object)
    found = what_if(Operations(*columns))
    assert found.seconds == pytest.approx(8.0)
    assert what_if(Operations(*columns[:7])).seconds < 8.0


def test_gradients_are_reduced_after_the_last_backward_pass_of_their_part() -> None:
    """All buckets, as the first one waits for the pass: 1 + 1 + 2 x 0.5 + 0.25 seconds."""
    rows = [(*PASSES_AND_REDUCTIONS[at], step) for step in range(3) for at in range(len(PASSES_AND_REDUCTIONS))]
    kinds, sequence, start, seconds, steps = (np.array(column) for column in zip(*rows, strict=True))
    nothing = np.zeros(len(rows), np.int64)
    found = what_if(Operations(steps, nothing, nothing, kinds.astype(object), sequence, start, seconds))
    assert found.seconds == pytest.approx(3.25)


def test_a_transfer_does_not_take_the_time_that_another_of_its_batch_waits() -> None:
    """Stage 1 sends and receives in one batch of 1.2 seconds, as what it receives is only sent after 1.1."""
    rows = [(*BATCHED[at], step) for step in range(3) for at in range(len(BATCHED))]
    kinds, stages, sequence, start, seconds, chunks, steps = (np.array(each) for each in zip(*rows, strict=True))
    nothing = np.zeros(len(rows), np.int64)
    grid = Grid.of(Operations(steps, nothing, stages, kinds.astype(object), sequence, start, seconds, chunks, nothing))
    transfers = [at for at, key in enumerate(grid.keys) if key.kind in TRANSFERS]
    for batched, most in ((False, 1.2), (True, 0.1)):
        replay = Replay.of(grid, batched=batched)
        assert replay.seconds[transfers].max() == pytest.approx(most)
        assert replay.given(replay.seconds) == pytest.approx(4.3)


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
    finding = finding_of(what_if(whole))
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
    evidence = found["evidence"]
    assert (evidence["cause"], evidence["late_stage"]) == ("stage", 3)
    assert evidence["slowdown"] == pytest.approx(1.1787, rel=0.0005)
    assert evidence["stages"]["3"] == pytest.approx(1.2194, abs=0.001)  # M_S
    assert max(evidence["workers"].values()) == pytest.approx(0.0314, abs=0.001)  # M_W
    assert "the last pipeline stage 3 explains all of it" in found["text"]


@pytest.mark.skipif(not PUBLISHED.exists(), reason="the published trace is not on this machine")
@pytest.mark.parametrize("part", ["dp_rank", "stage", "optype"])
def test_each_part_alone_gives_the_published_slowdown(part: str) -> None:
    """Of a training in which all but this part is ideal: per replica, stage and kind of operation."""
    columns = read_operations(str(PUBLISHED))
    assert columns is not None
    replay = Replay.of(Grid.of(Operations.of(columns)))
    published = json.loads(PUBLISHED.with_name("result-ST.json").read_text())[f"blocking_decompose_by_{part}"]
    keys = replay.grid.keys
    ideal = [np.ones((len(keys), 2), bool)]
    for name in published:
        mask = np.ones((len(keys), 2), bool)
        if part == "dp_rank":
            mask[:, int(name)] = False
        else:
            mask[[_shown(key) == name if part == "optype" else key.stage == int(name) for key in keys]] = False
        ideal.append(mask)
    best, *steps = replay.mixed(np.array(ideal))
    found = [step / best for step in steps]
    assert found == pytest.approx(list(published.values()), abs=0.0005)


def _shown(key: OperationKey) -> str:
    """Return the name of a kind in the published result."""
    return f"{key.kind.partition('-')[0]}-pp-comm" if key.kind in TRANSFERS else key.kind
