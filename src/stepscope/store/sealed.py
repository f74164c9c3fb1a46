"""Sealed metric files: immutable Parquet with checksums and a pyramid, written once.

A unit is `<stem>.parquet` (points), `<stem>.blocks.parquet` (pyramid) and `<stem>.sum`, in the `metrics` folder of a
run. The first appears last, so a listing of `*.parquet` shows only complete units.
"""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import numpy as np

from stepscope.core.ring import NO_STEP
from stepscope.store import checksum, parquet, pyramid
from stepscope.store.block_cache import Pieces, read_through
from stepscope.store.checksum import BLOCKS, POINTS, SUM, Checked, FileSum, Problem, SealedUnit, UnitSum, beside
from stepscope.store.footer import FooterError
from stepscope.store.parquet import EVERYTHING, Fetched, Selection
from stepscope.store.points import NO_NS, Points, in_order, series_bounds, with_sorted_names
from stepscope.store.pyramid import Blocks

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from stepscope.store.block_cache import BlockCache

TEMPORARY = ".tmp-"
"""Prefix of files that are still being written; readers ignore them."""
_WRITER_MEMORY = "96MB"
_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EFBIG, errno.EACCES)
_CHECKED = Checked()


class Disk:
    """The writer's system calls in one place, so that a test can make each of them fail."""

    write = staticmethod(os.write)
    fsync = staticmethod(os.fsync)
    close = staticmethod(os.close)

    def open(self, path: Path, flags: int) -> int:
        """Open a file; a new one is private to the user."""
        return os.open(path, flags | os.O_CLOEXEC, 0o600)

    def copy(self, connection: duckdb.DuckDBPyConnection, query: str) -> None:
        """Let DuckDB write a file."""
        connection.execute(query)

    def rename(self, source: Path, target: Path) -> None:
        """Give a file its final name."""
        source.replace(target)

    def unlink(self, path: Path) -> None:
        """Delete a file, if it exists."""
        path.unlink(missing_ok=True)


def remove_sealed(path: Path) -> None:
    """Delete a unit, starting with the file that makes it visible."""
    for part in (path, beside(path, SUM), beside(path, BLOCKS)):
        part.unlink(missing_ok=True)


def write_sealed(
    directory: Path,
    stem: str,
    points: Points,
    *,
    last_seq: Mapping[str, int],
    problems: Sequence[str] = (),
    info: Mapping[str, Any] | None = None,
    disk: Disk | None = None,
) -> Path:
    """Seal points, in any order, as one unit; return its file of points and raise as `place_sealed` does.

    `last_seq` is the highest record sequence by rank, `problems` what could not be read in the tail, for readers to
    show, and `info` further facts of plain JSON types.
    """
    disk = disk or Disk()
    facts = {"last_seq": dict(last_seq), "problems": list(problems), "info": dict(info or {})}

    def fill(parts: Mapping[str, Path]) -> UnitSum:
        return _write_parts(parts, in_order(with_sorted_names(points)), facts, disk)

    return place_sealed(directory, stem, fill, disk)


def place_sealed(directory: Path, stem: str, fill: Callable[[Mapping[str, Path]], UnitSum], disk: Disk) -> Path:
    """Create a unit in the `metrics` folder of a run and return its file of points, which is durable on return.

    `fill` writes the files POINTS and BLOCKS, which exist and are empty, and returns their checksums. The stem is
    `<host>-<attempt>-<first>-<last>`.

    Raises:
        FileExistsError: a unit of that stem exists already; it is unchanged.
        OSError: a disk operation failed; no part of the unit is visible.
    """
    if stem.startswith(".") or os.sep in stem or stem.count("-") < 3:
        raise ValueError(f"cannot seal a unit named {stem!r}: not <host>-<attempt>-<first>-<last>")
    target = directory / f"{stem}{POINTS}"
    if target.exists():
        raise _refusal(errno.EEXIST, "the unit is already sealed", target)
    _sweep(directory, stem, disk)
    parts = {part: directory / f"{TEMPORARY}{stem}{part}" for part in (BLOCKS, SUM, POINTS)}
    placed: list[Path] = []
    try:
        for path in parts.values():
            disk.close(disk.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW))
        _persist(parts[SUM], os.O_WRONLY, disk, checksum.encode(_filled(fill, parts)))
        for part in (POINTS, BLOCKS):
            _persist(parts[part], os.O_RDONLY, disk)
        for part, temporary in parts.items():
            placed.append(beside(target, part))
            disk.rename(temporary, placed[-1])
        _persist(directory, os.O_RDONLY | os.O_DIRECTORY, disk)
    except BaseException:
        for path in [*reversed(placed), *parts.values()]:
            # A file that cannot be deleted now has a name that readers ignore, or its unit is not visible.
            with contextlib.suppress(OSError):
                disk.unlink(path)
        raise
    return target


