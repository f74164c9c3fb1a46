"""The sender: a process that sends a run to its sinks, and ends when they have everything.

It reads the run from disk and outlives the watcher that started it. Its standard input is the brief, one line of JSON,
because a command line would show the secrets in addresses. Each sink has a thread of its own, so that one that hangs
does not delay the others; the lock of each sink's state says who sends.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.core.places import find_places
from stepscope.core.walls import wall
from stepscope.exporters.sinks.address import sinks_of
from stepscope.exporters.sinks.lane import SentRun, SinkLane
from stepscope.exporters.sinks.news import NewsDesk
from stepscope.exporters.sinks.sink import CALL_SECONDS
from stepscope.exporters.sinks.table import kind_of, new_sink
from stepscope.store.layout import RunFolder
from stepscope.store.salvage import salvage
from stepscope.store.sinks import hold
from stepscope.watcher.journal import Journal
from stepscope.watcher.sealing import lower_priority
from stepscope.watcher.sender_brief import SenderBrief
from stepscope.watcher.verdict import verdict_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepscope.exporters.sinks.address import SinkAddress
    from stepscope.store.layout import Writer

MAX_BRIEF = 1 << 20
HANGS_AFTER = 3 * CALL_SECONDS + 60.0
"""Seconds after which a turn counts as hung; the process then restarts, because a thread cannot be killed."""
LOOK_EVERY = 1.0
"""Seconds between two looks at the lanes."""
GIVE_UP = 24 * 3600.0
"""Seconds after the end of the run after which a sink that does not answer is left to `stepscope tee`."""
MEMORY = 1 << 30
"""Bytes of memory that this process may allocate; far more than it needs."""


class NodeEnd:
    """Whether no more rows of a node will come. Rows that a killed watcher left in rings are saved first."""

    def __init__(self, folder: RunFolder, is_over: Callable[[], bool], note: Callable[[str], None]) -> None:
        """Ask `is_over` whether the node has ended."""
        self._folder, self._is_over, self._note = folder, is_over, note
        self._saved = False
        self._lock = threading.Lock()

    def __call__(self) -> bool:
        """Return whether the node has ended, and everything that it recorded is on disk."""
        if not self._is_over():
            self._saved = False
            return False
        with self._lock:  # each sink asks
            if not self._saved:
                salvage(find_places(), str(self._folder.path), self._note)
                self._saved = True
                return False
        return True


def new_lane(
    folder: RunFolder, node: str, address: SinkAddress, desk: NewsDesk, is_over: Callable[[], bool]
) -> SinkLane:
    """Return the lane of one sink for one node of a run."""

    def is_ours(writer: Writer) -> bool:
        return writer.node == node

    view = SentRun(folder, node, is_ours, desk.facts, desk.news, is_over)
    return SinkLane(address, partial(new_sink, address, os.environ), view)


class Sender:
    """Lanes, each in a thread of its own."""

    def __init__(self, note: Callable[[str], None]) -> None:
        """Start with none."""
        self._note = note
        self.lanes: list[SinkLane] = []
        self._since: dict[int, float] = {}
        """When (monotonic seconds) each lane began its current turn."""
        self._threads: list[threading.Thread] = []
        self._is_stopped = threading.Event()

    def add(self, lane: SinkLane) -> None:
        """Let a lane take turns until its sink has everything."""
        self.lanes.append(lane)
        thread = threading.Thread(target=self._work, args=(lane,), name=lane.address.name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def stop(self, seconds: float) -> None:
        """Let the lanes end after their current turn, and wait at most this long for them."""
        self._is_stopped.set()
        until = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))

    def _work(self, lane: SinkLane) -> None:
        while not (lane.is_done or self._is_stopped.is_set()):
            self._since[id(lane)] = time.monotonic()
            with wall(lane.fail):  # a fault in one sink must not end the others
                lane.turn()
            self._since.pop(id(lane), None)
            problems, lane.problems = lane.problems, []
            for problem in problems:
                self._note(problem)
            self._is_stopped.wait(min(LOOK_EVERY, max(0.0, lane.due - time.time())))
        lane.close()

    def has_hung(self, now: float) -> bool:
        """Return whether a turn takes too long; `now` is monotonic, in seconds."""
        return any(now - since > HANGS_AFTER for since in list(self._since.values()))

    def is_done(self) -> bool:
        """Return whether every sink has everything."""
        return all(lane.is_done for lane in self.lanes)


def main(arguments: list[str]) -> int:
    """Send a run to its sinks; the argument, the run's folder, only labels this process in `ps`."""
    del arguments
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):  # the end of the job is what must be sent
        signal.signal(number, signal.SIG_IGN)
    os.umask(0o077)
    lower_priority(10)
    with contextlib.suppress(OSError, ValueError):  # a lower limit is set already
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    line = _first_line(0)
    try:
        brief = SenderBrief.parse(line)
    except (ValueError, TypeError) as error:
        sys.stderr.write(f"cannot read the brief of the sender: {error}\n")
        return 2
    folder = RunFolder(Path(brief.run))
    _enter([str(brief.settings.get("cwd") or ""), brief.run])
    journal = Journal(folder.path / "watcher.log")
    lanes = _lanes(folder, brief, journal.note)
    sender = Sender(journal.note)
    for lane in lanes:
        sender.add(lane)
    if _serve(sender, folder, brief):
        _restart(line)
    os._exit(0)  # a thread that still waits must not keep the process alive


def _lanes(folder: RunFolder, brief: SenderBrief, note: Callable[[str], None]) -> list[SinkLane]:
    """Return the lanes that no other process serves; their locks are held until this process ends."""
    addresses, problems = sinks_of(brief.settings)
    for problem in problems:
        note(problem)
    page = str(brief.settings.get("alerting.page_url") or "")
    desk = NewsDesk(folder, brief.node, page, partial(verdict_of, folder.path, note))
    is_over = NodeEnd(folder, desk.is_over, note)
    found: list[SinkLane] = []
    for address in addresses:
        if not kind_of(address.scheme).takes_all_nodes and not desk.is_first():
            continue
        if hold(folder, address.key, brief.node) is not None:
            found.append(new_lane(folder, brief.node, address, desk, is_over))
    return found


def _serve(sender: Sender, folder: RunFolder, brief: SenderBrief) -> bool:
    """Wait until every sink has everything; return whether the process must restart."""
    desk = NewsDesk(folder, brief.node)
    ended: float | None = None
    while not sender.is_done():
        time.sleep(LOOK_EVERY)
        if sender.has_hung(time.monotonic()):
            return True
        if not folder.path.is_dir():
            return False  # the run was deleted
        ended = (ended or time.monotonic()) if desk.is_over() else None
        if ended is not None and time.monotonic() - ended > GIVE_UP:
            return False
    return False


def _enter(places: list[str]) -> None:
    """Change to the first folder that is there: relative paths in addresses count from it."""
    for place in places:
        with contextlib.suppress(OSError):  # it is gone
            os.chdir(place)
            return


def _first_line(descriptor: int) -> bytes:
    data = b""
    while b"\n" not in data and len(data) < MAX_BRIEF:
        more = os.read(descriptor, 1 << 16)
        if not more:
            break
        data += more
    return data.partition(b"\n")[0]


def _restart(line: bytes) -> None:
    """Replace this process by a new one with the same brief: a hung thread cannot be killed."""
    brief = os.memfd_create("brief")
    os.write(brief, line + b"\n")
    os.lseek(brief, 0, os.SEEK_SET)
    os.dup2(brief, 0)
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606 - ourselves
