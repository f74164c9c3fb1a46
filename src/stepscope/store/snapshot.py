"""The contents of a run's folder at one time: sealed units, and the tails that no unit holds yet."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from stepscope.store.decode import Decoded, decode_tail
from stepscope.store.layout import uncovered
from stepscope.store.points import Points
from stepscope.store.sealed import open_sealed

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from stepscope.store.layout import RunFolder, Span
    from stepscope.store.sealed_unit import Sealed

MOST_FILES = 5000
"""Maximum sealed files, and tails, read of one run; a real run has a few per node."""
MOST_UNCHECKED = 200
"""Maximum sealed files without usable checksums that are read: each takes DuckDB 20 ms."""


@dataclass
class Snapshot:
    """The valid files of a run, and the points of its tails."""

    units: list[Sealed]
    tails: Points
    problems: list[str] = field(default_factory=list)

    def counts(self) -> dict[str, int]:
        """Return the number of points of each name."""
        found: dict[str, int] = {}
        for unit in self.units:
            for name, count in unit.names.items():
                found[name] = found.get(name, 0) + count
        for code, count in enumerate(np.bincount(self.tails.name, minlength=len(self.tails.names))):
            if count:
                found[self.tails.names[code]] = found.get(self.tails.names[code], 0) + int(count)
        return found

    def sealed_count(self, name: str) -> int:
        """Return how many points of a name are sealed."""
        return sum(unit.names.get(name, 0) for unit in self.units)

    def holding(self, names: Collection[str] | None) -> list[Sealed]:
        """Return the units that hold any of these names."""
        return [unit for unit in self.units if names is None or any(name in unit.names for name in names)]

    def tail_points(
        self,
        names: Collection[str] | None,
        ranks: Collection[int] | None = None,
        attempts: Collection[int] | None = None,
        step_range: tuple[int, int] | None = None,
        time_range: tuple[int, int] | None = None,
    ) -> Points:
        """Return the points of the tails that pass the filters; None selects everything."""
        points = self.tails
        keep = np.ones(len(points), bool)
        if names is not None:
            keep &= np.isin(points.name, [code for code, name in enumerate(points.names) if name in names])
        if ranks is not None:
            keep &= np.isin(points.rank, list(ranks))
        if attempts is not None:
            keep &= np.isin(points.attempt, list(attempts))
        if step_range is not None:
            keep &= (points.step >= step_range[0]) & (points.step <= step_range[1])
        if time_range is not None:
            keep &= (points.time >= time_range[0]) & (points.time <= time_range[1])
        return points.select(keep)


def take_snapshot(folder: RunFolder) -> Snapshot:
    """List the run's files and read its tails.

    Raises:
        FileNotFoundError: a file disappeared between listing and reading; list again.
    """
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
        decoded = _tail(tail, seen.get(tail.writer, {}))
        seen[tail.writer] = decoded.last_seq
        parts.append(decoded.points)
        problems += decoded.problems(tail.path.name)
    return Snapshot(list(sealed.values()), Points.concat(parts), problems)


def _readable(units: list[Span]) -> dict[Span, Sealed]:
    """Return the description of each sealed file, for a limited number of files without usable checksums."""
    found: dict[Span, Sealed] = {}
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
def _unit(path: Path, version: _Version) -> Sealed:  # noqa: ARG001 - distinguishes a rewritten file from a known one
    return open_sealed(path)


def _tail(tail: Span, seen: dict[int, int]) -> Decoded:
    return _decoded(tail.path, _version(tail.path), tuple(sorted(seen.items())))


@functools.lru_cache(maxsize=4)
def _decoded(path: Path, version: _Version, seen: tuple[tuple[int, int], ...]) -> Decoded:
    """Decode a tail once for each state it has."""
    with open(path, "rb") as file:
        return decode_tail(file.read(version[1]), dict(seen))