def open_sealed(path: Path, *, connection: duckdb.DuckDBPyConnection | None = None) -> SealedUnit:
    """Read the `.sum` of a unit, without touching the Parquet; raise FileNotFoundError if the unit is gone.

    A missing or damaged `.sum` is reported in `problems`, and the same facts are read from the file itself.
    """
    try:
        sums = checksum.decode(beside(path, SUM).read_bytes())
    except (OSError, checksum.SumError) as error:
        cause = error.strerror if isinstance(error, OSError) else str(error)
        problem = Problem(str(path), f"its .sum cannot be used ({cause}); it is read without comparing it")
        with contextlib.ExitStack() as stack:
            return _unverified(path, problem, connection or stack.enter_context(parquet.connect()))
    names = {name: count for name, (count, _) in sums.names.items()}
    problems = tuple(Problem(str(path), what) for what in sums.problems)
    return SealedUnit(path, names, sums.last_seq, sums.first_time, sums.last_time, sums.info, problems, sums)


def read_points(
    units: Iterable[SealedUnit],
    selection: Selection = EVERYTHING,
    *,
    connection: duckdb.DuckDBPyConnection | None = None,
    checked: Checked = _CHECKED,
) -> tuple[Points, list[Problem]]:
    """Return the points of many units, ordered by name, rank, attempt and seq, and what could not be read.

    Without a connection it creates one; `checked` remembers which bytes were verified. Raises FileNotFoundError if a
    unit is gone: list again.
    """
    with contextlib.ExitStack() as stack:
        reader = _UnitReader(connection or stack.enter_context(parquet.connect()), checked)
        found = reader.read(selection, list(units))
    return in_order(found.points()), reader.problems


def read_blocks(
    units: Iterable[SealedUnit],
    selection: Selection,
    *,
    connection: duckdb.DuckDBPyConnection | None = None,
    checked: Checked = _CHECKED,
    cache: BlockCache | None = None,
) -> tuple[Blocks, list[Problem]]:
    """Return blocks of up to `selection.level` points that hold every readable point of the units once.

    Blocks of series too short to have any, and of units with a damaged pyramid, are built from the points. Blocks are
    ordered by name, rank, attempt and first seq. Blocks of given names in `cache` are not read again. Raises
    FileNotFoundError if a unit is gone: list again.
    """
    steps, times = selection.step_range, selection.time_range
    selection = replace(selection, time_range=None)
    with contextlib.ExitStack() as stack:
        reader = _UnitReader(connection or stack.enter_context(parquet.connect()), checked)
        if cache is None or selection.names is None:
            parts = reader.pieces(selection, list(units)).blocks()
        else:
            parts = read_through(cache, reader, replace(selection, step_range=None), list(units), (steps, times))
    blocks = pyramid.ordered(Blocks.concat(parts))
    if steps is not None:
        overlap = (blocks.high_step >= steps[0]) & (blocks.low_step <= steps[1])
        blocks = blocks.select(overlap & (blocks.high_step != NO_STEP))
    if times is not None:
        blocks = blocks.select((blocks.high_time >= times[0]) & (blocks.low_time <= times[1]))
    return blocks, reader.problems


