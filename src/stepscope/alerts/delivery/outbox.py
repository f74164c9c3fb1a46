"""The outbox of a run: alerts to send and alerts that were sent, in two files that each have one writer.

The watcher appends to `outbox/<node>.queue`: one alert per line, durable before anything is sent. The notifier locks
`outbox/<node>.sent` and appends to it before and after it sends a message. Whichever process dies, each line is
complete or ignored, and a message in flight is sent again under the same id.
"""

from __future__ import annotations

import fcntl
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from stepscope.core.line_file import append_lines

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

FOLDER = "outbox"
QUEUE, SENT = ".queue", ".sent"
MAX_BYTES = 64 << 20
"""Size of the queue beyond which nothing is added: a rule that fires all the time must not fill the disk."""
MOST_UNWRITTEN = 5000
"""Alerts that wait for a disk that cannot be written."""
TRY, DONE, FAILED, DEAD, SKIPPED = "try", "sent", "failed", "dead", "skipped"
"""States of a message in the journal: about to be sent, delivered, not delivered, given up, not for this channel."""


class Entry(NamedTuple):
    """One alert event to send."""

    number: int
    event: dict[str, Any]
    only: str = ""
    """Name of its only channel; empty for all channels."""

    def row(self) -> dict[str, Any]:
        """Return the entry as a row of the queue."""
        return {"n": self.number, "event": self.event, **({"only": self.only} if self.only else {})}


class Note(NamedTuple):
    """One line of the journal of deliveries."""

    channel: str
    """The channel's key."""
    group: str
    """The message's id."""
    state: str
    numbers: tuple[int, ...]
    """The entries in the message."""
    time: float
    why: str = ""
    name: str = ""


def queue_path(run: Path, node: str) -> Path:
    """Return the queue of a node."""
    return run / FOLDER / f"{node}{QUEUE}"


def sent_path(run: Path, node: str) -> Path:
    """Return the journal of a node."""
    return run / FOLDER / f"{node}{SENT}"


