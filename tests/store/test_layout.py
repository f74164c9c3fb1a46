from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from stepscope.store import layout
from stepscope.store.layout import FileSpan, RunFolder, Writer, node_name, replace, write_once


@pytest.fixture
def folder(tmp_path):
    made = RunFolder(tmp_path / "run")
    made.make()
    return made


def touch(folder, *names):
    for name in names:
        (folder.path / name).touch()


def test_everything_is_private(tmp_path):
    """The folders of a run are for this user only, whatever the mask, and made again without harm."""
    before = os.umask(0)
    try:
        folder = RunFolder(tmp_path / "run")
        folder.make()
        folder.make()
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in (folder.path, *folder.path.iterdir())} == {0o700}
    assert sorted(path.name for path in folder.path.iterdir()) == sorted(layout.FOLDERS)


def test_names_of_files(folder):
    """Each file's name says its node, its attempt and, of tails, its number."""
    writer = Writer("host.abc", 3)
    names = [folder.node_file(writer), folder.events_file(writer), folder.tail_file(writer, 7)]
    assert [str(path.relative_to(folder.path)) for path in names] == [
        *("nodes/host.abc-3.json", "events/host.abc-3.jsonl", "tail/host.abc-3-7.log")
    ]
    assert folder.unit_stem(writer, 0, 9) == "host.abc-3-0-9"


def test_files_are_found_by_their_names(folder):
    """Tails and units are found with what their names say; other files are passed over."""
    touch(folder, "tail/n-0-2.log", "tail/n-0-10.log", "tail/m-1-0.log", "tail/odd.log", "tail/n-0-2.log.bak")
    touch(folder, "metrics/n-0-0-1.parquet", "metrics/n-0-0-1.blocks.parquet", "metrics/n-0-0-1.sum")
    touch(folder, "metrics/.tmp-n-0-3-3.parquet", "metrics/notes.parquet")
    assert [(span.writer.node, span.writer.attempt, span.last) for span in folder.tails()] == [
        *(("m", 1, 0), ("n", 0, 2), ("n", 0, 10))
    ]
    assert [(unit.first, unit.last) for unit in folder.units()] == [(0, 1)]


def test_sealed_tails_do_not_count(folder):
    """A tail that a unit holds is not read, even while it is still there."""
    touch(folder, "tail/n-0-0.log", "tail/n-0-1.log", "tail/n-1-0.log", "metrics/n-0-0-0.parquet")
    assert [(span.writer.attempt, span.last) for span in folder.tails()] == [(0, 1), (1, 0)]
    assert len(folder.all_tails()) == 3


def test_compacted_units_replace_theirs(folder):
    """A unit that a wider one holds does not count."""
    touch(folder, *(f"metrics/n-0-{first}-{last}.parquet" for first, last in ((0, 0), (1, 1), (2, 2), (0, 1), (3, 5))))
    touch(folder, "metrics/m-0-1-1.parquet")
    assert [(unit.writer.node, unit.first, unit.last) for unit in folder.units()] == [
        *(("m", 1, 1), ("n", 0, 1), ("n", 2, 2), ("n", 3, 5))
    ]


def test_next_number(folder):
    """A new tail takes the number behind every tail and unit of its writer."""
    writer = Writer("n", 0)
    assert folder.next_tail(writer) == 0
    touch(folder, "tail/n-0-4.log", "metrics/n-0-0-6.parquet", "tail/n-1-9.log")
    assert folder.next_tail(writer) == 7


def test_covering():
    """A span covers another of its writer that lies within it."""
    span = FileSpan(Writer("n", 0), 2, 5, Path("x"))
    assert span.covers(FileSpan(Writer("n", 0), 3, 5, Path("y")))
    assert not span.covers(FileSpan(Writer("n", 0), 1, 5, Path("y")))
    assert not span.covers(FileSpan(Writer("n", 1), 3, 4, Path("y")))


def test_folder_that_is_not_there(tmp_path):
    """A folder that does not exist, or is a file, holds nothing."""
    (tmp_path / "file").touch()
    for path in (tmp_path / "none", tmp_path / "file"):
        assert RunFolder(path).tails() == RunFolder(path).units() == []


