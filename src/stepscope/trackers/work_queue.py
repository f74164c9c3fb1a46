"""Work that a training hands to a thread and never waits for."""

from __future__ import annotations

import os
import threading
from collections import deque
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

IDLE_SECONDS = 60.0
"""The thread ends after this time without work; the next item starts another."""
Work = TypeVar("Work")


class Worklist(Generic[Work]):
    """A bounded queue of work, and the daemon thread that does it in order.

    The first item starts the thread; a forked child has a queue and a thread of its own.
    """

    def __init__(self, do: Callable[[Work], None], *, name: str, most: int, keep_oldest: bool = False) -> None:
        """Prepare; nothing starts. `do` does one item of work, in the thread `name`, and must not raise.

        If `most` items wait, the oldest is dropped for a new one; with `keep_oldest` the new one is dropped.
        """
        self._do, self._name, self._most, self._keep_oldest = do, name, most, keep_oldest
        self._begin()

    def _begin(self) -> None:
        self._owner = os.getpid()
        self._waiting: deque[Work] = deque()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._busy = False

    def add(self, work: Work) -> bool:
        """Queue an item and return at once; return False if this or another item was dropped."""
        if self._owner != os.getpid():  # a fork: the items belong to the parent, and its lock may be held for ever
            self._begin()
        with self._changed:
            fits = len(self._waiting) < self._most
            if not fits and self._keep_oldest:
                return False
            if not fits:
                self._waiting.popleft()
            self._waiting.append(work)
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
            self._changed.notify_all()
        return fits

    def flush(self, seconds: float) -> bool:
        """Wait until all items are done, at most so many seconds; return whether they are."""
        if self._owner != os.getpid():
            return True
        with self._changed:
            return self._changed.wait_for(lambda: not self._waiting and not self._busy, seconds)

    def _run(self) -> None:
        while True:
            with self._changed:
                if not self._changed.wait_for(lambda: bool(self._waiting), IDLE_SECONDS):
                    self._thread = None
                    return
                work, self._busy = self._waiting.popleft(), True
            try:
                self._do(work)
            finally:
                with self._changed:
                    self._busy = False
                    self._changed.notify_all()
