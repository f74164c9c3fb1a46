"""The processes that W&B's package starts, where the system lists processes in /proc."""

from __future__ import annotations

import itertools
from pathlib import Path


def started_by(pid: int) -> set[int]:
    """Return the processes that a helper, or another process, started, and those that they started.

    W&B's core has a session of its own. It names the helper in its arguments, also after that has ended.
    """
    parents: dict[int, int] = {}
    found: set[int] = set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(folder.name)] = int((folder / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()[1])
            words = (folder / "cmdline").read_bytes().split(b"\0")
        except (OSError, ValueError, IndexError):
            continue  # it has ended meanwhile
        is_named = (b"--pid", str(pid).encode()) in itertools.pairwise(words)
        if is_named and words[0].endswith(b"/wandb-core"):
            found.add(int(folder.name))
    family = {pid}
    while more := {one for one, parent in parents.items() if parent in family and one not in family}:
        family |= more
    return (found | family) - {pid}


def has_ended(pids: set[int]) -> bool:
    """Return whether one of our child processes has ended, where the system tells."""
    for pid in pids:
        try:
            state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
        except (OSError, IndexError):
            return True
        if state in {"Z", "X"}:
            return True
    return False
