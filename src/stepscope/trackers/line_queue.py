"""Write rows of a training thread to a file: the thread queues them and goes on."""

from __future__ import annotations

import atexit
import time
from functools import partial
from typing import TYPE_CHECKING

from stepscope.core.errors import StepscopeError
from stepscope.core.walls import attempt
from stepscope.trackers.metrics.scalar import DeviceScalar, host_number
from stepscope.trackers.work_queue import Worklist

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from stepscope.exporters.files.jsonl_log import JsonLines
    from stepscope.recorder.device import Arriving

    Later = Mapping[str, Arriving | DeviceScalar]

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
