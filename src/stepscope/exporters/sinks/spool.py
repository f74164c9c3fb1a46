"""Read the rows of a run in the order in which they were written, from any point on: the run on disk is the spool.

A row is identified by rank, attempt and sequence. What was sent is a set of spans of sequences for each rank and
attempt. A reader leaves out what is in them, so a restart, a file that was sealed or merged meanwhile, and a second
reader ahead of the first change nothing.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from stepscope.exporters.files.portions import of_unit
from stepscope.store.following import GrowingTail, TailFollower
from stepscope.store.parquet import connect
from stepscope.store.points import Points, row_starts
from stepscope.store.sealed import open_sealed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    import duckdb
    from numpy.typing import NDArray

    from stepscope.store.layout import FileSpan, RunFolder, Writer

PART_BYTES = 1 << 18
"""Bytes of a tail that are decoded at once: about 25 000 points."""
READER_MEMORY = "64MB"
"""DuckDB's own limit, which it also needs for a row group."""
LAST = 2**63 - 1

Place = tuple[int, int]
"""A rank and an attempt."""
Spans = dict[Place, list[list[int]]]
"""The first and last sequence of each span, in order; spans neither touch nor overlap."""


class Portion(NamedTuple):
    """Some rows, and what has been read once they are sent."""

    points: Points
    """Ordered by rank, attempt and sequence; only wanted metrics."""
    passed: dict[Place, tuple[int, int]]
    """First and last sequence that this portion covers, including rows without a wanted metric."""
    rows: int = 0
    """Rows that have a wanted metric."""

    def firsts(self) -> dict[Place, int]:
        """Return the first sequence of each rank and attempt, where it is not 0."""
        found = {place: ends[0] for place, ends in self.passed.items() if ends[0] > 0}
        points = self.points
        if len(points):
            found.setdefault((int(points.rank[0]), int(points.attempt[0])), int(points.seq[0]))
        return found

    def oldest(self) -> float | None:
        """Return when (unix seconds) the oldest point was recorded; None without points."""
        return int(self.points.time.min()) / 1e6 if len(self.points) else None


def add_span(spans: Spans, place: Place, first: int, last: int) -> None:
    """Add a span, and join it with those that it touches."""
    kept, joined = [], [first, last]
    for low, high in spans.get(place, []):
        if low > joined[1] + 1 or high < joined[0] - 1:
            kept.append([low, high])
        else:
            joined = [min(low, joined[0]), max(high, joined[1])]
    spans[place] = sorted([*kept, joined])


def spans_from(sent: Mapping[str, list[list[int]]]) -> Spans:
    """Return the spans in a state file; entries that are not ours are left out."""
    found: Spans = {}
    for key, pairs in sent.items():
        rank, _, attempt = key.rpartition(".")
        if rank.removeprefix("-").isdecimal() and attempt.isdecimal():
            for first, last in pairs:
                add_span(found, (int(rank), int(attempt)), first, last)
    return found


def spans_to(spans: Spans) -> dict[str, list[list[int]]]:
    """Return spans as a state file has them."""
    return {f"{rank}.{attempt}": pairs for (rank, attempt), pairs in sorted(spans.items())}


def is_before(spans: Spans, place: Place, sequence: int) -> bool:
    """Return whether everything up to a sequence was sent."""
    pairs = spans.get(place, [])
    return bool(pairs) and pairs[0][0] <= 0 and sequence <= pairs[0][1]


def unsent(points: Points, spans: Spans) -> Points:
    """Return the points that are in none of the spans."""
    keep = np.ones(len(points), bool)
    for (rank, attempt), pairs in spans.items():
        own = (points.rank == rank) & (points.attempt == attempt)
        if own.any():
            for first, last in pairs:
                keep &= ~(own & (points.seq >= first) & (points.seq <= last))
    return points if keep.all() else points.select(keep)


