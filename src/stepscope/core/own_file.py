"""Files that stay open in a program that may close every number, and then use the number for a file of its own."""

from __future__ import annotations

import os


def identity_of(descriptor: int) -> tuple[int, int] | None:
    """Return device and inode of an open file; None if it is closed."""
    try:
        facts = os.fstat(descriptor)
    except OSError:
        return None
    return facts.st_dev, facts.st_ino


def close_own(descriptor: int, identity: tuple[int, int] | None) -> None:
    """Close a file, unless its number is closed already or means another file by now."""
    if identity is not None and identity_of(descriptor) == identity:
        os.close(descriptor)
