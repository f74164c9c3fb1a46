"""Follow a live run: each poll returns the points written since the last one, at a cost proportional to them.

A tail only grows, so each poll decodes what was appended, after the declarations of the same file. An open tail stays
readable after it was sealed and deleted.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from stepscope.store import tail
from stepscope.store.decode import decode_tail
from stepscope.store.points import Points, distinct

if TYPE_CHECKING:
    from pathlib import Path

    from stepscope.store.layout import FileSpan, RunFolder, Writer

MOST_BYTES = 1 << 25
"""Maximum bytes of a tail that one poll reads; the rest waits for the next."""
CLOCKS = 4
"""Number of clock pairs kept: the last ones date the rows that follow."""


class TailFollower:
    """What has been read of a run's tails."""

    def __init__(self, folder: RunFolder) -> None:
        """Start with everything that exists now marked as read."""
        self._folder = folder
        self._open: dict[tuple[Writer, int], GrowingTail] = {}
        self._seen: dict[Writer, dict[int, int]] = {}
        self._newest: dict[Writer, int] = {}
        self.missed = False
        """Whether a tail was created and deleted between two polls, so that some points were missed."""
        self.look()
        self.missed = False

    def look(self) -> Points:
        """Return the points written since the last call, ordered by name, rank, attempt and sequence."""
        present = {(span.writer, span.first): span for span in self._folder.all_tails()}
        self._notice_gaps(present)
        for key in sorted(present.keys() - self._open.keys()):
            try:
                self._open[key] = GrowingTail(present[key].path)
            except FileNotFoundError:  # sealed since the listing
                self.missed = True
            self._newest[key[0]] = max(self._newest.get(key[0], -1), key[1])
        parts = []
        for key, one in sorted(self._open.items()):
            seen = self._seen.setdefault(key[0], {})
            parts.append(one.read(seen))
            if key not in present and one.is_read:
                one.close()
                del self._open[key]
        return distinct(Points.concat([part for part in parts if len(part)]))

    def newest(self) -> list[tuple[Writer, int, int]]:
        """Return each writer, rank, and the highest sequence that was read of it."""
        return [(writer, rank, last) for writer, seen in self._seen.items() for rank, last in seen.items()]

    def close(self) -> None:
        """Close the files."""
        for one in self._open.values():
            one.close()
        self._open.clear()

    def _notice_gaps(self, present: dict[tuple[Writer, int], FileSpan]) -> None:
        """Check whether a tail was created, filled and sealed between two polls."""
        for unit in self._folder.all_units():
            newest = self._newest.get(unit.writer)
            if newest is None or (unit.last > newest and (unit.writer, unit.last) not in present):
                self.missed = True  # at the first poll every tail is new: that is cleared there
                self._newest[unit.writer] = unit.last


class GrowingTail:
    """One tail file, and how far it was read."""

    def __init__(self, path: Path, most_bytes: int = MOST_BYTES) -> None:
        """Open it, to be read in parts of at most `most_bytes`. Raises FileNotFoundError if it is gone."""
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        self._at, self._most = 0, most_bytes
        self._declared: dict[bytes, None] = {}
        self._clocks: list[bytes] = []
        self.is_read = False
        """Whether the last `read` reached the end of the file."""

    def read(self, seen: dict[int, int]) -> Points:
        """Return the points of the complete frames that were appended; `seen` is the highest sequence of each rank."""
        data = os.pread(self._descriptor, self._most, self._at)
        self.is_read = len(data) < self._most
        needed = b"".join([*self._declared, *self._clocks])
        rest = 0
        for frame in tail.decode(data):
            rest = frame if isinstance(frame, int) else 0
            if not isinstance(frame, int) and frame.kind != tail.KIND_RECORDS:
                self._keep(frame, data)
        end = len(data) - rest
        if not end:
            self._most = self._most if self.is_read else min(2 * self._most, MOST_BYTES)  # one frame is longer
            return Points.empty()
        decoded = decode_tail(needed + data[:end], seen)
        seen.update(decoded.last_seq)
        self._at += end
        return decoded.points

    def _keep(self, frame: tail.TailFrame, data: bytes) -> None:
        """Keep a frame that later ones need."""
        copy = tail.encode(frame.kind, frame.stream, data[frame.start : frame.end])
        if frame.kind == tail.KIND_CLOCK:
            self._clocks = [*self._clocks, copy][-CLOCKS:]
        else:
            self._declared[copy] = None

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)
