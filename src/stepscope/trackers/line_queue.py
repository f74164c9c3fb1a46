"""Rows on their way from a training thread to a file: the thread hands them over and goes on."""

from __future__ import annotations

import atexit
import time
from typing import TYPE_CHECKING

from stepscope.core.errors import StepscopeError
from stepscope.core.walls import attempt
from stepscope.trackers.work_queue import Worklist

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from stepscope.exporters.files.jsonl_log import JsonLines
    from stepscope.recorder.device import Arriving

    Entry = tuple[dict[str, object], Mapping[str, Arriving]]

LIMIT = 10_000
"""Rows that may wait; a further row is dropped and counted, since the training must not wait."""
POLL_SECONDS = 0.002
"""Between two checks whether a value has arrived."""
CLOSE_SECONDS = 1.0
"""How long `close` waits for the rows to be written."""
ARRIVE_SECONDS = 60.0
"""How long a row waits for its values on a device; after that they are null."""


class LineQueue:
    """Writes rows to a file in a daemon thread, each as soon as its values have arrived from the device."""

    def __init__(self, file: JsonLines, report: Callable[[str], None], limit: int = LIMIT) -> None:
        """Prepare; nothing starts before the first row.

        Args:
            file: the file to write; only the thread writes it.
            report: called with each problem.
            limit: rows that may wait.
        """
        self.file, self._report = file, report
        self._rows: Worklist[Entry] = Worklist(self._write, name="stepscope-lines", most=limit, keep_oldest=True)
        self._open = self._ending = False
        self.dropped = 0
        """Rows dropped because too many waited."""

    def put(self, row: dict[str, object], later: Mapping[str, Arriving] | None = None) -> None:
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

    def _write(self, entry: Entry) -> None:
        row, later = entry
        for name, value in later.items():
            row[name] = self._number(value)
        try:
            self.file.write([row])
        except StepscopeError as error:
            self._report(str(error))

    def _number(self, value: Arriving) -> float | None:
        """Return a value when it has arrived; None if it does not arrive or cannot be read."""
        return attempt(lambda: self._arrived(value), lambda _error: None)

    def _arrived(self, value: Arriving) -> float | None:
        start = time.monotonic()
        while not value.ready():
            if time.monotonic() - start > (CLOSE_SECONDS / 2 if self._ending else ARRIVE_SECONDS):
                return None
            time.sleep(POLL_SECONDS)
        return value.read()