class _UnitReader:
    """One read: verifies files before DuckDB sees them, and collects problems."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, checked: Checked) -> None:
        self._connection = connection
        self._checked = checked
        self.problems: list[Problem] = []

    def read(self, selection: Selection, units: Sequence[SealedUnit]) -> Fetched:
        """Return the result of a selection; `Fetched.file` is the index into the units."""
        with contextlib.ExitStack() as stack:
            sources: dict[int, Path] = {}
            for index, unit in enumerate(units):
                source = self._source(unit, selection, stack) if _names_in(unit, selection.names) else None
                if source is not None:
                    sources[index] = source
            return self._fetch(selection, sources, units)

    def pieces(self, selection: Selection, units: Sequence[SealedUnit]) -> Pieces:
        """Return blocks that hold every point once, some of them built from points."""
        ready: list[SealedUnit] = []
        rest: list[SealedUnit] = []
        for unit in units:
            if _names_in(unit, selection.names):
                (ready if self._has_pyramid(unit, selection) else rest).append(unit)
        found = self.read(selection, ready)
        short = self._short(selection, ready, found)
        points = self.read(replace(selection, level=None, step_range=None), rest)
        return Pieces(ready, found, short, [pyramid.build(part, selection.level or 0) for _, part in points.by_file()])

    def _short(self, selection: Selection, units: Sequence[SealedUnit], found: Fetched) -> list[tuple[int, Blocks]]:
        """Build the blocks of series that are too short to have any in their unit."""
        sums = {name: count for unit in units if unit.sums for name, (_, count) in unit.sums.names.items() if count}
        short = sums.keys() if selection.names is None else sums.keys() & selection.names
        if not short:
            return []
        known = _series(found)
        points = self.read(replace(selection, level=None, names=short, step_range=None), units)
        return [
            (file, pyramid.build(_without(part, file, known), selection.level or 0)) for file, part in points.by_file()
        ]

    def _source(self, unit: SealedUnit, selection: Selection, stack: contextlib.ExitStack) -> Path | None:
        """Return the file to read: the unit's own, a repaired copy, or None if nothing of it is readable."""
        path = unit.path if selection.level is None else unit.blocks_path
        if unit.sums is None:
            path.stat()
            self.problems += unit.problems
            return path
        sums = unit.sums.points if selection.level is None else unit.sums.blocks
        try:
            wanted = sums.groups_for(selection.names, selection.level)
            findings = self._checked.check(path, sums, wanted)
            if findings.framed and not findings.damaged:
                return path
            self._report(path, sums, findings)
            copy = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="stepscope-"))) / path.name
            checksum.repair(path, sums, set(wanted) - findings.damaged, copy)
        except FileNotFoundError:
            raise
        except OSError as error:
            self.problems.append(Problem(str(path), f"it cannot be read: {error.strerror}"))
            return None
        return copy

    def _has_pyramid(self, unit: SealedUnit, selection: Selection) -> bool:
        """Return whether the requested blocks of a unit exist and are intact."""
        if unit.sums is None:
            return False
        wanted = unit.sums.blocks.groups_for(selection.names, selection.level)
        cause = "its checksum does not match"
        try:
            if not self._checked.check(unit.blocks_path, unit.sums.blocks, wanted).damaged:
                return True
        except OSError as error:
            unit.path.stat()  # raises if the unit itself is gone: the caller lists again
            cause = str(error.strerror)
        what = f"it cannot be used ({cause}); the points are read instead"
        self.problems.append(Problem(str(unit.blocks_path), what))
        return False

    def _report(self, path: Path, sums: FileSum, findings: checksum.Findings) -> None:
        if not findings.framed:
            self.problems.append(Problem(str(path), "its footer or length is not as written; the copy in .sum is used"))
        for index in sorted(findings.damaged):
            rows = sums.groups[index].rows
            what = f"row group {index} does not match its checksum; {rows} entries are left out"
            self.problems.append(Problem(str(path), what, rows))

    def _fetch(self, selection: Selection, sources: Mapping[int, Path], units: Sequence[SealedUnit]) -> Fetched:
        names = sorted({name for index in sources for name in _names_in(units[index], selection.names)})
        if all(units[index].names.keys() <= set(names) for index in sources):
            # Nothing to leave out: this takes half the time of comparing each name.
            selection = replace(selection, names=None)
        files, places = list(sources.values()), np.array(list(sources), dtype=np.int64)
        try:
            found = parquet.fetch(self._connection, selection, files, names)
        except duckdb.InterruptException:
            raise  # the caller no longer wants an answer
        except duckdb.Error as error:
            for path in files:
                path.stat()
            if len(sources) > 1:
                parts = [self._fetch(selection, {index: path}, units) for index, path in sources.items()]
                return parquet.join(parts, selection)
            cause = str(error).partition("\n")[0]
            self.problems.append(Problem(str(files[0]), f"DuckDB cannot read it: {cause}"))
            return parquet.fetch(self._connection, selection, [], names)
        return replace(found, file=places[found.file])


def _names_in(unit: SealedUnit, names: Collection[str] | None) -> Collection[str]:
    return unit.names if names is None else [name for name in names if name in unit.names]


