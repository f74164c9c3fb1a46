"""Nodes that came or went, as `show`, `ranks` and the page tell it."""

from __future__ import annotations

import json
import os

import pytest

from stepscope.cli.main import main
from stepscope.sources import clocks as known_clocks
from stepscope.store.layout import RunFolder
from stepscope.store.states import NodeState
from stepscope.views.nodes import nodes_view
from stepscope.views.ranks import ranks_view
from tests.exporters.recorded import CREATED
from tests.fleet import fleet

SECOND = 1_000_000


@pytest.fixture(autouse=True)
def forget(monkeypatch):
    """Estimate the clocks of every run anew."""
    monkeypatch.setattr(known_clocks, "_KNOWN", known_clocks.OffsetCache())


def changed(past, number, *, beside=0.0, **facts):
    """Change the state of a node's ranks; `beside`: seconds by which its clock is ahead of the file server's."""
    for path in sorted((past.path / "nodes").glob("*.json")):
        node = NodeState.load(path)
        node.time = CREATED + 100 * SECOND
        if node.node.startswith(f"node-{number}"):
            node.time += round(beside * SECOND)
            for rank in node.ranks.values():
                for key, value in facts.items():
                    setattr(rank, key, value)
        node.save(RunFolder(past.path))
        moment = CREATED / SECOND + 100.1  # written a little later than its time was taken
        os.utime(path, (moment, moment))
    return past


def test_a_dead_node_is_listed_and_the_ordinary_ones_are_counted(tmp_path, capsys):
    """Of 64 nodes the one that died has a line with its cause, in text and in JSON, and the others are a number."""
    past = changed(fleet(tmp_path, nodes=64, per=1, steps=4), 17, state="lost", cause="its watcher has said nothing")
    assert main(["show", str(past.path)]) == 0
    told = capsys.readouterr().out
    assert "64 nodes, 1 of which came late or went early" in told
    (line,) = [line for line in told.splitlines() if "died" in line]
    assert line.split()[:3] == ["0", "node-17", "died"]
    assert "its watcher has said nothing" in line
    assert main(["show", str(past.path), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)["nodes"]
    assert [(fate["host"], fate["departure"]) for fate in facts["fates"] if fate["departure"]] == [("node-17", "died")]
    assert len(facts["fates"]) == facts["count"] == 64


def test_the_sentence_of_the_ranks_names_the_node(tmp_path):
    """The sentence above the ranks says what happened to a node, and its ranks have a note with the cause."""
    gone = {"state": "preempted", "cause": "SIGTERM in a SLURM job", "ended": CREATED + 50 * SECOND}
    view = ranks_view(changed(fleet(tmp_path, nodes=3), 2, **gone))
    assert "node-2 was preempted" in view["summary"]
    notes = {row["rank"]: row["host_note"] for row in view["rows"]}
    assert notes[4] == notes[5] == "preempted: rank 4: preempted: SIGTERM in a SLURM job"
    assert notes[0] == ""


def test_a_clock_that_is_ahead_makes_no_node_late(tmp_path):
    """A node whose clock is 100 s ahead started with the others; what the clocks differ by is said, and of whom."""
    steps = {"phases": False, "steps": 1}  # too few to tell the clocks: their heartbeats do
    past = changed(fleet(tmp_path, nodes=3, **steps), 1, beside=100.0, started=CREATED + 100 * SECOND)
    view = ranks_view(past)
    assert [fate["arrival"] for fate in nodes_view(past)["fates"]] == ["", "", ""]
    assert view["clocks"].startswith("those of the nodes differ by up to 1 min")
    assert "node-1 is 1 min" in view["clocks"]
    assert [row["host_note"] for row in view["rows"] if row["rank"] == 2] == ["its clock is 1 min 40 s ahead"]


def test_a_node_that_started_late_by_a_true_clock_joined_late(tmp_path):
    """The same start on a clock that is right is late."""
    past = changed(fleet(tmp_path, nodes=3, steps=1, phases=False), 1, started=CREATED + 100 * SECOND)
    (line,) = nodes_view(past)["lines"]
    assert (line["who"], line["kind"], line["text"]) == ("node-1", "joined late", "1 min 40 s after the others")
