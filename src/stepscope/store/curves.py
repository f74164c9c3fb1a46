"""The query behind every chart: names, ranks, attempts, a range and a number of points → the curves to draw.

A curve is one metric of one rank in one attempt. It is returned whole if it has no more points than requested, else as
buckets with their extremes, so that no spike is lost. The cost depends on the number of buckets, not of points: the
query uses the pyramid level that has just enough blocks in the range, and reads single points only at its edges or
where the range holds few.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from stepscope.store.folding import fold
from stepscope.store.parquet import Selection
from stepscope.store.points import Points, distinct, series_bounds, series_starts
from stepscope.store.pyramid import LEVELS, Blocks, build, ordered
from stepscope.store.sealed import read_blocks, read_points
from stepscope.store.series import by_name, reduced

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    import duckdb
    from numpy.typing import NDArray

    from stepscope.store.block_cache import BlockCache
    from stepscope.store.checksum import SealedUnit
    from stepscope.store.snapshot import Snapshot

    Ends = tuple[int, int]

MOST_BUILT = 1 << 19
"""Maximum points of metrics of many curves that are read singly: a bucket of each takes 200 bytes."""
FOLDED_AT_ONCE = 1 << 22
"""Points of metrics whose ranks are folded together; their blocks take 13 MiB."""
MOST_POINTS = 1 << 21
"""Maximum points that one query reads singly, over all metrics; beyond it, metrics are read in blocks."""
ROOM = 1 << 16
"""Maximum buckets of all curves of one metric together; beyond it, each curve gets fewer."""
FEWER = 8
"""An eighth of the buckets is enough for each of many curves: reading their points takes much longer."""
TOTALS = "totals"
"""What the cached totals of a metric are kept under."""
LEAST = 16
"""Buckets that each curve gets, however many there are."""


@dataclass(frozen=True)
class Ask:
    """A chart's query. None selects everything."""

    names: tuple[str, ...]
    points: int = 800
    """Approximate number of buckets per curve."""
    ranks: tuple[int, ...] | None = None
    attempts: tuple[int, ...] | None = None
    steps: Ends | None = None
    """First and last step, inclusive."""
    times: Ends | None = None
    """First and last time, inclusive, in microseconds since 1970 UTC."""
    fold: bool = False
    """Whether to fold the ranks of an attempt into one curve: the band between their extremes, and their mean."""
    worst: bool = False
    """Whether the rank that is farthest from the mean has a curve of its own, too, under its rank + 1."""


@dataclass(frozen=True)
class Curves:
    """The result: each curve is in one of the two, ordered by name, rank and attempt."""

    points: Points
    """Curves that have no more points than requested."""
    blocks: Blocks
    folded: bool = False


class CurveReader(Protocol):
    """The part of an open run that `curves` uses."""

    cache: BlockCache | None

    def read(self, how: Callable[[Snapshot, duckdb.DuckDBPyConnection], tuple[Curves, list[str]]], /) -> Curves:
        """Return what `how` reads from a snapshot, and keep the problems that it reports."""


def curves(past: CurveReader, ask: Ask) -> Curves:
    """Return the curves of a run; names it does not have are left out."""

    def read(snapshot: Snapshot, connection: duckdb.DuckDBPyConnection) -> tuple[Curves, list[str]]:
        if ask.fold:
            return _folded(snapshot, connection, ask, past.cache)
        points, blocks, problems = select(snapshot, connection, ask, past.cache, per_curve=True)
        whole, cut = _divided(points, ask.points)
        joined = ordered(Blocks.concat([part for part in (cut, blocks) if len(part)]))
        return Curves(whole, thinned(joined, ask.points)), problems

    return past.read(read)


