"""Small works that a disk may hold up: each is waited for a while, then left behind, and the others go on.

A thread that hangs in a system call cannot be ended; it keeps its one work until the disk answers, and is replaced.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    Work = tuple[str, Callable[[], object]]

PATIENCE = 1.0
"""Seconds without progress after which a work is left behind."""
MOST = 8
"""Works that may be held up at a time; beyond that nothing is begun until one of them ends."""


class Errands:
    """Does works one after another, and knows which of them are held up."""

    def __init__(self, patience: float = PATIENCE, most: int = MOST) -> None:
        """Do nothing yet."""
        self._patience, self._most = patience, most
        self._lock = threading.Lock()
        self._held: set[str] = set()

    @property
    def held(self) -> frozenset[str]:
        """The keys of the works that are held up now."""
        with self._lock:
            return frozenset(self._held)

    def do(self, works: Iterable[Work]) -> set[str]:
        """Do each work, but none whose key is held up already; return the keys of those that are not done.

        Raises:
            Exception: what a work raised, unless it was left behind.
        """
        held = self.held
        works = list(works)
        late = {key for key, _ in works if key in held}
        todo = deque((key, work) for key, work in works if key not in late)
        while todo and len(self.held) < self._most:
            worker = _Worker(todo, self._lock, self._held)
            worker.start()
            left = worker.watch(self._patience)
            if left is None:
                if worker.error is not None:
                    raise worker.error
                break
            late.add(left)
        return late | {key for key, _ in todo}


class _Worker(threading.Thread):
    """Takes works from a queue until it is empty, or until it is left behind."""

    def __init__(self, todo: deque[Work], lock: threading.Lock, held: set[str]) -> None:
        super().__init__(name="stepscope-errand", daemon=True)
        self._todo, self._lock, self._held = todo, lock, held
        self._begun, self._key, self._left = 0, "", False
        self._done = threading.Event()
        self.error: BaseException | None = None

    def watch(self, patience: float) -> str | None:
        """Wait for the end and return None, or leave it behind for want of progress and return the key of its work."""
        seen = -1
        while not self._done.wait(patience):
            with self._lock:
                if self._begun == seen:
                    self._left = True
                    self._held.add(self._key)
                    return self._key
                seen = self._begun
        return None

    def run(self) -> None:
        """Work."""
        try:
            while (work := self._next()) is not None:
                work()
        except Exception as error:  # noqa: BLE001 - handed to whoever asked for the work
            self.error = error
            with self._lock:
                self._held.discard(self._key)
        finally:
            self._done.set()

    def _next(self) -> Callable[[], object] | None:
        with self._lock:
            if self._left:
                self._held.discard(self._key)
                return None
            if not self._todo:
                return None
            self._key, work = self._todo.popleft()
            self._begun += 1
            return work
