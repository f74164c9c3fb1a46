from __future__ import annotations

import errno

import pytest

from stepscope.core import status


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (errno.ENOSPC, status.DISK_FULL),
        (errno.EDQUOT, status.DISK_FULL),
        (errno.EFBIG, status.DISK_FULL),
        (errno.EROFS, status.READ_ONLY),
        (errno.EACCES, status.NO_ACCESS),
        (errno.EPERM, status.NO_ACCESS),
        (errno.ENOENT, status.GONE),
        (errno.ESTALE, status.GONE),
        (errno.EIO, status.IO_ERROR),
        (errno.EINTR, status.IO_ERROR),
        (None, status.IO_ERROR),
    ],
)
def test_status_of_an_error(number, code):
    """Each error of a disk has the status whose message helps with it."""
    assert status.from_error(OSError(number, "x") if number else OSError("x")) == code


def test_every_status_has_a_message():
    """Whatever the watcher can say is a sentence; of a problem it says what cannot be done and what helps."""
    codes = {
        value for name, value in vars(status).items() if name.isupper() and type(value) is int and name[0] != "_"
    } - {status.OK}
    assert set(status.MESSAGES) == codes
    for code, text in status.MESSAGES.items():
        assert code == status.RECOVERED or (text.startswith("cannot ") and ": " in text and "; " in text)