class Spool:
    """A reader of the rows that some watchers of a run have written."""

    def __init__(
        self,
        folder: RunFolder,
        is_ours: Callable[[Writer], bool],
        spans: Spans,
        wants: Callable[[str], bool],
        *,
        after: int | None = None,
    ) -> None:
        """Read nothing yet.

        Args:
            folder: the run.
            is_ours: which watchers to read.
            spans: what was sent; may grow while this reads.
            wants: which metrics to hand out.
            after: begin with the newest file, and in it with rows younger than this (microseconds since 1970 UTC):
                what is older is left to another reader.
        """
        self._folder, self._is_ours, self._spans, self._wants, self._after = folder, is_ours, spans, wants, after
        self._walks: dict[Writer, Iterator[Points | None]] = {}
        self._seen: dict[Writer, dict[int, int]] = {}
        self._taken: dict[Place, int] = {}
        """The highest sequence that was handed out."""
        self._waiting: Iterator[Portion] = iter(())
        self._wanted: dict[str, bool] = {}
        self._connection: duckdb.DuckDBPyConnection | None = None

    def take(self, most: int) -> Portion | None:
        """Return the next rows, about `most` points; None if there are none for now."""
        portion = next(self._waiting, None)
        if portion is None:
            points = self._next()
            if points is None:
                return None
            self._waiting = self._portions(points, most)
            portion = next(self._waiting)
        for place, (_, last) in portion.passed.items():
            self._taken[place] = last
        left = unsent(portion.points, self._spans)  # another reader may have come first since these were read
        return portion if left is portion.points else portion._replace(points=left, rows=len(row_starts(left)))

    def close(self) -> None:
        """Close the files."""
        for walk in self._walks.values():
            walk.close()  # type: ignore[attr-defined] # they are generators
        self._walks.clear()
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _next(self) -> Points | None:
        """Return the next points of any watcher; None if there are none for now."""
        for writer in self._writers():
            walk = self._walks.setdefault(writer, self._walk(writer))
            try:
                for points in walk:
                    if points is None:
                        break
                    fresh = self._new(points)
                    if len(fresh):
                        return fresh
            except BaseException:
                self._begin_again(writer)
                raise
        return None

    def _begin_again(self, writer: Writer) -> None:
        """Forget how far a watcher was read: after an error its walk would end, as if there were no more rows."""
        self._walks.pop(writer).close()  # type: ignore[attr-defined] # it is a generator
        self._seen.pop(writer, None)
        if self._after is not None:  # it begins with the newest file again: what lies between was not handed out
            self._taken.clear()

    def _writers(self) -> list[Writer]:
        spans = [*self._folder.all_tails(), *self._folder.all_units()]
        return sorted({span.writer for span in spans if self._is_ours(span.writer)})

    def _files(self, writer: Writer) -> list[FileSpan]:
        """Return the files of a watcher: sealed ones, and its tails."""
        tails = self._folder.all_tails()  # listed first: a tail that is being sealed now is then in one of the two
        return [span for span in [*self._folder.units(), *tails] if span.writer == writer]

    def _walk(self, writer: Writer) -> Iterator[Points | None]:
        """Yield the points of a watcher's files one after another, and None while there are none."""
        files = self._files(writer)
        first = (span.first for span in files)
        number = (max if self._after is not None else min)(first, default=0)
        while True:
            span = _at(self._files(writer), number)
            if span is None:
                yield None
                continue
            try:
                yield from self._tail(span) if _is_tail(span) else self._sealed(span)
            except FileNotFoundError:  # sealed, merged or deleted since it was listed
                continue
            number = span.last + 1

    def _tail(self, span: FileSpan) -> Iterator[Points | None]:
        """Yield what is appended to a tail until it is closed; it stays readable after it was sealed and deleted."""
        tail = GrowingTail(span.path, PART_BYTES)
        seen = self._seen.setdefault(span.writer, {})
        is_closed = False
        try:
            while True:
                points = tail.read(seen)
                if len(points):
                    yield points
                elif tail.is_read and is_closed:
                    return
                elif tail.is_read:  # what was written before it was closed may have come since
                    later = [other for other in self._files(span.writer) if other.last >= span.first]
                    is_closed = any(other.last > span.first or not _is_tail(other) for other in later)
                    if not is_closed:
                        yield None
        finally:
            tail.close()

    def _sealed(self, span: FileSpan) -> Iterator[Points]:
        """Yield the points of a sealed file, which is not opened if everything in it was sent."""
        unit = open_sealed(span.path)
        places = [((int(rank), span.writer.attempt), last) for rank, last in unit.last_seq.items()]
        if not all(is_before(self._spans, place, last) for place, last in places):
            if self._connection is None:
                self._connection = connect(memory=READER_MEMORY)
            yield from of_unit(unit, self._connection)

    def _new(self, points: Points) -> Points:
        """Return the points that were neither sent nor handed out, in the order of their rows."""
        points = unsent(points, self._spans)
        for place in _places(points):
            own = (points.rank == place[0]) & (points.attempt == place[1])
            first = self._taken.get(place, -1) + 1
            if self._after is not None and place not in self._taken:
                young = points.seq[own & (points.time > self._after)]
                first = int(young.min()) if len(young) else LAST
            if first > 0:
                points = points.select(~(own & (points.seq < first)))
        return points.select(np.lexsort((points.name, points.seq, points.attempt, points.rank)))

    def _portions(self, points: Points, most: int) -> Iterator[Portion]:
        """Yield points in portions of whole rows; together they cover every row, also those without a wanted metric."""
        ends = {place: int(points.seq[_of(points, place)].max()) for place in _places(points)}
        reached = {place: self._begin(points, place) for place in ends}
        points = points.select(np.isin(points.name, [code for code, name in enumerate(points.names) if self._is(name)]))
        starts = row_starts(points)
        cuts = [0]
        for start, end in itertools.pairwise([*starts.tolist(), len(points)]):
            if end - cuts[-1] > most and start > cuts[-1]:
                cuts.append(start)
        for first, end in itertools.pairwise([*cuts, len(points)]) if len(points) else ():
            part = points.select(slice(first, end))
            passed = {}
            for place in _places(part):
                last = int(part.seq[_of(part, place)].max())
                passed[place] = (reached[place], last)
                reached[place] = last + 1
            yield Portion(part, passed, int(np.count_nonzero((starts >= first) & (starts < end))))
        rest = {place: (reached[place], end) for place, end in ends.items() if end >= reached[place]}
        if rest or not len(points):
            yield Portion(Points.empty(), rest)

    def _begin(self, points: Points, place: Place) -> int:
        """Return the first sequence that these points cover."""
        if place in self._taken:
            return self._taken[place] + 1
        return 0 if self._after is None else int(points.seq[_of(points, place)].min())

    def _is(self, name: str) -> bool:
        """Return whether a metric is wanted."""
        if name not in self._wanted:
            self._wanted[name] = self._wants(name)
        return self._wanted[name]


