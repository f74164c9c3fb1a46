from __future__ import annotations

import json
import os
import time

import pytest

from stepscope.core.clock import boot_id
from stepscope.store.states import NodeState, RankState, overall, read_nodes, unseen_end
from tests.store.recorded import make_folder


@pytest.fixture
def folder(tmp_path):
    return make_folder(tmp_path / "run")


def save(folder, node="n", attempt=0, silent=0.0, **more):
    """Save a node whose last beat was `silent` seconds ago, by the clock of this boot."""
    moment = time.monotonic_ns() - round(silent * 1e9)
    facts = {"boot_id": boot_id(), "monotonic_ns": moment, "ranks": {0: RankState()}}
    NodeState(node, attempt, **{**facts, **more}).save(folder)


def state(folder):
    return overall(read_nodes(folder)[0])[0]


def rank(state, ended=None, **more):
    return RankState(state=state, ended=ended, **more)


def test_round_trip(folder):
    """A node's file says again what was saved, ranks and all."""
    ranks = {0: RankState("killed", "why", 5, 6, 7, 8, 9, 10, 11, inferred=True), 3: RankState()}
    node = NodeState("n", 2, 3, 4, 5, "boot", ended=True, ranks=ranks)
    node.save(folder)
    assert read_nodes(folder) == ([node], [])


@pytest.mark.parametrize(("silent", "expected"), [(0, "running"), (15, "running"), (31, "lost"), (1e6, "lost")])
def test_lost_after_thirty_seconds(folder, silent, expected):
    """A watcher of this boot that said nothing for 30 s by the monotonic clock has lost its running ranks."""
    save(folder, silent=silent)
    os.utime(folder.path / "nodes" / "n-0.json", (0, 0))  # the wall clock does not matter here
    assert state(folder) == expected


@pytest.mark.parametrize(("age", "expected"), [(0, "running"), (10, "running"), (40, "lost")])
def test_lost_on_another_machine(folder, age, expected):
    """Of a watcher of another boot the time of its file tells."""
    save(folder, boot_id="elsewhere", monotonic_ns=0)
    then = time.time() - age
    os.utime(folder.path / "nodes" / "n-0.json", (then, then))
    assert state(folder) == expected


def test_ended_nodes_are_not_lost(folder):
    """Silence after the end is no loss, nor is that of a rank that has ended."""
    save(folder, silent=100, ended=True, ranks={0: rank("finished", 5)})
    save(folder, node="m", silent=100, ranks={1: rank("finished", 6)})
    assert state(folder) == "finished"


def test_lost_is_inferred(folder):
    """That a rank is lost is concluded, and marked so."""
    save(folder, silent=100)
    [node] = read_nodes(folder)[0]
    assert (node.ranks[0].inferred, "30 s" in node.ranks[0].cause) == (True, True)


def test_run_that_nobody_watched(folder):
    """A run without any node is running while it is young, and lost when it is not."""
    assert state(folder) == "running"
    os.utime(folder.run_file, (0, 0))
    [node] = read_nodes(folder)[0]
    assert overall([node])[0] == "lost"
    assert "before a watcher came" in overall([node])[1]


def test_folder_without_anything(tmp_path):
    """A folder that holds nothing has no nodes and no problems."""
    from stepscope.store.layout import RunFolder

    assert read_nodes(RunFolder(tmp_path / "none")) == ([], [])


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        ([rank("finished", 1), rank("finished", 2)], ("finished", "")),
        ([rank("finished", 1), rank("running")], ("running", "")),
        ([rank("failed", 20, cause="later"), rank("killed", 10, cause="first")], ("killed", "first")),
        ([rank("failed", 20, cause="x"), rank("lost")], ("failed", "x")),
        ([rank("running"), rank("oom-killed", 5, cause="no memory")], ("oom-killed", "no memory")),
        ([rank("preempted", 5), rank("finished", 1)], ("preempted", "")),
        ([rank("interrupted", 5, cause="Ctrl-C"), rank("finished", 1)], ("interrupted", "Ctrl-C")),
        (
            [rank("killed", 5, cause="killed by SIGTERM"), rank("interrupted", 6, cause="Ctrl-C")],
            ("interrupted", "Ctrl-C"),
        ),
        ([rank("failed", 5, cause="x"), rank("interrupted", 6, cause="Ctrl-C")], ("failed", "x")),
        (
            [rank("killed", 5, cause="killed by SIGTERM"), rank("interrupted", 60_000_000, cause="Ctrl-C")],
            ("killed", "killed by SIGTERM"),
        ),
        ([rank("of the future", 5)], ("running", "")),
        ([], ("running", "")),
    ],
)
def test_earliest_abnormal_end(ranks, expected):
    """A run's end is the earliest abnormal end of its ranks; finished if all are; else it runs."""
    halves = ranks[::2], ranks[1::2]
    nodes = [NodeState(f"n{at}", 0, ranks=dict(enumerate(half))) for at, half in enumerate(halves)]
    assert overall(nodes) == expected


