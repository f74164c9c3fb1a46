"""States of nodes whose clocks differ, and of readers whose clock is wrong."""

from __future__ import annotations

import os
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.store import states
from stepscope.store.beats import ServerClock, ahead_of_server
from stepscope.store.layout import RunFolder, Writer
from stepscope.store.states import NodeState, RankState, overall, read_nodes

NOW = 1_800_000_000.0
ENDS = {0: ("killed", 40.0), 1: ("failed", 31.5), 2: ("failed", 33.0)}
"""State of the rank of each node, and when it truly ended, in seconds."""


@given(st.lists(st.floats(-60, 60), min_size=3, max_size=3))
def test_first_death_does_not_depend_on_clocks(offsets):
    """The rank that ended first decides how a run ended, whatever the clocks of the nodes say."""
    nodes = []
    for number, (state, ended) in ENDS.items():
        rank = RankState(state, f"rank {number}", ended=round((NOW + ended + offsets[number]) * 1e6))
        nodes.append(NodeState(f"node{number}", 0, ranks={number: rank}, ahead_seconds=offsets[number]))
    assert overall(nodes) == ("failed", "rank 1")


@pytest.fixture
def folder(tmp_path):
    """A run's folder."""
    found = RunFolder(tmp_path / "run")
    found.make()
    return found


def plant(folder, node, ahead, *, age=0.0, **rank):
    """Write a node's file as a node whose clock is ahead would have written it some seconds ago."""
    beat = time.time() - age
    state = NodeState(node, 0, 1, round((beat + ahead) * 1e6), 1, "elsewhere", ranks={0: RankState(**rank)})
    state.save(folder)
    os.utime(folder.node_file(Writer(node, 0)), (beat, beat))


def test_clocks_are_read_from_heartbeats(folder):
    """A node's own time against the time of its file tells how far its clock is ahead; it is not stored."""
    plant(folder, "one", 0.0)
    plant(folder, "two", 41.0)
    one, two = read_nodes(folder)[0]
    assert two.ahead_seconds - one.ahead_seconds == pytest.approx(41.0, abs=0.01)
    assert b"ahead" not in folder.node_file(Writer("two", 0)).read_bytes()


def test_copied_files_tell_nothing():
    """The times of files that were copied later say nothing about clocks."""
    assert ahead_of_server([(NOW, NOW + 86_400), (NOW + 5, NOW + 86_400)]) == [0.0, 0.0]
    assert ahead_of_server([(NOW, NOW - 3), (NOW + 5, NOW)]) == [3.0, 5.0]


def test_reader_with_a_wrong_clock_loses_no_node(folder, monkeypatch):
    """A reader whose clock is a minute ahead asks the file server for the time before it takes a node for lost."""
    plant(folder, "one", 0.0, age=1.0)
    monkeypatch.setattr(states.time, "time", lambda own=time.time: own() + 60.0)
    monkeypatch.setattr(states, "_SERVER_CLOCK", ServerClock(states.time.time))
    assert read_nodes(folder)[0][0].ranks[0].state == "running"
    assert [path.name for path in (folder.path / "nodes").iterdir()] == ["one-0.json"]


def test_silent_node_is_lost(folder):
    """A node of another machine that has been silent for over 30 s is lost, however its clock is set."""
    plant(folder, "one", 45.0, age=40.0)
    assert read_nodes(folder)[0][0].ranks[0].state == "lost"


def test_server_clock_of_a_read_only_folder(tmp_path):
    """Where the time of the file server cannot be asked for, the reader's own counts."""
    assert ServerClock(lambda: NOW).now(tmp_path / "missing") == NOW
