"""Rows on their way from a training thread to a file: the thread hands over and goes on."""

from __future__ import annotations

import atexit
import os
import queue
import threading
import time
from typing import TYPE_CHECKING

from stepscope.core.errors import StepscopeError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from stepscope.exporters.jsonl_files import JsonLines
    from stepscope.recorder.device import Arriving

    Entry = tuple[dict[str, object], Mapping[str, Arriving]]

LIMIT = 10_000
"""Rows that may wait; a further one is dropped and counted, since the training must not wait."""
BATCH = 1000
POLL_SECONDS = 0.002
"""Between two looks whether a value has arrived."""
CLOSE_SECONDS = 1.0
"""How long `close` waits for the rows to be written."""
ARRIVE_SECONDS = 60.0
"""How long a row waits for its values on a device; after that they are null."""


class LineQueue:
    """Writes rows to a file in a daemon thread, each as soon as it comes.

    A value of a row may be on a device: the row waits until it has arrived, and the training does not.
    """

    def __init__(self, make_file: Callable[[], JsonLines], report: Callable[[str], None], limit: int = LIMIT) -> None:
        """Prepare; nothing starts before the first row.

        Args:
            make_file: returns the file to write; each thread gets its own.
            report: told what goes wrong.
            limit: rows that may wait.
        """
        self._make_file, self._report, self._limit = make_file, report, limit
        self._rows: queue.SimpleQueue[Entry | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._owner = -1
        self._ending = False
        self.file: JsonLines | None = None
        """The file that is or was written; None before the first row."""
        self.dropped = 0
        """Rows given up because too many waited."""

    def put(self, row: dict[str, object], later: Mapping[str, Arriving] | None = None) -> None:
        """Hand a row over, with the values that are still `later` on their way to the host. Never waits."""
        if self._thread is None or self._owner != os.getpid():
            self._start()
        if self._rows.qsize() >= self._limit:
            self.dropped += 1
            self._report("cannot keep up with the steps: rows are dropped; choose a faster disk for the log folder")
            return
        self._rows.put((row, later or {}))

    def close(self) -> None:
        """Wait shortly until everything is written, and close the file. A later row starts anew."""
        thread, self._thread = self._thread, None
        if thread is None or self._owner != os.getpid():
            return
        atexit.unregister(self.close)
        self._ending = True
        self._rows.put(None)
        thread.join(CLOSE_SECONDS)

    def _start(self) -> None:
        self._owner, self._ending = os.getpid(), False
        self._rows = queue.SimpleQueue()  # that of a parent process may hold its rows
        self.file = self._make_file()
        self._thread = threading.Thread(
            target=self._run, args=(self._rows, self.file), name="stepscope-lines", daemon=True
        )
        self._thread.start()
        atexit.register(self.close)

    def _run(self, rows: queue.SimpleQueue[Entry | None], file: JsonLines) -> None:
        ends = False
        while not ends:
            entries = [rows.get()]
            while len(entries) < BATCH and not rows.empty():
                entries.append(rows.get())
            ends = None in entries
            try:
                file.write([self._settled(entry) for entry in entries if entry is not None])
            except StepscopeError as error:
                self._report(str(error))
        file.close()

    def _settled(self, entry: Entry) -> dict[str, object]:
        row, later = entry
        for name, value in later.items():
            row[name] = self._number(value)
        return row

    def _number(self, value: Arriving) -> float | None:
        """Return a value when it has arrived; None for one that does not arrive or cannot be read."""
        start = time.monotonic()
        try:
            while not value.ready():
                if time.monotonic() - start > (CLOSE_SECONDS / 2 if self._ending else ARRIVE_SECONDS):
                    return None
                time.sleep(POLL_SECONDS)
            return value.read()
        except Exception:  # noqa: BLE001 - a device may fail with any error; null in the file says there is no value
            return None
