"""One event file of TensorBoard, written as values come. Standard library only: the watcher writes one, too."""

from __future__ import annotations

import itertools
import os
import time
from typing import TYPE_CHECKING

from stepscope.exporters.tensorboard import records

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

FLUSH_SECONDS = 1.0
"""Longest time that an event waits in memory."""
FLUSH_BYTES = 1 << 20
_NUMBERS = itertools.count()


def new_event_file(folder: Path, seconds: float, suffix: str = "") -> tuple[int, Path]:
    """Make an event file with a unique name; return its descriptor and path.

    TensorBoard reads the files of a folder in the order of their names, and finds them by `tfevents`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    while True:
        name = f"events.out.tfevents.{int(seconds):010d}.{os.uname().nodename}.{os.getpid()}.{next(_NUMBERS)}{suffix}"
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
            return os.open(folder / name, flags, 0o666), folder / name
        except FileExistsError:
            continue  # another machine has a process with this id: take the next name


class EventWriter:
    """Appends events to its own file, which is made with the first event."""

    def __init__(self, folder: Path, clock: Callable[[], float] = time.time) -> None:
        """Write into a folder; nothing is made yet."""
        self.folder = folder
        self.path: Path | None = None
        self._clock = clock
        self._descriptor: int | None = None
        self._waiting: list[bytes] = []
        self._size, self._flushed = 0, clock()

    def write(self, step: int, values: Iterable[bytes], seconds: float | None = None) -> None:
        """Add one event with values from `records.scalar` and `records.histogram`, at `seconds` since 1970 or now.

        Raises:
            OSError: the file cannot be written.
        """
        now = self._clock()
        data = records.event(now if seconds is None else seconds, step, values)
        self._waiting.append(data)
        self._size += len(data)
        if self._size >= FLUSH_BYTES:
            self.flush()
        self.flush_if_due()

    def flush_if_due(self) -> None:
        """Write the events if the oldest has waited a second; raises as `flush` does."""
        if self._waiting and not 0 <= self._clock() - self._flushed < FLUSH_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Write the events that wait.

        Raises:
            OSError: the file cannot be written; the events are dropped.
        """
        data, self._waiting, self._size = b"".join(self._waiting), [], 0
        self._flushed = now = self._clock()
        if not data:
            return
        if self._descriptor is None:
            self._descriptor, self.path = new_event_file(self.folder, now)
            data = records.first_event(now) + data
        while data:
            data = data[os.write(self._descriptor, data) :]

    def close(self) -> None:
        """Write the events that wait and close the file; a later event makes a new one. Raises as `flush` does."""
        try:
            self.flush()
        finally:
            if self._descriptor is not None:
                os.close(self._descriptor)
                self._descriptor = None
