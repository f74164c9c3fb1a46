"""A disk that fails when it is told to: the system calls of whoever writes, by number of call."""

from __future__ import annotations

import errno
import os

from stepscope.store import tail

ERRNOS = (errno.ENOSPC, errno.EIO, errno.EROFS, errno.ESTALE, errno.EDQUOT, errno.EINTR)


class Disk:
    """Counts writes, truncations, syncs and renames while `watching`; fails those from `first` on, `length` of them."""

    def __init__(self, monkeypatch, first=0, length=1, number=errno.ENOSPC, most=None):
        self.first, self.length, self.number, self.most = first, length, number, most
        self.calls, self.failed, self.watching = 0, 0, True
        for owner, name in ((os, "write"), (os, "ftruncate"), (os, "replace"), (tail, "_sync")):
            monkeypatch.setattr(owner, name, self._wrapped(getattr(owner, name), name))

    def _wrapped(self, true, name):
        def call(*arguments):
            self.calls += self.watching
            if self.watching and self.first <= self.calls < self.first + self.length:
                self.failed += 1
                raise OSError(self.number, os.strerror(self.number))
            if name == "write" and self.most:
                descriptor, data = arguments
                return true(descriptor, data[: self.most])
            return true(*arguments)

        return call
