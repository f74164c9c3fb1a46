"""Starts the sender of a run that has sinks, and again if it was killed; reports how far each sink is.

The watcher itself never uses the network, and never waits for the sender. It knows it by its locks and its files.
"""

from __future__ import annotations

import json
import os
import subprocess
from typing import TYPE_CHECKING, Any

from stepscope.core.places import SINKS_SUFFIX
from stepscope.core.spawn import SpawnError, arguments, interpreter
from stepscope.store.sinks import is_held, load_sink
from stepscope.watcher.sender_brief import SenderBrief

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from stepscope.exporters.sinks.address import SinkAddress
    from stepscope.store.layout import RunFolder
    from stepscope.watcher.journal import Journal

MODULE = "stepscope.watcher.sender"
LOOK_EVERY = 2.0
"""Seconds between two looks at the sender."""
FIRST_WAIT, LONGEST_WAIT = 1.0, 60.0
"""Seconds before a sender that has ended is started again; doubled each time, until one has lived for a minute."""
FAREWELL = 10.0
"""Seconds that a watcher whose last trainer has ended waits for a sender that does not run yet."""
MAX_SETTINGS = 1 << 20


def start_sender(brief: SenderBrief) -> subprocess.Popen[bytes]:
    """Start the sender of a run in its own session, so that it outlives this process."""
    child = subprocess.Popen(
        [interpreter(), *arguments(MODULE, brief.run)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        cwd="/",
    )
    if child.stdin is not None:
        with child.stdin as pipe:
            os.write(pipe.fileno(), brief.line())  # a pipe takes 64 KiB without waiting
    return child


class Sending:
    """The sender of one node, as its watcher sees it."""

    def __init__(
        self,
        folder: RunFolder,
        node: str,
        journal: Journal,
        start: Callable[[SenderBrief], subprocess.Popen[bytes]] = start_sender,
    ) -> None:
        """Start nothing: a run has no sinks until a ring says so."""
        self._folder, self._node, self._journal, self._start = folder, node, journal, start
        self._settings: dict[str, Any] = {}
        self._sinks: list[SinkAddress] = []
        self._child: subprocess.Popen[bytes] | None = None
        self._due = self._not_before = self._started = 0.0
        self._wait = FIRST_WAIT
        self._alone_since: float | None = None

    def attach(self, ring: Path) -> None:
        """Read the sinks beside a ring, where the session left them for us."""
        if self._sinks:
            return
        try:
            descriptor = os.open(ring.with_suffix(SINKS_SUFFIX), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            with os.fdopen(descriptor, "rb") as file:
                self._settings = dict(json.loads(file.read(MAX_SETTINGS)))
        except FileNotFoundError:
            return
        except (OSError, ValueError) as error:
            self._journal.note(f"cannot read the sinks of the run: {error}; `stepscope tee` sends it to them")
            return
        from stepscope.exporters.sinks.address import sinks_of  # most runs have none

        self._sinks, problems = sinks_of(self._settings)
        for problem in problems:
            self._journal.note(problem)

    def poll(self, now: float) -> None:
        """Start the sender if a sink has none; `now` is monotonic, in seconds."""
        if not self._sinks or now < self._due:
            return
        self._due = now + LOOK_EVERY
        if self._child is not None and self._child.poll() is not None:
            self._wait = FIRST_WAIT if now - self._started > LONGEST_WAIT else min(LONGEST_WAIT, self._wait * 2)
            self._not_before, self._child = now + self._wait, None
        if self._child is None and now >= self._not_before and not self._is_served():
            self._begin(now)

    def _is_served(self) -> bool:
        return all(is_held(self._folder, sink.key, self._node) for sink in self._sinks)

    def _begin(self, now: float) -> None:
        self._started = now
        try:
            self._child = self._start(SenderBrief(str(self._folder.path), self._node, self._settings))
        except (OSError, SpawnError) as error:
            self._not_before, self._wait = now + self._wait, min(LONGEST_WAIT, self._wait * 2)
            self._journal.note(f"cannot start the sender: {error}; trying again", "sender")

    def metrics(self) -> dict[str, float]:
        """Return how far each sink is, as metrics of the run."""
        found: dict[str, float] = {}
        for sink in self._sinks:
            state = load_sink(self._folder, sink.key, self._node)
            for figure in ("behind_rows", "behind_seconds", "sent_rows", "refused_rows"):
                found[f"stepscope/sink/{sink.name}/{figure}"] = float(getattr(state, figure))
        return found

    def busy(self, now: float, *, alone: bool) -> bool:
        """Return whether the watcher should stay for the sender's start; `alone` if no trainer is left."""
        if not alone or not self._sinks:
            self._alone_since = None
            return False
        if self._alone_since is None:
            self._alone_since = self._not_before = now  # nobody starts a sender after us
        return not self._is_served() and self._child is None and now - self._alone_since < FAREWELL

    def close(self) -> None:
        """Stop; the sender continues by itself."""
        if self._child is not None:
            self._child.returncode = self._child.returncode or 0  # nobody waits for it
            self._child = None
