"""The folder of a run: where each file is, and what its name means."""

from __future__ import annotations

import bisect
import contextlib
import fcntl
import json
import os
import re
import zlib
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

FORMAT_VERSION = 1
RUN_FILE = "run.json"
LATER_FILE = "later.json"
LABELS_FILE = "labels.json"
DUMPS_FOLDER = "flight"
FOLDERS = ("nodes", "events", "tail", "metrics", "claims")
MOST_CLAIMS = 8
"""Claims of one attempt that are read to learn the size of its job: they agree."""
_TAIL = re.compile(r"(?P<node>.+)-(?P<attempt>\d+)-(?P<first>\d+)\.log")
_UNIT = re.compile(r"(?P<node>[^.].*)-(?P<attempt>\d+)-(?P<first>\d+)-(?P<last>\d+)\.parquet")


class Writer(NamedTuple):
    """One watcher of a run: the node it runs on, and the attempt it watches. No file has two writers."""

    node: str
    attempt: int

    @property
    def stem(self) -> str:
        """The prefix of all its file names."""
        return f"{self.node}-{self.attempt}"


class FileSpan(NamedTuple):
    """A file that holds the tails `first` to `last` of a writer (a tail file holds one)."""

    writer: Writer
    first: int
    last: int
    path: Path

    def covers(self, other: FileSpan) -> bool:
        """Return whether everything in `other` is in this span too."""
        return self.writer == other.writer and self.first <= other.first and other.last <= self.last


def uncovered(tails: Iterable[FileSpan], units: Iterable[FileSpan]) -> list[FileSpan]:
    """Return the tails that no sealed file holds; no sealed file may cover another."""
    by_writer: dict[Writer, list[FileSpan]] = {}
    for unit in sorted(units):
        by_writer.setdefault(unit.writer, []).append(unit)
    found = []
    for tail in tails:
        own = by_writer.get(tail.writer, [])
        place = bisect.bisect_right(own, tail.first, key=lambda unit: unit.first)
        if not place or not own[place - 1].covers(tail):
            found.append(tail)
    return found


def node_name(place: Path, boot_id: str, hostname: str | None = None) -> str:
    """Return a name for this node that is unique within a run, even among nodes with the same host name.

    `place` is the private runtime directory, which two containers on one machine do not share.
    """
    facts = place.stat()
    digest = f"{zlib.crc32(f'{boot_id}:{facts.st_dev}:{facts.st_ino}'.encode()):08x}"
    host = re.sub(r"[^A-Za-z0-9_.]", "_", hostname or os.uname().nodename)[:40] or "node"
    return f"{host}.{digest}"


