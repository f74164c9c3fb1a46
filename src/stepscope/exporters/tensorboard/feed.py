"""What a watcher hands to TensorBoard while the run goes on: every drained row as an event, beside another feed."""

from __future__ import annotations

import struct
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.core import ring
from stepscope.exporters.tensorboard import records
from stepscope.exporters.tensorboard.writer import EventWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

    from stepscope.core.columns import SchemaTable
    from stepscope.exporters.prometheus.feed import Feed, Subject

SECTION = "exporters.tensorboard."
_PAIR = struct.Struct("<qd")


class TensorBoardFeed:
    """Writes event files, and hands everything on to the feed that was there before."""

    def __init__(self, inner: Feed, folder: Path, note: Callable[[str], None]) -> None:
        """Write into a folder of the run's own."""
        self.inner, self._folder, self._note = inner, folder, note
        self._files: dict[str, EventWriter] = {}
        self._began = time.monotonic()

    def rows(self, rank: int, pieces: Iterable[bytes], table: SchemaTable, *, checked: bool = False) -> None:
        """Take drained records of a rank."""
        pieces = list(pieces)
        self.inner.rows(rank, pieces, table, checked=checked)
        offset = time.time() - time.monotonic()
        for moment, step, values in decoded(pieces, table, checked=checked):
            place = int(time.monotonic() - self._began) if step == ring.NO_STEP else step
            self._write(rank, place, values, moment / 1e9 + offset)

    def sample(self, rank: int, values: Mapping[str, float]) -> None:
        """Take a row that the watcher made itself; its step is the seconds since the watcher began."""
        self.inner.sample(rank, values)
        self._write(rank, int(time.monotonic() - self._began), values, time.time())

    def _write(self, rank: int, step: int, values: Mapping[str, float], seconds: float) -> None:
        place = _place(rank)
        if place not in self._files:
            self._files[place] = EventWriter(self._folder / place)
        found = [records.scalar(name.encode("utf-8", "replace"), value) for name, value in values.items()]
        self._guarded(partial(self._files[place].write, step, found, seconds))

    def end(self, rank: int) -> None:
        """Close the file of a rank."""
        self.inner.end(rank)
        self._close(_place(rank))

    def wait(self, seconds: float, wake: Collection[int] = ()) -> bool:
        """Let time pass, until one of the descriptors in `wake` becomes readable; say whether one has."""
        for file in self._files.values():
            self._guarded(file.flush_if_due)
        return self.inner.wait(seconds, wake)

    def close(self) -> None:
        """Close all files. May be called again."""
        self.inner.close()
        for place in list(self._files):
            self._close(place)

    def _close(self, place: str) -> None:
        if place in self._files:
            self._guarded(self._files.pop(place).close)

    def _guarded(self, write: Callable[[], None]) -> None:
        try:
            write()
        except OSError as error:
            self._note(f"cannot write event files for TensorBoard: {error}; make room there, or choose another folder")


def _place(rank: int) -> str:
    """Return the folder of a rank or, below 0, of a watcher.

    The machine's samples go to the file of rank 0: TensorBoard does not follow two files of one folder that grow.
    """
    return f"rank{rank}" if rank > 0 else f"node{-1 - rank}" if rank < -1 else ""


def decoded(
    pieces: Iterable[bytes], table: SchemaTable, *, checked: bool = False
) -> Iterator[tuple[int, int, dict[str, float]]]:
    """Yield the rows of drained pieces: monotonic time in ns, step or NO_STEP, and values by name."""
    for data in pieces:
        for offset, number, _ in ring.records(data):
            length, _, _, moment, step = ring.RECORD.unpack_from(data, offset)
            if number == ring.SCHEMA_PAIRS:
                end = offset + length - (ring.CHECKSUM.size if checked else 0)
                values = _pairs(data[offset + ring.RECORD.size : end], table.names)
            else:
                values = _row(data, offset + ring.RECORD.size, number, table)
            if values:
                yield moment, step, values


def _row(data: bytes, place: int, number: int, table: SchemaTable) -> dict[str, float]:
    schema = table.schemas.get(number)
    if schema is None or len(schema.kinds) != len(schema.names):
        return {}
    try:
        values = struct.unpack_from(f"<{schema.kinds}", data, place)
    except struct.error:
        return {}  # a declaration that does not fit its row: the reader of the run counts it
    return {
        name: value / 1e9 if kind == "q" else value
        for name, kind, value in zip(schema.names, schema.kinds, values, strict=True)
    }


def _pairs(data: bytes, names: list[str]) -> dict[str, float]:
    whole = data[: len(data) - len(data) % _PAIR.size]
    return {names[number]: value for number, value in _PAIR.iter_unpack(whole) if 0 <= number < len(names)}


def with_tensorboard(inner: Feed, settings: Mapping[str, Any], subject: Subject, note: Callable[[str], None]) -> Feed:
    """Return the feed with event files beside it, if the configuration asks for them: `<dir>/<run>`.

    Args:
        inner: the feed that is there.
        settings: the configuration by key: `exporters.tensorboard.enabled`, `dir`.
        subject: what is watched.
        note: where to say what went wrong.
    """
    if not settings.get(f"{SECTION}enabled"):
        return inner
    return TensorBoardFeed(inner, Path(settings.get(f"{SECTION}dir") or "tensorboard") / subject.run, note)
