"""The `.sum` file beside each sealed file: checksums of its bytes, and how to read the intact parts of a damaged file.

DuckDB silently returns wrong values for most flipped bits, so every byte is checked before DuckDB sees it.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import zlib
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from stepscope.store import footer

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path

POINTS, BLOCKS, SUM = ".parquet", ".blocks.parquet", ".sum"
"""Endings of the files of a sealed unit."""
VERSION = 1
_CHUNK = 1 << 20
_LONGEST_BOUND = 250
"""Length in bytes beyond which Parquet truncates a name in its statistics, so they bound nothing."""


class SumError(ValueError):
    """The bytes are not a valid `.sum` of this version."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A part of a run that could not be read, for the user to see."""

    path: str
    what: str
    rows: int = 0
    """Upper bound of the entries lost, where it is known."""

    def __str__(self) -> str:
        return f"{self.path}: {self.what}"


@dataclass(frozen=True, slots=True)
class GroupSum:
    """One row group: its bytes in the file, and its contents."""

    offset: int
    length: int
    crc32: int
    rows: int
    first_name: str | None = None
    """No name in the group sorts before this one; None if unknown."""
    last_name: str | None = None
    levels: tuple[int, int] | None = None
    """Lowest and highest pyramid level in the group; None in a file of points."""

    def may_hold(self, names: Collection[str] | None, level: int | None) -> bool:
        """Return whether the group may hold these names at this level."""
        if level is not None and self.levels is not None and not self.levels[0] <= level <= self.levels[1]:
            return False
        if names is None or self.first_name is None or self.last_name is None:
            return True
        return bool(names) and min(names) <= self.last_name and self.first_name <= max(names)


@dataclass(frozen=True, slots=True)
class FileSum:
    """One Parquet file: its length in bytes, its row groups and a copy of its footer."""

    length: int
    groups: tuple[GroupSum, ...]
    footer: bytes

    def groups_for(self, names: Collection[str] | None, level: int | None) -> list[int]:
        """Return the indexes of the row groups that may hold these names at this level."""
        return [index for index, group in enumerate(self.groups) if group.may_hold(names, level)]


@dataclass(frozen=True, slots=True)
class UnitSum:
    """Everything known about a sealed unit without opening its Parquet files."""

    points: FileSum
    blocks: FileSum
    names: dict[str, tuple[int, int]]
    """Points of each name, and how many of them belong to series too short for blocks."""
    last_seq: dict[str, int]
    """Highest record sequence in the unit, by a key that the writer chose (the rank)."""
    first_time: int
    """Microseconds since 1970 UTC; 0 in a unit without points."""
    last_time: int
    problems: list[str] = field(default_factory=list)
    info: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SealedUnit:
    """One sealed unit, as its `.sum` describes it."""

    path: Path
    """The file of points."""
    names: dict[str, int]
    """Points of each name."""
    last_seq: dict[str, int]
    """Highest record sequence by rank; without a `.sum`, only that of its points."""
    first_time: int
    """Microseconds since 1970 UTC; 0 in a unit without points."""
    last_time: int
    info: dict[str, Any] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()
    sums: UnitSum | None = None
    """None if the `.sum` is missing or damaged: the file is then read without verification."""

    def overlaps(self, times: tuple[int, int]) -> bool:
        """Return whether the unit may hold points from a first to a last time, in microseconds since 1970 UTC."""
        return self.last_time >= times[0] and self.first_time <= times[1]

    @property
    def blocks_path(self) -> Path:
        """The path of the pyramid."""
        return beside(self.path, BLOCKS)


def beside(path: Path, part: str) -> Path:
    """Return the path of another file of a unit, by its ending."""
    return path.with_name(path.name.removesuffix(POINTS) + part)


def encode(unit: UnitSum) -> bytes:
    """Return the single line of a `.sum`: JSON, a space, and the crc32 of the JSON in hexadecimal."""
    facts = {"version": VERSION, **asdict(unit)}
    for part in ("points", "blocks"):
        raw: bytes = getattr(unit, part).footer
        facts[part] |= {"footer": base64.b64encode(raw).decode("ascii"), "footer_crc32": zlib.crc32(raw)}
    line = json.dumps(facts, separators=(",", ":")).encode("ascii")
    return line + b" %08x\n" % zlib.crc32(line)


def decode(data: bytes) -> UnitSum:
    """Read a `.sum`; raise SumError, and never anything else, if a byte is wrong or the version is not ours."""
    line = data[:-10]
    if data[-10:] != b" %08x\n" % zlib.crc32(line):
        raise SumError("its checksum does not match")
    try:
        facts = json.loads(line)
        if facts["version"] != VERSION:
            raise SumError(f"it has version {facts['version']}, this program reads {VERSION}")
        names = {name: (int(count), int(short)) for name, (count, short) in facts["names"].items()}
        kept = {key: facts[key] for key in ("last_seq", "first_time", "last_time", "problems", "info")}
        return UnitSum(_file(facts["points"]), _file(facts["blocks"]), names, **kept)
    except (KeyError, TypeError, AttributeError, RecursionError, binascii.Error, ValueError) as error:
        raise SumError(str(error)) from error


