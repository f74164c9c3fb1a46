"""Where the next record goes, and the rare moments of a write: a full segment, a busy lock, a foreign thread."""

from __future__ import annotations

from threading import RLock, get_ident
from typing import TYPE_CHECKING, Any

from stepscope.core.ring import PAD, SEGMENTS, WORD_OLDEST, WORD_REFUSED
from stepscope.recorder.mapping import DeadLock

if TYPE_CHECKING:
    from stepscope.recorder.mapping import Mapping

PATIENCE = 0.02
"""Seconds that a thread waits for another one's write before it drops its row."""


class RingPosition:
    """The writer's state in its ring; the hot path reads and moves it."""

    def __init__(self, mapping: Mapping) -> None:
        """Stand at the start of an empty ring."""
        self._lock: Any = DeadLock() if mapping.path is None else RLock()
        self._buffer, self._words, self._segment = mapping.buffer, mapping.words, mapping.segment_bytes
        self._base = mapping.base
        self._head, self._limit, self._shift, self._sequence = 0, self._segment, mapping.base, 0
        self._thread = 0

    def _turn(self) -> int:
        """Go to the next segment; its old rows are declared gone before the first byte is overwritten."""
        start = self._limit
        if start > self._head:
            PAD.pack_into(self._buffer, self._head + self._shift, 0, 0)
        oldest = start - (SEGMENTS - 1) * self._segment
        if oldest > 0:
            self._words[WORD_OLDEST] = oldest
        self._head, self._limit = start, start + self._segment
        self._shift = self._base + start % (SEGMENTS * self._segment) - start
        return start

    def _wait(self, lock: Any) -> bool:
        if isinstance(lock, DeadLock):
            return False
        if lock.acquire(timeout=PATIENCE):
            return True
        self._words[WORD_REFUSED] += 1
        return False

    def _owns(self, foreign: list[int]) -> bool:
        """Say whether the calling thread is the one whose time is charged; the first one is, until a step begins."""
        if not self._thread:
            self._thread = get_ident()
            return True
        foreign.append(get_ident())
        return False
