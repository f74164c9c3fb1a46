"""Locks that another process holds."""

from __future__ import annotations

import contextlib
import subprocess
import sys

HOLD = """
import fcntl, os, sys
descriptor = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, int(sys.argv[2]))
print("held", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def held(path, byte=0):
    """Have another process lock a byte of a file."""
    command = [sys.executable, "-S", "-c", HOLD, str(path), str(byte)]
    holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout.readline() == "held\n"
        yield
    finally:
        holder.communicate()
