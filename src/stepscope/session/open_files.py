"""Whether a process on this machine has a file open, by the links in /proc; the files themselves are not touched."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection


def is_open(paths: Collection[str], except_for: Collection[int] = (), proc: str = "/proc") -> bool:
    """Return whether a visible process, other than some, has one of the files, or a file below a folder, open."""
    inside = tuple(f"{path}{os.sep}" for path in paths)
    for name in _names(proc):
        if name.isdecimal() and int(name) not in except_for:
            folder = f"{proc}/{name}/fd"
            for link in _names(folder):
                target = _target(f"{folder}/{link}")
                if target in paths or target.startswith(inside):
                    return True
    return False


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:  # a process that has ended, or of another user
        return []


def _target(link: str) -> str:
    try:
        return os.readlink(link)
    except OSError:  # closed meanwhile
        return ""
