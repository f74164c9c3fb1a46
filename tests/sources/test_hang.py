"""What a run recorded about a hang, read by one clock for all of its nodes."""

from __future__ import annotations

import os
import time

import pytest

from stepscope.analysis.hang.verdict import judge
from stepscope.sources.hang import hang_evidence, recorded_verdict
from stepscope.store.layout import Writer
from stepscope.store.reader import Past
from stepscope.store.states import NodeState, RankState
from tests.hung import micros, verdict, write
from tests.store.recorded import make_folder

NODES = ("one.11111111", "two.22222222")
AHEAD = (-30.0, 0.0, 30.0)


@pytest.fixture(autouse=True)
def still(monkeypatch):
    """Stop the clock: a node whose last heartbeat is long ago is lost."""
    moment = time.time()
    monkeypatch.setattr(time, "time", lambda: moment)


def job(root, ahead, ends, stood=()):
    """Make a job of two ranks on two nodes, the second one's clock ahead; `ends` are (state, seconds ago, cause).

    Ranks in `stood` stand still since ten seconds ago.
    """
    folder, now = make_folder(root / "run"), time.time()
    for rank, (node, end, wrong) in enumerate(zip(NODES, ends, (0.0, ahead), strict=True)):
        state, ago, cause = end
        own = RankState(state, cause, step=7, started=micros(now - 600 + wrong), stall="hung" if rank in stood else "")
        own.ended = None if ago is None else micros(now - ago + wrong)
        NodeState(node, 0, 1, micros(now + wrong), 1, "elsewhere", ranks={rank: own}).save(folder)
        os.utime(folder.node_file(Writer(node, 0)), (now, now))
        if rank in stood:
            place = {"time": micros(now + wrong - 5), "since": now + wrong - 10, "rank": rank, "attempt": 0}
            write(folder.path / "events", [{"kind": "hung", "seconds": 5.0, **place}], node)
    return Past(folder)


RUNS = ("running", None, "")


@pytest.mark.parametrize("ahead", AHEAD)
def test_a_dead_rank_is_the_cause_whatever_its_clock_says(tmp_path, ahead):
    """It was killed before the other rank stood still, even if its clock says that this was later."""
    killed = ("killed", 15, "killed by SIGKILL")
    found = judge(hang_evidence(job(tmp_path, ahead, [RUNS, killed], stood=(0,))))
    assert (found.kind, found.ranks, found.waiting) == ("dead_rank", (1,), (0,))


@pytest.mark.parametrize("ahead", AHEAD)
def test_a_rank_that_was_ended_later_is_not_the_cause(tmp_path, ahead):
    """Somebody killed it while both stood still."""
    past = job(tmp_path, ahead, [RUNS, ("killed", 1, "killed by SIGKILL")], stood=(0, 1))
    assert [rank.state for rank in hang_evidence(past).ranks] == ["running", "running"]


@pytest.mark.parametrize("ahead", AHEAD)
def test_the_first_of_several_ends_is_found(tmp_path, ahead):
    """The rank that was killed ended ten seconds before the other one failed in a collective."""
    ends = [("failed", 5, "RuntimeError: connection closed by peer"), ("killed", 15, "killed by SIGKILL")]
    found = judge(hang_evidence(job(tmp_path, ahead, ends)))
    assert (found.kind, found.ranks) == ("dead_rank", (1,))


@pytest.mark.parametrize("ahead", AHEAD)
def test_seconds_of_silence_are_those_of_one_clock(tmp_path, ahead):
    """The rank has been silent for ten seconds."""
    past = job(tmp_path, ahead, [RUNS, RUNS], stood=(1,))
    assert hang_evidence(past).ranks[1].silent_seconds == pytest.approx(10.0, abs=0.1)


@pytest.mark.parametrize("ahead", AHEAD)
def test_the_newest_verdict_counts(tmp_path, ahead):
    """The watcher of the second node took over, and came to another verdict, by its own clock."""
    past = job(tmp_path, ahead, [RUNS, RUNS], stood=(0, 1))
    for rank, (node, ago, wrong) in enumerate(zip(NODES, (4, 2), (0.0, ahead), strict=True)):
        write(past.path / "events", [verdict(rank) | {"time": micros(time.time() - ago + wrong)}], node)
    found = recorded_verdict(past)
    assert found is not None
    assert found.ranks == (1,)
