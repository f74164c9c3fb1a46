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
NOW = time.time()
AHEAD = (-30.0, 0.0, 30.0)


def job(root, ahead, ends, stood=()):
    """Make a job of two ranks on two nodes, of which the second one's clock is ahead: `ends` are (state, when, cause).

    Ranks in `stood` stand still since ten seconds ago.
    """
    folder = make_folder(root / "run")
    for rank, (node, end, wrong) in enumerate(zip(NODES, ends, (0.0, ahead), strict=True)):
        state, ended, cause = end
        own = RankState(state, cause, step=7, started=micros(NOW - 600 + wrong), stall="hung" if rank in stood else "")
        own.ended = None if ended is None else micros(ended + wrong)
        NodeState(node, 0, 1, micros(NOW + wrong), 1, "elsewhere", ranks={rank: own}).save(folder)
        os.utime(folder.node_file(Writer(node, 0)), (NOW, NOW))
        if rank in stood:
            place = {"time": micros(NOW + wrong - 5), "since": NOW + wrong - 10, "rank": rank, "attempt": 0}
            write(folder.path / "events", [{"kind": "hung", "seconds": 5.0, **place}], node)
    return Past(folder)


@pytest.mark.parametrize("ahead", AHEAD)
def test_a_dead_rank_is_the_cause_whatever_its_clock_says(tmp_path, ahead):
    """It was killed before the other rank stood still, even if its clock says that this was later."""
    killed = ("killed", NOW - 15, "killed by SIGKILL")
    found = judge(hang_evidence(job(tmp_path, ahead, [("running", None, ""), killed], stood=(0,))))
    assert (found.kind, found.ranks, found.waiting) == ("dead_rank", (1,), (0,))


@pytest.mark.parametrize("ahead", AHEAD)
def test_a_rank_that_was_ended_later_is_not_the_cause(tmp_path, ahead):
    """Somebody killed it while both stood still."""
    killed = ("killed", NOW - 1, "killed by SIGKILL")
    past = job(tmp_path, ahead, [("running", None, ""), killed], stood=(0, 1))
    assert [rank.state for rank in hang_evidence(past).ranks] == ["running", "running"]


@pytest.mark.parametrize("ahead", AHEAD)
def test_the_first_of_several_ends_is_found(tmp_path, ahead):
    """The rank that was killed ended ten seconds before the other one failed in a collective."""
    ends = [("failed", NOW - 5, "RuntimeError: connection closed by peer"), ("killed", NOW - 15, "killed by SIGKILL")]
    found = judge(hang_evidence(job(tmp_path, ahead, ends)))
    assert (found.kind, found.ranks) == ("dead_rank", (1,))


@pytest.mark.parametrize("ahead", AHEAD)
def test_seconds_of_silence_are_those_of_one_clock(tmp_path, ahead):
    """The rank has been silent for ten seconds."""
    past = job(tmp_path, ahead, [("running", None, "")] * 2, stood=(1,))
    assert hang_evidence(past, NOW).ranks[1].silent_seconds == pytest.approx(10.0, abs=0.1)


@pytest.mark.parametrize("ahead", AHEAD)
def test_the_newest_verdict_counts(tmp_path, ahead):
    """The watcher of the second node took over, and came to another verdict, by its own clock."""
    past = job(tmp_path, ahead, [("running", None, "")] * 2, stood=(0, 1))
    for node, cause, moment in ((NODES[0], 0, NOW - 4), (NODES[1], 1, NOW - 2 + ahead)):
        write(past.path / "events", [verdict(cause) | {"time": micros(moment)}], node)
    found = recorded_verdict(past)
    assert found is not None
    assert found.ranks == (1,)
