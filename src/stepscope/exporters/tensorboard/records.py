"""TensorBoard's event files, encoded by hand: records with checksums that hold events as protocol buffers.

TensorBoard keeps scalars as 32-bit floats. If a value needs more digits, the exact one follows in a field that
TensorBoard ignores and `stepscope import` reads. Standard library only: the watcher writes such files, too.
"""

from __future__ import annotations

import itertools
import math
import os
import struct
import time
from functools import lru_cache
from typing import TYPE_CHECKING

from stepscope.core.tensorboard import EXACT_FIELD, masked_crc
from stepscope.exporters.protobuf import FIXED32, VARINT, block, double, key, varint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

VERSION = "brain.Event:2"
"""In the first event of a file."""
_LENGTH, _CRC, _FLOAT = struct.Struct("<Q"), struct.Struct("<I"), struct.Struct("<f")


@lru_cache(maxsize=4096)
def head_of(length: int) -> bytes:
    """Return the head of a record with so many bytes: the length and its checksum."""
    data = _LENGTH.pack(length)
    return data + _CRC.pack(masked_crc(data))


def record(content: bytes) -> bytes:
    """Return a record with its head and checksum."""
    return head_of(len(content)) + content + _CRC.pack(masked_crc(content))


def first_event(time: float) -> bytes:
    """Return the record that an event file begins with."""
    return record(double(1, time) + block(3, VERSION.encode()))


def narrow(value: float) -> float:
    """Return a number rounded to a 32-bit float; one that is too large becomes infinite."""
    try:
        return float(_FLOAT.unpack(_FLOAT.pack(value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)


def scalar(tag: bytes, value: float) -> bytes:
    """Return a summary's value that is a number."""
    short = narrow(value)
    exact = b"" if short == value or value != value else double(EXACT_FIELD, value)  # noqa: PLR0124 - NaN
    return block(1, block(1, tag) + key(2, FIXED32) + _FLOAT.pack(short) + exact)


def histogram(tag: bytes, edges: Sequence[float], counts: Sequence[float], facts: Mapping[str, float]) -> bytes:
    """Return a summary's value that is a histogram: upper ends of the buckets, their counts, and five figures."""
    order = ("min", "max", "num", "sum", "sum_squares")
    content = b"".join(double(number, facts[name]) for number, name in enumerate(order, 1))
    for number, values in ((6, edges), (7, counts)):
        content += block(number, struct.pack(f"<{len(values)}d", *values))
    return block(1, block(1, tag) + block(5, content))


def place_of(rank: int) -> str:
    """Return the folder of a rank or, below 0, of a node.

    The machine's samples go to the file of rank 0: TensorBoard does not follow two growing files in one folder.
    """
    return f"rank{rank}" if rank > 0 else f"node{-1 - rank}" if rank < -1 else ""


def event(time: float, step: int, values: Iterable[bytes]) -> bytes:
    """Return the record of one event: values of one step, at seconds since 1970."""
    return record(double(1, time) + key(2, VARINT) + varint(step) + block(5, b"".join(values)))


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
        self.folder = folder
        self.path: Path | None = None
        self._clock = clock
        self._descriptor: int | None = None
        self._waiting: list[bytes] = []
        self._size, self._flushed = 0, clock()

    def write(self, step: int, values: Iterable[bytes], seconds: float | None = None) -> None:
        """Add one event with values from `scalar` and `histogram`, at `seconds` since 1970 or now.

        Raises:
            OSError: the file cannot be written.
        """
        now = self._clock()
        data = event(now if seconds is None else seconds, step, values)
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
            data = first_event(now) + data
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
