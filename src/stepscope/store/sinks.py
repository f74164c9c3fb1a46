"""What was sent to each sink: one small file per sink and node, `sinks/<key>/<node>.json`, replaced atomically.

The sender of a node writes it after the sink has confirmed, and holds the lock of `<node>.lock` beside it. Rows that a
sink refused are in `<node>.refused.jsonl`, with the reason.
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from stepscope.core.events import fits
from stepscope.core.ring import lock_holder
from stepscope.store.layout import locked, read_object, replace

if TYPE_CHECKING:
    from pathlib import Path

    from stepscope.store.layout import RunFolder

FOLDER = "sinks"
MOST_BYTES = 1 << 24
"""Maximum bytes of a state file."""
MOST_FILES = 4096
QUIET = 60.0
"""Seconds without a word after which it is asked whether a sender is still there: a file system may hide its lock."""
WAITING, SENDING, DENIED, DONE = "waiting", "sending", "denied", "done"
"""The sink does not answer; it keeps up or catches up; it takes nothing of ours; it has all of a run that has ended."""


@dataclass
class SinkState:
    """What one node has sent to one sink."""

    node: str
    key: str
    name: str = ""
    """As people call the sink; part of the names of its metrics."""
    kind: str = ""
    address: str = ""
    """Without secrets."""
    known: dict[str, str] = field(default_factory=dict)
    """Facts of the sink, such as the id of its own run; `link` is a web address."""
    sent: dict[str, list[list[int]]] = field(default_factory=dict)
    """First and last sequence of each span that was sent, by `<rank>.<attempt>`."""
    reported: dict[str, Any] = field(default_factory=dict)
    """What the sink knows about the run: a digest of the news, and the changes of alerts."""
    state: str = WAITING
    why: str = ""
    """Why the sink does not take rows now; empty if it does."""
    since: float = 0.0
    """When (unix seconds) this state began."""
    time: float = 0.0
    """When (unix seconds) this was written."""
    sent_rows: int = 0
    refused_rows: int = 0
    """Rows that the sink refused for good."""
    merged_points: int = 0
    """Points that the sink cannot tell from others, such as two values of a series in one millisecond."""
    behind_rows: int = 0
    """Rows on disk that the sink does not have yet."""
    behind_seconds: float = 0.0
    """Age of the oldest of them."""
    interval: float = 0.0
    """Seconds between two batches while the sink keeps up; 0 before the first."""

    def save(self, folder: RunFolder, *, sync: bool = False) -> None:
        """Replace the file, with `sync` so that it survives a power loss; raise OSError if that fails."""
        path = state_path(folder, self.key, self.node)
        make_folder(folder, self.key)
        replace(path, json.dumps(self.__dict__).encode(), sync=sync)


def make_folder(folder: RunFolder, key: str) -> None:
    """Make the folder of a sink; FileNotFoundError if the run was deleted: that must not bring it back."""
    for path in (folder.path / FOLDER, folder.path / FOLDER / key):
        path.mkdir(mode=0o700, exist_ok=True)


def state_path(folder: RunFolder, key: str, node: str) -> Path:
    """Return the file of what a node has sent to a sink."""
    return folder.path / FOLDER / key / f"{node}.json"


def lock_path(folder: RunFolder, key: str, node: str) -> Path:
    """Return the file whose lock is held by the process that sends the rows of a node to a sink."""
    return state_path(folder, key, node).with_suffix(".lock")


def hold(folder: RunFolder, key: str, node: str) -> int | None:
    """Return the held lock of a sink and node; None if another process sends."""
    path = lock_path(folder, key, node)
    make_folder(folder, key)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def is_held(folder: RunFolder, key: str, node: str) -> bool:
    """Return whether another process sends the rows of a node to a sink."""
    path = lock_path(folder, key, node)
    try:
        if sys.platform == "linux":  # only asked: a lock of ours would tell a sender that starts now that it is late
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                return lock_holder(descriptor, 0) is not None
            finally:
                os.close(descriptor)
        with locked(path):
            return False
    except FileNotFoundError:
        return False
    except OSError:
        return True


def is_left(folder: RunFolder, state: SinkState, now: float) -> bool:
    """Return whether the process that sent to a sink has ended before it was done; False where nobody can tell."""
    is_quiet = state.state != DONE and 0 < state.time < now - QUIET
    return is_quiet and lock_path(folder, state.key, state.node).exists() and not is_held(folder, state.key, state.node)


def load_sink(folder: RunFolder, key: str, node: str) -> SinkState:
    """Return what a node has sent to a sink; an empty state without a file, or if it is damaged: all is sent again."""
    facts = read_object(state_path(folder, key, node), MOST_BYTES)
    known = {one.name: one for one in fields(SinkState)}
    empty = SinkState(node, key)
    kept = {name: value for name, value in facts.items() if name in known and _is_like(value, getattr(empty, name))}
    return SinkState(**{**kept, "node": node, "key": key, "sent": _spans(kept.get("sent", {}))})


def read_sinks(folder: RunFolder) -> list[SinkState]:
    """Return what each node has sent to each sink, ordered by sink and node; empty if the run has no sinks."""
    found = []
    for key in _entries(folder.path / FOLDER):
        names = [name for name in _entries(folder.path / FOLDER / key) if name.endswith(".json") and name[0] != "."]
        found += [load_sink(folder, key, name.removesuffix(".json")) for name in names]
    return found[:MOST_FILES]


def _entries(path: Path) -> list[str]:
    try:
        return sorted(os.listdir(path))[:MOST_FILES]
    except (FileNotFoundError, NotADirectoryError):
        return []


def _is_like(value: Any, default: Any) -> bool:
    if isinstance(default, float):
        return fits(value, (float,))
    return isinstance(value, type(default)) and fits(value, (type(default),))


def _spans(given: dict[str, Any]) -> dict[str, list[list[int]]]:
    """Return the valid spans of a file."""
    return {
        key: [list(span) for span in spans if isinstance(span, list) and len(span) == 2 and all(map(_whole, span))]
        for key, spans in given.items()
        if isinstance(spans, list)
    }


def _whole(value: object) -> bool:
    return fits(value, (int,))
