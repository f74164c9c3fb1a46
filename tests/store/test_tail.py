from __future__ import annotations

import errno
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.store import tail

FRAME = st.tuples(st.integers(0, 9), st.integers(0, 2**32 - 1), st.binary(max_size=60))


def contents(data):
    """Return what decode finds: frames as (kind, stream, payload), damage as a number of bytes."""
    return [
        item if isinstance(item, int) else (item.kind, item.stream, data[item.start : item.end])
        for item in tail.decode(data)
    ]


@given(st.lists(FRAME))
def test_round_trip(frames):
    """Frames come back as they were written, each payload at a multiple of 8."""
    data = b"".join(tail.encode(*frame) for frame in frames)
    assert contents(data) == frames
    assert all(item.start % 8 == 0 for item in tail.decode(data))


@given(st.lists(FRAME, min_size=1, max_size=6), st.data())
def test_any_cut(frames, data):
    """A file cut anywhere gives the whole frames before the cut, and the rest as a number of bytes."""
    whole = [tail.encode(*frame) for frame in frames]
    cut = data.draw(st.integers(0, sum(map(len, whole))))
    found = contents(b"".join(whole)[:cut])
    kept = [item for item in found if not isinstance(item, int)]
    assert kept == frames[: len(kept)]
    ends = [sum(map(len, whole[: at + 1])) - (-len(frames[at][2]) % 8) for at in range(len(whole))]
    assert len(kept) == sum(end <= cut for end in ends)


@given(st.lists(FRAME, min_size=1, max_size=6), st.data())
def test_any_changed_byte(frames, data):
    """A changed byte costs the frame it stands in and no other; nothing is read wrong."""
    whole = [tail.encode(*frame) for frame in frames]
    spoiled = bytearray(b"".join(whole))
    at = data.draw(st.integers(0, len(spoiled) - 1))
    spoiled[at] ^= data.draw(st.integers(1, 255))
    kept = [item for item in contents(bytes(spoiled)) if not isinstance(item, int)]
    assert all(item in frames for item in kept)
    assert len(kept) >= len(frames) - 1


@given(st.binary(max_size=400))
def test_any_bytes(data):
    """Whatever the bytes, they are frames or a number of bytes that are none; all are accounted for."""
    found = list(tail.decode(data))
    sizes = [item if isinstance(item, int) else 24 + (item.end - item.start) + 7 & ~7 for item in found]
    assert sum(sizes) == len(data)


def test_magic_inside_a_payload():
    """The magic of a frame inside a payload does not mislead the search for the next frame."""
    inner = tail.encode(3, 1, b"not a frame of its own")
    first, last = tail.encode(3, 1, tail.MAGIC + b"x" * 4 + inner), tail.encode(4, 2, b"last")
    spoiled = b"\0" + first[1:] + last
    assert (4, 2, b"last") in contents(spoiled)


@pytest.mark.parametrize(
    ("rest", "unfinished"),
    [
        (b"", True),
        (bytes(100), True),
        (b"SS", True),
        (b"SSF1abc", True),
        (tail.encode(3, 1, b"x" * 50)[:-20], True),
        (b"garbage", False),
        (b"x" * 60, False),
        (bytes([tail.MAGIC[0] ^ 1]) + tail.encode(3, 1, b"x" * 50)[1:], False),
        (tail.encode(3, 1, b"x" * 50)[:30] + b"!" * 50, False),
    ],
)
def test_write_under_way(rest, unfinished):
    """The start of a frame, or zeros, at the end of a file are a write under way; anything else is damage."""
    assert tail.is_unfinished(rest) is unfinished


def test_files_are_new_and_private(tmp_path):
    """A tail file is made for this user only, and never on top of another."""
    path = str(tmp_path / "t.log")
    file = tail.TailFile(path)
    assert os.stat(path).st_mode & 0o777 == 0o600
    with pytest.raises(FileExistsError):
        tail.TailFile(path)
    file.close()


class Writes:
    """os.write that takes `most` bytes at a time and fails at the n-th call."""

    def __init__(self, monkeypatch, fail_at, number=errno.ENOSPC, most=10):
        self.calls, self.fail_at, self.number, self.most, self.true = 0, fail_at, number, most, os.write
        monkeypatch.setattr(tail.os, "write", self)

    def __call__(self, descriptor, data):
        self.calls += 1
        if self.calls == self.fail_at:
            raise OSError(self.number, os.strerror(self.number))
        return self.true(descriptor, data[: self.most])


@pytest.mark.parametrize("fail_at", range(1, 10))
def test_failed_write_leaves_whole_frames(tmp_path, monkeypatch, fail_at):
    """Whichever call fails, what was begun is cut off again, and the next write follows the last whole frame."""
    path = tmp_path / "t.log"
    file = tail.TailFile(str(path))
    file.append([tail.encode(3, 1, b"first")])
    with monkeypatch.context() as patched:
        Writes(patched, fail_at)
        with pytest.raises(OSError, match="space"):
            file.append([tail.encode(3, 1, b"second"), tail.encode(3, 1, b"third" * 10)])
    assert contents(path.read_bytes()) == [(3, 1, b"first")]
    file.append([tail.encode(3, 1, b"fourth")])
    assert contents(path.read_bytes()) == [(3, 1, b"first"), (3, 1, b"fourth")]
    assert file.size == path.stat().st_size
    file.close()


def test_short_writes_are_completed(tmp_path, monkeypatch):
    """What the system takes a few bytes at a time is whole in the end."""
    file = tail.TailFile(str(tmp_path / "t.log"))
    Writes(monkeypatch, fail_at=0, most=3)
    file.append([tail.encode(3, 1, b"x" * 100)])
    assert contents((tmp_path / "t.log").read_bytes()) == [(3, 1, b"x" * 100)]
    file.close()


def test_end_that_cannot_be_cut_off(tmp_path, monkeypatch):
    """A file whose torn end stays says so: nothing written behind it would be found."""

    def refuse(*_):
        raise OSError(errno.EIO, "no")

    file = tail.TailFile(str(tmp_path / "t.log"))
    Writes(monkeypatch, fail_at=2)
    monkeypatch.setattr(tail.os, "ftruncate", refuse)
    with pytest.raises(OSError, match="space"):
        file.append([tail.encode(3, 1, b"x" * 100)])
    assert file.broken
    file.close()


def test_sync_only_what_is_new(tmp_path, monkeypatch):
    """The disk is asked to keep what was written since it was asked last, not more often."""
    asked = []
    monkeypatch.setattr(tail, "_sync", asked.append)
    file = tail.TailFile(str(tmp_path / "t.log"))
    file.sync()
    file.append([b"12345678"])
    file.sync()
    file.sync()
    assert len(asked) == 1
    file.close()


def test_file_that_is_gone(tmp_path):
    """A file that was deleted, moved or replaced under its writer is noticed."""
    path = tmp_path / "t.log"
    file = tail.TailFile(str(path))
    assert not file.gone()
    path.rename(tmp_path / "moved")
    assert file.gone()
    path.touch()
    assert file.gone()
    file.close()


@pytest.mark.parametrize(("kept", "broken"), [(8, False), (1 << 20, True)])
def test_limit_on_the_size_of_files(tmp_path, monkeypatch, kept, broken):
    """At a limit on the size of a file writing goes on in a new one, if this one was worth making."""
    file = tail.TailFile(str(tmp_path / "t.log"))
    file.append([bytes(kept)])
    Writes(monkeypatch, fail_at=1, number=errno.EFBIG)
    with pytest.raises(OSError, match="large"):
        file.append([bytes(8)])
    assert file.broken is broken
    file.close()
