"""Folders that somebody else made: too many files, or numbers that no rank has, cost a sentence and no time."""

from __future__ import annotations

import pytest

from stepscope.store import snapshot, states
from stepscope.store.layout import FileSpan, Writer, uncovered
from stepscope.store.states import NodeState, RankState, read_nodes
from tests.store.recorded import make_folder


@pytest.fixture
def folder(tmp_path):
    return make_folder(tmp_path / "run")


def node(folder, name="node", ranks=(0,), attempt=0):
    """Write the file of a node with these ranks."""
    NodeState(name, attempt, ended=True, ranks={rank: RankState("finished") for rank in ranks}).save(folder)


@pytest.mark.parametrize("ranks", [(2**31,), (-(2**40),), (10**40,)])
def test_ranks_that_nobody_has(folder, ranks):
    """A node with a rank beyond 32 bits is passed over and told; the others are read."""
    node(folder, "bad", ranks)
    node(folder, "good", (3,))
    found, problems = read_nodes(folder)
    assert [list(one.ranks) for one in found] == [[3]]
    assert problems[0].startswith("bad-0.json: no rank or attempt has the number ")


def test_more_nodes_and_ranks_than_a_run_has(folder, monkeypatch):
    """Beyond the bounds the rest is passed over, with how many; a file that is too long is not read."""
    monkeypatch.setattr(states, "MOST_FILES", 3)
    monkeypatch.setattr(states, "MOST_RANKS", 5)
    for number in range(5):
        node(folder, f"n{number}", range(2))
    found, problems = read_nodes(folder)
    assert len(found) == 2
    assert problems[0] == "nodes: 2 of 5 files were passed over: too many for a run"
    assert "more than 5 are no run" in problems[1]
    monkeypatch.setattr(states, "MOST_BYTES", 10)
    assert "longer than 10 bytes" in read_nodes(folder)[1][1]


def test_more_tails_than_a_run_has(folder, monkeypatch):
    """Tails beyond the bound are passed over, with how many."""
    monkeypatch.setattr(snapshot, "MOST_FILES", 2)
    for number in range(5):
        folder.tail_file(Writer("node", 0), number).touch()
    [told] = [one for one in snapshot.take_snapshot(folder).problems if one.startswith("tail: ")]
    assert told.startswith("tail: 3 of 5 files were passed over: too many for one run")


def test_more_damaged_files_than_are_worth_a_look(folder, monkeypatch):
    """Of sealed files without checksums only so many are looked into; the rest is counted, and nothing raises."""
    monkeypatch.setattr(snapshot, "MOST_UNCHECKED", 2)
    for number in range(9):
        stem = folder.unit_stem(Writer("node", 0), number, number)
        (folder.path / "metrics" / f"{stem}.parquet").write_bytes(b"no parquet")
    found = snapshot.take_snapshot(folder)
    assert (len(found.units), found.counts()) == (3, {})
    assert any(one.startswith("metrics: 6 of 9 files were passed over") for one in found.problems)


def test_tails_that_no_unit_holds(tmp_path):
    """A tail is held by a unit of its own writer whose span it lies in, and by no other."""
    one, two = Writer("a", 0), Writer("b", 0)
    units = [FileSpan(one, 0, 4, tmp_path), FileSpan(one, 7, 7, tmp_path), FileSpan(two, 5, 9, tmp_path)]
    tails = [FileSpan(writer, number, number, tmp_path) for writer in (one, two) for number in range(10)]
    left = [(tail.writer.node, tail.first) for tail in uncovered(tails, units)]
    assert left == [("a", 5), ("a", 6), ("a", 8), ("a", 9), *(("b", number) for number in range(5))]
