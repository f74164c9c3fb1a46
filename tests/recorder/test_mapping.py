from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys

import pytest

from stepscope.core import ring
from stepscope.recorder import mapping
from tests.recorder.rig import RING_BYTES, Rig, identity_of


def test_name_is_taken_only_once(tmp_path):
    """A ring under construction is not made twice, and leaves nothing behind when it fails."""
    (tmp_path / ".x.ring.new").touch()
    with pytest.raises(FileExistsError):
        mapping.create(tmp_path / "x.ring", RING_BYTES, identity_of(tmp_path))


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_no_room_is_an_error_now(tmp_path, monkeypatch, number):
    """A file system without room refuses at once, never by SIGBUS later; nothing stays behind."""

    def refuse(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with pytest.raises(OSError, match=os.strerror(number)):
        mapping.create(tmp_path / "x.ring", RING_BYTES, identity_of(tmp_path))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [errno.EINVAL, errno.EOPNOTSUPP, None])
def test_zeros_where_space_cannot_be_reserved(tmp_path, monkeypatch, number):
    """Where fallocate is missing or a no-op, zeros are written instead."""

    def refuse(*_):
        if number is not None:
            raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    rig = Rig(tmp_path)
    assert rig.path.stat().st_blocks * 512 >= RING_BYTES
    rig.run.log({"a": 1})
    assert len(rig.rows()) == 1


def test_no_fallocate_at_all(tmp_path, monkeypatch):
    """A system without posix_fallocate gets zeros too."""
    monkeypatch.delattr(os, "posix_fallocate")
    assert Rig(tmp_path).path.stat().st_size == RING_BYTES


def test_zeros_that_do_not_fit(tmp_path, monkeypatch):
    """Zeros that do not fit are an error of the making, not of the writing."""

    def refuse(*_):
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.delattr(os, "posix_fallocate")
    monkeypatch.setattr(os, "pwrite", refuse)
    with pytest.raises(OSError, match="full"):
        mapping.create(tmp_path / "x.ring", RING_BYTES, identity_of(tmp_path))
    assert list(tmp_path.iterdir()) == []


PROBE = """
import fcntl, os, sys
descriptor = os.open(sys.argv[1], os.O_RDWR)
try:
    fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, int(sys.argv[2]))
    print("free")
except OSError:
    print("held")
"""


def lock_state(path, byte):
    """Ask from another process whether a byte of the ring is locked."""
    return subprocess.check_output([sys.executable, "-c", PROBE, str(path), str(byte)], text=True).strip()


def test_trainer_holds_its_byte(tmp_path):
    """The trainer's lock is on the first byte of the ring and goes with its mapping; the second is the consumer's."""
    made = mapping.create(tmp_path / "x.ring", RING_BYTES, identity_of(tmp_path))
    assert lock_state(tmp_path / "x.ring", ring.LOCK_WRITER) == "held"
    assert lock_state(tmp_path / "x.ring", ring.LOCK_READER) == "free"
    made.close()
    made.close()
    assert lock_state(tmp_path / "x.ring", ring.LOCK_WRITER) == "free"


def test_locked_by_somebody_else(tmp_path, monkeypatch):
    """A ring that cannot be locked is not made."""

    def refuse(*_):
        raise BlockingIOError

    monkeypatch.setattr(fcntl, "lockf", refuse)
    with pytest.raises(BlockingIOError):
        mapping.create(tmp_path / "x.ring", RING_BYTES, identity_of(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_closing_under_a_slice(tmp_path):
    """A slice that somebody still holds does not keep the ring from being closed."""
    made = mapping.create(tmp_path / "x.ring", RING_BYTES, identity_of(tmp_path))
    held = memoryview(made.buffer)[:8]
    made.close()
    assert bytes(held) == b"STEPRING"
    held.release()


@pytest.mark.parametrize(("machine", "checked"), [("x86_64", 0), ("AMD64", 0), ("aarch64", 1), ("riscv64", 1)])
def test_which_machines_need_checksums(tmp_path, machine, checked):
    """Only where stores keep their order do records go without a checksum."""
    rig = Rig(tmp_path, machine=machine)
    assert rig.reader.words()[ring.WORD_CHECKED] == checked
