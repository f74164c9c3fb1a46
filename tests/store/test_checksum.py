from __future__ import annotations

import os
import random
from dataclasses import replace

import duckdb
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.store import checksum
from stepscope.store.checksum import Checked, FileSum, GroupSum, Problem, UnitSum

GROUP = st.builds(
    GroupSum,
    *[st.integers(0, 2**63)] * 4,
    st.none() | st.text(st.characters(exclude_categories=["Cs"])),
    st.none() | st.text(st.characters(exclude_categories=["Cs"])),
    st.none() | st.tuples(st.integers(1, 64), st.integers(64, 4096)),
)
FILE = st.builds(FileSum, st.integers(0, 2**63), st.lists(GROUP, max_size=3).map(tuple), st.binary())
UNIT = st.builds(
    UnitSum,
    FILE,
    FILE,
    st.dictionaries(st.text(), st.tuples(st.integers(), st.integers()), max_size=3),
    st.dictionaries(st.text(), st.integers(), max_size=3),
    st.integers(),
    st.integers(),
    st.lists(st.text(), max_size=2),
    st.dictionaries(st.text(), st.integers() | st.text(), max_size=2),
)


@pytest.fixture
def file(tmp_path):
    """A Parquet file of 5 row groups, with its sums."""
    path = tmp_path / "a.parquet"
    with duckdb.connect() as connection:
        source = "SELECT 'n' || (i // 2048) AS name, i FROM range(10240) t(i)"
        connection.execute(f"COPY ({source}) TO '{path}' (FORMAT parquet, ROW_GROUP_SIZE 2048)")
    return path, checksum.describe(path)


def flip(path, at):
    data = bytearray(path.read_bytes())
    data[at] ^= 0x10
    path.write_bytes(data)


@given(UNIT)
def test_a_sum_comes_back_as_it_was(unit):
    """Every field survives one line of ASCII."""
    line = checksum.encode(unit)
    assert line.isascii()
    assert line.count(b"\n") == 1
    assert checksum.decode(line) == unit


def test_every_flip_and_cut_of_a_sum_is_noticed(file):
    """No altered or shortened .sum is believed."""
    line = checksum.encode(UnitSum(file[1], file[1], {"n": (1, 0)}, {"0": 3}, 1, 2))
    for at in range(len(line)):
        altered = line[:at] + bytes([line[at] ^ 1 << random.Random(at).randrange(8)]) + line[at + 1 :]
        for data in (altered, line[:at]):
            with pytest.raises(checksum.SumError):
                checksum.decode(data)


@given(st.binary())
def test_garbage_is_no_sum(data):
    """Whatever the bytes, the answer is a sum or a SumError."""
    with pytest.raises(checksum.SumError):
        checksum.decode(data)


def test_a_newer_version_is_refused(file, monkeypatch):
    """A .sum of a later version is not guessed at."""
    monkeypatch.setattr(checksum, "VERSION", 2)
    line = checksum.encode(UnitSum(file[1], file[1], {}, {}, 0, 0))
    monkeypatch.undo()
    with pytest.raises(checksum.SumError, match="version 2"):
        checksum.decode(line)


def test_row_groups_tile_the_file(file):
    """Every byte between magic and footer belongs to a row group, so no flip goes unnoticed."""
    path, sums = file
    at = 4
    for group in sums.groups:
        assert group.offset == at
        at += group.length
    assert at + len(sums.footer) + 8 == sums.length == path.stat().st_size


def test_each_flip_is_found_where_it_is(file):
    """A flipped byte damages its own row group or the frame, and nothing else."""
    path, sums = file
    whole = path.read_bytes()
    for index, group in enumerate(sums.groups):
        flip(path, group.offset + group.length // 2)
        assert Checked().check(path, sums, range(5)) == checksum.Findings(framed=True, damaged=frozenset({index}))
        path.write_bytes(whole)
    for at in (0, sums.length - 1, sums.length - 20):
        flip(path, at)
        assert Checked().check(path, sums, range(5)) == checksum.Findings(framed=False, damaged=frozenset())
        path.write_bytes(whole)


def test_bytes_are_compared_once(file, monkeypatch):
    """A file that did not change is not read again."""
    path, sums = file
    checked = Checked()
    checked.check(path, sums, [0, 1])
    monkeypatch.setattr(checksum, "crc32_of", lambda *_: pytest.fail("compared again"))
    monkeypatch.setattr(checksum, "_framed", lambda *_: pytest.fail("compared again"))
    assert not checked.check(path, sums, [1]).damaged


def test_a_changed_file_is_compared_again(file):
    """Another time of modification means another file."""
    path, sums = file
    checked = Checked()
    assert not checked.check(path, sums, [0]).damaged
    flip(path, 100)
    os.utime(path, ns=(1, 1))
    assert checked.check(path, sums, [0]).damaged == {0}


def test_memory_of_comparisons_is_bounded(file):
    """The oldest file is forgotten first."""
    path, sums = file
    checked = Checked(limit=2)
    for moment in range(5):
        os.utime(path, ns=(moment, moment))
        checked.check(path, sums, [0])
    assert len(checked._known) == 2


def test_bytes_that_the_disk_refuses_are_damaged(file, monkeypatch):
    """An EIO loses a row group, not the reader."""
    path, sums = file

    def refuse(*_):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(checksum, "crc32_of", refuse)
    assert Checked().check(path, sums, [0, 2]).damaged == {0, 2}


def test_a_repaired_copy_holds_what_is_whole(file, tmp_path):
    """The copy of a file cut in half gives the row groups before the cut."""
    path, sums = file
    os.truncate(path, sums.groups[3].offset + 1)
    findings = Checked().check(path, sums, range(5))
    assert findings.damaged == {3, 4}
    checksum.repair(path, sums, set(range(5)) - findings.damaged, tmp_path / "copy.parquet")
    with duckdb.connect() as connection:
        found = connection.execute(f"SELECT count(*), max(i) FROM '{tmp_path}/copy.parquet'").fetchall()
    assert found == [(3 * 2048, 3 * 2048 - 1)]


def test_groups_are_chosen_by_name_and_level():
    """Only groups whose bounds leave room for a wanted name are compared."""
    group = GroupSum(0, 1, 0, 1, "b", "d", (64, 64))
    assert group.may_hold({"c", "x"}, 64)
    assert not group.may_hold({"e"}, 64)
    assert not group.may_hold({"c"}, 4096)
    assert group.may_hold(None, None)
    assert replace(group, first_name=None).may_hold({"e"}, 64)


def test_a_problem_reads_as_a_sentence():
    """What a user sees names the file."""
    assert str(Problem("a.parquet", "it is damaged")) == "a.parquet: it is damaged"
