"""Nodes that join late, leave, are preempted, come back or die, told apart."""

from __future__ import annotations

import pytest

from stepscope.analysis.node_fates import NodeLife, RankLife, fate_lines, fate_sentence, node_fates

START, HOUR = 1_750_000_000.0, 3600.0
NCCL = "DistBackendError: NCCL communicator was aborted"


def node(number, state="running", cause="", after=HOUR, **facts):
    """Return a node with two ranks that began at `late` seconds, and ended `after` seconds if they do not run."""
    attempt, late, step = facts.pop("attempt", 0), facts.pop("late", 0.0), facts.pop("step", None)
    first = 2 * facts.pop("place", number)
    ended = None if state in ("running", "lost") else START + after
    ranks = [RankLife(rank, state, cause, START + late, ended, step) for rank in (first, first + 1)]
    return NodeLife(f"gpu-{number}.0000000{number}", attempt, ranks, START + after, **facts)


def told(*lives):
    """Return what is told, as host, kind and attempt."""
    found = [(fate.host, fate.attempt, kind) for fate in node_fates(lives) for kind in (fate.arrival, fate.departure)]
    return [(host, attempt, kind) for host, attempt, kind in found if kind]


@pytest.mark.parametrize("state", ["running", "finished", "preempted", "interrupted", "failed"])
def test_nodes_that_share_the_course_of_their_job_have_nothing_to_tell(state):
    """A job that runs, ends, or is stopped as a whole is told by its state; one line at most says it of all nodes."""
    lines = fate_lines(node_fates([node(number, state) for number in range(64)]))
    assert len(lines) == (1 if state in ("preempted", "failed") else 0)


def test_a_node_that_starts_well_after_the_others_joined_late():
    """A minute and more after the others is late; half a minute is the usual difference between two nodes."""
    assert told(node(0), node(1, late=3.0), node(2, late=30.0), node(3, late=90.0)) == [("gpu-3", 0, "joined late")]


def test_a_clock_that_may_be_wrong_makes_nobody_late():
    """What the clocks may be apart by is no lateness."""
    assert told(node(0), node(1, late=90.0, spread_seconds=60.0)) == []


def test_a_node_whose_ranks_finish_while_others_train_on_left():
    """It left if the others made steps without it; the last to write a checkpoint did not outlive it."""
    goes_on = [node(0, step=900), node(1, step=901)]
    assert told(*goes_on, node(2, "finished", step=500)) == [("gpu-2", 0, "left")]
    assert told(*goes_on, node(2, "finished", step=900)) == []


def test_without_steps_the_clock_tells_who_left():
    """Ranks that ended a minute before the others left; a few seconds are an ordinary end."""
    assert told(node(0, "finished"), node(1, "finished", after=HOUR - 300)) == [("gpu-1", 0, "left")]
    assert told(node(0, "finished"), node(1, "finished", after=HOUR - 5)) == []


@pytest.mark.parametrize(
    ("state", "cause"),
    [("preempted", "SIGTERM in a SLURM job (preempted, cancelled or out of time)"), ("killed", "killed by SIGTERM")],
)
def test_a_node_that_was_asked_to_end_was_preempted(state, cause):
    """SIGTERM to all ranks of a node, from its scheduler or launcher, is no death; what fails after it follows."""
    gone = node(1, state, cause, after=HOUR)
    assert told(node(0), gone, node(2)) == [("gpu-1", 0, "preempted")]
    assert told(node(0, "failed", NCCL, after=HOUR + 2), gone) == [("gpu-1", 0, "preempted")]


@pytest.mark.parametrize(
    ("state", "cause"),
    [("killed", "killed by SIGKILL"), ("oom-killed", "out of memory: limit 64 GiB"), ("lost", "its watcher is silent")],
)
def test_a_node_that_ends_first_and_unasked_died(state, cause):
    """Killed, out of memory or silent: it died, and the ranks that fail or are ended after it did not."""
    dead = node(1, state, cause, after=HOUR)
    others = [node(0, "failed", NCCL, after=HOUR + 1), node(2, "killed", "killed by SIGTERM", after=HOUR + 5)]
    assert told(dead, *others) == [("gpu-1", 0, "died")]
    assert told(dead, node(0), node(2)) == [("gpu-1", 0, "died")]


def test_a_launcher_that_kills_the_others_later_makes_them_no_dead_nodes():
    """SIGKILL from a launcher, half a minute after the first death, follows from it; a lack of memory does not."""
    dead = node(1, "killed", "killed by SIGKILL", after=HOUR)
    late = node(2, "killed", "killed by SIGKILL", after=HOUR + 30)
    assert told(dead, late, node(0)) == [("gpu-1", 0, "died")]
    full = node(2, "oom-killed", "out of memory: limit 64 GiB", after=HOUR + 30)
    assert told(dead, full, node(0)) == [("gpu-1", 0, "died"), ("gpu-2", 0, "died")]


