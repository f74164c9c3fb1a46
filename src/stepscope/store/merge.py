"""Merge sealed units of one writer, a slice at a time, so that memory does not grow with their size.

Every unit is sorted by series, so the lengths of the series determine where each point belongs. A slice of the merged
order is one range of rows of each unit; it becomes row groups, which are joined into one file.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from stepscope.store import checksum, footer, parquet, pyramid
from stepscope.store.checksum import BLOCKS, POINTS, UnitSum
from stepscope.store.footer import FooterError
from stepscope.store.points import Points, in_order
from stepscope.store.sealed import Disk, open_sealed, place_sealed

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    import duckdb
    from numpy.typing import NDArray

SLICE = 2 * 98_304
"""Maximum points in memory: two row groups, and a multiple of the largest block."""

_CHUNK = 1 << 20
"""Bytes copied at once."""
_MEMORY = "64MB"
_BLOCKS_AT_ONCE = 16_384
_SERIES_AT_ONCE = 100_000
_PROBLEMS = 100
"""Maximum problems that a merged unit remembers."""
_KEYS = ("name", "rank", "attempt")


class UnmergeableError(ValueError):
    """The units do not have the form a merge needs; they stay as they are."""


@dataclass
class CombinedSums:
    """The combined contents of the units' `.sum` files."""

    files: list[Path] = field(default_factory=list)
    """The units' files of points, where a unit has points."""
    names: set[str] = field(default_factory=set)
    last_seq: dict[str, int] = field(default_factory=dict)
    times: list[int] = field(default_factory=list)
    """First and last time of each unit that has points, in microseconds since 1970 UTC."""
    problems: list[str] = field(default_factory=list)
    merged: int = 0
    """Number of units as they were first sealed."""


@dataclass(frozen=True)
class Slice:
    """A range of the merged order: one range of rows of each file that contributes."""

    files: NDArray[np.int64]
    """For each extent (the points of one series in one file), ordered by file and row: the file."""
    series: NDArray[np.int64]
    row: NDArray[np.int64]
    """First row in the file."""
    count: NDArray[np.int64]

    def ranges(self) -> list[tuple[int, int, int]]:
        """Return file, first row, and row after the last, for each file."""
        starts = np.flatnonzero(np.diff(self.files, prepend=-1))
        totals = np.add.reduceat(self.count, starts) if len(starts) else starts
        first = self.row[starts]
        return list(zip(self.files[starts].tolist(), first.tolist(), (first + totals).tolist(), strict=True))


