"""The feed for TensorBoard: every drained row as an event, while the run goes on."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.core.feed import Feed, Subject
from stepscope.core.records import NO_STEP, rows
from stepscope.exporters.tensorboard import records
from stepscope.exporters.tensorboard.records import EventWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from stepscope.core.columns import SchemaTable

SECTION = "exporters.tensorboard."


class TensorBoardFeed(Feed):
    """Writes event files."""

    def __init__(self, folder: Path, note: Callable[[str], None]) -> None:
        self._folder, self._note = folder, note
        self._files: dict[str, EventWriter] = {}
        self._began = time.monotonic()

    def rows(self, rank: int, pieces: Iterable[bytes], table: SchemaTable, *, checked: bool = False) -> None:
        """Take drained records of a rank."""
        offset = time.time() - time.monotonic()
        for time_ns, step, values in rows(pieces, table, checked=checked):
            shown = int(time.monotonic() - self._began) if step == NO_STEP else step
            self._write(rank, shown, values, time_ns / 1e9 + offset)

    def sample(self, rank: int, values: Mapping[str, float]) -> None:
        """Take a row of the watcher's own; its step is the seconds since the watcher began."""
        self._write(rank, int(time.monotonic() - self._began), values, time.time())

    def _write(self, rank: int, step: int, values: Mapping[str, float], seconds: float) -> None:
        place = records.place_of(rank)
        if place not in self._files:
            self._files[place] = EventWriter(self._folder / place)
        found = [records.scalar(name.encode("utf-8", "replace"), value) for name, value in values.items()]
        self._guarded(partial(self._files[place].write, step, found, seconds))

    def end(self, rank: int) -> None:
        """Close the file of a rank."""
        self._close(records.place_of(rank))

    def serve(self) -> None:
        """Flush the files that are due."""
        for file in self._files.values():
            self._guarded(file.flush_if_due)

    def close(self) -> None:
        """Close all files. May be called again."""
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


def open_feed(settings: Mapping[str, Any], subject: Subject, note: Callable[[str], None]) -> TensorBoardFeed | None:
    """Return the feed that `exporters.tensorboard` in the settings turns on, which writes to `<dir>/<run>`, or None."""
    if not settings.get(f"{SECTION}enabled"):
        return None
    return TensorBoardFeed(Path(settings.get(f"{SECTION}dir") or "tensorboard") / subject.run, note)