def describe(path: Path) -> FileSum:
    """Return the checksums of a Parquet file that was just written; raise FooterError if it is none."""
    with path.open("rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        start, length = footer.locate(size, _read(file.fileno(), size - footer.TAIL_BYTES, footer.TAIL_BYTES))
        raw = _read(file.fileno(), start, length)
        found = footer.parse(raw).groups
        ends = [*(group.offset for group in found[1:]), start][: len(found)]
        sums = []
        for group, end in zip(found, ends, strict=True):
            crc, _ = crc32_of(file.fileno(), group.offset, end - group.offset)
            sums.append(GroupSum(group.offset, end - group.offset, crc, group.rows, *_bounds(group)))
    return FileSum(size, tuple(sums), raw)


def crc32_of(descriptor: int, offset: int, length: int) -> tuple[int, int]:
    """Return the crc32 of a range of bytes, and how many of these bytes the file has."""
    crc = there = 0
    for piece in _pieces(descriptor, offset, length):
        crc, there = zlib.crc32(piece, crc), there + len(piece)
    return crc, there


@dataclass(frozen=True, slots=True)
class Findings:
    """The result of comparing a file with its checksums."""

    framed: bool
    """Whether length, magic and footer are intact."""
    damaged: frozenset[int]
    """Indexes of the damaged row groups among those that were checked."""


class Checked:
    """Remembers which bytes this process has checked, so that each is checked once.

    The key is device, inode, size and modification time: sealed files never change.
    """

    def __init__(self, limit: int = 4096) -> None:
        self._limit = limit
        self._known: dict[tuple[int, int, int, int], dict[int, bool]] = {}

    def check(self, path: Path, sums: FileSum, wanted: Collection[int]) -> Findings:
        """Check the frame and these row groups of a file; raise OSError if it cannot be opened."""
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            stat = os.fstat(descriptor)
            key = (stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns)
            while len(self._known) >= self._limit and key not in self._known:
                self._known.pop(next(iter(self._known)))
            known = self._known.setdefault(key, {})
            for index in {-1, *wanted} - known.keys():
                known[index] = _intact(descriptor, sums, index)
        finally:
            os.close(descriptor)
        return Findings(known[-1], frozenset(index for index in wanted if not known[index]))

    def is_whole(self, path: Path, sums: FileSum) -> bool:
        """Return whether every byte of a file is intact; raise OSError if it cannot be opened."""
        findings = self.check(path, sums, range(len(sums.groups)))
        return findings.framed and not findings.damaged


def repair(path: Path, sums: FileSum, keep: Collection[int], target: Path) -> None:
    """Write a copy with only these row groups, at their old offsets, under a footer that lists only them."""
    drop = set(range(len(sums.groups))) - set(keep)
    rebuilt = footer.without_row_groups(sums.footer, drop)
    source = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with target.open("xb") as out:
            out.write(footer.MAGIC)
            for group in (sums.groups[index] for index in sorted(keep)):
                out.seek(group.offset)
                out.writelines(_pieces(source, group.offset, group.length))
            out.write(rebuilt + footer.tail(rebuilt))
    finally:
        os.close(source)


def _file(facts: dict[str, Any]) -> FileSum:
    groups = [
        GroupSum(**{**group, "levels": None if group["levels"] is None else (group["levels"][0], group["levels"][1])})
        for group in facts["groups"]
    ]
    raw = base64.b64decode(facts["footer"], validate=True)
    if zlib.crc32(raw) != facts["footer_crc32"]:
        raise SumError("its copy of the footer does not match")
    return FileSum(facts["length"], tuple(groups), raw)


def _bounds(group: footer.RowGroup) -> tuple[str | None, str | None, tuple[int, int] | None]:
    first, last = group.bounds.get("name", (b"", b""))
    levels = group.bounds.get("level")
    whole = None if levels is None else (int.from_bytes(levels[0], "little"), int.from_bytes(levels[1], "little"))
    if "name" not in group.bounds or max(len(first), len(last)) > _LONGEST_BOUND:
        return None, None, whole
    return first.decode("utf-8", "replace"), last.decode("utf-8", "replace"), whole


def _intact(descriptor: int, sums: FileSum, index: int) -> bool:
    """Return whether a row group, or with -1 the frame, is as written; what the disk cannot read counts as damaged."""
    try:
        if index < 0:
            return os.fstat(descriptor).st_size == sums.length and _framed(descriptor, sums)
        group = sums.groups[index]
        return crc32_of(descriptor, group.offset, group.length) == (group.crc32, group.length)
    except OSError:
        return False


def _framed(descriptor: int, sums: FileSum) -> bool:
    end = sums.footer + footer.tail(sums.footer)
    last = _read(descriptor, sums.length - len(end), len(end))
    return _read(descriptor, 0, len(footer.MAGIC)) == footer.MAGIC and last == end


def _read(descriptor: int, offset: int, length: int) -> bytes:
    return b"".join(_pieces(descriptor, max(offset, 0), length))


def _pieces(descriptor: int, offset: int, length: int) -> Iterator[bytes]:
    while length > 0:
        piece = os.pread(descriptor, min(length, _CHUNK), offset)
        if not piece:
            return
        yield piece
        offset, length = offset + len(piece), length - len(piece)
