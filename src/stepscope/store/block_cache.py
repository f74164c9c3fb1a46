"""Cache of pyramid blocks. Sealed files never change, so a server need not unpack a pyramid at every zoom.

Cached blocks passed their checksums when they were read. The key is the file they came from: device, inode, size and
modification time, as in `checksum.Checked`. A read that found a problem is not cached.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from stepscope.store.pyramid import COLUMNS, Blocks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from stepscope.store.checksum import SealedUnit
    from stepscope.store.parquet import Fetched, Selection

    Ends = tuple[int, int]

LIMIT = 48 << 20
"""Maximum size in bytes. A block takes 201 bytes, so this holds a whole run of 10 M points in 50 series (31 MiB)."""

_FLOATS = ("min", "max", "mean", "last")
_CODES = ("rank", "attempt")
_WHOLE = tuple(column for column in COLUMNS if column not in {*_FLOATS, *_CODES, "name", "in_ns"})
_AT = {column: place for place, column in enumerate(_WHOLE)}


@dataclass(frozen=True, slots=True)
class _Kept:
    """Blocks of one name as four matrices with one row per column, so that many can be joined with four calls."""

    whole: NDArray[np.int64]
    floats: NDArray[np.float64]
    codes: NDArray[np.int32]
    in_ns: NDArray[np.bool_]

    @staticmethod
    def of(blocks: Blocks) -> _Kept:
        """Return a copy: a slice would keep alive everything that was read with it."""
        whole, floats, codes = (
            np.stack([getattr(blocks, column) for column in some]) for some in (_WHOLE, _FLOATS, _CODES)
        )
        return _Kept(whole, floats, codes, blocks.in_ns[np.newaxis].copy())

    def __len__(self) -> int:
        return int(self.in_ns.shape[1])

    @property
    def bytes(self) -> int:
        return sum(matrix.nbytes for matrix in self.matrices())

    def near(self, steps: Ends | None, times: Ends | None) -> _Kept:
        """Return a range that holds every block overlapping the interval, and few others."""
        keep = np.ones(len(self), bool)
        for ends, axis in ((steps, "step"), (times, "time")):
            if ends is not None:
                high, low = self.whole[_AT[f"high_{axis}"]], self.whole[_AT[f"low_{axis}"]]
                keep &= (high >= ends[0]) & (low <= ends[1])
        found = np.flatnonzero(keep)
        if len(found) == len(keep):
            return self
        span = slice(int(found[0]), int(found[-1]) + 1) if len(found) else slice(0)
        return _Kept(*(matrix[:, span] for matrix in self.matrices()))

    def matrices(self) -> list[NDArray[Any]]:
        """Return all four matrices."""
        return [self.whole, self.floats, self.codes, self.in_ns]

    @staticmethod
    def joined(names: list[str], parts: Sequence[tuple[int, _Kept]]) -> Blocks:
        """Return the blocks of several names, each given by its index among the names, as columns."""
        whole, floats, codes, in_ns = (
            np.concatenate(matrices, axis=1) for matrices in zip(*(part.matrices() for _, part in parts), strict=True)
        )
        places = np.array([place for place, _ in parts], np.int32)
        columns = dict(zip((*_WHOLE, *_FLOATS, *_CODES), (*whole, *floats, *codes), strict=True))
        return Blocks(names, name=np.repeat(places, [len(part) for _, part in parts]), in_ns=in_ns[0], **columns)


class _Unit(NamedTuple):
    """The cached blocks of one name in one unit: from its pyramid, or built from the points of a short series."""

    stored: _Kept
    built: _Kept | None

    @property
    def bytes(self) -> int:
        return self.stored.bytes + (0 if self.built is None else self.built.bytes)


_Key = tuple[Any, ...]
_Place = tuple[int, str]
"""Key: the index of a unit, and a name."""


class BlockCache:
    """The most recently used blocks, up to a number of bytes. Thread-safe."""

    def __init__(self, limit: int = LIMIT) -> None:
        """Start empty; `limit` is in bytes."""
        self._limit = limit
        self._lock = threading.Lock()
        self._units: OrderedDict[_Key, _Unit] = OrderedDict()
        self.bytes = 0

    def get(self, key: _Key) -> _Unit | None:
        """Return a cached entry and mark it as used."""
        with self._lock:
            found = self._units.get(key)
            if found is not None:
                self._units.move_to_end(key)
            return found

    def blocks(self, key: _Key) -> Blocks | None:
        """Return the blocks that were kept as the result of a query."""
        found = self.get(key)
        return None if found is None else _Kept.joined([str(key[0])], [(0, found.stored)])

    def keep(self, key: _Key, blocks: Blocks) -> None:
        """Keep the result of a query, blocks of a single metric whose name begins the key."""
        self.put(key, _Unit(_Kept.of(blocks), None))

    def put(self, key: _Key, unit: _Unit) -> None:
        """Add an entry and drop the least recently used ones."""
        size = unit.bytes
        if size > self._limit:
            return
        with self._lock:
            old = self._units.pop(key, None)
            self.bytes += size - (0 if old is None else old.bytes)
            self._units[key] = unit
            while self.bytes > self._limit:
                self.bytes -= self._units.popitem(last=False)[1].bytes


class Pieces(NamedTuple):
    """The result of reading the pyramid once."""

    units: list[SealedUnit]
    """Units whose pyramid was read; `found.file` is an index into this list."""
    found: Fetched
    built: list[tuple[int, Blocks]]
    """Blocks of series that are too short for the pyramid, by unit."""
    rest: list[Blocks]
    """Blocks built from the points of all other units."""

    def blocks(self) -> list[Blocks]:
        """Return all blocks."""
        return [self.found.blocks(), *(blocks for _, blocks in self.built), *self.rest]


class _PyramidReader(Protocol):
    """Reads units and collects problems."""

    problems: list[Any]

    def pieces(self, selection: Selection, units: Sequence[SealedUnit]) -> Pieces:
        """Read the pyramid."""


def read_through(
    cache: BlockCache,
    reader: _PyramidReader,
    selection: Selection,
    units: Sequence[SealedUnit],
    ranges: tuple[Ends | None, Ends | None],
) -> list[Blocks]:
    """Return the blocks of selected names, at least those that overlap the ranges of steps and times.

    The result is the same as that of `reader`, but only blocks that are not cached are read.
    """
    names = sorted(selection.names or ())
    keys = [_keys(unit, selection) for unit in units]
    wanted = [(index, name) for name in names for index, unit in enumerate(units) if name in unit.names]
    kept: dict[_Place, _Unit] = {}
    for index, name in wanted:
        key = keys[index]
        found = None if key is None else cache.get(key(name))
        if found is not None:
            kept[index, name] = found
    missing = [place for place in wanted if place not in kept]
    rest: list[Blocks] = []
    if missing:
        before = len(reader.problems)
        read, rest = _read(reader, selection, units, missing)
        kept |= read
        for (index, name), unit in read.items() if len(reader.problems) == before else ():
            key = keys[index]
            if key is not None:
                cache.put(key(name), unit)
    return [*_assembled(names, [(place, kept[place]) for place in wanted if place in kept], ranges), *rest]


def _read(
    reader: _PyramidReader, selection: Selection, units: Sequence[SealedUnit], missing: Sequence[_Place]
) -> tuple[dict[_Place, _Unit], list[Blocks]]:
    """Read the names that units lack in the cache; return their blocks by unit, and those without a pyramid.

    Units that lack the same names, which is nearly always the case, are read together: a cached block must not appear
    twice.
    """
    by_names: dict[tuple[str, ...], list[int]] = {}
    for index in sorted({index for index, _ in missing}):
        by_names.setdefault(tuple(name for at, name in missing if at == index), []).append(index)
    found: dict[_Place, _Unit] = {}
    rest: list[Blocks] = []
    for names, places in by_names.items():
        pieces = reader.pieces(replace(selection, names=names), [units[index] for index in places])
        index_of = {units[index].path: index for index in places}
        found |= {(index_of[unit.path], name): kept for unit, name, kept in _by_name(pieces, names)}
        rest += pieces.rest
    return found, rest


def _keys(unit: SealedUnit, selection: Selection) -> Callable[[str], _Key] | None:
    """Return the cache key of each name in a unit; None if its file cannot be examined."""
    try:
        facts = os.stat(unit.blocks_path)
    except OSError:
        return None  # the reader reports why
    file = (facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns)
    filters = tuple(None if some is None else tuple(sorted(some)) for some in (selection.ranks, selection.attempts))
    return lambda name: (file, selection.level, name, filters)


def _by_name(pieces: Pieces, names: Sequence[str]) -> Iterator[tuple[SealedUnit, str, _Unit]]:
    """Yield what was read of each name in each unit whose pyramid was read, even if it is empty."""
    stored = _parts(pieces.found.blocks(), pieces.found.file)
    built: dict[tuple[int, str], _Kept] = {}
    for file, blocks in pieces.built:
        built |= _parts(blocks, np.full(len(blocks), file))
    nothing = _Kept.of(pieces.found.blocks().select(slice(0)))
    for index, unit in enumerate(pieces.units):
        for name in names:
            if name in unit.names:
                yield unit, name, _Unit(stored.get((index, name), nothing), built.get((index, name)))


def _parts(blocks: Blocks, file: NDArray[np.int64]) -> dict[tuple[int, str], _Kept]:
    """Return the blocks of each file and name, in file order."""
    order = np.lexsort((blocks.name, file))
    sizes = np.diff(file[order]) != 0 if len(order) else np.empty(0, bool)
    starts = np.flatnonzero(np.concatenate(([True], sizes | (np.diff(blocks.name[order]) != 0)))[: len(order)])
    ends = np.append(starts[1:], len(order))[: len(starts)]
    found = {}
    for first, last in zip(starts.tolist(), ends.tolist(), strict=True):
        some = order[first:last]
        found[int(file[some[0]]), blocks.names[int(blocks.name[some[0]])]] = _Kept.of(blocks.select(some))
    return found


def _assembled(
    names: list[str], kept: Sequence[tuple[_Place, _Unit]], ranges: tuple[Ends | None, Ends | None]
) -> Iterator[Blocks]:
    """Yield the cached entries: stored blocks first, then those that were built, each in the given order."""
    code = {name: place for place, name in enumerate(names)}
    for field in ("stored", "built"):
        parts = []
        for (_, name), unit in kept:
            some: _Kept | None = getattr(unit, field)
            near = None if some is None else some.near(*ranges)
            if near is not None and len(near):
                parts.append((code[name], near))
        if parts:
            yield _Kept.joined(names, parts)