def _series(found: Fetched) -> set[tuple[int, str, int, int]]:
    """Return the (file, name, rank, attempt) combinations that occur."""
    keys = np.stack([found.file, *(found.columns[key].astype(np.int64) for key in ("name", "rank", "attempt"))])
    new = np.concatenate(([True], np.any(keys[:, 1:] != keys[:, :-1], axis=0)))[: keys.shape[1]]
    return {(file, found.names[name], rank, attempt) for file, name, rank, attempt in keys[:, new].T.tolist()}


def _without(points: Points, file: int, known: Collection[tuple[int, str, int, int]]) -> Points:
    """Return the sorted points of unknown series."""
    starts, lengths = series_bounds(points)
    keys = zip(*(getattr(points, key)[starts].tolist() for key in ("name", "rank", "attempt")), strict=True)
    new = [(file, points.names[name], rank, attempt) not in known for name, rank, attempt in keys]
    return points.select(np.repeat(np.array(new, dtype=bool), lengths))


def _unverified(path: Path, problem: Problem, connection: duckdb.DuckDBPyConnection) -> SealedUnit:
    path.stat()
    try:
        return SealedUnit(path, *parquet.survey(connection, path), problems=(problem,))
    except duckdb.Error as error:
        path.stat()
        cause = str(error).partition("\n")[0]
        return SealedUnit(path, {}, {}, 0, 0, problems=(problem, Problem(str(path), f"DuckDB cannot read it: {cause}")))


def _filled(fill: Callable[[Mapping[str, Path]], UnitSum], parts: Mapping[str, Path]) -> UnitSum:
    """Fill the files of a unit; a failure in DuckDB is raised as the system's error."""
    try:
        return fill(parts)
    except (duckdb.Error, FooterError) as error:
        words = str(error).partition("\n")[0]
        # DuckDB passes on the system's message without its number.
        number = next((number for number in _ERRNOS if os.strerror(number) in str(error)), errno.EIO)
        raise _refusal(number, words, parts[POINTS]) from error


def _write_parts(parts: Mapping[str, Path], points: Points, facts: Mapping[str, Any], disk: Disk) -> UnitSum:
    """Write points and their pyramid."""
    exact = points.ns != NO_NS
    points = replace(points, value=np.where(exact, points.ns / 1e9, points.value)) if exact.any() else points
    blocks = parquet.pyramid_columns(points)  # before DuckDB starts, so that their memory peaks do not add up
    with parquet.connect(1, _WRITER_MEMORY, (parts[POINTS], parts[BLOCKS])) as connection:
        parquet.write_points(connection, parts[POINTS], points, disk.copy)
        parquet.write_blocks(connection, parts[BLOCKS], blocks, disk.copy)
    return _sums(parts, points, facts)


def _sums(parts: Mapping[str, Path], points: Points, facts: Mapping[str, Any]) -> UnitSum:
    counts = np.bincount(points.name, minlength=len(points.names)).tolist()
    short = np.bincount(points.name[pyramid.short_series(points)], minlength=len(points.names)).tolist()
    names = dict(zip(points.names, zip(counts, short, strict=True), strict=True))
    first, last = (int(points.time.min()), int(points.time.max())) if len(points) else (0, 0)
    written = checksum.describe(parts[POINTS])
    if sum(group.rows for group in written.groups) != len(points):
        raise FooterError("DuckDB wrote another number of points than it was given")
    return UnitSum(written, checksum.describe(parts[BLOCKS]), names, first_time=first, last_time=last, **facts)


def _persist(path: Path, flags: int, disk: Disk, data: bytes = b"") -> None:
    """Write data, if any, and wait until the file or directory is on disk."""
    descriptor = disk.open(path, flags)
    try:
        while data:
            data = data[disk.write(descriptor, data) :]
        disk.fsync(descriptor)
    finally:
        disk.close(descriptor)


def _refusal(number: int, words: str, path: Path) -> OSError:
    """Return the system's error of that number; Python picks the class, such as FileExistsError."""
    return OSError(number, words, str(path))


def _sweep(directory: Path, stem: str, disk: Disk) -> None:
    """Delete files of an interrupted writer of the same host and attempt; other writers may still be at work."""
    with os.scandir(directory) as entries:
        names = {entry.name for entry in entries}
    for name in names:
        found = name.removeprefix(TEMPORARY).removesuffix(SUM).removesuffix(POINTS).removesuffix(".blocks")
        half = name.startswith(TEMPORARY) or (name.endswith((SUM, BLOCKS)) and f"{found}{POINTS}" not in names)
        if half and found.rpartition("-")[0].rpartition("-")[0] == stem.rpartition("-")[0].rpartition("-")[0]:
            disk.unlink(directory / name)
