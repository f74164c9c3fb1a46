"""Work that a training hands to a thread and never waits for."""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

IDLE_SECONDS = 60.0
"""After so long without work the thread ends; the next piece of work starts another."""
Work = TypeVar("Work")


class Worklist(Generic[Work]):
    """A bounded list of work and the daemon thread that does it, one piece after another.

    The thread is started by the first piece of work, and again in a forked child that has work of its own.
    """

    def __init__(self, do: Callable[[Work], None], *, name: str, most: int) -> None:
        """Prepare; nothing starts.

        Args:
            do: does a piece of work, in the thread; it must not raise.
            name: of the thread.
            most: pieces that wait; beyond, the oldest gives way.
        """
        self._do, self._name = do, name
        self._waiting: deque[Work] = deque(maxlen=most)
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._busy = False

    def add(self, work: Work) -> bool:
        """Have some work done, and return at once; say whether everything that waits still will be."""
        with self._changed:
            fits = len(self._waiting) != self._waiting.maxlen
            self._waiting.append(work)
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
            self._changed.notify_all()
        return fits

    def flush(self, seconds: float) -> bool:
        """Wait until everything is done, at most so long; say whether it is."""
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