def test_a_finished_run_says_what_was_wrong(folder):
    """What was critical at the end of the last attempt is the cause of a run that finished, and of no other."""
    ranks = {0: RankState("finished", ended=1)}
    first = NodeState("n", 0, ended=True, wrong="old", ranks=ranks)
    assert overall([first]) == ("finished", "old")
    assert overall([first, NodeState("n", 1, ended=True, ranks=ranks)]) == ("finished", "")
    failed = NodeState("n", 2, ended=True, wrong="loss is NaN", ranks={0: RankState("failed", "exit code 3", ended=1)})
    assert overall([first, failed]) == ("failed", "exit code 3")


def test_last_attempt_decides():
    """What became of earlier attempts does not matter."""
    first = NodeState("n", 0, ranks={0: rank("failed", 1)})
    second = NodeState("n", 1, ranks={0: rank("finished", 2)})
    assert overall([first, second]) == overall([second, first]) == ("finished", "")
    assert overall([]) == ("running", "")


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "[]", "5", "null", '{"attempt": 0}', '{"node": "n"}', '{"node": "n", "attempt": "x"}'),
        *('{"node": "n", "attempt": 0, "ranks": [1]}', '{"node": "n", "attempt": 0, "ranks": {"x": {}}}'),
        *(
            '{"node": "n", "attempt": 0, "ranks": {"0": 5}}',
            '{"node": "n", "attempt": 0, "ranks": {"0": {"ended": "x"}}}',
        ),
        "[" * 100_000,
    ],
    ids=lambda text: text[:60],
)
def test_damaged_nodes_are_told(folder, text):
    """A node file that cannot be understood is a problem of that file, and the others count."""
    save(folder, node="good", ended=True, ranks={0: rank("finished", 1)})
    (folder.path / "nodes" / "bad-0.json").write_text(text)
    nodes, problems = read_nodes(folder)
    assert [node.node for node in nodes] == ["good"]
    assert len(problems) == 1
    assert problems[0].startswith("bad-0.json: ")


def test_fields_of_a_later_version(folder):
    """Fields that this version does not know are passed over."""
    save(folder, ended=True, ranks={0: rank("finished", 1)})
    path = folder.path / "nodes" / "n-0.json"
    facts = json.loads(path.read_text())
    facts["ranks"]["0"]["mood"] = "fine"
    path.write_text(json.dumps({**facts, "weather": 7}))
    assert state(folder) == "finished"


def test_temporary_files_are_passed_over(folder):
    """A node file that is being written is not read."""
    (folder.path / "nodes" / ".n-0.json.77").write_text("{")
    assert read_nodes(folder) == ([], [])


@pytest.mark.parametrize(
    ("memory", "limit", "state"),
    [(95, 100, "oom-killed"), (50, 100, "killed"), (95, None, "killed"), (None, 9, "killed")],
)
def test_an_end_that_took_the_watcher_along(memory, limit, state):
    """Where nobody was left to see the end, a rank last seen near its memory limit was probably killed for that."""
    rank = RankState(memory=memory, memory_limit=limit)
    assert unseen_end(rank)[0] == state


def test_silence_near_the_limit(folder):
    """A silent watcher whose rank was near its memory limit leaves a run that ran out of memory, as inferred."""
    save(folder, silent=99.0, ranks={0: RankState(memory=99, memory_limit=100)})
    found = read_nodes(folder)[0][0].ranks[0]
    assert (found.state, found.inferred) == ("oom-killed", True)
