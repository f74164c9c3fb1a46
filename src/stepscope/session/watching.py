"""Start the watcher and keep it running: as a process, or as a thread of this one if none can be started."""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING

from stepscope.core import ring, status
from stepscope.core.clock import Clock, boot_id, read_pair
from stepscope.core.native_thread import start_without_signals
from stepscope.core.places import HELD
from stepscope.core.spawn import SpawnError, start_detached
from stepscope.recorder.complaints import tell
from stepscope.store.layout import RunFolder, Writer, node_name

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from stepscope.core.places import Places
    from stepscope.store.drain import Drain, Stream
    from stepscope.store.salvage import Ending

STALE_SECONDS = 10.0
"""A watcher without a heartbeat for this long is restarted."""
GONE_SECONDS = 2.0
"""The same for one that has also released the ring: its process has ended."""
FIRST_PAUSE, LONGEST_PAUSE = 5.0, 60.0
"""Seconds between two starts, initially and at most; each pause is twice the one before."""
STEADY_SECONDS = 60.0
"""A watcher that lived this long does not delay the next start."""
BATCHES = 64
"""Maximum reads of the ring in one pass of the thread, so that it notices when it should end."""
START = "stepscope.watcher.process"
_NS = 1_000_000_000


class Watch:
    """Keep the ring of this process drained."""

    def __init__(
        self,
        folder: Path,
        arguments: tuple[str, ...],
        start: Callable[..., None] = start_detached,
        is_drained: Callable[[], bool] = lambda: True,
        count_lost: Callable[[], int] = lambda: 0,
    ) -> None:
        """Watch the run in `folder`; `arguments` is the watcher's configuration.

        `is_drained` returns whether a process holds the ring's consumer lock, `count_lost` how many rows are lost.
        """
        self._folder, self._arguments, self._start = folder, arguments, start
        self._is_drained, self._count_lost = is_drained, count_lost
        self._thread: DrainThread | None = None
        self._pause, self._not_before = FIRST_PAUSE, 0
        self._started = 0
        """Time of the last restart (monotonic ns); 0 if there was none."""
        self._gone_since: int | None = None
        self._lost_before = 0

    def begin(self, ring_path: Path, places: Places) -> None:
        """Start the watcher; if that is impossible, drain in a thread and report it."""
        try:
            self._start(START, str(self._folder), *self._arguments, str(os.getpid()))
        except SpawnError as error:
            tell(f"cannot start the watcher: {error}; a thread of this process writes the run instead")
            thread = DrainThread(self._folder, ring_path, places)
            try:
                start_without_signals(thread)
                self._thread = thread
            except RuntimeError as reason:
                tell(f"cannot start a thread either: {reason}; rows stay in memory until `stepscope show` saves them")

    def look(self, heartbeat: int, born: int, now: int) -> None:
        """Start a new watcher if the heartbeat in the ring (monotonic ns, 0 for none yet) is stale, as often as needed.

        Report that, and report when it is back. Cheap in the normal case; the pauses between starts grow.
        """
        if self._thread is not None:
            return
        last = heartbeat or born
        silent = (now - last) / _NS
        if silent <= GONE_SECONDS or (silent <= STALE_SECONDS and (not heartbeat or self._is_drained())):
            self._welcome(heartbeat)
            return
        if now < self._not_before:
            return
        if self._gone_since is None:
            self._gone_since, self._lost_before = last, self._count_lost()
            tell(f"the watcher of this run was not heard of for {silent:.0f} s; a new one is started, rows wait for it")
        if self._started and last - self._started > STEADY_SECONDS * _NS:
            self._pause = FIRST_PAUSE
        self._started, self._not_before = now, now + round(self._pause * _NS)
        self._pause = min(2 * self._pause, LONGEST_PAUSE)
        try:
            start_without_signals(threading.Thread(target=self._again, name="stepscope-restart", daemon=True))
        except RuntimeError as error:  # the interpreter is ending, or there may be no more threads
            tell(f"cannot restart the watcher: {error}; rows wait in memory, look with `stepscope show`")

    def _welcome(self, heartbeat: int) -> None:
        """Report that a watcher is back, if one was gone."""
        if self._gone_since is None or heartbeat <= self._gone_since:
            return
        seconds, lost = (heartbeat - self._gone_since) / _NS, self._count_lost() - self._lost_before
        self._gone_since = None
        rows = f"{lost} rows were lost" if lost > 0 else "no row was lost"
        tell(f"the watcher is back after {seconds:.0f} s; {rows}")

    def _again(self) -> None:
        try:
            self._start(START, str(self._folder), *self._arguments, str(os.getpid()))
        except SpawnError as error:
            tell(f"cannot restart the watcher: {error}; rows wait in memory, look with `stepscope show`")

    def stop(self) -> bool:
        """End the thread, if there is one; return whether no thread is left that reads the ring."""
        return self._thread is None or self._thread.stop()


class DrainThread(threading.Thread):
    """Drains the ring at `ring_path` every `interval` seconds: rows reach the tail, nothing is sealed."""

    def __init__(self, folder: Path, ring_path: Path, places: Places, interval: float = 0.1) -> None:
        super().__init__(name="stepscope-drain", daemon=True)
        self._folder, self._ring_path, self._places, self._interval = RunFolder(folder), ring_path, places, interval
        self._ending = threading.Event()

    def run(self) -> None:
        """Drain until stopped, then a last time."""
        from stepscope.store.drain import Drain, OwnRows, RingBusyError, Stream  # a training rarely needs these
        from stepscope.store.salvage import Ending

        try:
            stream = Stream(self._ring_path, 0)
        except (RingBusyError, OSError, ValueError) as error:
            tell(f"cannot write the run: {error}; its rows stay in shared memory")
            return
        # A process that finds us gone need not wait for us.
        stream.reader.set_word(ring.WORD_HEARTBEAT, time.monotonic_ns())
        writer = Writer(node_name(self._places.disk, boot_id()), stream.identity.attempt)
        drain = Drain(self._folder, writer, OwnRows(-1 - stream.identity.node_rank, time.monotonic_ns()))
        ending = Ending()
        while not self._ending.wait(self._interval) and stream.reader.words()[ring.WORD_STATE] == ring.STATE_RUNNING:
            self._all(drain, stream, ending)
        if self._all(drain, stream, ending):
            self._end(drain, stream, ending)

    def _all(self, drain: Drain, stream: Stream, ending: Ending) -> bool:
        """Drain everything available; return whether nothing is left."""
        pair = read_pair(Clock())
        stream.reader.set_word(ring.WORD_HEARTBEAT, pair.monotonic_ns)
        try:
            for _ in range(BATCHES):
                if not ending.add(drain.once(stream, pair)):
                    break
        except OSError as error:
            stream.reader.set_word(ring.WORD_STATUS, status.from_error(error))
            return False
        return stream.empty()

    def _end(self, drain: Drain, stream: Stream, ending: Ending) -> None:
        from stepscope.store.salvage import end_rank

        try:
            drain.rotate()
            end_rank(self._folder, drain.writer, stream, ending)
        except OSError as error:  # the ring stays, and a later reader recovers its end
            stream.reader.set_word(ring.WORD_STATUS, status.from_error(error))
            return
        stream.reader.set_word(ring.WORD_ENDED, 1)
        stream.remove()
        HELD.discard(self._ring_path)

    def stop(self) -> bool:
        """Ask the thread to end, and wait briefly; return whether it has."""
        self._ending.set()
        self.join(0.2)
        return not self.is_alive()
