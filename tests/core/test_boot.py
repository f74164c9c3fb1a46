from __future__ import annotations

import os
from pathlib import Path

from stepscope.core.boot import boot_id


def test_boot_id_is_the_kernels():
    """Linux gives each boot an id."""
    assert boot_id() == Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def test_boot_id_without_a_kernel_that_gives_one(monkeypatch):
    """Elsewhere the host name has to do."""

    def refuse(_):
        raise FileNotFoundError

    monkeypatch.setattr(Path, "read_text", refuse)
    assert boot_id.__wrapped__() == os.uname().nodename
