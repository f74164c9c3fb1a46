"""Drain the ring in a thread of the trainer, if no watcher process can be started."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from stepscope.core import ring, status
from stepscope.core.clock import Clock, boot_id, read_pair
from stepscope.core.places import HELD
from stepscope.recorder.complaints import tell
from stepscope.store.drain import Drain, OwnRows, RingBusyError, Stream
from stepscope.store.layout import RunFolder, Writer, node_name
from stepscope.store.salvage import Ending, end_rank

if TYPE_CHECKING:
    from pathlib import Path

    from stepscope.core.places import Places

BATCHES = 64
"""Maximum reads of the ring in one pass, so that the thread notices when it should end."""


class DrainThread(threading.Thread):
    """Drains the ring at `ring_path` every `interval` seconds: rows reach the tail, nothing is sealed."""

    def __init__(self, folder: Path, ring_path: Path, places: Places, interval: float = 0.1) -> None:
        super().__init__(name="stepscope-drain", daemon=True)
        self._folder, self._ring_path, self._places, self._interval = RunFolder(folder), ring_path, places, interval
        self._ending = threading.Event()

    def run(self) -> None:
        """Drain until stopped, then a last time."""
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
