"""The contents of a run's folder at one time: sealed units, and the tails that no unit holds yet."""

from __future__ import annotations

import functools
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from stepscope.store.decode import Decoded, decode_tail
from stepscope.store.layout import uncovered
from stepscope.store.points import Points, distinct
from stepscope.store.sealed import open_sealed, read_points

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    import duckdb

    from stepscope.store.checksum import SealedUnit
    from stepscope.store.layout import FileSpan, RunFolder
    from stepscope.store.parquet import Selection

MOST_FILES = 5000
"""Maximum sealed files, and tails, read of one run; a real run has a few per node."""
MOST_UNCHECKED = 200
"""Maximum sealed files without usable checksums that are read: each takes DuckDB 20 ms."""


@dataclass
class Snapshot:
    """The valid files of a run, and the points of its tails."""

    units: list[SealedUnit]
    tails: Points
    problems: list[str] = field(default_factory=list)

    def counts(self) -> dict[str, int]:
        """Return the number of points of each name."""
        found: Counter[str] = Counter()
        for unit in self.units:
            found.update(unit.names)
        counts = np.bincount(self.tails.name, minlength=len(self.tails.names)).tolist()
        found.update({name: count for name, count in zip(self.tails.names, counts, strict=True) if count})
        return found

    def sealed_count(self, name: str) -> int:
        """Return how many points of a name are sealed."""
        return sum(unit.names.get(name, 0) for unit in self.units)

    def holding(
        self,
        names: Collection[str] | None,
        times: tuple[int, int] | None = None,
        ranks: Collection[int] | None = None,
    ) -> list[SealedUnit]:
        """Return the units that may hold any of these names and ranks, and overlap the range of times."""
        units = self.units if times is None else [unit for unit in self.units if unit.overlaps(times)]
        if ranks is not None:
            wanted = {str(rank) for rank in ranks}
            units = [unit for unit in units if not wanted.isdisjoint(unit.last_seq)]
        return [unit for unit in units if names is None or any(name in unit.names for name in names)]

    def tail_points(self, selection: Selection) -> Points:
        """Return the selected points of the tails."""
        points, names = self.tails, selection.names
        keep = np.ones(len(points), bool)
        if names is not None:
            keep &= np.isin(points.name, [code for code, name in enumerate(points.names) if name in names])
        for column, wanted in ((points.rank, selection.ranks), (points.attempt, selection.attempts)):
            if wanted is not None:
                keep &= np.isin(column, list(wanted))
        ranges = (selection.step_range, selection.time_range, selection.seq_range)
        for place, ends in zip((points.step, points.time, points.seq), ranges, strict=True):
            if ends is not None:
                keep &= (place >= ends[0]) & (place <= ends[1])
        return points.select(keep)

    def points(self, selection: Selection, connection: duckdb.DuckDBPyConnection | None) -> tuple[Points, list[str]]:
        """Return the selected points of units and tails, each once and in order, and what could not be read."""
        units = self.holding(selection.names, selection.time_range, selection.ranks)
        sealed, problems = read_points(units, selection, connection=connection) if units else (Points.empty(), [])
        tail = self.tail_points(selection)
        return distinct(Points.concat([sealed, tail]) if len(tail) else sealed), [str(problem) for problem in problems]


def take_snapshot(folder: RunFolder) -> Snapshot:
    """List the run's files and read its tails; raise FileNotFoundError if a file disappears meanwhile: list again."""
    tails = folder.all_tails()  # listed first: a tail that is being sealed now is then in one of the two lists
    units = folder.units()
    tails = uncovered(tails, units)
    sealed = _readable(units[:MOST_FILES])
    seen: dict[Any, dict[int, int]] = {}
    for unit, facts in sealed.items():
        ranks = seen.setdefault(unit.writer, {})
        for rank, sequence in facts.last_seq.items():
            ranks[int(rank)] = max(ranks.get(int(rank), -1), sequence)
    parts, problems = [], [str(problem) for facts in sealed.values() for problem in facts.problems]
    for what, spans, read in (("metrics", units, len(sealed)), ("tail", tails, MOST_FILES)):
        if len(spans) > read:
            text = f"{len(spans) - read} of {len(spans)} files were passed over: too many for one run"
            problems.append(f"{what}: {text}, or too many of them damaged")
    for tail in tails[:MOST_FILES]:
        known = tuple(sorted(seen.get(tail.writer, {}).items()))
        decoded = _decoded(tail.path, _version(tail.path), known)
        seen[tail.writer] = decoded.last_seq
        parts.append(decoded.points)
        problems += decoded.problems(tail.path.name)
    return Snapshot(list(sealed.values()), Points.concat(parts), problems)


def _readable(units: list[FileSpan]) -> dict[FileSpan, SealedUnit]:
    """Return the description of each sealed file, for a limited number of files without usable checksums."""
    found: dict[FileSpan, SealedUnit] = {}
    unchecked = 0
    for unit in units:
        facts = found[unit] = _unit(unit.path, _version(unit.path))
        unchecked += facts.sums is None
        if unchecked > MOST_UNCHECKED:
            break
    return found


_Version = tuple[int, int, int]
"""Inode, size and modification time: the inode alone may be reused after a deletion."""


def _version(path: Path) -> _Version:
    facts = path.stat()
    return facts.st_ino, facts.st_size, facts.st_mtime_ns


@functools.lru_cache(maxsize=MOST_FILES)
def _unit(path: Path, version: _Version) -> SealedUnit:  # noqa: ARG001 - distinguishes a rewritten file from a known one
    return open_sealed(path)


@functools.lru_cache(maxsize=4)
def _decoded(path: Path, version: _Version, seen: tuple[tuple[int, int], ...]) -> Decoded:
    """Decode a tail once for each state it has."""
    with open(path, "rb") as file:
        return decode_tail(file.read(version[1]), dict(seen))