class Order:
    """The merged order of points, from the lengths of each file's series. An extent is a series' part of a file."""

    def __init__(self, found: Mapping[str, NDArray[np.int64]]) -> None:
        """Build the order from the result of `parquet.series_of`; raise UnmergeableError if a file is not sorted."""
        before = np.cumsum(found["count"]) - found["count"]
        first = np.searchsorted(found["file"], found["file"])
        if not np.array_equal(before - before[first], found["row"]):  # its series do not lie one after another
            raise UnmergeableError("a file is not sorted by series")
        order = np.lexsort([found[key] for key in ("file", *reversed(_KEYS))])
        extents = {key: column[order] for key, column in found.items()}
        new = np.ones(len(order), bool)
        new[1:] = np.any([extents[key][1:] != extents[key][:-1] for key in _KEYS], axis=0)
        first = np.flatnonzero(new)
        self._series = np.cumsum(new) - 1
        self._file, self._row = extents["file"], extents["row"]
        self._end = np.cumsum(extents["count"])
        self._start = self._end - extents["count"]
        mixed = np.zeros(len(order), bool)
        mixed[1:] = (extents["low"][1:] < extents["high"][:-1]) & ~new[1:]
        self._mixed = pyramid.reduce_by(np.logical_or, mixed, first)
        self.name, self.rank, self.attempt = (extents[key][first].astype(np.int32) for key in _KEYS)
        self.low = pyramid.reduce_by(np.minimum, extents["low"], first)
        self.high = pyramid.reduce_by(np.maximum, extents["high"], first)
        self.start = np.append(self._start[first], found["count"].sum())
        """Where each series starts in the merged order, and where the last one ends."""
        self.rows = np.bincount(found["file"], found["count"]).astype(np.int64)
        """Points of each file."""

    @property
    def lengths(self) -> NDArray[np.int64]:
        """The points of each series."""
        return np.diff(self.start)

    def counts(self, names: Sequence[str]) -> dict[str, tuple[int, int]]:
        """Return the points of each name, and how many of them belong to series too short for blocks."""
        lengths = self.lengths
        short = np.where(lengths < pyramid.SHORT, lengths, 0)
        columns = [np.bincount(self.name, part, len(names)).astype(np.int64).tolist() for part in (lengths, short)]
        return dict(zip(names, zip(*columns, strict=True), strict=True))

    def cuts(self, limit: int) -> Iterator[tuple[int, int]]:
        """Return ranges of at most `limit` points that do not split a block.

        Raises UnmergeableError if the sequences of a longer series are interleaved over several files.
        """
        block = max(pyramid.LEVELS)
        at, end = 0, int(self.start[-1])
        while at < end:
            cut = min(at + limit, end)
            if cut < end:
                series = int(np.searchsorted(self.start, cut, side="right")) - 1
                begin = int(self.start[series])
                cut = begin if self._mixed[series] else begin + (cut - begin) // block * block
            if cut <= at:
                raise UnmergeableError("a long series is mixed over several files")
            yield at, cut
            at = cut

    def slice(self, first: int, last: int) -> Slice:
        """Return where the points from position `first` to before `last` are."""
        some = slice(int(np.searchsorted(self._end, first, side="right")), int(np.searchsorted(self._start, last)))
        low, high = np.maximum(self._start[some], first), np.minimum(self._end[some], last)
        row = self._row[some] + (low - self._start[some])
        by_file = np.argsort(self._file[some], kind="stable")
        return Slice(self._file[some][by_file], self._series[some][by_file], row[by_file], (high - low)[by_file])

    def short(self, first: int, last: int) -> NDArray[np.bool_]:
        """Return which points of a range belong to series that are too short for blocks."""
        inside = np.diff(np.clip(self.start, first, last))
        return np.repeat(self.lengths < pyramid.SHORT, inside)


def merge(
    directory: Path, stem: str, units: Sequence[Path], *, disk: Disk | None = None, slice_points: int = SLICE
) -> Path:
    """Merge verified units of one writer, given by their files of points in order of their tails; return the new one.

    The stem covers the units. `slice_points`, at least 4096, is the maximum number of points in memory.

    Raises:
        UnmergeableError: they are not sorted as sealed files are.
        OSError: a disk operation failed; the units are untouched and nothing new is visible.
    """
    disk = disk or Disk()
    sums = gather(units)
    return place_sealed(directory, stem, lambda parts: _fill(parts, sums, slice_points, disk), disk)


def gather(units: Sequence[Path]) -> CombinedSums:
    """Combine the `.sum` files, one at a time, because all their names together can be many."""
    sums = CombinedSums()
    for path in units:
        unit = open_sealed(path)
        sums.names.update(unit.names)
        for rank, seq in unit.last_seq.items():
            sums.last_seq[rank] = max(seq, sums.last_seq.get(rank, seq))
        if unit.names:
            sums.files.append(path)
            sums.times += [unit.first_time, unit.last_time]
        sums.problems += [problem.what for problem in unit.problems]
        sums.merged += int(unit.info.get("merged", 1))
    return sums


def _fill(parts: Mapping[str, Path], sums: CombinedSums, limit: int, disk: Disk) -> UnitSum:
    """Write the files of a merged unit and return their checksums."""
    names = sorted(sums.names)
    with contextlib.ExitStack() as stack:
        piece, *files = (_scratch(parts[POINTS], word, disk, stack) for word in ("piece", *map(str, pyramid.LEVELS)))
        connection = stack.enter_context(parquet.connect(1, _MEMORY, [*sums.files, piece, parts[POINTS]]))
        order = Order(_survey(connection, sums.files, names))
        merger = _Merger(connection, sums.files, names, order, piece, disk)
        merger.write_points(parts[POINTS], files, limit)
        merger.join_levels(parts[BLOCKS], files[::-1])
        merger.compare(parts[POINTS])
    problems, more = sums.problems[:_PROBLEMS], len(sums.problems) - _PROBLEMS
    return UnitSum(
        points=checksum.describe(parts[POINTS]),
        blocks=checksum.describe(parts[BLOCKS]),
        names=order.counts(names),
        last_seq=sums.last_seq,
        first_time=min(sums.times, default=0),
        last_time=max(sums.times, default=0),
        problems=problems if more <= 0 else [*problems, f"and {more} more problems"],
        info={"merged": sums.merged},
    )


