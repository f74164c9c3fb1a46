"""What a watcher knows of the ranks of other nodes, and of the machines of its own."""

from __future__ import annotations

import os
import time

import pytest

from stepscope.alerts.evaluation import detectors
from stepscope.analysis.stragglers.pace import StepTiming
from stepscope.store import states
from stepscope.store.beats import ServerClock
from stepscope.store.states import NodeState, RankState
from stepscope.watcher.alerting import Alerting
from stepscope.watcher.straggling import READ_EVERY, STALE, MachineFacts, OtherNodes, note_timings
from tests.store.recorded import make_folder


def node(folder, name, *ranks, attempt=0, **more):
    """Write the file of a node with the timing of some ranks."""
    state = NodeState(name, attempt, **more)
    state.ranks = {rank: RankState() for rank in ranks}
    note_timings(state.ranks, [StepTiming(rank, 0.1, 0.05, None, {"forward": 0.05}, node=name) for rank in ranks])
    state.save(folder)
    return folder.path / "nodes" / f"{name}-{attempt}.json"


def test_the_ranks_of_other_nodes_of_the_attempt_are_read(tmp_path):
    """Not our own, not those of an earlier attempt, not those that have ended, and at most every ten seconds."""
    folder = make_folder(tmp_path / "run")
    node(folder, "a", 0, 1, attempt=1)
    node(folder, "b", 2, 3, attempt=1)
    node(folder, "b", 2, 3, attempt=0)
    node(folder, "c", 4, attempt=1, ended=True)
    others = OtherNodes(folder, "a")
    found = others.timings(1, 100.0)
    assert [(timing.rank, timing.node, timing.own_seconds) for timing in found] == [(2, "b", 0.05), (3, "b", 0.05)]
    node(folder, "d", 5, attempt=1)
    assert len(others.timings(1, 100.0 + READ_EVERY / 2)) == 2
    assert len(others.timings(1, 100.0 + READ_EVERY)) == 3
    assert others.problems == []


def test_a_silent_node_is_not_compared(tmp_path):
    """Its numbers are of another time."""
    folder = make_folder(tmp_path / "run")
    path = node(folder, "b", 2)
    os.utime(path, (path.stat().st_mtime - 2 * STALE,) * 2)
    assert OtherNodes(folder, "a").timings(0, 0.0) == []


def test_a_wrong_clock_takes_no_node_for_silent(tmp_path, monkeypatch):
    """A node whose own clock is two minutes ahead still compares its ranks with those of the others."""
    folder = make_folder(tmp_path / "run")
    node(folder, "b", 2)
    monkeypatch.setattr(states.time, "time", lambda own=time.time: own() + 4 * STALE)
    monkeypatch.setattr(states, "_SERVER_CLOCK", ServerClock(states.time.time))
    assert [timing.rank for timing in OtherNodes(folder, "a").timings(0, 0.0)] == [2]


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b'{"node": "b", "ranks": {"x": {}}}', b"\xff" * 99])
def test_a_damaged_file_is_a_sentence(tmp_path, content):
    """The other nodes are still compared."""
    folder = make_folder(tmp_path / "run")
    node(folder, "b", 2).write_bytes(content)
    node(folder, "c", 3)
    others = OtherNodes(folder, "a")
    assert [timing.rank for timing in others.timings(0, 0.0)] == [3]
    assert len(others.problems) == 1
    assert others.problems[0].startswith("cannot read b-0.json: ")


def test_the_state_of_a_rank_has_its_timing():
    """The views read it from there."""
    states = {3: RankState()}
    note_timings(states, [StepTiming(3, 0.1, 0.06), StepTiming(9, 0.1, 0.06)])
    assert (states[3].own_seconds, states[3].usual_seconds) == (0.06, 0.1)
    assert StepTiming.of(states[3].pace) == StepTiming(3, 0.1, 0.06)


