"""One notification for one cause: if several watchers of a run see the same alert, only the first sends it.

A metric that all nodes share, such as a loss, is seen by the watcher of every node; and what ends a rank of one node
ends those of the others. The first watcher to fire creates a file, exclusively, in the run's folder; the others record
their change without sending it.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.alerts.evaluation.state import FIRING
from stepscope.alerts.rules.rule import EACH
from stepscope.core.access import write_private

if TYPE_CHECKING:
    from collections.abc import Iterable

    from stepscope.alerts.evaluation.state import Transition
    from stepscope.alerts.rules.rule import Rule

NEAR_STEPS, NEAR_SECONDS = 64, 600
"""Alerts of two nodes within this many steps, or seconds without steps, are the same."""
ENDS = ("death", "preempted")
"""Rules on the end of single ranks: within one attempt, the first end explains those on other nodes soon after it."""


class NotificationClaims:
    """Decides which alerts of this node another node sends."""

    def __init__(self, run: Path, node: str) -> None:
        """Write claims of `node` into the folder of `run`; nothing is written before an alert fires."""
        self._run, self._node = run, node
        self._elsewhere: set[str] = set()

    def claim(self, found: Iterable[Transition], rules: Iterable[Rule]) -> list[Transition]:
        """Return changes, marking those quiet that another node sends; `rules` are all rules of the engine."""
        changes, settled = list(found), []
        shared = {rule.name for rule in rules if not rule.event and rule.over != EACH} if changes else set()
        for change in changes:
            starts = change.state == FIRING and change.previous != FIRING
            is_shared = change.rule in ENDS or (change.rank is None and change.rule in shared)
            if starts and change.notifies and is_shared and not self._claim(change):
                self._elsewhere.add(change.alert)
            settled.append(replace(change, quiet=True) if change.alert in self._elsewhere else change)
        return settled

    def _claim(self, change: Transition) -> bool:
        """Return whether this node sends the alert: no other node claims it, or the disk cannot be read."""
        try:
            files = [Path(entry.name).stem.rpartition("-") for entry in os.scandir(self._run / "nodes")]
            if not any(node and not node.startswith(".") and node != self._node for node, _, _ in files):
                return True
            attempts = [int(attempt) for node, _, attempt in files if node == self._node and attempt.isdecimal()]
            paths = [self._run / "claims" / name for name in _names(change, max(attempts, default=0))]
            if any(_is_of_other(path, self._node) for path in paths):
                return False
            return _make(paths[0], self._node) or not _is_of_other(paths[0], self._node)
        except OSError:
            return True


def _names(change: Transition, attempt: int) -> list[str]:
    """Return the name of the claim to an alert, then those to the same alert a little earlier or later."""
    is_end = change.rule in ENDS
    key = attempt if is_end else change.key
    what = hashlib.blake2b(f"{change.rule}|{key}".encode(), digest_size=8).hexdigest()
    when = change.time // NEAR_SECONDS if is_end or change.step is None else change.step // NEAR_STEPS
    return [f"alert-{what}-{int(when) + away}" for away in (0, -1, 1)]


def _make(path: Path, node: str) -> bool:
    """Create a file that names its node; False if it exists."""
    part = path.with_name(f".{path.name}-{node}")
    try:
        write_private(part, node)
        os.link(part, path)  # as exclusive as O_EXCL, and never seen half written
    except FileExistsError:
        return False
    finally:
        part.unlink(missing_ok=True)
    return True


def _is_of_other(path: Path, node: str) -> bool:
    try:
        return path.read_bytes() != node.encode()
    except FileNotFoundError:
        return False
