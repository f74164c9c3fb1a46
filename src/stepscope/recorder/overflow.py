"""What the writer does when its ring fills up: wake the watcher, spill, wait briefly, and only then lose rows.

All of it happens at the switch to a new segment, about every thousand rows, and only while a quarter of the ring or
more is not drained. The writer's lock is held meanwhile.
"""

from __future__ import annotations

import _thread
import contextlib
import os
import time
from typing import TYPE_CHECKING

from stepscope.core import ring, status
from stepscope.core.records import RECORD
from stepscope.recorder.complaints import tell

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from stepscope.recorder.mapping import Mapping

WAIT_SECONDS = 0.045
"""Maximum time one call waits for the watcher to drain."""
START_SECONDS = 2.0
"""Maximum total time that calls wait for a watcher that was started and is not running yet."""
FRESH_SECONDS = 2.0
"""A living watcher beats every half second; nothing waits for one that was silent for this long."""
NAP = 0.0005
TELL_SECONDS = 2.0
"""Lost rows are reported this many seconds after the first one, and again when there are more."""
TELL_AGAIN = 60.0
TOO_FAST = "they came faster than they could be written; log less often, or raise recorder.spill_bytes"
_NS = 1_000_000_000


class Overflow:
    """Overflow handling of one ring."""

    def __init__(
        self, mapping: Mapping, most: int = 0, places: Callable[[], list[Path]] = list, wake: Path | None = None
    ) -> None:
        """Spill at most `most` bytes to the first of `places()` that accepts them; wake through the FIFO at `wake`.

        Without any of these the writer only waits for a watcher that has shown that it is alive.
        """
        self._words, self._buffer = mapping.words, mapping.buffer
        self._base, self._segment = mapping.base, mapping.segment_bytes
        self._capacity = ring.SEGMENTS * self._segment
        self._most, self._places, self._wake_path = most // self._segment * self._segment, places, wake
        self._words[ring.WORD_SPILL_BYTES] = self._most
        self._path: Path | None = None
        self._descriptor, self._wake = -1, -1
        self._broken = False
        """The spill is full; it is tried again when its content was drained."""
        self._woken_at = -1
        self._stuck_at = -1
        """Position of the watcher when a wait for it timed out."""
        self._left = START_SECONDS
        self._telling, self._cause = False, TOO_FAST
        self.dropped = 0
        """Rows that this process dropped itself: of threads that could not write, and past a full side queue."""
        self.busy = False
        """Whether a thread is making room."""
        self.is_closing = False
        """The run is ending: nothing may wait."""

    def make_room(self, oldest: int) -> None:
        """Wake the watcher, and try to have rows before position `oldest` drained or spilled."""
        words = self._words
        self.busy = True
        try:
            self._call_watcher()
            while words[ring.WORD_OLDEST] < oldest:  # once, unless an interrupt ended the last switch
                self._free(words[ring.WORD_OLDEST])
        finally:
            self.busy = False

    def _free(self, position: int) -> None:
        """Release the segment at `position`."""
        end = position + self._segment
        if self._cursor() < end and not self._spill(position, end) and not self._drained(end):
            self.lose()
        self._words[ring.WORD_OLDEST] = end

    def _cursor(self) -> int:
        cursor = self._words[ring.WORD_CURSOR]
        return cursor if cursor <= self._words[ring.WORD_HEAD] else 0

    def _spill(self, position: int, end: int) -> bool:
        """Copy the segment at `position` to the spill file; return whether that worked."""
        words = self._words
        if self._broken and self._cursor() >= words[ring.WORD_SPILL_END]:
            self._broken = False
        if not self._most or self._broken:
            return False
        if self._descriptor < 0 and not self._open():
            self._broken = True
            return False
        if words[ring.WORD_SPILL_END] != position:
            if self._cursor() < words[ring.WORD_SPILL_END]:
                return False  # rows in between were lost: the file continues once its content was drained
            words[ring.WORD_SPILL_FROM] = words[ring.WORD_SPILL_END] = position
        self._reuse(end - self._most)
        start = self._base + position % self._capacity
        try:
            with memoryview(self._buffer) as whole, whole[start : start + self._segment] as part:
                self._broken = os.pwrite(self._descriptor, part, position % self._most) < self._segment
        except OSError:  # no space: the spilled rows stay, and new rows wait in the ring
            self._broken = True
        if not self._broken:
            words[ring.WORD_SPILL_END] = end
        return not self._broken

    def _reuse(self, first: int) -> None:
        """Ensure that rows before position `first` are no longer needed, or drop them."""
        words = self._words
        if words[ring.WORD_SPILL_FROM] < first:
            if not self._drained(first):
                self.lose()
            words[ring.WORD_SPILL_FROM] = first

    def _open(self) -> bool:
        """Create a spill file; return whether that was possible."""
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            places = self._places()
        except OSError:  # no runtime folder
            return False
        for path in places:
            try:
                self._descriptor = os.open(path, flags, 0o600)
            except OSError:  # no space or no permission: try the next place, else rows wait in the ring
                continue
            self._path = path
            self._words[ring.WORD_SPILL_FILE] += 1
            return True
        return False

    def _drained(self, goal: int) -> bool:
        """Wait until the watcher has drained up to `goal`; return whether it has. A dead or stuck one ends the wait."""
        began = time.monotonic()
        while self._cursor() < goal:
            waited = time.monotonic() - began
            if self.is_closing or waited > WAIT_SECONDS or not self._is_worth_waiting(waited):
                if waited > WAIT_SECONDS:
                    self._stuck_at = self._cursor()
                self._spend(waited)
                return False
            time.sleep(NAP)
        self._spend(time.monotonic() - began)
        return True

    def _is_worth_waiting(self, waited: float) -> bool:
        beat = self._words[ring.WORD_HEARTBEAT]
        if not beat:
            return waited < self._left
        is_alive = time.monotonic_ns() - beat < FRESH_SECONDS * _NS
        return is_alive and self._cursor() != self._stuck_at

    def _spend(self, waited: float) -> None:
        if not self._words[ring.WORD_HEARTBEAT]:
            self._left -= waited

    def _call_watcher(self) -> None:
        """Wake the watcher, once for each time that it has drained."""
        cursor = self._cursor()
        if cursor == self._woken_at or self._wake_path is None:
            return
        try:
            if self._wake < 0:  # not write-only: writing to a pipe without a reader raises SIGPIPE
                self._wake = os.open(self._wake_path, os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
            os.write(self._wake, b"\0")
        except FileNotFoundError:  # it is not running yet
            return
        except OSError:  # full: it was woken often enough, and polls ten times a second
            pass
        self._woken_at = cursor

    def release(self) -> None:
        """Delete a drained spill file. A thread frees the memory, because that may take some time."""
        words = self._words
        if self._descriptor < 0 or self._cursor() < words[ring.WORD_SPILL_END] or self._path is None:
            return
        descriptor, self._descriptor, self._broken = self._descriptor, -1, False
        with contextlib.suppress(OSError):  # gone already
            os.unlink(self._path)
        words[ring.WORD_SPILL_FILE] += 1
        try:
            _thread.start_new_thread(os.close, (descriptor,))
        except RuntimeError:  # no more threads
            os.close(descriptor)

    @property
    def is_open(self) -> bool:
        """Whether there is a spill file."""
        return self._descriptor >= 0

    def lost(self) -> int:
        """Return how many rows are lost so far: overwritten before they were drained, or dropped."""
        words = self._words
        while True:
            expected, lost = words[ring.WORD_EXPECTED], words[ring.WORD_LOST]
            missing = max(0, self._first_kept() - expected)
            if expected == words[ring.WORD_EXPECTED]:  # else the watcher has drained meanwhile
                return int(lost + missing + self.dropped)

    def _first_kept(self) -> int:
        """Return the sequence of the first undrained row that still exists; 0 if all do."""
        words = self._words
        cursor, oldest = self._cursor(), words[ring.WORD_OLDEST]
        first = max(cursor, words[ring.WORD_SPILL_FROM])
        if cursor >= oldest or (first == cursor and first < words[ring.WORD_SPILL_END]):
            return 0
        if first < words[ring.WORD_SPILL_END] and self._descriptor >= 0:
            head = os.pread(self._descriptor, RECORD.size, first % self._most)
        else:
            start = self._base + oldest % self._capacity
            head = bytes(self._buffer[start : start + RECORD.size])
        return int(RECORD.unpack(head)[2]) if len(head) == RECORD.size else 0

    def loss(self, count: int, when: str = "") -> str:
        """Return the message about this many lost rows."""
        return f"cannot keep every row: {when}{count} lost, {self._cause}"

    def lose(self) -> None:
        """Report lost rows to the user, soon."""
        if self._telling:
            return
        self._telling, self._cause = True, self._find_cause()
        try:
            _thread.start_new_thread(self._tell_soon, ())
        except RuntimeError:  # no more threads: the end of the run reports it
            return

    def _tell_soon(self) -> None:
        pause, told = TELL_SECONDS, 0
        while True:
            time.sleep(pause)
            try:
                lost = self.lost()
            except (ValueError, OSError):  # the run has ended, and has reported it
                return
            if lost <= told:
                self._telling = False
                return
            pause, told = min(2 * pause, TELL_AGAIN), lost
            if not self.is_closing:
                tell(self.loss(lost, "so far "))

    def _find_cause(self) -> str:
        words = self._words
        beat = words[ring.WORD_HEARTBEAT]
        if words[ring.WORD_STATUS] in status.FAILURES:
            return "the run could not be written meanwhile; free its disk, or choose another dir="
        if not beat or time.monotonic_ns() - beat > FRESH_SECONDS * _NS:
            return "the watcher was not running; see watcher.log in the run's folder"
        return TOO_FAST

    def close(self) -> None:
        """Close all files; their content belongs to the watcher from now on. May be called again."""
        if self.busy:  # a thread that does not return must not find another file under these numbers
            return
        descriptors, self._descriptor, self._wake = (self._descriptor, self._wake), -1, -1
        for descriptor in descriptors:
            if descriptor >= 0:
                os.close(descriptor)