def _open(path: Path) -> int:
    path.parent.mkdir(mode=0o700, exist_ok=True)
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def _append(descriptor: int, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write rows in one piece, durable when this returns; on OSError none of them counts as written."""
    data = "".join(json.dumps(row, separators=(",", ":"), default=str) + "\n" for row in rows).encode()
    append_lines(descriptor, data, sync=True)


def rows_of(lines: bytes) -> list[dict[str, Any]]:
    """Return the objects of JSON lines; skips damaged lines."""
    found = []
    for line in lines.split(b"\n"):
        try:
            found.append(json.loads(line))
        except (ValueError, RecursionError):
            continue  # torn by a kill, so it never counted as written
    return [row for row in found if isinstance(row, dict)]


@dataclass
class LineReader:
    """The position of a reader in a file of JSON lines."""

    path: Path
    offset: int = 0

    def rows(self) -> list[dict[str, Any]]:
        """Return the complete rows that were appended since the last call."""
        try:
            with self.path.open("rb") as file:
                file.seek(self.offset)
                data = file.read()
        except FileNotFoundError:
            return []
        end = data.rfind(b"\n") + 1
        self.offset += end
        return rows_of(data[:end])


class Queue:
    """The watcher's end: adds alerts to send."""

    def __init__(self, run: Path, node: str) -> None:
        """Open nothing yet: most runs send nothing."""
        self._path = queue_path(run, node)
        self._descriptor: int | None = None
        self.last = -1
        """Number of the last entry."""
        self.unwritten: list[Entry] = []
        """Entries that the disk refused; the notifier gets them directly, and they are written when there is room."""
        self.refused = 0
        """Alerts that were not added because the file or the list above is full."""

    def add(self, events: Sequence[Mapping[str, Any]], only: str = "") -> bool:
        """Add events; return whether they are durable now. Never raises."""
        if self.last < 0:
            self.last = max((entry.number for entry in entries(LineReader(self._path).rows())), default=-1)
        room = MOST_UNWRITTEN - len(self.unwritten)
        self.refused += max(0, len(events) - room)
        for event in events[:room]:
            self.last += 1
            self.unwritten.append(Entry(self.last, dict(event), only))
        return self.flush()

    def flush(self) -> bool:
        """Write the unwritten entries; return whether none is left."""
        if not self.unwritten:
            return True
        try:
            if self._descriptor is None:
                self._descriptor = _open(self._path)
            if os.fstat(self._descriptor).st_size > MAX_BYTES:
                self.refused += len(self.unwritten)
            else:
                _append(self._descriptor, (entry.row() for entry in self.unwritten))
        except OSError:
            return False
        self.unwritten = []
        return True

    def close(self) -> None:
        """Close the file."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def entries(rows: Iterable[Mapping[str, Any]]) -> list[Entry]:
    """Return the entries that rows of a queue describe; skips invalid ones."""
    return [
        Entry(row["n"], row["event"], str(row.get("only", "")))
        for row in rows
        if isinstance(row.get("n"), int) and isinstance(row.get("event"), dict)
    ]


def notes(rows: Iterable[Mapping[str, Any]]) -> list[Note]:
    """Return the notes that rows of a journal describe."""
    found = []
    for row in rows:
        try:
            numbers = tuple(map(int, row["n"]))
            who, name = (str(row["c"]), str(row["g"]), str(row["s"])), str(row.get("name", ""))
            found.append(Note(*who, numbers, float(row["t"]), str(row.get("why", "")), name))
        except (KeyError, TypeError, ValueError):
            continue  # written by another version: at worst a message is sent twice
    return found


class NotifierBusyError(Exception):
    """Another notifier holds the journal."""


class DeliveryJournal:
    """The notifier's end: the journal of its deliveries. A lock admits one process at a time."""

    def __init__(self, run: Path, node: str) -> None:
        """Open and lock the journal; NotifierBusyError if another process holds it, OSError if it cannot be opened."""
        self._descriptor = _open(sent_path(run, node))
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.close()
            raise NotifierBusyError from None

    def write(self, note: Note) -> None:
        """Append a note, durable when this returns."""
        row = {"c": note.channel, "g": note.group, "s": note.state, "n": list(note.numbers), "t": note.time}
        named = {"name": note.name} if note.name else {}
        _append(self._descriptor, [row | named | ({"why": note.why} if note.why else {})])

    def close(self) -> None:
        """Close the journal."""
        os.close(self._descriptor)


def deliveries(run: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Return the state of deliveries, one row per node and channel.

    Each has `channel` (its name), `node`, `state` (sent, waiting, failing or dead), the counts of alerts `sent`,
    `waiting` and `dead`, `time` (unix seconds of the last try) and `why` that failed. No secret is in it.
    """
    folder = Path(run) / FOLDER
    found: list[dict[str, Any]] = []
    for queue in sorted(folder.glob(f"[!.]*{QUEUE}")):
        node = queue.name.removesuffix(QUEUE)
        waiting = {entry.number for entry in entries(LineReader(queue).rows())}
        channels: dict[str, list[Note]] = {}
        for note in notes(LineReader(sent_path(Path(run), node)).rows()):
            channels.setdefault(note.channel, []).append(note)
        found += [_progress(node, mine, waiting) for mine in channels.values()]
    return found


def _progress(node: str, mine: list[Note], queued: set[int]) -> dict[str, Any]:
    """Return the state of one channel by its notes, and the numbers of all entries of the queue."""
    done, dead, skipped = (
        {number for note in mine if note.state == state for number in note.numbers} for state in (DONE, DEAD, SKIPPED)
    )
    tries = [note for note in mine if note.state != SKIPPED] or [mine[0]._replace(state="", time=0.0, why="", name="")]
    last, names = tries[-1], [note.name for note in tries if note.name]
    return {
        "channel": names[-1] if names else last.channel,
        "node": node,
        "state": {DONE: "sent", DEAD: "dead"}.get(last.state, "failing" if last.why else "waiting"),
        "sent": len(done),
        "waiting": len(queued - done - dead - skipped),
        "dead": len(dead),
        "time": last.time,
        "why": last.why,
    }
