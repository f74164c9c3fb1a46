"""The hang of a run as one watcher sees it: who is asked, who judges, what is written, and when it is over."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from stepscope.store.layout import Writer
from stepscope.store.states import NodeState, RankState
from stepscope.watcher import hang_watch
from stepscope.watcher.hang_watch import HangWatch
from stepscope.watcher.journal import Journal
from tests.store.recorded import make_folder

NAMED = {"verdict": "never_arrived", "ranks": [1], "waiting": [0], "text": "Rank 1 sleeps for 3 s."}


class FakeJudging:
    """A judgement that the test gives."""

    def __init__(self, *_):
        self.started, self.given, self.busy, self.closed = 0, None, False, 0

    def start(self, now):
        self.started += 1

    def poll(self, now):
        given, self.given = self.given, None
        return given

    def close(self):
        self.closed += 1


class FakeRas(FakeJudging):
    """A service that is asked, and answers what the test gives."""

    def ask(self, pids, now):
        self.started += 1


class FakeRank:
    """A rank of node a: its detector, its guard and its drain, as far as they are asked."""

    def __init__(self, number, node, written):
        self.number, self.node, self.state = number, node, RankState()
        node.ranks[number] = self.state
        self.requests, self.silent = [], 0.0
        stalls = SimpleNamespace(state="armed", quiet=lambda now: self.silent)
        self.guard = SimpleNamespace(stalls=stalls, seen=None, request=self.requests.append, trainee=None)
        own = SimpleNamespace(rank=-1)
        self.drain = SimpleNamespace(own=own, write_events=lambda events, *_, **__: written.extend(events))


class Rig:
    """A watch over two ranks of node a, in a run with a file per node."""

    def __init__(self, path, monkeypatch, world_size=2, count=2):
        monkeypatch.setattr(hang_watch, "Judging", FakeJudging)
        monkeypatch.setattr(hang_watch, "RasQuestion", FakeRas)
        self.folder = make_folder(path / "run")
        self.folder.run_file.write_text(json.dumps({"world_size": world_size}))
        self.node, self.written, self.beats = NodeState("a", 0), [], 0
        self.ranks = [FakeRank(number, self.node, self.written) for number in range(count)]
        journal = Journal(self.folder.path / "watcher.log")
        self.watch = HangWatch(self.folder, "a", self.ranks, journal, self.beat)
        self.judging, self.now = self.watch._judging, 1000.0
        self.node.save(self.folder)

    def beat(self, node, pair):
        self.beats += 1
        node.save(self.folder)

    def go(self, seconds=0.5):
        self.now += seconds
        self.watch.poll(SimpleNamespace(monotonic_ns=round(self.now * 1e9), wall_ns=0))

    def stall(self, *numbers, state="stalled"):
        for number in numbers:
            self.ranks[number].guard.stalls.state = state

    def other_node(self, number, **state):
        node = NodeState("b", 0, ranks={number: RankState(**state)}, monotonic_ns=0)
        node.save(self.folder)
        assert self.folder.node_file(Writer("b", 0)).exists()


@pytest.fixture
def rig(tmp_path, monkeypatch):
    return Rig(tmp_path, monkeypatch)


def test_a_stall_is_shown_to_other_nodes_and_all_ranks_are_asked(rig):
    """At once in the file of the node; each rank is asked once, with the reason; then the run is judged."""
    rig.go()
    assert (rig.beats, rig.judging.started) == (0, 0)
    rig.stall(0)
    rig.go()
    assert rig.beats == 1
    assert NodeState.load(rig.folder.node_file(Writer("a", 0))).ranks[0].stall == "stalled"
    assert [rank.requests for rank in rig.ranks] == [["rank 0 stands still"], ["rank 0 stands still"]]
    rig.go()
    assert rig.judging.started == 0
    rig.go(2)
    assert rig.judging.started == 1
    assert len(rig.ranks[0].requests) == 1


def test_a_rank_whose_stacks_are_fresh_is_not_asked_again(rig):
    """The event about its own stall holds them."""
    rig.ranks[0].guard.seen = rig.now
    rig.stall(0)
    rig.go()
    assert [len(rank.requests) for rank in rig.ranks] == [0, 1]


def test_a_verdict_is_written_once_and_again_when_it_changes(rig):
    """Seconds that grow are no change; other ranks or another place are."""
    rig.stall(0)
    rig.go()
    for text in ("Rank 1 sleeps for 3 s.", "Rank 1 sleeps for 14 s.", "Rank 1 sleeps at a.py:7 for 20 s."):
        rig.judging.given = {**NAMED, "text": text}
        rig.go()
    rig.judging.given = {**NAMED, "ranks": [0]}
    rig.go()
    assert {event["kind"] for event in rig.written} == {"hang_verdict"}
    texts = [event["text"] for event in rig.written]
    assert texts == ["Rank 1 sleeps for 3 s.", "Rank 1 sleeps at a.py:7 for 20 s.", NAMED["text"]]


def test_a_recovery_ends_the_verdict(rig):
    """One last event says that the ranks move, and the judgement under way is ended; then a new hang may begin."""
    rig.stall(0, 1)
    rig.go()
    rig.judging.given = dict(NAMED)
    rig.go()
    rig.stall(0, 1, state="armed")
    rig.go()
    assert [event["verdict"] for event in rig.written] == ["never_arrived", "none"]
    assert rig.judging.closed == 1
    rig.stall(1)
    rig.go()
    assert rig.ranks[0].requests == ["rank 0 stands still", "rank 1 stands still"]


def test_a_pause_without_a_verdict_leaves_no_event(rig):
    """Nothing was told, so nothing is over."""
    rig.stall(0)
    rig.go()
    rig.judging.given = {"verdict": "none", "ranks": [], "text": "A long pause."}
    rig.go()
    rig.stall(0, state="armed")
    rig.go()
    assert rig.written == []


def test_a_stall_of_another_node_is_evidence_here_too(rig):
    """It is read only while a rank of ours waits, and every few seconds."""
    rig.other_node(2, stall="hung")
    rig.go()
    assert rig.ranks[0].requests == []
    rig.ranks[0].silent = 6.0
    rig.go()
    assert rig.ranks[0].requests == ["rank 2 on b stands still"]
    rig.other_node(2, stall="")
    rig.go(4)
    assert rig.watch._since is None


def test_only_the_watcher_of_the_lowest_living_rank_judges(tmp_path, monkeypatch):
    """The others write their evidence; when that rank has ended, the next one judges."""
    rig = Rig(tmp_path, monkeypatch)
    rig.node.ranks[0].state = "killed"
    rig.node.save(rig.folder)
    rig.other_node(0)
    rig.stall(1)
    rig.go()
    rig.go(3)
    assert (rig.judging.started, rig.watch._ras.started) == (0, 0)
    rig.other_node(0, state="killed")
    rig.go(4)
    assert rig.judging.started == 1


def test_a_run_with_one_rank_has_no_verdict(tmp_path, monkeypatch):
    """Its own events and alerts say all; also if its run.json cannot be read."""
    rig = Rig(tmp_path, monkeypatch, world_size=1, count=1)
    assert not rig.watch.is_of_many()
    rig.stall(0)
    rig.go()
    assert rig.ranks[0].requests == []
    other = Rig(tmp_path / "other", monkeypatch, count=1)
    assert other.watch.is_of_many()
    unreadable = Rig(tmp_path / "third", monkeypatch, count=1)
    unreadable.folder.run_file.write_text("[]")
    assert not unreadable.watch.is_of_many()


def test_a_long_hang_is_judged_each_minute_and_asked_about_once_more(rig):
    """Hours of it must not fill the events with stacks."""
    rig.stall(0)
    for _ in range(600):
        rig.go(1)
    assert 14 <= rig.judging.started <= 17
    assert [len(rank.requests) for rank in rig.ranks] == [2, 2]


def test_a_report_of_ras_is_written_and_judged_at_once(rig):
    """It comes seconds later than the stacks."""
    rig.stall(0)
    rig.go()
    rig.watch._ras.given = {"kind": "nccl_ras", "report": {}}
    rig.go()
    assert [event["kind"] for event in rig.written] == ["nccl_ras"]
    assert rig.judging.started == 1
    rig.watch.close()
    assert rig.judging.closed == 1
