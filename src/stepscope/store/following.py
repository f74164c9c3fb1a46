"""Follow a run that is being written: the points that have come since the last look, each once, at the cost of these.

A tail only grows, so each look decodes what was appended, behind the declarations of the same file that it needs. An
open tail stays readable after it was sealed and removed.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from stepscope.store import tail
from stepscope.store.decode import decode_tail
from stepscope.store.points import Points, distinct

if TYPE_CHECKING:
    from stepscope.store.layout import RunFolder, Span, Writer

MOST_BYTES = 1 << 25
"""Bytes of a tail that one look takes; what is beyond waits for the next."""
CLOCKS = 4
"""Pairs of clocks that are kept: the last ones tell the time of what follows."""


class Follower:
    """What has been seen of a run's tails."""

    def __init__(self, folder: RunFolder) -> None:
        """Begin with everything that is there now as seen."""
        self._folder = folder
        self._open: dict[tuple[Writer, int], _Tail] = {}
        self._seen: dict[Writer, dict[int, int]] = {}
        self._newest: dict[Writer, int] = {}
        self.missed = False
        """Whether a tail came and went between two looks: some points were never seen here."""
        self.look()
        self.missed = False

    def look(self) -> Points:
        """Return the points that have come since the last call, in order of name, rank, attempt and sequence."""
        present = {(span.writer, span.first): span for span in self._folder.all_tails()}
        self._notice_gaps(present)
        for key in sorted(present.keys() - self._open.keys()):
            try:
                self._open[key] = _Tail(present[key])
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

    def close(self) -> None:
        """Close the files."""
        for one in self._open.values():
            one.close()
        self._open.clear()

    def _notice_gaps(self, present: dict[tuple[Writer, int], Span]) -> None:
        """Look whether a tail was made, filled and sealed between two looks."""
        for unit in self._folder.all_units():
            newest = self._newest.get(unit.writer)
            if newest is None:
                self.missed = True  # at the first look everything is: that is forgotten there
                self._newest[unit.writer] = unit.last
            elif unit.last > newest and (unit.writer, unit.last) not in present:
                self.missed = True
                self._newest[unit.writer] = unit.last


class _Tail:
    """One tail file, read up to a place."""

    def __init__(self, span: Span) -> None:
        """Open it. Raises FileNotFoundError if it is gone."""
        self._descriptor = os.open(span.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        self._at = 0
        self._declared: dict[bytes, None] = {}
        self._clocks: list[bytes] = []
        self.is_read = False

    def read(self, seen: dict[int, int]) -> Points:
        """Return the points of the whole frames that were appended; `seen` is the highest sequence of each rank."""
        data = os.pread(self._descriptor, MOST_BYTES, self._at)
        end = self._whole(data)
        self.is_read = len(data) < MOST_BYTES
        if not end:
            return Points.empty()
        prefix = b"".join([*self._declared, *self._clocks])
        decoded = decode_tail(prefix + data[:end], seen)
        seen.update(decoded.last_seq)
        self._keep(data[:end])
        self._at += end
        return decoded.points

    def _whole(self, data: bytes) -> int:
        """Return where the last whole frame ends."""
        rest = 0
        for frame in tail.decode(data):
            rest = frame if isinstance(frame, int) else 0
        return len(data) - rest

    def _keep(self, data: bytes) -> None:
        """Keep the frames that later ones need."""
        for frame in tail.decode(data):
            if isinstance(frame, int) or frame.kind == tail.KIND_RECORDS:
                continue
            whole = tail.encode(frame.kind, frame.stream, data[frame.start : frame.end])
            if frame.kind == tail.KIND_CLOCK:
                self._clocks = [*self._clocks, whole][-CLOCKS:]
            else:
                self._declared[whole] = None

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)
