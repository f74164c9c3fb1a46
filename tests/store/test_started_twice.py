"""Ranks that two processes claim at the same time: told, and not taken for the newest attempt."""

from __future__ import annotations

import pytest

from stepscope.store.layout import RunFolder
from stepscope.store.states import NodeState, RankState, newest_attempt, overall, read_nodes, started_twice

START, SECOND = 1_750_000_000_000_000, 1_000_000


def node(attempt, ranks, began=0, until=1000, name="a", state="running"):
    """Return a node whose ranks lived for these seconds."""
    ended = None if state == "running" else START + until * SECOND
    states = {rank: RankState(state, started=START + began * SECOND, ended=ended) for rank in ranks}
    return NodeState(name, attempt, time=START + until * SECOND, ended=True, ranks=states)


def test_a_rank_that_was_started_twice_is_no_new_attempt(tmp_path):
    """The second process of a rank keeps its rows as another attempt; the job stays the one before, and it is told."""
    folder = RunFolder(tmp_path / "run")
    folder.make()
    for one in (node(0, [0, 1, 2, 3]), node(1, [3], began=1, name="b", state="finished", until=500)):
        one.save(folder)
    nodes, problems = read_nodes(folder)
    assert newest_attempt(nodes) == 0
    assert overall(nodes)[0] == "running"
    (problem,) = problems
    assert problem.startswith(
        "rank 3 was recorded by two processes at once, on a and b, as attempts 0 and 1; give each"
    )


@pytest.mark.parametrize(
    "later",
    [
        node(1, [0, 1, 2, 3], began=1001),  # a restart
        node(1, [3], began=1003),  # of one rank alone
        node(1, [0, 1, 2, 3], began=998),  # whose clock is a little behind
    ],
)
def test_a_restart_is_a_new_attempt(later):
    """Ranks that start when the earlier ones have ended are the newest attempt, and nothing is told."""
    nodes = [node(0, [0, 1, 2, 3], state="failed"), later]
    assert started_twice(nodes) == []
    assert newest_attempt(nodes) == 1


def test_two_whole_jobs_with_one_id_are_two_attempts():
    """A job that runs twice at once under one id: the second is the newest, and its ranks are told."""
    nodes = [node(0, [0, 1]), node(1, [0, 1], began=10)]
    assert newest_attempt(nodes) == 1
    assert [rank for rank, _ in started_twice(nodes)] == [0, 1]


def test_many_ranks_that_were_started_twice_are_a_few_sentences(tmp_path):
    """Hundreds of doubled ranks are four sentences and a number."""
    folder = RunFolder(tmp_path / "run")
    folder.make()
    node(0, range(512)).save(folder)
    node(1, range(512), began=20).save(folder)
    problems = read_nodes(folder)[1]
    assert len(problems) == 5
    assert problems[-1] == "508 more ranks were recorded by two processes at once"