class RunFolder:
    """Paths inside one run's folder, which may not exist yet."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def make(self) -> None:
        """Create the folder and its subfolders, readable by this user only."""
        for folder in (self.path, *(self.path / name for name in FOLDERS)):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if folder.stat().st_uid == os.getuid():
                folder.chmod(0o700)

    def missing(self) -> list[str]:
        """Return the names of subfolders that were deleted."""
        return [name for name in FOLDERS if not os.path.lexists(self.path / name)]

    def restore(self) -> list[str]:
        """Create missing subfolders of an existing folder; return their names."""
        missing = self.missing()
        for name in missing:
            (self.path / name).mkdir(mode=0o700, exist_ok=True)
        return missing

    @property
    def run_file(self) -> Path:
        """Identity and configuration, written once."""
        return self.path / RUN_FILE

    @property
    def later_file(self) -> Path:
        """Facts learned after the run started; not every run has this file."""
        return self.path / LATER_FILE

    @property
    def labels_file(self) -> Path:
        """Tags, notes, group and display name; not every run has this file."""
        return self.path / LABELS_FILE

    def node_file(self, writer: Writer) -> Path:
        """One watcher's heartbeat, the states of its ranks, and how they ended."""
        return self.path / "nodes" / f"{writer.stem}.json"

    def events_file(self, writer: Writer) -> Path:
        """One watcher's events."""
        return self.path / "events" / f"{writer.stem}.jsonl"

    def tail_file(self, writer: Writer, number: int) -> Path:
        """One tail of a watcher."""
        return self.path / "tail" / f"{writer.stem}-{number}.log"

    def torch_dump(self, attempt: int, rank: int | str = "") -> Path:
        """Return where torch dumps the collectives of a rank; without a rank, the start of these paths."""
        return self.path / DUMPS_FOLDER / f"{attempt}-comm_lib_trace_rank_{rank}"

    def unit_stem(self, writer: Writer, first: int, last: int) -> str:
        """Name, without suffix, of the sealed file that holds the tails `first` to `last`."""
        return f"{writer.stem}-{first}-{last}"

    def tails(self) -> list[FileSpan]:
        """Return the tail files that no sealed file holds yet, in order."""
        tails = self.all_tails()  # listed first: a tail that is being sealed now is then in one of the two lists
        return uncovered(tails, self.units())

    def units(self) -> list[FileSpan]:
        """Return the sealed files in order, without those that a compacted one replaces."""
        kept: list[FileSpan] = []
        for unit in sorted(self.all_units(), key=lambda unit: (unit.writer, unit.first, -unit.last)):
            if not kept or not kept[-1].covers(unit):  # spans nest or are disjoint: the widest comes first
                kept.append(unit)
        return kept

    def all_tails(self) -> list[FileSpan]:
        """Return every tail file in order, including sealed ones."""
        return _spans(self.path / "tail", _TAIL)

    def all_units(self) -> list[FileSpan]:
        """Return every sealed file, including replaced ones."""
        return _spans(self.path / "metrics", _UNIT)

    def next_tail(self, writer: Writer) -> int:
        """Return the first unused tail number of `writer`."""
        spans = self.all_tails() + self.all_units()
        return max((span.last for span in spans if span.writer == writer), default=-1) + 1

    def claim(self, attempt: int | None, rank: int, world_size: int = 0) -> int:
        """Claim and return the first attempt, from `attempt` on, that no process of this rank has claimed.

        With `world_size`, for a launcher that may restart its ranks without counting that: never an attempt before the
        newest that any rank has claimed, and a new one if that belongs to a job of another size.
        """
        number = max(attempt or 0, self._newest_claimed(world_size) if world_size else 0)
        while True:
            try:
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
                descriptor = os.open(self.path / "claims" / f"{number}-{rank}", flags, 0o600)
            except FileExistsError:
                number += 1
            else:
                with open(descriptor, "wb", closefd=True) as file:
                    file.write(str(world_size).encode() if world_size else b"")
                return number

    def _newest_claimed(self, world_size: int) -> int:
        """Return the newest attempt that was claimed; the one after it if that is known to have had another size."""
        claims: dict[int, list[str]] = {}
        for name in os.listdir(self.path / "claims"):
            attempt, _, rank = name.partition("-")
            if attempt.isdecimal() and rank.isdecimal():
                claims.setdefault(int(attempt), []).append(name)
        newest = max(claims, default=0)
        sizes = {(self.path / "claims" / name).read_bytes()[:20] for name in claims.get(newest, [])[:MOST_CLAIMS]}
        sizes.discard(b"")  # of an older version, or just being written
        return newest + 1 if sizes and str(world_size).encode() not in sizes else newest

    def created(self) -> int | None:
        """Return the creation time in run.json (microseconds since 1970 UTC); None if it has none."""
        made = read_object(self.run_file).get("created")
        return made if isinstance(made, int) else None

    def is_home_of(self, created: object) -> bool:
        """Return whether rows of a run created at `created` belong here: a folder may be deleted and recreated."""
        made = self.created()
        return made is None or created is None or made == created

    def describe(self, facts: dict[str, Any]) -> bool:
        """Write run.json unless it exists; return whether this call wrote it."""
        return write_once(self.run_file, json.dumps(facts, indent=1).encode())


def write_once(path: Path, data: bytes) -> bool:
    """Create `path` atomically; return False if it exists already."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
    try:
        _write(temporary, data)
        return _place_once(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _place_once(temporary: Path, path: Path) -> bool:
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    except OSError:  # a file system without hard links
        if path.exists():
            return False
        os.replace(temporary, path)
    return True


def replace(path: Path, data: bytes, *, sync: bool = False) -> None:
    """Replace `path` atomically: a reader sees the old or the new content, with `sync` also after a power loss."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        _write(temporary, data, sync=sync)
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def _write(path: Path, data: bytes, *, sync: bool = False) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        while data:
            data = data[os.write(descriptor, data) :]
        if sync:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def locked(path: Path, flags: int = 0, how: int = fcntl.LOCK_EX | fcntl.LOCK_NB) -> Iterator[None]:
    """Hold the lock of a file, to be opened with these flags; raise BlockingIOError if another process holds it."""
    descriptor = os.open(path, os.O_RDWR | flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.lockf(descriptor, how)
        yield
    finally:
        os.close(descriptor)


def read_object(path: Path, most: int = -1) -> dict[str, Any]:
    """Return the JSON object in a file; empty if there is none, or it is damaged or longer than `most` bytes."""
    try:
        with path.open("rb") as file:
            text = file.read(most)
            found = None if file.read(1) else json.loads(text)
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def age_of(path: Path, now: float) -> float:
    """Return the seconds since a file changed; 0 if it is missing."""
    try:
        return now - path.stat().st_mtime
    except OSError:
        return 0.0


def _spans(folder: Path, pattern: re.Pattern[str]) -> list[FileSpan]:
    """Return the files of a folder whose names match, in order."""
    try:
        matches = list(map(pattern.fullmatch, os.listdir(folder)))
    except (FileNotFoundError, NotADirectoryError):
        return []
    spans = []
    for match in matches:
        if match:
            writer, last = Writer(match["node"], int(match["attempt"])), match.groupdict().get("last", match["first"])
            spans.append(FileSpan(writer, int(match["first"]), int(last), folder / match.string))
    return sorted(spans)
