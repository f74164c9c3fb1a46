"""Have the run watched: by a process of its own, or where none can be started by a thread of this one."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from stepscope.core import ring, status
from stepscope.core.boot import boot_id
from stepscope.core.clock import SystemClock, read_pair
from stepscope.core.spawn import SpawnError, start_detached
from stepscope.recorder.complaints import tell
from stepscope.store.drain import BusyError, Drain, OwnRows, Stream
from stepscope.store.layout import RunFolder, Writer, node_name
from stepscope.store.salvage import Ending, end_rank

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from stepscope.core.places import Places

STALE_SECONDS = 10.0
"""A watcher that has not been heard of for so long is started anew, once."""
START = "stepscope.watcher.process"
BATCHES = 64
"""Reads of the ring in one go at most, so that the thread sees that it shall end."""


class Watch:
    """Keep somebody draining the ring of this process."""

    def __init__(self, folder: Path, arguments: tuple[str, ...], start: Callable[..., None] = start_detached) -> None:
        """Watch the run in `folder`; `arguments` is the watcher's pace."""
        self._folder, self._arguments, self._start = folder, arguments, start
        self._restarted = False
        self._thread: DrainThread | None = None

    def begin(self, ring_path: Path, places: Places) -> None:
        """Start the watcher; where that is impossible drain in a thread and say so."""
        try:
            self._start(START, str(self._folder), *self._arguments)
        except SpawnError as error:
            tell(f"cannot start the watcher: {error}; a thread of this process writes the run instead")
            thread = DrainThread(self._folder, ring_path, places)
            try:
                thread.start()
            except RuntimeError as reason:
                tell(f"cannot start a thread either: {reason}; rows stay in memory until `stepscope show` saves them")
                return
            self._thread = thread

    def look(self, heartbeat: int, born: int, now: int) -> None:
        """Start a new watcher, once, if the heartbeat in the ring (monotonic ns, 0 for none yet) is stale."""
        if self._restarted or self._thread is not None:
            return
        if (now - (heartbeat or born)) / 1e9 > STALE_SECONDS:
            self._restarted = True
            try:
                threading.Thread(target=self._again, name="stepscope-restart", daemon=True).start()
            except RuntimeError as error:  # the interpreter is ending, or there may be no more threads
                tell(f"cannot restart the watcher: {error}; rows wait in memory, look with `stepscope show`")

    def _again(self) -> None:
        try:
            self._start(START, str(self._folder), *self._arguments)
        except SpawnError as error:
            tell(f"cannot restart the watcher: {error}; rows wait in memory, look with `stepscope show`")

    def stop(self) -> None:
        """End the thread, if there is one."""
        if self._thread is not None:
            self._thread.stop()


class DrainThread(threading.Thread):
    """The draining half of a watcher, inside the trainer: rows reach the tail, nothing is sealed."""

    def __init__(self, folder: Path, ring_path: Path, places: Places, interval: float = 0.1) -> None:
        """Drain the ring at `ring_path` every `interval` seconds."""
        super().__init__(name="stepscope-drain", daemon=True)
        self._folder, self._ring_path, self._places, self._interval = RunFolder(folder), ring_path, places, interval
        self._ending = threading.Event()

    def run(self) -> None:
        """Drain until stopped, then once more."""
        try:
            stream = Stream(self._ring_path, 0)
        except (BusyError, OSError, ValueError) as error:
            tell(f"cannot write the run: {error}; its rows stay in shared memory")
            return
        writer = Writer(node_name(self._places.disk, boot_id()), stream.identity.attempt)
        drain = Drain(self._folder, writer, OwnRows(-1 - stream.identity.node_rank, time.monotonic_ns()))
        ending = Ending()
        while not self._ending.wait(self._interval) and stream.reader.words()[ring.WORD_STATE] == ring.STATE_RUNNING:
            self._all(drain, stream, ending)
        if self._all(drain, stream, ending):
            self._end(drain, stream, ending)

    def _all(self, drain: Drain, stream: Stream, ending: Ending) -> bool:
        """Drain what is there; say whether nothing is left."""
        pair = read_pair(SystemClock())
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
        try:
            drain.rotate()
            end_rank(self._folder, drain.writer, stream, ending)
        except OSError as error:  # the ring stays, and a reader brings its end home
            stream.reader.set_word(ring.WORD_STATUS, status.from_error(error))
            return
        stream.reader.set_word(ring.WORD_ENDED, 1)
        stream.remove()

    def stop(self) -> None:
        """Ask for the end, and wait for it a moment."""
        self._ending.set()
        self.join(0.2)
