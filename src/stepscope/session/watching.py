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
from stepscope.store.salvage import end_rank

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from stepscope.core.places import Places

STALE_SECONDS = 10.0
"""A watcher that has not been heard of for so long is started anew, once."""
START = "stepscope.watcher.process"


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
            self._thread = DrainThread(self._folder, ring_path, places)
            self._thread.start()

    def look(self, heartbeat: int, born: int, now: int) -> None:
        """Start a new watcher, once, if the heartbeat in the ring (monotonic ns, 0 for none yet) is stale."""
        if self._restarted or self._thread is not None:
            return
        if (now - (heartbeat or born)) / 1e9 > STALE_SECONDS:
            self._restarted = True
            threading.Thread(target=self._again, name="stepscope-restart", daemon=True).start()

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
        rows = 0
        while not self._ending.wait(self._interval) and stream.reader.words()[ring.WORD_STATE] == ring.STATE_RUNNING:
            rows += self._once(drain, stream)
        rows += self._once(drain, stream)
        drain.rotate()
        end_rank(self._folder, writer, stream, rows)
        stream.reader.set_word(ring.WORD_ENDED, 1)
        stream.remove()

    def _once(self, drain: Drain, stream: Stream) -> int:
        pair = read_pair(SystemClock())
        stream.reader.set_word(ring.WORD_HEARTBEAT, pair.monotonic_ns)
        try:
            return drain.once(stream, pair).rows
        except OSError as error:
            stream.reader.set_word(ring.WORD_STATUS, status.from_error(error))
            return 0

    def stop(self) -> None:
        """Ask for the end, and wait for it a moment."""
        self._ending.set()
        self.join(0.2)
