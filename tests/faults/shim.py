"""The shim that makes the n-th system call fail: built once per test run, loaded by LD_PRELOAD, armed from inside."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import subprocess
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("shim.c")
SHORT_WRITE = 0
FAULTS = {
    "ENOSPC": errno.ENOSPC,
    "EIO": errno.EIO,
    "EROFS": errno.EROFS,
    "EDQUOT": errno.EDQUOT,
    "ESTALE": errno.ESTALE,
    "EINTR": errno.EINTR,
    "short write": SHORT_WRITE,
}


def build(folder):
    """Return the compiled shim in `folder`; skip the test where there is no compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    target = folder / "shim.so"
    command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(target), str(SOURCE), "-ldl"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"needs a C compiler that works: {done.stderr.splitlines()[0]}")
    return target


def environment(shim, below, guard, error, first=1, times=1 << 40):
    """Return variables that make calls below a folder fail in every process while the file `guard` exists."""
    numbers = {"FAULT_FIRST": first, "FAULT_TIMES": times, "FAULT_ERRNO": error}
    paths = {"LD_PRELOAD": shim, "FAULT_BELOW": below, "FAULT_WHILE": guard}
    return {name: str(value) for name, value in {**numbers, **paths}.items()}


class Faults:
    """The shim as seen by a process that was started with it."""

    def __init__(self):
        """Find the functions that LD_PRELOAD brought in."""
        self._library = ctypes.CDLL(None)
        self._library.fault_call.restype = ctypes.c_char_p

    def arm(self, below, first, error, times=1):
        """Fail `times` calls below a folder, from the `first` on."""
        self._library.fault_arm(os.fsencode(below), ctypes.c_long(first), ctypes.c_long(times), error)

    def disarm(self):
        """Let every call pass; return how many calls there were, and the name of the last that failed."""
        self._library.fault_disarm()
        return self._library.fault_seen(), self._library.fault_call().decode()
