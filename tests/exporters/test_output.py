from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from stepscope.core.errors import StepscopeError, UsageError
from stepscope.exporters.files.output import new_file, open_output


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_file_appears_whole(tmp_path):
    """A file has its name only when all of it is written."""
    target = tmp_path / "out.csv"
    with open_output(str(target)) as stream:
        stream.write(b"x")
        assert not target.exists()
    assert (names(tmp_path), target.read_bytes()) == (["out.csv"], b"x")


def test_a_failure_leaves_nothing(tmp_path):
    """When writing fails, neither a half file nor a temporary one is left, and an old one stays."""
    target = tmp_path / "out.csv"
    target.write_bytes(b"old")

    def fail():
        with open_output(str(target), force=True) as stream:
            stream.write(b"half")
            raise StepscopeError("x y", "z", "w")

    with pytest.raises(StepscopeError):
        fail()
    assert (names(tmp_path), target.read_bytes()) == (["out.csv"], b"old")


def test_files_are_not_replaced_without_force(tmp_path):
    """A file that exists is replaced only with `force`."""
    target = tmp_path / "out.csv"
    target.write_bytes(b"old")
    with pytest.raises(UsageError, match=r"it exists already; .*--force"), open_output(str(target)):
        pass
    with open_output(str(target), force=True) as stream:
        stream.write(b"new")
    assert (names(tmp_path), target.read_bytes()) == (["out.csv"], b"new")


def test_a_file_that_came_meanwhile_is_kept(tmp_path):
    """A file that somebody else made while ours was written is not replaced."""
    target = tmp_path / "out.csv"

    def race():
        with new_file(target) as temporary:
            temporary.write_bytes(b"ours")
            target.write_bytes(b"theirs")

    with pytest.raises(UsageError):
        race()
    assert (names(tmp_path), target.read_bytes()) == (["out.csv"], b"theirs")


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_the_umask_decides_who_may_read(tmp_path, mask, mode):
    """An export is made to be shared: the umask alone decides about its permissions."""
    before = os.umask(mask)
    try:
        with open_output(str(tmp_path / "out.csv")):
            pass
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "out.csv").stat().st_mode) == mode


def test_places_that_cannot_be_written_are_told(tmp_path):
    """A missing folder, a folder and a full disk are told in our form."""
    with pytest.raises(StepscopeError, match=r"cannot write .*: No such file or directory; "):
        open_output(str(tmp_path / "no" / "out.csv")).__enter__()
    with pytest.raises(UsageError, match="it is a folder"):
        open_output(str(tmp_path)).__enter__()
    with pytest.raises(StepscopeError, match="No space left"), open_output("/dev/full") as stream:
        stream.write(b"x" * 100_000)


def test_what_is_no_file_is_written_to():
    """A device is written to, and still there afterwards."""
    with open_output("/dev/null") as stream:
        stream.write(b"x")
    assert Path("/dev/null").is_char_device()


def test_a_link_stays_a_link(tmp_path):
    """Of a link, the file that it leads to is replaced."""
    (tmp_path / "real.csv").write_bytes(b"old")
    (tmp_path / "link.csv").symlink_to("real.csv")
    with open_output(str(tmp_path / "link.csv"), force=True) as stream:
        stream.write(b"new")
    assert (tmp_path / "link.csv").is_symlink()
    assert (tmp_path / "real.csv").read_bytes() == b"new"