def _folded(
    snapshot: Snapshot, connection: duckdb.DuckDBPyConnection, ask: Ask, cache: BlockCache | None
) -> tuple[Curves, list[str]]:
    """Fold the ranks of some metrics, few at a time: the blocks of hundreds of ranks are many.

    Those of large metrics are not cached, but what they fold to is.
    """
    large = {name for name in ask.names if snapshot.sealed_count(name) > FOLDED_AT_ONCE}
    keys = {} if cache is None else _fold_keys(snapshot, ask, large)
    found = {} if cache is None else _kept(cache, keys)
    known, problems = set(found), list[str]()
    for names in (large - known, set(ask.names) - large):
        one = replace(ask, names=tuple(names))
        reading = _Reading(snapshot, connection, one, cache, per_curve=True, keeps_blocks=not names <= large)
        for points, blocks in reading.portions():
            parts = [part for part in (build(points, 1), blocks) if len(part)]
            joined = Blocks.concat(parts)
            found |= by_name(fold(joined, ask.points, by_time=ask.times is not None, worst=ask.worst))
        problems += reading.problems
    if cache is not None and not problems:
        for name in keys.keys() & found.keys() - known:
            cache.keep(keys[name], found[name])
    return Curves(Points.empty(), ordered(Blocks.concat(list(found.values()))), folded=True), problems


def _kept(cache: BlockCache, keys: Mapping[str, tuple[Any, ...]]) -> dict[str, Blocks]:
    kept = ((name, cache.blocks(key)) for name, key in keys.items())
    return {name: blocks for name, blocks in kept if blocks is not None}


def _fold_keys(snapshot: Snapshot, ask: Ask, names: Collection[str]) -> dict[str, tuple[Any, ...]]:
    """Return what the folded curve of each metric depends on; not of those that have rows that are not sealed."""
    whole = [name for name in names if not len(snapshot.tail_points(Selection((name,))))]
    rest = replace(ask, names=())
    return {name: (name, rest, files) for name, files in _files(snapshot, whole).items()}


def _files(snapshot: Snapshot, names: Collection[str]) -> dict[str, tuple[tuple[Any, ...], ...]]:
    """Return what tells the sealed files that hold each metric from others."""
    found: dict[str, list[tuple[Any, ...]]] = {name: [] for name in names}
    for unit in snapshot.holding(names):
        facts = unit.path.stat()
        own = (str(unit.path), facts.st_ino, facts.st_size, facts.st_mtime_ns)
        for name in found.keys() & unit.names.keys():
            found[name].append(own)
    return {name: tuple(files) for name, files in found.items()}


def select(
    snapshot: Snapshot,
    connection: duckdb.DuckDBPyConnection,
    ask: Ask,
    cache: BlockCache | None = None,
    *,
    per_curve: bool = False,
) -> tuple[Points, Blocks, list[str]]:
    """Return the points of some names, blocks of the others, and what could not be read.

    Both are sorted. Blocks are of the coarsest level that has enough of them in the range: `ask.points` of a metric, or
    of each of its curves. Blocks in `cache` are not read again.
    """
    reading = _Reading(snapshot, connection, ask, cache, per_curve=per_curve)
    return *reading.read(), reading.problems


def totals(
    snapshot: Snapshot,
    connection: duckdb.DuckDBPyConnection,
    names: Collection[str] | None = None,
    cache: BlockCache | None = None,
) -> tuple[Blocks, list[str]]:
    """Return one block for each series, which covers all of it, and what could not be read.

    It costs a few blocks per series, however long a series is. What is sealed is kept in `cache`.
    """
    known = snapshot.counts()
    chosen = set(known) if names is None else {name for name in names if name in known}
    if not chosen:
        return Blocks.empty(), []
    blocks, problems = _sealed_totals(snapshot, connection, None if names is None else chosen, cache)
    tail = distinct(snapshot.tail_points(Selection(None if names is None else chosen, level=max(LEVELS))))
    if len(tail):
        blocks = ordered(Blocks.concat([blocks, build(tail, max(LEVELS))]))
        blocks = reduced(blocks, series_starts(blocks))
    return blocks, problems


