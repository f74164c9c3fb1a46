from __future__ import annotations

import pytest

from stepscope.store.parquet import EVERYTHING, Selection
from stepscope.store.seal import seal
from stepscope.store.snapshot import take_snapshot
from tests.store.recorded import Recorded


@pytest.fixture
def recorded(tmp_path):
    """A run with a sealed unit of five rows, and five in a tail."""
    made = Recorded(tmp_path)
    for number in range(10):
        made.run.log({"a": float(number), "b" if number < 5 else "c": 1.0})
        if number == 4:
            made.drain()
            made.drain_.rotate()
            seal(made.folder, made.writer, 0)
    made.drain()
    return made


def test_counts(recorded):
    """The names of a run and their points are known without reading the sealed files."""
    snapshot = take_snapshot(recorded.folder)
    assert snapshot.counts() == {"a": 10, "b": 5, "c": 5}
    assert snapshot.sealed_count("a") == 5
    assert snapshot.sealed_count("c") == 0
    assert len(snapshot.holding(["c"])) == 0
    assert len(snapshot.holding(["b"])) == len(snapshot.holding(None)) == 1


def test_filters_on_tails(recorded):
    """The points of the tails can be asked for by name, rank, attempt and step."""
    snapshot = take_snapshot(recorded.folder)
    assert len(snapshot.tail_points(EVERYTHING)) == 10
    assert len(snapshot.tail_points(Selection(["c"]))) == 5
    assert len(snapshot.tail_points(Selection(["a"], [0], [0], (6, 8)))) == 3
    assert (
        len(snapshot.tail_points(Selection(["a"], ranks=[1])))
        == len(snapshot.tail_points(Selection(["a"], attempts=[1])))
        == 0
    )


def test_unit_and_overlapping_tail(recorded):
    """A tail that holds rows of a sealed unit again gives only those that the unit does not have."""
    kept = recorded.folder.all_tails()[0].path.read_bytes()
    seal(recorded.folder, recorded.writer, 1)
    recorded.run.log({"a": 10.0, "c": 1.0})
    recorded.drain_.rotate()
    recorded.drain()
    path = recorded.folder.all_tails()[-1].path
    path.write_bytes(kept + path.read_bytes())
    assert recorded.past().series("a").value.tolist() == [float(number) for number in range(11)]
    assert take_snapshot(recorded.folder).counts()["a"] == 11


def test_sealed_between_the_two_listings(recorded, monkeypatch):
    """A tail that is sealed between the listing of tails and that of units is read once."""
    true = type(recorded.folder).tails

    def tails(folder):
        found = true(folder)
        kept = found[0].path.read_bytes()
        recorded.drain_.rotate()
        seal(recorded.folder, recorded.writer, 1)
        found[0].path.write_bytes(kept)
        return found

    monkeypatch.setattr(type(recorded.folder), "tails", tails)
    assert take_snapshot(recorded.folder).counts()["a"] == 10