def _survey(
    connection: duckdb.DuckDBPyConnection, files: Sequence[Path], names: list[str]
) -> dict[str, NDArray[np.int64]]:
    """Return the series of each file, reading only as many at once as DuckDB's memory holds."""
    step = max(1, _SERIES_AT_ONCE // max(1, len(names)))
    parts = [parquet.series_of(connection, files[at : at + step], names) for at in range(0, max(1, len(files)), step)]
    for index, part in enumerate(parts):
        part["file"] += index * step
    return parquet.joined_columns(parts)


def _scratch(points: Path, word: str, disk: Disk, stack: contextlib.ExitStack) -> Path:
    """Create an empty file that is deleted with the stack; its name lets a later cleanup find it."""
    path = checksum.beside(points, f".{word}{POINTS}")

    @stack.callback
    def remove() -> None:
        # Readers ignore a file that cannot be deleted now, and the next writer deletes it.
        with contextlib.suppress(OSError):
            disk.unlink(path)

    disk.close(disk.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW))
    return path


class JoinedFile:
    """A Parquet file that grows by the row groups of others: their bytes are copied, only the footer is new.

    All of them must have the same columns.
    """

    def __init__(self, target: int, disk: Disk) -> None:
        self._target, self._disk = target, disk
        self._template: footer.Footer | None = None
        self._entries: list[bytes] = []
        self._end = 0
        self.rows = 0

    def append(self, piece: Path) -> None:
        """Add the row groups of a file; raise FooterError if it is not a Parquet file, or has other columns."""
        source = os.open(piece, os.O_RDONLY | os.O_CLOEXEC)
        try:
            size = os.fstat(source).st_size
            start, length = footer.locate(size, os.pread(source, footer.TAIL_BYTES, max(0, size - footer.TAIL_BYTES)))
            found = footer.parse(os.pread(source, length, start))
            if self._entries and found.groups and not footer.same_columns(found, self._template or found):
                raise FooterError("cannot join Parquet files: their columns differ")
            if not self._entries:
                self._template = found
            self._copy(source, found, start)
        finally:
            os.close(source)

    def _copy(self, source: int, found: footer.Footer, end: int) -> None:
        if not found.groups:
            return
        if not self._end:
            self._write(footer.MAGIC)
        first = found.groups[0].offset
        shift = self._end - first
        self._entries += [footer.moved(found, group, shift) for group in found.groups]
        self.rows += found.rows
        while first < end:
            data = os.pread(source, min(_CHUNK, end - first), first)
            if not data:
                raise FooterError("cannot join Parquet files: one ends too early")
            self._write(data)
            first += len(data)

    def _write(self, data: bytes) -> None:
        self._end += len(data)
        while data:
            data = data[self._disk.write(self._target, data) :]

    def finish(self) -> None:
        """Write the footer, if anything was appended."""
        if self._template is None:
            return
        if not self._end:
            self._write(footer.MAGIC)
        end = footer.with_row_groups(self._template, self._entries, self.rows)
        self._write(end + footer.tail(end))


@contextlib.contextmanager
def joining(path: Path, disk: Disk) -> Iterator[JoinedFile]:
    """Open an existing empty file; finish it if the block succeeds, and close it in any case."""
    descriptor = disk.open(path, os.O_WRONLY)
    try:
        joined = JoinedFile(descriptor, disk)
        yield joined
        joined.finish()
    finally:
        disk.close(descriptor)