def _places(points: Points) -> list[Place]:
    if not len(points):
        return []
    rank, attempt = points.rank, points.attempt
    if (rank == rank[0]).all() and (attempt == attempt[0]).all():
        return [(int(rank[0]), int(attempt[0]))]  # the usual case, much cheaper
    both = rank.astype(np.int64) << 32 | attempt.astype(np.int64)
    return [(int(one) >> 32, int(one) & 0xFFFFFFFF) for one in np.unique(both)]


def _of(points: Points, place: Place) -> NDArray[np.bool_]:
    own: NDArray[np.bool_] = (points.rank == place[0]) & (points.attempt == place[1])
    return own


def _at(files: list[FileSpan], number: int) -> FileSpan | None:
    """Return the file that holds a tail, else the next one; a sealed file rather than the tail itself."""
    later = [span for span in files if span.last >= number]
    return min(later, key=lambda span: (max(span.first, number), _is_tail(span)), default=None)


def _is_tail(span: FileSpan) -> bool:
    return span.path.parent.name == "tail"


class Frontier:
    """How far the rows on disk go, for counting those that a sink does not have yet."""

    def __init__(self, folder: RunFolder, is_ours: Callable[[Writer], bool]) -> None:
        """Read nothing yet."""
        self._folder, self._is_ours = folder, is_ours
        self._follower: TailFollower | None = None

    def newest(self) -> dict[Place, int]:
        """Return the highest sequence on disk of each rank and attempt."""
        if self._follower is None:
            self._follower = TailFollower(self._folder)
        self._follower.look()
        found: dict[Place, int] = {}
        for writer, rank, last in [*self._follower.newest(), *self._sealed()]:
            if self._is_ours(writer):
                place = (rank, writer.attempt)
                found[place] = max(found.get(place, -1), last)
        return found

    def _sealed(self) -> Iterator[tuple[Writer, int, int]]:
        for span in self._folder.units():
            with contextlib.suppress(FileNotFoundError):  # merged since it was listed: its rows are in the other file
                for rank, last in _last_sequences(span.path).items():
                    yield span.writer, int(rank), last

    def close(self) -> None:
        """Close the files."""
        if self._follower is not None:
            self._follower.close()
            self._follower = None


@functools.lru_cache(maxsize=1000)
def _last_sequences(path: Path) -> Mapping[str, int]:
    """Return the highest sequence of each rank in a sealed file, which never changes."""
    return open_sealed(path).last_seq


def count_behind(newest: Mapping[Place, int], spans: Spans, first: Mapping[Place, int]) -> int:
    """Return the number of rows up to `newest` that are in none of the spans; `first` is the first known of each."""
    behind = 0
    for place, last in newest.items():
        pairs = spans.get(place, [])
        start = first.get(place, 0 if place[0] >= 0 or pairs else last + 1)  # a watcher does not count from 0
        if pairs and pairs[0][0] <= 0:
            start = pairs[0][1] + 1
        inside = sum(min(high, last) - max(low, start) + 1 for low, high in pairs if high >= start and low <= last)
        behind += max(0, last + 1 - start - inside)
    return behind
