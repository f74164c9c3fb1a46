"""Where the next record goes, and the rare cases of a write: a full segment, a busy lock, another thread."""

from __future__ import annotations

import sys
import time
from collections import deque
from threading import get_ident
from typing import TYPE_CHECKING, Any

from stepscope.core.records import PAD
from stepscope.core.ring import SEGMENTS, WORD_CURSOR, WORD_HEAD, WORD_OLDEST, WORD_REFUSED
from stepscope.recorder.state import State

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import FrameType

    from stepscope.recorder.declarations import Layout
    from stepscope.recorder.mapping import Mapping
    from stepscope.recorder.overflow import Overflow

PATIENCE = 0.04
"""Seconds that a thread waits for another one's write before it leaves its row to that thread."""
NAP = 0.0002
LEAST_LOOKS = 20
"""Minimum number of checks: on a machine that stood still the other thread had no time either."""
SIDE_ROWS = 256
"""Maximum rows that wait for the end of a write: of the same thread, or of one that takes too long."""


class RingPosition(State):
    """The writer's state in its ring; the hot path reads and moves it. Without a ring, nothing is ever written."""

    # Past thirty attributes a plain object finds them by hash: the rest of what a step reads is in slots as well.
    __slots__ = ("_base", "_buffer", "_is_plain", "_segment", "_waiting", "overflow")

    def __init__(self, mapping: Mapping) -> None:
        self.recording = mapping.path is not None
        self._tokens: list[Any] = [True] if self.recording else []
        self._side: deque[tuple[Any, ...]] = deque()
        self._waiting: list[bool] = []
        self._buffer, self._words, self._segment = mapping.buffer, mapping.words, mapping.segment_bytes
        self._base = mapping.base
        self._head, self._limit, self._shift, self._sequence = 0, self._segment, mapping.base, 0
        self._thread, self._shared = 0, False
        self.overflow: Overflow | None = None
        """Makes room in a ring that fills up; without it the oldest rows are dropped."""
        self._hold(mapping.buffer if self.recording and not mapping.checked else None)

    def _turn(self) -> int:
        """Go to the next segment; its old rows are declared gone before the first byte is overwritten."""
        start, overflow = self._limit, self.overflow
        if start > self._head:
            PAD.pack_into(self._buffer, self._head + self._shift, 0, 0)
        oldest = start - (SEGMENTS - 1) * self._segment
        if overflow is not None:
            if start - self._words[WORD_CURSOR] > SEGMENTS // 4 * self._segment:
                overflow.make_room(oldest)
            elif overflow.is_open:
                overflow.release()
        if oldest > 0:
            self._words[WORD_OLDEST] = oldest
        self._head, self._limit = start, start + self._segment
        self._shift = self._base + start % (SEGMENTS * self._segment) - start
        return start

    def write_at(self, layout: Layout, moment: int, step: int, row: Iterable[float]) -> None:
        """Write a row with a time of its own (monotonic ns; may lie before the boot), for a program with one thread.

        It never waits: ask `behind` before. Rows of a training go through the hot path, which takes the time itself.
        """
        head, (pack, size, schema, _, _) = self._head, layout
        if head + size > self._limit:
            head = self._turn()
        pack(self._buffer, head + self._shift, size, schema, self._sequence, moment, step, *row)
        self._sequence += 1
        self._head = head + size
        self._words[WORD_HEAD] = self._head

    @property
    def behind(self) -> float:
        """Share of the ring that is not drained yet."""
        return max(0, self._head - self._words[WORD_CURSOR]) / (SEGMENTS * self._segment)

    def give_back(self) -> None:
        """Delete a drained spill file, unless a thread is writing."""
        if self.overflow is None or not self.overflow.is_open:
            return
        try:
            token = self._tokens.pop()
        except IndexError:  # the end of that write will do it
            return
        try:
            self.overflow.release()
        finally:
            self._tokens.append(token)

    def _contend(self, item: tuple[Any, ...]) -> Any:
        """Return the token when the previous writer is done; None if the row must wait for it, or is dropped."""
        tokens = self._tokens
        if not self.recording:
            return None
        if self._writes_in(sys._getframe(1).f_back):
            self._defer(item)
            return None
        self._waiting.append(True)  # the writer passes us the token: else we would only wake up when it is gone
        try:
            began, looks = time.monotonic(), 0
            while time.monotonic() < began + PATIENCE or looks < LEAST_LOOKS:
                looks += 1
                time.sleep(NAP)
                if tokens and self._side:  # rows that came before ours
                    self._write_deferred()
                try:
                    return tokens.pop()
                except IndexError:  # still busy
                    continue
        finally:
            self._waiting.pop()
        others = {ident: frame for ident, frame in sys._current_frames().items() if ident != get_ident()}
        if not any(map(self._writes_in, others.values())):
            return True  # an interrupt took the token with it: no thread is writing
        self._defer(item)
        if tokens:  # that write ended meanwhile, and may not have seen our row
            self._write_deferred()
        return None

    def _defer(self, item: tuple[Any, ...]) -> None:
        """Leave a row to the current write; count it as lost if too many wait already."""
        if len(self._side) < SIDE_ROWS:
            self._side.append((*item[:3], tuple(item[3])))
            self._awaiting = True  # the next row of any thread is left to Python, which writes these first
            return
        self._words[WORD_REFUSED] += 1
        if self.overflow is not None:
            self.overflow.dropped += 1
            self.overflow.lose()

    def _let_others(self) -> None:
        """Write the rows that were left to us, and let a thread write that waits for the token."""
        if self._side:
            self._write_deferred()
        if self._waiting:
            time.sleep(NAP)

    def _writes_in(self, frame: FrameType | None) -> bool:
        """Return whether a call stack is inside a write to this ring."""
        code = type(self)._python_write.__code__  # type: ignore[attr-defined]
        while frame is not None:
            if frame.f_code is code and frame.f_locals.get("self") is self:
                return True
            frame = frame.f_back
        return False

    def _write_deferred(self) -> None:
        """Write the rows that came during another write, all taken at once: the end of each finds none left."""
        side, waiting = self._side, []
        try:
            while True:
                waiting.append(side.popleft())
        except IndexError:  # that was the last, or another thread was faster
            waiting.reverse()
        try:
            while waiting:
                self._write(*waiting.pop())  # type: ignore[attr-defined]
        finally:
            side.extendleft(waiting)  # none, unless an interrupt ended this

    def _owns(self, foreign: list[int]) -> bool:
        """Return whether time of the calling thread is charged; the first thread is charged until a step starts."""
        if not self._thread:
            self._thread = get_ident()
            return True
        foreign.append(get_ident())
        self._shared = True
        return False