def test_attempts_are_claimed_once(folder):
    """Each process of a rank gets an attempt that no other process of that rank has had."""
    assert [folder.claim(None, 0) for _ in range(3)] == [0, 1, 2]
    assert folder.claim(None, 1) == 0
    assert folder.claim(5, 0) == 5
    assert folder.claim(1, 1) == 1


def claimed(folder, attempt, ranks, world_size):
    """Return the attempts that ranks of an elastic job claim, in this order."""
    return [folder.claim(attempt, rank, world_size) for rank in ranks]


def test_ranks_of_an_elastic_job_agree_on_an_attempt(folder):
    """torchrun does not count restarts in which nodes join or leave: all ranks of a round have one attempt even so."""
    folder.make()
    assert claimed(folder, 0, range(4), 4) == [0] * 4
    assert claimed(folder, 0, [5, 0, 6, 1, 2, 7, 3, 4], 8) == [1] * 8  # a node joins, whose ranks may come first
    assert claimed(folder, 0, range(4), 4) == [2] * 4  # and leaves
    assert claimed(folder, 1, [0, 1], 4) == [2 + 1] * 2  # a failure, counted by the agents that saw it
    assert claimed(folder, 0, [2, 3], 4) == [3] * 2  # and not by the one that replaces the failed node
    assert claimed(folder, 7, range(4), 4) == [7] * 4


def test_claims_of_an_older_version_have_no_size(folder):
    """A job that goes on with a run whose claims are empty joins its newest attempt, or begins the next."""
    folder.make()
    assert [folder.claim(0, rank) for rank in range(2)] == [0, 0]
    assert claimed(folder, 0, [2, 0], 4) == [0, 1]


def test_run_file_is_written_once(folder):
    """The first process describes the run; the others leave it as it is."""
    assert folder.describe({"id": "first", "created": 7})
    assert not folder.describe({"id": "second"})
    assert json.loads(folder.run_file.read_text()) == {"id": "first", "created": 7}
    assert folder.run_file.stat().st_mode & 0o777 == 0o600


def test_home_of_rows(folder):
    """Rows belong to the run that was made when theirs was; where one does not say, they are believed."""
    assert folder.is_home_of(7)
    folder.describe({"id": "x", "created": 7})
    assert folder.is_home_of(7)
    assert folder.is_home_of(None)
    assert not folder.is_home_of(8)


def refuse(number):
    def call(*_, **__):
        raise OSError(number, os.strerror(number))

    return call


@pytest.mark.parametrize("there", [False, True])
def test_file_systems_without_links(tmp_path, monkeypatch, there):
    """Where no hard link can be made a file is moved into place, if none is there."""
    path = tmp_path / "run.json"
    if there:
        path.write_bytes(b"old")
    monkeypatch.setattr(os, "link", refuse(errno.EPERM))
    assert write_once(path, b"new") is not there
    assert path.read_bytes() == (b"old" if there else b"new")
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("write", [write_once, replace])
@pytest.mark.parametrize("call", ["write", "open"])
def test_full_disk_leaves_nothing_half(tmp_path, monkeypatch, write, call):
    """On a full disk the old content stays, and no temporary file."""
    path = tmp_path / "x.json"
    if write is replace:
        path.write_bytes(b"old")
    before = sorted(tmp_path.iterdir())
    monkeypatch.setattr(os, call, refuse(errno.ENOSPC))
    with pytest.raises(OSError, match="space"):
        write(path, b"new")
    monkeypatch.undo()
    assert sorted(tmp_path.iterdir()) == before
    assert write is write_once or path.read_bytes() == b"old"


def test_replacing_is_one_step(tmp_path):
    """A file that is replaced has the old or the new content, and nothing else is left."""
    replace(tmp_path / "x", b"1")
    replace(tmp_path / "x", b"22")
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("x", b"22")]


def test_node_names(tmp_path):
    """A node's name is a word of its host and a hash that tells apart containers with the same host name."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    name = node_name(tmp_path / "a", "boot", "my-host.example/../x")
    host, _, digest = name.rpartition(".")
    assert (host, len(digest)) == ("my_host.example_.._x", 8)
    assert name != node_name(tmp_path / "b", "boot", "my-host.example/../x")
    assert name != node_name(tmp_path / "a", "other", "my-host.example/../x")
    assert name == node_name(tmp_path / "a", "boot", "my-host.example/../x")
    assert node_name(tmp_path / "a", "boot").startswith(os.uname().nodename[:1].replace("-", "_"))
