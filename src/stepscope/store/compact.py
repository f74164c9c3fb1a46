"""Merge neighboring sealed units, so that a run has few files however long it lasts.

A merge pays off when the new unit is at least eight times as large as its largest part: a point is then rewritten once
for each factor of eight that its unit grows. Units have a maximum size; the last merge up to it may be smaller.
"""

from __future__ import annotations

import functools
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stepscope.store import checksum
from stepscope.store.layout import age_of
from stepscope.store.merge import SLICE, UnmergeableError, merge
from stepscope.store.sealed import remove_sealed

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence
    from pathlib import Path

    from stepscope.store.layout import FileSpan, RunFolder, Writer
    from stepscope.store.sealed import Disk

SUPERSEDED_AFTER = 600.0
"""Seconds that a unit is kept after a larger one has replaced it, because a reader may still use it."""


@dataclass(frozen=True)
class MergeLimits:
    """When to merge."""

    fan_in: int = 8
    """How many times larger than its largest part a merged unit should be."""
    points: int = 8 << 20
    """Maximum points in a unit, unless that would give the run too many units."""
    files: int = 200
    """Maximum visible units of a run, over all its writers."""
    least: int = 16
    """Units that a writer may always have, however many the others have: with fewer, each point would be rewritten over
    and over."""
    merge_files: int = 256
    """Maximum units in one merge."""
    slice_points: int = SLICE
    """Maximum points that a merge holds in memory."""

    def share(self, others: int) -> int:
        """Return how many units a writer may have, given those of the others."""
        return max(self.least, self.files - others)

    def cap(self, total: int, share: int) -> int:
        """Return the maximum points in a unit; units filled to half of it then use up to 4/5 of the share."""
        return max(self.points, total * 5 // (2 * share))


@dataclass(frozen=True)
class UnitGroup:
    """Neighboring units, from index `first` to `last`, that will become one."""

    run: int
    first: int
    last: int
    points: int
    largest: int
    """Points of the largest unit in the group."""

    @property
    def units(self) -> int:
        """The number of units in the group."""
        return self.last - self.first + 1


def plan(runs: Sequence[Sequence[int]], limits: MergeLimits, share: int, stuck: int = 0) -> list[UnitGroup]:
    """Return which units to merge.

    `runs` holds the points of neighboring units; nothing is merged across two of these lists. `share` is the maximum
    number of units, `stuck` the number of units that count but cannot be merged.
    """
    cap = limits.cap(sum(map(sum, runs)), share)
    found = []
    for run, sizes in enumerate(runs):
        groups = [UnitGroup(run, at, at, points, points) for at, points in enumerate(sizes)]
        found.append(_filled(_grown(groups, limits, cap), limits, cap))
    while sum(map(len, found)) + stuck > share:
        cheapest = min(_windows(found, limits, share), key=lambda window: window.points, default=None)
        if cheapest is None:
            break
        found[cheapest.run] = _replaced(found[cheapest.run], cheapest)
    return [group for groups in found for group in groups if group.units > 1]


def _grown(groups: Sequence[UnitGroup], limits: MergeLimits, cap: int) -> list[UnitGroup]:
    """Group neighbors that together are `fan_in` times as large as the largest unit among them."""
    out: list[UnitGroup] = []
    at = 0
    while at < len(groups):
        best = groups[at]
        for joined in _joins(groups[at:], limits, cap):
            if joined.units >= limits.fan_in and joined.points >= limits.fan_in * joined.largest:
                best = joined
        out.append(best)
        at = best.last + 1
    return out


def _filled(groups: Sequence[UnitGroup], limits: MergeLimits, cap: int) -> list[UnitGroup]:
    """Group neighbors that are each below half the maximum size, once they no longer fit into one unit."""
    out: list[UnitGroup] = []
    waiting: list[UnitGroup] = []
    for group in groups:
        if group.points * 2 >= cap:
            out += [*waiting, group]
            waiting = []
            continue
        if waiting and sum(one.points for one in waiting) + group.points > cap:
            *_, joined = _joins(waiting, limits, cap)
            out.append(joined)
            waiting = [one for one in waiting if one.first > joined.last]
        waiting.append(group)
    return out + waiting


def _joins(groups: Iterable[UnitGroup], limits: MergeLimits, cap: int) -> Iterator[UnitGroup]:
    """Return the first group, the first two as one, and so on, as long as they fit into one unit."""
    joined: UnitGroup | None = None
    for group in groups:
        joined = group if joined is None else _join((joined, group))
        if joined is not group and (joined.points > cap or joined.units > limits.merge_files):
            return
        yield joined


def _windows(found: Sequence[Sequence[UnitGroup]], limits: MergeLimits, share: int) -> Iterator[UnitGroup]:
    """Return every few neighbors as one group. The fewer units are allowed, the smaller the groups."""
    for groups in found:
        width = min(limits.fan_in, max(2, share // 4), len(groups))
        for at in range(len(groups) - width + 1 if width > 1 else 0):
            window = _join(groups[at : at + width])
            if window.units <= limits.merge_files:
                yield window


def _join(groups: Sequence[UnitGroup]) -> UnitGroup:
    points, largest = sum(group.points for group in groups), max(group.largest for group in groups)
    return UnitGroup(groups[0].run, groups[0].first, groups[-1].last, points, largest)


def _replaced(groups: Sequence[UnitGroup], joined: UnitGroup) -> list[UnitGroup]:
    outside = [group for group in groups if group.last < joined.first or group.first > joined.last]
    return sorted([*outside, joined], key=lambda group: group.first)


def compact(
    folder: RunFolder,
    writer: Writer,
    limits: MergeLimits | None = None,
    *,
    now: float | None = None,
    disk: Disk | None = None,
) -> list[Path]:
    """Merge units of a writer and delete those that were replaced long ago; return the new units.

    Only the holder of the run's lock may call this. A damaged unit is never merged. Raises OSError if a disk operation
    fails; the units to be merged are then unchanged. `now` is in seconds since 1970 UTC.
    """
    limits = limits or MergeLimits()
    sweep(folder, time.time() if now is None else now, writer)
    made: list[Path] = []
    stuck: set[Path] = set()
    sizes: dict[Path, int | None] = {}
    while True:
        units = folder.units()
        mine = [unit for unit in units if unit.writer == writer]
        for unit in mine:
            if unit.path not in sizes:
                sizes[unit.path] = _size(unit.path)
        stuck |= {path for path, size in sizes.items() if size is None}
        runs = _runs(mine, stuck, [tail.last for tail in folder.tails() if tail.writer == writer])
        share = limits.share(len(units) - len(mine))
        points = [[sizes[unit.path] or 0 for unit in run] for run in runs]
        groups = plan(points, limits, share, len(mine) - sum(map(len, runs)))
        if not groups:
            return made
        for group in groups:
            made += _merged(folder, runs[group.run][group.first : group.last + 1], stuck, limits, disk)


def _merged(
    folder: RunFolder, units: Sequence[FileSpan], stuck: set[Path], limits: MergeLimits, disk: Disk | None
) -> list[Path]:
    """Merge units, or record which of them cannot be merged."""
    paths = [unit.path for unit in units]
    damaged = [path for path in paths if not is_whole(path)]
    if damaged:
        stuck.update(damaged)
        return []
    stem = folder.unit_stem(units[0].writer, units[0].first, units[-1].last)
    try:
        return [merge(folder.path / "metrics", stem, paths, disk=disk, slice_points=limits.slice_points)]
    except UnmergeableError:
        stuck.update(paths)
        return []


def _runs(units: Sequence[FileSpan], stuck: Collection[Path], tails: Sequence[int]) -> list[list[FileSpan]]:
    """Return the units in lists that may be merged: a merged unit must not hide a unit or tail outside of it."""
    runs: list[list[FileSpan]] = [[]]
    for unit in units:
        last = runs[-1][-1].last if runs[-1] else unit.first
        if unit.path in stuck or any(last < tail < unit.first for tail in tails):
            runs.append([])
        if unit.path not in stuck:
            runs[-1].append(unit)
    return runs


def sweep(folder: RunFolder, now: float, writer: Writer | None = None) -> list[Path]:
    """Delete units that an intact larger one replaced long ago; return which."""
    units = [unit for unit in folder.all_units() if writer in (None, unit.writer)]
    removed = [unit.path for unit in replaced(folder, units, now)]
    for path in removed:
        remove_sealed(path)
    return removed


def replaced(folder: RunFolder, spans: Iterable[FileSpan], now: float) -> Iterator[FileSpan]:
    """Return those of some units and tails that an intact unit replaced long ago: readers have had time to finish."""
    units = folder.units()
    whole = functools.cache(is_whole)
    for old in spans:
        newer = next((unit.path for unit in units if unit.covers(old) and unit.path != old.path), None)
        if newer is not None and age_of(newer, now) >= SUPERSEDED_AFTER and whole(newer):
            yield old


def is_whole(path: Path) -> bool:
    """Return whether every byte of a unit's file of points is intact."""
    sums = _sums(path)
    return sums is not None and checksum.Checked().is_whole(path, sums.points)


def _size(path: Path) -> int | None:
    """Return the points of a unit, or None if its checksums are missing."""
    sums = _sums(path)
    return None if sums is None else sum(count for count, _ in sums.names.values())


def _sums(path: Path) -> checksum.UnitSum | None:
    try:
        return checksum.decode(path.with_suffix(checksum.SUM).read_bytes())
    except (FileNotFoundError, checksum.SumError):  # without checksums it counts as damaged, and is left as it is
        return None
