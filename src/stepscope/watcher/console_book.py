"""The lines of one rank's console: from the bytes of its streams to records in the run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from stepscope.core.console_line import ConsoleLine
from stepscope.core.console_text import FoldedLine, LineCleaner, LineFolder
from stepscope.store.console_segments import LostLines, encode_record

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from stepscope.store.console_segments import ConsoleWriterName
    from stepscope.store.console_writer import SegmentWriter

SOON = 0.2
"""Seconds after which a line without an end is written."""
SELDOM = 2.0
"""Seconds between two records of a line that keeps changing, such as a progress bar."""
PAUSE = 1.0
"""Seconds after a failed write before the next attempt; lines in between are counted as lost."""


@dataclass
class _StreamState:
    """One stream, and its line that has no end yet."""

    folder: LineFolder = field(default_factory=LineFolder)
    cleaner: LineCleaner = field(default_factory=LineCleaner)
    number: int = -1
    """Number of the open line, once it has been written; else -1."""
    changed: float = 0.0
    """When the open line changed; 0 if it is written as it is."""
    first_change: float = 0.0
    """The first such change since its last record."""
    written: float = float("-inf")
    """When the open line was written last."""


class ConsoleBook:
    """Numbers the lines of a rank and writes them. Times are seconds since 1970 UTC."""

    def __init__(
        self, who: ConsoleWriterName, writer: SegmentWriter, streams: Sequence[str], note: Callable[[str], None]
    ) -> None:
        """Start with no line; `streams` are their names, `note` gets problems in words."""
        self._who, self._writer, self._note = who, writer, note
        self._streams = {name: _StreamState() for name in streams}
        self._next = 0
        self._pending: list[bytes] = []
        self._pending_lines = 0
        self._lost: LostLines | None = None
        self._not_before = 0.0

    def feed(self, stream: str, time: float, data: bytes) -> None:
        """Take the next bytes of a stream, printed at `time`; `flush` writes them."""
        state = self._streams[stream]
        for line in state.folder.feed(data):
            text, is_cut = state.cleaner.close(line)
            self._put(state, ConsoleLine(time, 0, 0, "", 0, stream, text, is_cut=is_cut))
            state.number, state.changed, state.first_change = -1, 0.0, 0.0
            state.written = float("-inf")
        if not data.endswith(b"\n"):
            state.changed = time
            state.first_change = state.first_change or time

    def tear(self, stream: str, time: float) -> None:
        """End the open line of a stream: what comes next does not belong to it."""
        if self._streams[stream].folder.is_open:
            self.feed(stream, time, b"\n")

    def lose(self, time: float, lines: int, reason: str) -> None:
        """Count lines that will never be fed; they take numbers like all others."""
        if lines <= 0:
            return
        lost = self._lost or LostLines(time, self._next, 0, reason)
        self._lost = lost._replace(lines=lost.lines + lines, time=time)
        self._next += lines

    def due(self) -> float | None:
        """Return when a line without an end is to be written; None if there is none."""
        return min((self._due(state) for state in self._streams.values() if state.changed), default=None)

    def flush(self, now: float, *, all_open: bool = False) -> None:
        """Write what was fed: complete lines, and open ones that are due (or all of them)."""
        for stream, state in self._streams.items():
            is_due = now >= self._due(state) or now < state.changed  # the clock may be set back
            if state.changed and (all_open or is_due):
                self._put_open(stream, state, now)
        if self._not_before - PAUSE <= now < self._not_before:
            self._drop(now)
        elif self._pending or self._lost is not None:
            self._write(now)

    def write_complete(self, now: float) -> None:
        """Write the complete lines that were fed: many at once would make one large segment, and take memory."""
        if self._not_before - PAUSE <= now < self._not_before:
            self._drop(now)
        elif self._pending:
            self._write(now)

    def _write(self, now: float) -> None:
        data, lines = b"".join(self._pending), self._pending_lines
        self._pending, self._pending_lines = [], 0
        try:
            self._writer.append(self._report_of_losses() + data)
        except OSError as error:
            self._not_before = now + PAUSE
            reason = error.strerror or str(error)
            self._note(f"cannot keep what the program prints: {reason}; lines are counted as lost until that ends")
            if lines:
                self._count(now, lines, reason)
        else:
            self._lost = None

    def close(self, now: float) -> None:
        """Write everything that is left, and close the file."""
        self._not_before = 0.0
        self.flush(now, all_open=True)
        self._writer.close()

    def _due(self, state: _StreamState) -> float:
        return max(state.first_change + SOON, state.written + SELDOM)

    def _put_open(self, stream: str, state: _StreamState, now: float) -> None:
        line: FoldedLine = state.folder.open_line()
        text, is_cut = state.cleaner.peek(line)
        time, state.changed, state.first_change = state.changed, 0.0, 0.0
        if text or state.number >= 0:
            self._put(state, ConsoleLine(time, 0, 0, "", 0, stream, text, is_open=True, is_cut=is_cut))
            state.written = now

    def _put(self, state: _StreamState, line: ConsoleLine) -> None:
        is_again = state.number >= 0
        if not is_again:
            state.number, self._next = self._next, self._next + 1
            self._pending_lines += 1
        self._pending.append(encode_record(line._replace(number=state.number), again=is_again))

    def _report_of_losses(self) -> bytes:
        return encode_record(self._lost) if self._lost is not None else b""

    def _drop(self, now: float) -> None:
        """Let go of lines that cannot be written now: memory is bounded."""
        lines, self._pending, self._pending_lines = self._pending_lines, [], 0
        if lines:
            self._count(now, lines, "the disk refused the lines before")

    def _count(self, now: float, lines: int, reason: str) -> None:
        """Count lines that already have numbers as lost."""
        lost = self._lost or LostLines(now, max(0, self._next - lines), 0, reason)
        self._lost = lost._replace(lines=lost.lines + lines, time=now)