def test_samples_of_the_machine_belong_to_its_ranks():
    """GPUs are those of the ranks in order, where there are as many; several reasons of heat count as one."""
    facts = MachineFacts()
    latest = {"process/8/run_wait_ratio": 0.3}
    for gpu, clock in ((0, 1.7e9), (1, 1.1e9)):
        latest |= {f"gpu/{gpu}/utilization_ratio": 1.0, f"gpu/{gpu}/sm_clock_hertz": clock}
        latest |= {f"gpu/{gpu}/throttle_hw_thermal": 0.0, f"gpu/{gpu}/throttle_sw_thermal": float(gpu)}
    found = facts.add(latest, [8, 9])
    assert found[8] == {"run_wait_ratio": 0.3, "gpu_clock_hertz": 1.7e9, "gpu_hot_ratio": 0.0}
    assert (found[9]["gpu_clock_hertz"], found[9]["gpu_hot_ratio"]) == (1.1e9, 1.0)
    assert facts.add(latest | {"process/8/run_wait_ratio": 0.0}, [8, 9])[8]["run_wait_ratio"] == pytest.approx(0.27)
    assert "gpu_clock_hertz" not in facts.add(latest, [8])[8]


def test_a_rank_is_where_its_newest_event_says():
    """Only places count that many ranks share and that differ in their work."""
    facts = MachineFacts()
    facts.place(8, {"kind": "rank_placed", "coordinates": {"pipeline": 1, "data": 3}})
    facts.place(8, {"kind": "rank_placed", "coordinates": {"pipeline": 2, "expert": "x"}})
    facts.place(9, {"kind": "rank_placed", "coordinates": None})
    latest = {"process/8/numa_node": 1.0}
    assert facts.add(latest, [8, 9]) == {8: {"numa_node": 1.0, "pipeline": 2.0}, 9: {}}


RULE = {"name": "straggler", "detect": "straggler", "for": "2 points"}


@pytest.fixture
def often(monkeypatch):
    """Ranks are compared whenever there are new steps."""
    monkeypatch.setattr(detectors, "STRAGGLER_LOOK", 0.0)


def late_on(stage, forward, others):
    """Train one rank here, with steps of 0.1 s, beside a node whose ranks compute so long; return the alerts.

    Rows have the time of this computer, which passes faster than that of the steps.
    """
    places = (stage.folder, stage.watcher.node, stage.journal, stage.watcher.streams, lambda: stage.watcher.sampling)
    stage.watcher.alerting = stage.watcher.feed = Alerting(*places, {"alerting.rules": [RULE]})
    rig = stage.trainer()
    for second in range(40):
        beside = NodeState("other", 0)
        beside.ranks = {rank: RankState() for rank in (1, 2, 3)}
        timings = [
            StepTiming(rank, 0.1, seconds, None, {"forward": seconds, "backward": 0.1 - seconds}, node="other")
            for rank, seconds in zip((1, 2, 3), others, strict=True)
        ]
        note_timings(beside.ranks, timings)
        beside.save(stage.folder)
        for step in range(second * 10, second * 10 + 10):
            row = {"step_seconds": 0.1, "phase/forward": forward, "phase/backward": 0.1 - forward}
            rig.run.log(row, step=step)
            stage.tick()
    return [event for event in stage.past().events("alert") if event["rule"] == "straggler"]


@pytest.mark.usefixtures("often")
def test_the_watcher_of_the_late_rank_says_so_for_the_whole_job(stage):
    """It compares with the file of the other node, and puts its own timing into its own."""
    (event,) = late_on(stage, 0.09, (0.05, 0.05, 0.05))
    assert event["state"] == "firing"
    assert event["text"].startswith("the other 3 ranks wait 40 ms in a step of 100 ms for rank 0 on ")
    assert (event["evidence"]["rank"], event["evidence"]["cause"]) == (0, "compute")
    state = stage.node().ranks[0]
    assert (state.own_seconds, state.usual_seconds) == (pytest.approx(0.09), pytest.approx(0.1))


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize("others", [(0.05, 0.05, 0.05), (0.05, 0.09, 0.05)])
def test_the_watcher_of_another_rank_is_silent(stage, others):
    """Whether nobody is late or a rank of the other node is: that node's watcher says it."""
    assert late_on(stage, 0.05, others) == []