def _sealed_totals(
    snapshot: Snapshot,
    connection: duckdb.DuckDBPyConnection,
    names: Collection[str] | None,
    cache: BlockCache | None,
) -> tuple[Blocks, list[str]]:
    """Return one block for each series of some names, or of all, without the rows that are not sealed."""
    sealed = {name for name in (snapshot.counts() if names is None else names) if snapshot.sealed_count(name)}
    if not sealed:
        return Blocks.empty(), []
    seen = {} if cache is None else _files(snapshot, sealed)
    keys = {name: (name, TOTALS, files) for name, files in seen.items()}
    found = {} if cache is None else _kept(cache, keys)
    if keys and found.keys() == keys.keys():
        return ordered(Blocks.concat(list(found.values()))), []
    selection = Selection(names, level=max(LEVELS))
    blocks, problems = read_blocks(snapshot.holding(names), selection, connection=connection)
    if len(blocks):
        blocks = reduced(blocks, series_starts(blocks))
    if cache is not None and not problems:
        for name, own in by_name(blocks):
            if name in keys:
                cache.keep(keys[name], own)
    return blocks, list(map(str, problems))


class _Reading:
    """One query on one snapshot."""

    def __init__(
        self,
        snapshot: Snapshot,
        connection: duckdb.DuckDBPyConnection,
        ask: Ask,
        cache: BlockCache | None,
        *,
        per_curve: bool,
        keeps_blocks: bool = True,
    ) -> None:
        self._snapshot, self._connection, self._ask = snapshot, connection, ask
        self._totals_cache, self._cache = cache, cache if keeps_blocks else None
        self._per_curve = per_curve
        self._selection = Selection((), ask.ranks, ask.attempts, ask.steps, time_range=ask.times)
        self.problems: list[str] = []

    def read(self) -> tuple[Points, Blocks]:
        """Return the points of names that have few, and blocks of the others."""
        portions = list(self.portions(every=True))
        points = next((points for points, _ in portions if len(points)), Points.empty())
        return points, ordered(Blocks.concat([blocks for _, blocks in portions if len(blocks)]))

    def portions(self, *, every: bool = False) -> Iterator[tuple[Points, Blocks]]:
        """Yield points of some names, then blocks of others: of at most FOLDED_AT_ONCE points, or of one name.

        With `every`, all names of a level are read together.
        """
        known = self._snapshot.counts()
        fine, levels = self._levels({name for name in self._ask.names if name in known})
        if fine:
            points, problems = self._snapshot.points(replace(self._selection, names=fine), self._connection)
            self.problems += problems
            yield points, Blocks.empty()
        for level, some in levels.items():
            for names in [some] if every else self._batches(some):
                yield Points.empty(), self._blocks(level, names)

    def _batches(self, names: Collection[str]) -> Iterator[set[str]]:
        batch, total = set[str](), 0
        for name in sorted(names):
            count = self._snapshot.sealed_count(name)
            if batch and total + count > FOLDED_AT_ONCE:
                yield batch
                batch, total = set(), 0
            batch.add(name)
            total += count
        yield batch

    def _levels(self, names: set[str]) -> tuple[set[str], dict[int, set[str]]]:
        """Return the names whose single points are read, and those of each pyramid level."""
        counts = {name: self._snapshot.sealed_count(name) for name in names}
        long = {name for name, count in counts.items() if count > self._ask.points * LEVELS[0]}
        many = self._too_many({name: counts[name] for name in names - long})
        inside, wanted = self._inside(long, counts) if long else ({}, {})
        single = self._ask.points * LEVELS[0]
        fine, levels = names - long - many, {LEVELS[0]: many} if many else dict[int, set[str]]()
        for name in long:
            fit = [size for size in LEVELS if inside[name] / size >= wanted[name]]
            if fit:
                levels.setdefault(max(fit), set()).add(name)
            elif inside[name] > MOST_BUILT // len(long) or inside[name] * FEWER > wanted[name] * LEVELS[0] > single:
                levels.setdefault(LEVELS[0], set()).add(name)
            else:
                fine.add(name)
        return fine, levels

    def _too_many(self, counts: dict[str, int]) -> set[str]:
        """Return the longest of many short metrics, whose points would be too many to read: a few per rank add up."""
        if sum(counts.values()) <= MOST_POINTS:
            return set()
        share = max(self._ask.points, MOST_POINTS // len(counts))
        return {name for name, count in counts.items() if count > share}

    def _inside(self, names: set[str], counts: dict[str, int]) -> tuple[dict[str, float], dict[str, float]]:
        """Return how many points of each name are selected, as the coarsest blocks tell, and how many blocks to read.

        A metric has a curve for each rank and attempt: where each is drawn, each needs as many blocks as requested.
        """
        ask = self._ask
        wanted = dict.fromkeys(names, float(ask.points))
        is_whole = (ask.steps, ask.times, ask.ranks, ask.attempts) == (None, None, None, None)
        if is_whole and not self._per_curve:
            return {name: float(counts[name]) for name in names}, wanted
        if is_whole:  # a block of each curve tells enough
            blocks, problems = _sealed_totals(self._snapshot, self._connection, names, self._totals_cache)
            self.problems += problems
        else:
            blocks = self._read_blocks(max(LEVELS), names)
        share = blocks.count * _overlap(blocks, ask)
        sums = np.bincount(blocks.name, weights=share, minlength=len(blocks.names))
        inside = dict.fromkeys(names, 0.0) | dict(zip(blocks.names, sums.tolist(), strict=True))
        if self._per_curve:
            curves = np.bincount(blocks.name[series_starts(blocks)], minlength=len(blocks.names))
            each = np.minimum(ask.points, ask.points if ask.fold else np.maximum(ROOM // np.maximum(curves, 1), LEAST))
            wanted |= dict(zip(blocks.names, (each * curves).astype(np.float64).tolist(), strict=True))
        return inside, wanted

    def _read_blocks(self, level: int, names: Collection[str]) -> Blocks:
        units = self._snapshot.holding(names, self._ask.times, self._ask.ranks)
        selection = replace(self._selection, names=names, level=level)
        blocks, problems = read_blocks(units, selection, connection=self._connection, cache=self._cache)
        self.problems += map(str, problems)
        return blocks

    def _blocks(self, level: int, names: set[str]) -> Blocks:
        """Return the blocks inside the range, and one block per point at its edges."""
        blocks = self._read_blocks(level, names)
        parts = [blocks]
        if self._ask.steps is not None or self._ask.times is not None:
            inside = _inside(blocks, self._ask)
            cut = blocks.select(~inside)
            parts = [blocks.select(inside), *([self._edges(cut, names)] if len(cut) else [])]
        tail = self._snapshot.tail_points(replace(self._selection, names=names))
        if len(tail):
            parts.append(build(distinct(tail), level))
        return Blocks.concat(parts)

    def _edges(self, cut: Blocks, names: set[str]) -> Blocks:
        """Return one block for each point in the range whose block the range cuts; both ends are read at once."""
        ask = self._ask
        low, high = (cut.low_step, cut.high_step) if ask.steps is not None else (cut.low_time, cut.high_time)
        first, last = ask.steps or ask.times or (0, 0)
        left = low < first
        # Blocks at the left end reach up to `low_end`, those at the right begin at `high_end`: nothing is cut between.
        low_end = min(last, int(high[left].max(initial=first)))
        high_end = max(first, int(low[~left].min(initial=last)))
        span = (first if left.any() else high_end, low_end if left.all() else last)
        hole = (low_end + 1, high_end - 1) if left.any() and not left.all() and high_end - low_end > 1 else None
        steps, times = (span, None) if ask.steps is not None else (None, span)
        selection = replace(self._selection, names=names, step_range=steps, time_range=times, hole=hole)
        found, problems = read_points(self._touched(cut, left, names), selection, connection=self._connection)
        self.problems += map(str, problems)
        return build(found.select(_of_blocks(found, cut)), 1)

    def _touched(self, cut: Blocks, left: NDArray[np.bool_], names: set[str]) -> list[SealedUnit]:
        """Return the units that the blocks at either end may come from: opening a file costs most."""
        times = [(int(cut.low_time[end].min()), int(cut.high_time[end].max())) for end in (left, ~left) if end.any()]
        return [unit for unit in self._snapshot.holding(names, ranks=self._ask.ranks) if any(map(unit.overlaps, times))]


def _of_blocks(points: Points, blocks: Blocks) -> NDArray[np.bool_]:
    """Return which of the sorted points lie in any of these blocks."""
    keep = np.zeros(len(points), bool)
    place = {name: code for code, name in enumerate(points.names)}
    codes = np.array([place.get(name, -1) for name in blocks.names], np.int64)
    starts, lengths = series_bounds(points)
    keys = zip(*(getattr(points, key)[starts].tolist() for key in ("name", "rank", "attempt")), strict=True)
    spans = dict(zip(keys, zip(starts.tolist(), (starts + lengths).tolist(), strict=True), strict=True))
    columns = (codes[blocks.name], blocks.rank, blocks.attempt, blocks.first_seq, blocks.last_seq)
    for name, rank, attempt, low, high in zip(*(column.tolist() for column in columns), strict=True):
        first, last = spans.get((name, rank, attempt), (0, 0))
        seq = points.seq[first:last]
        keep[first + np.searchsorted(seq, low) : first + np.searchsorted(seq, high, "right")] = True
    return keep


def _ranges(blocks: Blocks, ask: Ask) -> Iterator[tuple[Ends, NDArray[np.int64], NDArray[np.int64]]]:
    """Yield each requested range, with the lowest and the highest place of every block on that axis."""
    if ask.steps is not None:
        yield ask.steps, blocks.low_step, blocks.high_step
    if ask.times is not None:
        yield ask.times, blocks.low_time, blocks.high_time


def _inside(blocks: Blocks, ask: Ask) -> NDArray[np.bool_]:
    keep = np.ones(len(blocks), bool)
    for (first, last), low, high in _ranges(blocks, ask):
        keep &= (low >= first) & (high <= last)
    return keep


def _overlap(blocks: Blocks, ask: Ask) -> NDArray[np.float64]:
    """Return the share of each block that lies in the range, assuming evenly spaced points."""
    share = np.ones(len(blocks))
    for (first, last), low, high in _ranges(blocks, ask):
        length = np.maximum(high.astype(np.float64) - low, 1.0)
        inside = np.minimum(high, last).astype(np.float64) - np.maximum(low, first)
        share *= np.clip(inside / length, 0.0, 1.0)
    return share


def spans(columns: Points | Blocks) -> Iterator[tuple[int, int]]:
    """Yield the first and last row (exclusive) of each curve."""
    starts, lengths = series_bounds(columns)
    yield from zip(starts.tolist(), (starts + lengths).tolist(), strict=True)


def _per_curve(columns: Points | Blocks, points: int) -> NDArray[np.int64]:
    """Return the buckets per curve: as requested, fewer if a metric has very many curves."""
    starts, _ = series_bounds(columns)
    names = columns.name[starts]
    many = np.bincount(names, minlength=len(columns.names))[names] if len(names) else names
    each: NDArray[np.int64] = np.minimum(points, np.maximum(ROOM // np.maximum(many, 1), LEAST)).astype(np.int64)
    return each


def _divided(points: Points, most: int) -> tuple[Points, Blocks]:
    """Return the curves with few enough points, and buckets of the others."""
    _, lengths = series_bounds(points)
    # Sizes are powers of two: all curves of one size are built at once.
    ratio = np.maximum(-(-lengths // np.maximum(_per_curve(points, most), 1)), 1)
    sizes = 2 ** np.ceil(np.log2(ratio)).astype(np.int64) if len(ratio) else ratio
    each = np.repeat(sizes, lengths)
    parts = [build(points.select(each == size), int(size)) for size in np.unique(sizes).tolist() if size > 1]
    return points.select(each == 1), Blocks.concat(parts)


def thinned(blocks: Blocks, points: int) -> Blocks:
    """Join neighboring blocks of each curve until it has at most `points`; the blocks are sorted."""
    starts, lengths = series_bounds(blocks)
    every = np.maximum(-(-lengths // np.maximum(_per_curve(blocks, points), 1)), 1)
    if not len(blocks) or every.max() <= 1:
        return blocks
    within = np.arange(len(blocks)) - np.repeat(starts, lengths)
    return reduced(blocks, np.flatnonzero(within % np.repeat(every, lengths) == 0))