def test_a_program_that_fails_is_no_dead_node():
    """An exception of its own ends a node as failed, and those that follow from it are not told."""
    found = node_fates([node(0, "failed", "KeyError: 'x'", after=HOUR), node(1, "failed", NCCL, after=HOUR + 600)])
    assert [(fate.departure, fate.departure_text) for fate in found] == [
        ("failed", "rank 0: failed: KeyError: 'x'"),
        ("", ""),
    ]


def test_a_failure_that_may_have_been_later_is_not_the_cause():
    """Where the clocks leave open what came first, the node that died is the cause of the other's exception."""
    dead = node(1, "killed", "killed by SIGKILL", after=HOUR + 1, spread_seconds=1.0)
    assert told(node(0, "failed", NCCL, after=HOUR, spread_seconds=1.0), dead) == [("gpu-1", 0, "died")]


def test_a_node_that_died_and_comes_back_as_a_new_attempt_is_told_as_both():
    """It died in one attempt and came back in the next, with all others: only that node came back."""
    first = [node(0, "killed", "killed by SIGTERM", after=HOUR + 9), node(1, "killed", "killed by SIGKILL")]
    second = [node(number, attempt=1, late=HOUR + 300, after=HOUR + 400) for number in (0, 1)]
    assert told(*first, *second) == [("gpu-1", 0, "died"), ("gpu-1", 1, "came back")]
    (line,) = [line for line in fate_lines(node_fates([*first, *second])) if line["attempt"] == 1]
    assert line["text"] == "as attempt 1, 5 min after it was gone"


def test_a_node_that_takes_the_place_of_another():
    """Of a job that restarts without one node and with a new one, the old one died and the new one joined."""
    first = [node(0, "failed", NCCL, after=HOUR + 3), node(1, "lost", "silent")]
    second = [node(0, attempt=1, late=HOUR + 60, after=2 * HOUR), node(7, attempt=1, place=1, late=HOUR + 60)]
    assert told(*first, *second) == [("gpu-1", 0, "died"), ("gpu-7", 1, "joined late")]
    assert node_fates([*first, *second])[-1].arrival_text == "with attempt 1, in place of gpu-1"


def test_a_node_that_is_not_in_the_next_attempt_left_and_may_come_back():
    """A job that shrinks and grows again loses a node, and gets it back two attempts later."""
    lives = [node(number, "failed", NCCL, attempt=0, after=10) for number in (0, 1, 2)]
    lives[0] = node(0, "failed", "elastic: the membership changed", after=5)
    lives += [node(number, "failed", NCCL, attempt=1, late=20, after=30) for number in (0, 1)]
    lives += [node(number, attempt=2, late=40, after=99) for number in (0, 1, 2)]
    assert ("gpu-2", 0, "left") in told(*lives)
    assert ("gpu-2", 2, "came back") in told(*lives)


def test_a_job_that_moves_to_other_nodes_tells_nothing_of_each():
    """A requeued job on entirely other nodes has no node that left or joined."""
    first = [node(number, "preempted", "SIGTERM in a SLURM job") for number in (0, 1)]
    second = [node(number, attempt=1, place=number - 2, late=2 * HOUR) for number in (2, 3)]
    assert [kind for _, attempt, kind in told(*first, *second) if attempt == 1] == []


def test_a_node_that_restarts_as_another_container_is_the_same():
    """A node is known by its host name: the mark behind it changes with every boot and container."""
    again = node(1, attempt=1, late=HOUR + 100)
    again = NodeLife("gpu-1.ffffffff", 1, again.ranks, again.heard)
    lives = [node(0, "failed", NCCL, after=HOUR + 1), node(1, "lost"), node(0, attempt=1, late=HOUR + 100), again]
    assert ("gpu-1", 1, "came back") in told(*lives)


def test_containers_with_one_host_name_are_told_apart():
    """Two containers called alike are two nodes, by their marks."""
    lives = [NodeLife(f"trainer.0000000{mark}", 0, node(mark).ranks, START) for mark in (0, 1)]
    lives[1] = NodeLife("trainer.00000001", 0, node(1, "lost").ranks, START + 60)
    assert told(*lives) == [("trainer.00000001", 0, "died")]


def test_one_node_alone_has_nothing_to_tell():
    """The state of the run tells everything about a run on one machine."""
    assert told(node(0, "killed", "killed by SIGKILL"), node(0, attempt=1, late=2 * HOUR)) == []


def test_many_nodes_with_one_fate_are_one_line():
    """Of 64 nodes, those with the same fate fold into one line, and what a sentence says stays short."""
    lives = [node(number, "lost", "silent") if number < 20 else node(number) for number in range(64)]
    (line,) = fate_lines(node_fates(lives))
    assert line["who"] == "gpu-0, gpu-1, gpu-2 and 17 other nodes"
    assert len(line["nodes"]) == 20
    assert fate_sentence(node_fates(lives), 0) == "gpu-0, gpu-1, gpu-2 and 17 other nodes died"
