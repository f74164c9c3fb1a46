"""The diagnosis of recorded and of foreign runs, as plain data."""

from __future__ import annotations

import json
from glob import glob
from typing import TYPE_CHECKING

import numpy as np
import pytest

import stepscope
from bench.diagnosing import write
from bench.processes import wait_until
from stepscope.importers.imported import Imported, series_of
from stepscope.importers.transfer import read
from stepscope.sources import evidence
from stepscope.sources.diagnosis import diagnose, diagnose_imported

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.processes

KEYS = {
    *(
        "run",
        "primary",
        "summary",
        "findings",
        "changes",
        "slow_steps",
        "missing",
        "notes",
        "steps",
        "seconds",
        "devices",
    ),
}
FINDING = {
    *("kind", "text", "severity", "confidence", "cost_seconds", "expected_gain", "gain_ratio", "evidence", "remedy"),
    "rank",
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run of 20 000 steps that waits for its data."""
    path = tmp_path_factory.mktemp("runs") / "project" / "waits"
    write(path, 20_000)
    return path


@pytest.mark.promise("S0-085", "S1-072", "S4-052")
def test_a_run_says_why_it_is_slow_what_to_do_and_what_that_brings(run: Path) -> None:
    """The verdict has every key that the command promises, and is plain data."""
    told = stepscope.open(run).diagnose()
    assert set(told) == KEYS
    assert told["primary"] == "input_bound"
    (found,) = told["findings"]
    assert set(found) == FINDING
    assert found["gain_ratio"] == pytest.approx(0.42, abs=0.02)
    assert found["evidence"]["expected_step_seconds"] == pytest.approx(0.0286, rel=0.03)
    json.dumps(told)


def test_a_long_run_read_in_blocks_has_the_same_verdict(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of steps have the shares of the steps in them."""
    exact = diagnose(stepscope.open(run))["findings"][0]
    monkeypatch.setattr(evidence, "MOST_STEPS", 1000)
    monkeypatch.setattr(evidence, "BLOCKS", 100)
    coarse = diagnose(stepscope.open(run))["findings"][0]
    assert coarse["kind"] == exact["kind"]
    assert coarse["evidence"]["share"] == pytest.approx(exact["evidence"]["share"], rel=0.01)
    assert coarse["evidence"]["steps"] == pytest.approx(exact["evidence"]["steps"], abs=2)


@pytest.mark.promise("S0-086")
def test_a_run_that_is_still_young_is_judged_by_what_it_has(tmp_path: Path) -> None:
    """A loss that breaks is told while the run goes on."""
    with stepscope.init(project="early", dir=str(tmp_path)) as live:
        for step in range(60):
            live.log({"loss": 1.0 / (step + 1) if step < 50 else float("nan")})
        past = stepscope.open(live.path)
        assert wait_until(lambda: past.diagnose()["primary"] == "non_finite", 120)
        assert past.diagnose()["findings"][0]["evidence"]["step"] == 50
        assert past.state == "running"


def test_a_run_of_another_tool_has_the_same_verdict_and_says_what_is_unknown() -> None:
    """Phases, machine and events are no part of its file."""
    step = np.arange(0, 4000, 10)
    loss = 2 + np.exp(-step / 500)
    loss[300:] += 9
    columns = {
        "loss": series_of("loss", step, loss),
        "step_seconds": series_of("step_seconds", step, np.full(400, 0.2)),
    }
    told = diagnose_imported(Imported("state.json", "trainer_state", columns))
    assert told["primary"] == "divergence"
    assert {"phase/*", "machine"} <= {one["signal"] for one in told["missing"]}
    assert all("trainer_state" in one["remedy"] for one in told["missing"] if one["signal"] == "phase/*")


def test_a_phase_that_a_tool_counts_beside_its_steps_is_no_share_of_them() -> None:
    """An evaluation of 10 s after 384 steps of a second is 3 %, not 950 %."""
    step = np.arange(384, 5376, 384)
    when = 1.7e9 + np.cumsum(np.full(len(step), 410.0))
    columns = {
        "step_seconds": series_of("step_seconds", step, np.full(len(step), 1.05), when),
        "phase/evaluation": series_of("phase/evaluation", step, np.full(len(step), 9.9), when),
    }
    told = diagnose_imported(Imported("result.txt", "mllog", columns))
    assert told["primary"] == "none"
    assert told["steps"] == 384 * len(step)


@pytest.mark.parametrize("path", sorted(glob("../shared/data/mlperf-v5.1-runs/*/result_*.txt")) or [None])
def test_runs_that_reached_their_target_are_on_no_plateau(path: str | None) -> None:
    """Nothing is wrong with any run of a published benchmark that was accepted."""
    if path is None:
        pytest.skip("../shared/data/mlperf-v5.1-runs is not here")
    assert [one["kind"] for run in read(path) for one in diagnose_imported(run)["findings"]] == []
