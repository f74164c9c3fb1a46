"""Offsets of the clocks of a run's nodes, and that no verdict depends on them."""

from __future__ import annotations

import os
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from bench.synthetic_ranks import RankRun, make, node_of
from stepscope.analysis.clocks import ClockOffset
from stepscope.sources.clocks import OffsetCache, clock_offsets
from stepscope.sources.diagnosis import diagnose
from stepscope.store.layout import RunFolder
from stepscope.store.reader import Past
from stepscope.views.overview import overview

if TYPE_CHECKING:
    from pathlib import Path

PLAN = RankRun(ranks=12, per_node=4, steps=400, late_rank=5)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Path]:
    """The same run with right clocks, and with clocks that differ by up to a minute."""
    root = tmp_path_factory.mktemp("clocks")
    found = {skewed: root / "ranks" / f"run-{skewed}" for skewed in (False, True)}
    for skewed, path in found.items():
        make(path, PLAN if skewed else replace(PLAN, most_ahead=0.0), "run")
    return found


def test_offsets_are_found_from_steps(runs: dict[bool, Path]) -> None:
    """The offsets of planted clocks are found within milliseconds, relative to the node of rank 0."""
    found = clock_offsets(Past(RunFolder(runs[True])))
    for node, true in enumerate(PLAN.offsets()):
        assert found[node_of(node)].seconds == pytest.approx(true, abs=0.005)
    assert {one.source for one in found.values()} == {"reference", "steps"}


def test_equal_questions_about_clocks_are_answered_once() -> None:
    """Requests that come at the same time estimate the offsets of a run together; those of another run do not wait."""
    known, begun, go, asked = OffsetCache(), threading.Event(), threading.Event(), []

    def estimate() -> dict[str, ClockOffset]:
        asked.append(1)
        begun.set()
        go.wait(60)
        return {"a": ClockOffset(1.0, 0.0, "steps")}

    with ThreadPoolExecutor(4) as pool:
        waiting = [pool.submit(known.get, "run", estimate) for _ in range(4)]
        assert begun.wait(60)
        assert known.get("other", dict) == {}
        go.set()
        assert all(one.result() == {"a": ClockOffset(1.0, 0.0, "steps")} for one in waiting)
    assert asked == [1]


def test_verdicts_do_not_depend_on_clocks(runs: dict[bool, Path]) -> None:
    """A diagnosis and the first screen of a run are the same whatever the clocks of its nodes say."""
    right, skewed = (Past(RunFolder(runs[key])) for key in (False, True))
    one, other = diagnose(right), diagnose(skewed)
    assert (one["primary"], one["summary"]) == (other["primary"], other["summary"])
    assert [finding["kind"] for finding in one["findings"]] == [finding["kind"] for finding in other["findings"]]
    first, second = overview(right), overview(skewed)
    assert second["duration_seconds"] == pytest.approx(first["duration_seconds"], abs=0.1)
    assert first["clocks"]["text"] == ""
    assert "differ by up to" in second["clocks"]["text"]
    kinds = [[(event["kind"], event["step"]) for event in facts["end"]["events"]] for facts in (first, second)]
    assert kinds[0] == kinds[1]


def test_heartbeats_where_steps_do_not_tell(runs: dict[bool, Path], tmp_path: Path) -> None:
    """Without steps the heartbeats tell the offsets, less exactly."""
    path = tmp_path / "run"
    shutil.copytree(runs[True], path)  # copies the times of the files too
    for file in (path / "metrics").iterdir():
        file.unlink()
    found = clock_offsets(Past(RunFolder(path)))
    for node, true in enumerate(PLAN.offsets()):
        assert found[node_of(node)].seconds == pytest.approx(true, abs=0.1)
    assert {one.source for one in found.values()} == {"reference", "heartbeat"}


def test_touched_files_of_a_run_without_steps(runs: dict[bool, Path], tmp_path: Path) -> None:
    """Without steps, and with files that were touched later, the offsets are unknown and count as 0."""
    path = tmp_path / "touched"
    shutil.copytree(runs[True], path)
    for file in [*(path / "metrics").iterdir()]:
        file.unlink()
    for file in (path / "nodes").iterdir():
        os.utime(file)
    found = clock_offsets(Past(RunFolder(path)))
    assert {one.seconds for one in found.values()} == {0.0}
