"""Work that a training hands to a thread and never waits for, such as the rows of a file."""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Generic, TypeVar

from stepscope.core.errors import StepscopeError
from stepscope.core.walls import attempt
from stepscope.trackers.metrics.scalar import DeviceScalar, host_number

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from stepscope.exporters.files.jsonl_log import JsonLines
    from stepscope.recorder.device import Arriving

    Later = Mapping[str, Arriving | DeviceScalar]

IDLE_SECONDS = 60.0
"""The thread ends after this time without work; the next item starts another."""
LIMIT = 10_000
"""Rows that may wait; a further row is dropped and counted, since the training must not wait."""
POLL_SECONDS = 0.002
"""Between two checks whether a value has arrived."""
CLOSE_SECONDS = 1.0
"""How long `close` waits for the rows to be written."""
ARRIVE_SECONDS = 60.0
"""How long a row waits for its values on a device; after that they are null."""
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


class LineQueue:
    """Writes rows to a file in a daemon thread, each as soon as its values have arrived from the device."""

    def __init__(self, file: JsonLines, report: Callable[[str], None], limit: int = LIMIT) -> None:
        """Prepare; nothing starts before the first row. Only the thread writes the file."""
        self.file, self._report = file, report
        self._rows: Worklist[tuple[dict[str, object], Later]] = Worklist(
            self._write, name="stepscope-lines", most=limit, keep_oldest=True
        )
        self._open = self._ending = False
        self.dropped = 0
        """Rows dropped because too many waited."""

    def put(self, row: dict[str, object], later: Later | None = None) -> None:
        """Queue a row, with the values that are still on their way from a device. Never waits."""
        if not self._open:
            self._open, self._ending = True, False
            atexit.register(self.close)
        if not self._rows.add((row, later or {})):
            self.dropped += 1
            self._report("cannot keep up with the steps: rows are dropped; choose a faster disk for the log folder")

    def close(self) -> None:
        """Wait briefly until everything is written, and close the file. A later row starts again."""
        if not self._open:
            return
        self._open, self._ending = False, True
        atexit.unregister(self.close)
        if self._rows.flush(CLOSE_SECONDS):
            self.file.close()

    def _write(self, entry: tuple[dict[str, object], Later]) -> None:
        row, later = entry
        for name, value in later.items():  # null if it does not arrive or cannot be read
            row[name] = attempt(partial(self._arrived, value), lambda _error: None)
        try:
            self.file.write([row])
        except StepscopeError as error:
            self._report(str(error))

    def _arrived(self, value: Arriving | DeviceScalar) -> float | None:
        if isinstance(value, DeviceScalar):  # its framework does not say when it is ready: this thread waits for it
            return host_number(value.tensor)
        start = time.monotonic()
        while not value.ready():
            if time.monotonic() - start > (CLOSE_SECONDS / 2 if self._ending else ARRIVE_SECONDS):
                return None
            time.sleep(POLL_SECONDS)
        return value.read()
