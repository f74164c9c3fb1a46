"""Rooms of their own for processes: mounts and pids that nobody else sees. Tests skip where the system gives none."""

from __future__ import annotations

import functools
import shutil
import subprocess

import pytest

MOUNTS, PIDS = ("-m",), ("-m", "-p", "--fork", "--kill-child", "--mount-proc")


@functools.cache
def _works(command):
    probe = [*command, "sh", "-c", "mount -t tmpfs -o size=64k tmpfs /mnt"]
    return subprocess.run(probe, capture_output=True, check=False).returncode == 0


def unshared(flags):
    """Return the command that runs a program in new namespaces; skip the test where that is not allowed."""
    if shutil.which("unshare") is None:
        pytest.skip("needs the program unshare")
    for rights in ((), ("-r",)):
        command = ("unshare", *rights, *flags)
        if _works(command):
            return command
    return pytest.skip("needs the right to make namespaces with mounts of their own")
