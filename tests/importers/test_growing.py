from __future__ import annotations

import gzip

import pytest
from hypothesis import given
from hypothesis import strategies as some

from stepscope.core.errors import StepscopeError
from stepscope.importers.trackers import growing
from stepscope.importers.trackers.growing import GrowingFile


def lines(file):
    """Return the new lines of a file, and the notes."""
    notes = []
    return [line for found in file.new_lines(notes.append) for line in found], notes


@given(some.lists(some.binary(max_size=20), min_size=1, max_size=6))
def test_a_growing_file_gives_each_complete_line_once(tmp_path_factory, pieces):
    """However a writer cuts its lines into pieces, they come out whole, in order, and once."""
    path = tmp_path_factory.getbasetemp() / "growing"
    path.write_bytes(b"-")  # so that it is never taken for a packed file
    file, found = GrowingFile(str(path)), []
    for piece in pieces:
        with path.open("ab") as target:
            target.write(piece)
        found += lines(file)[0]
    complete, end, rest = path.read_bytes().rpartition(b"\n")
    assert found == (complete.split(b"\n") if end else [])
    assert file.is_cut == bool(rest)


def test_a_file_that_became_shorter_is_read_from_its_start(tmp_path):
    """A writer that begins again truncates its file."""
    path = tmp_path / "a"
    path.write_bytes(b"one\ntwo\n")
    file = GrowingFile(str(path))
    assert lines(file)[0] == [b"one", b"two"]
    path.write_bytes(b"new\n")
    assert lines(file)[0] == [b"new"]


def test_limits_and_damage_are_noted(tmp_path, monkeypatch):
    """A line without an end, a file without an end and a damaged packed file are read up to there."""
    path = tmp_path / "a"
    path.write_bytes(b"one\n" + b"x" * 5000)
    monkeypatch.setattr(growing, "PIECE", 1000)
    assert "longer than" in lines(GrowingFile(str(path), most_line=2000))[1][0]
    path.write_bytes(gzip.compress(b"one\n" * 5000)[:-20])
    assert "damaged" in lines(GrowingFile(str(path)))[1][0]
    monkeypatch.setattr(growing, "MOST_BYTES", 3000)
    path.write_bytes(b"one\n" * 5000)
    found, notes = lines(GrowingFile(str(path)))
    assert len(found) == 750
    assert "larger than" in notes[0]
    path.unlink()
    with pytest.raises(StepscopeError, match="No such file"):
        lines(GrowingFile(str(path)))