class _Merger:
    """A merge in progress: its sources, and the scratch file through which everything is written."""

    def __init__(
        self,
        connection: duckdb.DuckDBPyConnection,
        units: Sequence[Path],
        names: list[str],
        order: Order,
        piece: Path,
        disk: Disk,
    ) -> None:
        self._connection, self._units, self._names = connection, units, names
        self._order, self._piece, self._disk = order, piece, disk

    def write_points(self, target: Path, files: Sequence[Path], limit: int) -> None:
        """Write the points to one file and each level of the pyramid to another."""
        with contextlib.ExitStack() as stack:
            joined, *rest = (stack.enter_context(joining(path, self._disk)) for path in (target, *files))
            waiting: dict[int, list[dict[str, NDArray[Any]]]] = {level: [] for level in pyramid.LEVELS}
            for first, last in self._order.cuts(limit):
                points = self.read(first, last)
                self.append_points(points, joined)
                short = self._order.short(first, last)
                points = points.select(~short) if short.any() else points
                for level, file in zip(pyramid.LEVELS, rest, strict=True):
                    waiting[level].append(parquet.level_columns(points, level))
                    waiting[level] = self.write_level(waiting[level], file, _BLOCKS_AT_ONCE)
            for level, file in zip(pyramid.LEVELS, rest, strict=True):
                self.write_level(waiting[level], file, 1)
            if not joined.rows:
                self.append_points(Points.empty(), joined)

    def append_points(self, points: Points, target: JoinedFile) -> None:
        """Append sorted points as row groups."""
        parquet.write_points(self._connection, self._piece, points, self._disk.copy)
        target.append(self._piece)

    def write_level(
        self, waiting: list[dict[str, NDArray[Any]]], target: JoinedFile, at_once: int
    ) -> list[dict[str, NDArray[Any]]]:
        """Write as many blocks of a level as are a multiple of `at_once`; return the others."""
        rows = sum(len(part["level"]) for part in waiting)
        ready = rows - rows % at_once
        if not ready:
            return waiting
        columns = parquet.joined_columns(waiting)
        self.write_blocks({key: column[:ready] for key, column in columns.items()}, target)
        return [{key: column[ready:].copy() for key, column in columns.items()}]

    def write_blocks(self, columns: dict[str, NDArray[Any]], target: JoinedFile) -> None:
        """Write blocks as row groups."""
        parquet.write_blocks(self._connection, self._piece, columns, self._disk.copy)
        target.append(self._piece)

    def join_levels(self, target: Path, files: Sequence[Path]) -> None:
        """Join the levels into one file, the coarsest first."""
        with joining(target, self._disk) as joined:
            for file in files:
                if file.stat().st_size:
                    joined.append(file)
            if not joined.rows:
                self.write_blocks(parquet.pyramid_columns(Points.empty()), joined)

    def read(self, first: int, last: int) -> Points:
        """Return a slice of the merged order."""
        found = self._order.slice(first, last)
        ranges = found.ranges()
        parts = list(self._columns(ranges))
        columns = parts[0] if len(parts) == 1 else parquet.joined_columns(parts)
        expected = np.concatenate([np.arange(begin, end) for _, begin, end in ranges])
        if not np.array_equal(columns.pop("row"), expected):
            raise UnmergeableError("rows came in another order than they lie in the file")
        codes = {key: np.repeat(getattr(self._order, key)[found.series], found.count) for key in _KEYS}
        return in_order(Points(self._names, **codes, **columns))

    def _columns(self, ranges: Sequence[tuple[int, int, int]]) -> Iterator[dict[str, NDArray[Any]]]:
        """Read ranges of rows; consecutive files of which all rows are wanted are read at once."""
        whole: list[Path] = []
        for file, begin, end in ranges:
            path = self._units[file]
            if (begin, end) == (0, self._order.rows[file]):
                whole.append(path)
                continue
            if whole:
                yield parquet.rows_of(self._connection, whole)
                whole = []
            yield parquet.rows_of(self._connection, [path], (begin, end))
        if whole:
            yield parquet.rows_of(self._connection, whole)

    def compare(self, written: Path) -> None:
        """Read the merged series back, because their units will be deleted; raise FooterError if they differ."""
        found = parquet.series_of(self._connection, [written], self._names)
        order = self._order
        same = [np.array_equal(found[key], getattr(order, key)) for key in (*_KEYS, "low", "high")]
        if not all(same) or not np.array_equal(np.append(found["row"], found["count"].sum()), order.start):
            raise FooterError("what was merged does not read as what was sealed")
