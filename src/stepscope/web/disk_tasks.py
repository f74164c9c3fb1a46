"""Small tasks that a hanging disk may hold up: each gets some time, then it is abandoned and the others go on.

A thread that hangs in a system call cannot be ended. It keeps its task until the disk responds, and another thread
takes its place.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    Task = tuple[str, Callable[[], object]]

PATIENCE = 1.0
"""Seconds without progress after which a task is abandoned."""
MAX_STALLED = 8
"""Tasks that may be stalled at a time; beyond that no task is started until one of them ends."""


class DiskTasks:
    """Runs tasks one after another, and knows which of them are stalled."""

    def __init__(self, patience: float = PATIENCE, max_stalled: int = MAX_STALLED) -> None:
        """Start no thread yet; `patience` is in seconds."""
        self._patience, self._max_stalled = patience, max_stalled
        self._lock = threading.Lock()
        self._stalled: set[str] = set()

    @property
    def stalled(self) -> frozenset[str]:
        """Keys of the tasks that are stalled now."""
        with self._lock:
            return frozenset(self._stalled)

    def run(self, tasks: Iterable[Task]) -> set[str]:
        """Run all tasks whose keys are not stalled already; return the keys of the tasks that did not finish.

        What a task raises is raised here, unless the task was abandoned.
        """
        stalled, tasks = self.stalled, list(tasks)
        late = {key for key, _ in tasks if key in stalled}
        queue = deque((key, task) for key, task in tasks if key not in late)
        while queue and len(self.stalled) < self._max_stalled:
            thread = _TaskThread(queue, self._lock, self._stalled)
            thread.start()
            abandoned = thread.wait(self._patience)
            if abandoned is None:
                if thread.error is not None:
                    raise thread.error
                break
            late.add(abandoned)
        return late | {key for key, _ in queue}


class _TaskThread(threading.Thread):
    """Takes tasks from a queue until it is empty, or until the thread is abandoned."""

    def __init__(self, queue: deque[Task], lock: threading.Lock, stalled: set[str]) -> None:
        super().__init__(name="stepscope-disk-task", daemon=True)
        self._queue, self._lock, self._stalled = queue, lock, stalled
        self._started_tasks, self._key, self._abandoned = 0, "", False
        self._done = threading.Event()
        self.error: BaseException | None = None

    def wait(self, patience: float) -> str | None:
        """Wait for the end and return None; or abandon a task without progress and return its key."""
        seen = -1
        while not self._done.wait(patience):
            with self._lock:
                if self._started_tasks == seen:
                    self._abandoned = True
                    self._stalled.add(self._key)
                    return self._key
                seen = self._started_tasks
        return None

    def run(self) -> None:
        """Run the tasks."""
        try:
            while (task := self._next()) is not None:
                task()
        except Exception as error:  # noqa: BLE001 - raised again in the thread that waits
            self.error = error
            with self._lock:
                self._stalled.discard(self._key)
        finally:
            self._done.set()

    def _next(self) -> Callable[[], object] | None:
        with self._lock:
            if self._abandoned:
                self._stalled.discard(self._key)
                return None
            if not self._queue:
                return None
            self._key, task = self._queue.popleft()
            self._started_tasks += 1
            return task
