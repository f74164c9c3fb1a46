"""What-if replays of pipelined trainings: a stage that was made slow, and the published trace with its known answer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from stepscope.analysis.pipeline import Operations, what_if
from stepscope.importers.pipeline_trace import read_operations
from stepscope.views.diagnosis import diagnose_operations

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
