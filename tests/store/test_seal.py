from __future__ import annotations

import errno
import os

import pytest

from stepscope.store import seal as seal_module
from stepscope.store.layout import Writer
from stepscope.store.seal import seal
from tests.store.recorded import Recorded, values_of


@pytest.fixture
def recorded(tmp_path):
    """A run with three closed tails of ten rows."""
    made = Recorded(tmp_path)
    for number in range(30):
        made.run.log({"a": float(number), "b": -1.0})
        if number % 10 == 9:
            made.drain()
            made.drain_.rotate()
    return made


def numbers(folder):
    return [span.last for span in folder.all_tails()], [(unit.first, unit.last) for unit in folder.units()]


def test_sealed_rows_read_the_same(recorded):
    """Sealing changes where rows lie and nothing else."""
    before = values_of(recorded.past().points())
    made = seal(recorded.folder, recorded.writer, 2)
    assert numbers(recorded.folder) == ([], [(0, 0), (1, 1), (2, 2)])
    assert [path.name for path in made] == [f"node-0-{number}-{number}.parquet" for number in range(3)]
    assert values_of(recorded.past().points()) == before
    assert recorded.past().problems() == []


def test_only_what_was_asked_for(recorded):
    """Tails behind the given number, and those of other writers, are left as they are."""
    seal(recorded.folder, Writer("other", 0), 9)
    seal(recorded.folder, recorded.writer, 0)
    assert numbers(recorded.folder) == ([1, 2], [(0, 0)])


def test_interrupted_between_rename_and_delete(recorded, monkeypatch):
    """A tail that was sealed and not deleted is deleted by the next seal; until then its rows are read once."""
    tail = recorded.folder.all_tails()[0]
    kept = tail.path.read_bytes()
    seal(recorded.folder, recorded.writer, 0)
    tail.path.write_bytes(kept)
    assert len(recorded.past().series("a")) == 30
    seal(recorded.folder, recorded.writer, 0)
    assert numbers(recorded.folder) == ([1, 2], [(0, 0)])
    assert len(recorded.past().series("a")) == 30


def test_failed_seal_leaves_the_tail(recorded, monkeypatch):
    """A seal that fails leaves the tail and no unit; the next one makes up for it."""

    def refuse(*_, **__):
        raise OSError(errno.ENOSPC, "full")

    with monkeypatch.context() as patched:
        patched.setattr(seal_module, "write_sealed", refuse)
        with pytest.raises(OSError, match="full"):
            seal(recorded.folder, recorded.writer, 2)
    assert numbers(recorded.folder) == ([0, 1, 2], [])
    seal(recorded.folder, recorded.writer, 2)
    assert len(recorded.past().series("a")) == 30


def test_overlapping_tails_are_sealed_once(recorded):
    """Rows that stand in two tails, because a watcher was killed before its commit, are sealed once."""
    first, second = recorded.folder.all_tails()[:2]
    second.path.write_bytes(first.path.read_bytes() + second.path.read_bytes())
    seal(recorded.folder, recorded.writer, 2)
    assert recorded.past().series("a").value.tolist() == [float(number) for number in range(30)]


def test_tail_without_rows(recorded):
    """A tail that holds nothing new is deleted and makes no unit."""
    first, second = recorded.folder.all_tails()[:2]
    second.path.write_bytes(first.path.read_bytes())
    seal(recorded.folder, recorded.writer, 1)
    assert numbers(recorded.folder) == ([2], [(0, 0)])


@pytest.mark.parametrize("spare", [0, 1])
def test_damage_is_remembered(recorded, spare):
    """What could not be read of a tail is still told after it was sealed, even if nothing could."""
    tail = recorded.folder.all_tails()[1]
    data = bytearray(tail.path.read_bytes())
    for at in range(0 if not spare else len(data) - 40, len(data), 16):
        data[at] ^= 0xFF
    tail.path.write_bytes(data)
    before = recorded.past().problems()
    seal(recorded.folder, recorded.writer, 2)
    assert len(before) == 1
    assert any("damaged bytes" in problem for problem in recorded.past().problems())


def test_program(recorded, monkeypatch):
    """The sealing program lowers its priority, seals and compacts."""
    asked = []
    monkeypatch.setattr(os, "nice", lambda increment: asked.append(("nice", increment)))
    monkeypatch.setattr(os, "umask", lambda mask: asked.append(("umask", mask)))
    monkeypatch.setattr(seal_module, "compact", lambda *_: asked.append("compact"))
    assert seal_module.main([str(recorded.folder.path), "node", "0", "2"]) == 0
    assert asked == [("nice", 9), ("umask", 0o077), "compact"]
    assert numbers(recorded.folder)[0] == []


def test_merge_that_fails(recorded, monkeypatch, capsys):
    """A merge that fails does not make the sealing fail, whose tails are sealed."""

    def refuse(*_):
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "nice", lambda _: None)
    monkeypatch.setattr(os, "umask", lambda _: None)
    monkeypatch.setattr(seal_module, "compact", refuse)
    assert seal_module.main([str(recorded.folder.path), "node", "0", "2"]) == 0
    assert "cannot merge sealed files" in capsys.readouterr().err
    assert numbers(recorded.folder)[0] == []
