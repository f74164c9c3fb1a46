"""The outbox of a run: alerts to send and alerts that were sent, in two files that each have one writer.

`outbox/<node>.queue` is appended by the watcher: one alert per line, on the disk itself before anything is sent.
`outbox/<node>.sent` is appended by the notifier, which holds a lock on it: each message before and after sending.
Whichever process dies, a line is whole or absent, and a message in flight is sent again under the same id.
"""

from __future__ import annotations

import fcntl
import json
import os
from dataclasses import dataclass, field
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
"""Alerts that wait for a disk which takes nothing."""
TRY, DONE, FAILED, DEAD, SKIPPED = "try", "sent", "failed", "dead", "skipped"
"""States of a message in the journal: about to be sent, delivered, not delivered, given up, not for this channel."""


class Entry(NamedTuple):
    """One alert event to send."""

    number: int
    event: dict[str, Any]
    only: str = ""
    """Name of the one channel it is for; empty is all."""

    def row(self) -> dict[str, Any]:
        """Return it as a line of the queue has it."""
        return {"n": self.number, "event": self.event, **({"only": self.only} if self.only else {})}


class Note(NamedTuple):
    """One line of the journal of deliveries."""

    channel: str
    """Its key."""
    group: str
    """Identity of the message."""
    state: str
    numbers: tuple[int, ...]
    """The entries in it."""
    time: float
    why: str = ""
    name: str = ""


def queue_path(run: Path, node: str) -> Path:
    """Return the queue of a node."""
    return run / FOLDER / f"{node}{QUEUE}"


def sent_path(run: Path, node: str) -> Path:
    """Return the journal of a node."""
    return run / FOLDER / f"{node}{SENT}"


class _Lines:
    """A file of JSON lines that is only appended to; a torn line at its end does not spoil the next."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(mode=0o700, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        self.descriptor = os.open(path, flags, 0o600)

    def append(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Write rows as one, on the disk itself; on OSError none of them counts as written."""
        data = "".join(json.dumps(row, separators=(",", ":"), default=str) + "\n" for row in rows).encode()
        append_lines(self.descriptor, data, sync=True)

    def size(self) -> int:
        return os.fstat(self.descriptor).st_size

    def close(self) -> None:
        os.close(self.descriptor)


@dataclass
class LineReader:
    """The position of a reader in such a file."""

    path: Path
    offset: int = 0

    def rows(self) -> list[dict[str, Any]]:
        """Return the whole rows that have come since the last call; what cannot be read is passed over."""
        try:
            with self.path.open("rb") as file:
                file.seek(self.offset)
                data = file.read()
        except FileNotFoundError:
            return []
        end = data.rfind(b"\n") + 1
        self.offset += end
        found = []
        for line in data[:end].split(b"\n"):
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):
                continue  # torn by a kill, and so never counted as written
            if isinstance(row, dict):
                found.append(row)
        return found


class Queue:
    """The watcher's end: adds alerts to send."""

    def __init__(self, run: Path, node: str) -> None:
        """Open nothing yet: most runs send nothing."""
        self._path = queue_path(run, node)
        self._lines: _Lines | None = None
        self.last = -1
        """Number of the last entry."""
        self.unwritten: list[Entry] = []
        """Entries that the disk does not take; they go to the notifier directly, and here when there is room again."""
        self.refused = 0
        """Alerts that were not added, as the file or the list above is full."""

    def add(self, events: Sequence[Mapping[str, Any]], only: str = "") -> bool:
        """Add events; return whether they are durable now. Never raises."""
        if self.last < 0:
            self.last = max((entry.number for entry in entries(LineReader(self._path))), default=-1)
        room = MOST_UNWRITTEN - len(self.unwritten)
        self.refused += max(0, len(events) - room)
        for event in events[:room]:
            self.last += 1
            self.unwritten.append(Entry(self.last, dict(event), only))
        return self.flush()

    def flush(self) -> bool:
        """Try again to write what is unwritten; return whether nothing is left."""
        if not self.unwritten:
            return True
        try:
            if self._lines is None:
                self._lines = _Lines(self._path)
            if self._lines.size() > MAX_BYTES:
                self.refused += len(self.unwritten)
            else:
                self._lines.append(entry.row() for entry in self.unwritten)
        except OSError:
            return False
        self.unwritten = []
        return True

    def close(self) -> None:
        """Close the file."""
        if self._lines is not None:
            self._lines.close()
            self._lines = None


def entry_of(row: Mapping[str, Any]) -> Entry | None:
    """Return the entry of a row; None if it is invalid."""
    number, event = row.get("n"), row.get("event")
    if not isinstance(number, int) or not isinstance(event, dict):
        return None
    return Entry(number, event, str(row.get("only", "")))


def entries(reading: LineReader) -> list[Entry]:
    """Return the entries that have come since the last call."""
    return [entry for row in reading.rows() if (entry := entry_of(row)) is not None]


def notes(reading: LineReader) -> list[Note]:
    """Return the notes of the journal that have come since the last call."""
    found = []
    for row in reading.rows():
        try:
            numbers = tuple(map(int, row["n"]))
            who, name = (str(row["c"]), str(row["g"]), str(row["s"])), str(row.get("name", ""))
            found.append(Note(*who, numbers, float(row["t"]), str(row.get("why", "")), name))
        except (KeyError, TypeError, ValueError):
            continue  # of another version: at worst a message is sent twice
    return found


class NotifierBusyError(Exception):
    """Another notifier is at work."""


class DeliveryJournal:
    """The notifier's end: the journal of its deliveries. One process at a time, by a lock."""

    def __init__(self, run: Path, node: str) -> None:
        """Take the journal.

        Raises:
            BusyError: another process has it.
            OSError: it cannot be opened.
        """
        self._lines = _Lines(sent_path(run, node))
        try:
            fcntl.flock(self._lines.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._lines.close()
            raise NotifierBusyError from None

    def write(self, note: Note) -> None:
        """Append a note, durable when this returns."""
        row = {"c": note.channel, "g": note.group, "s": note.state, "n": list(note.numbers), "t": note.time}
        named = {"name": note.name} if note.name else {}
        self._lines.append([row | named | ({"why": note.why} if note.why else {})])

    def close(self) -> None:
        """Close the journal."""
        self._lines.close()


@dataclass
class Delivery:
    """The progress of one channel, as the files have it."""

    channel: str
    name: str = ""
    done: set[int] = field(default_factory=set)
    dead: set[int] = field(default_factory=set)
    skipped: set[int] = field(default_factory=set)
    state: str = ""
    why: str = ""
    time: float = 0.0

    def take(self, note: Note) -> None:
        """Bring a note of the journal in."""
        if note.state == SKIPPED:
            self.skipped.update(note.numbers)
            return
        self.name, self.state, self.time, self.why = note.name or self.name, note.state, note.time, note.why
        if note.state == DONE:
            self.done.update(note.numbers)
        elif note.state == DEAD:
            self.dead.update(note.numbers)


def deliveries(run: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Return the state of deliveries, one row per node and channel.

    Each has `channel` (its name), `node`, `state` (sent, waiting, failing or dead), the counts of alerts `sent`,
    `waiting` and `dead`, `time` (unix seconds of the last try) and `why` that failed. No secret is in it.
    """
    folder = Path(run) / FOLDER
    found: list[dict[str, Any]] = []
    for queue in sorted(folder.glob(f"[!.]*{QUEUE}")):
        node = queue.name.removesuffix(QUEUE)
        waiting = {entry.number for entry in entries(LineReader(queue))}
        channels: dict[str, Delivery] = {}
        for note in notes(LineReader(sent_path(Path(run), node))):
            channels.setdefault(note.channel, Delivery(note.channel)).take(note)
        for delivery in channels.values():
            state = {DONE: "sent", DEAD: "dead"}.get(delivery.state, "failing" if delivery.why else "waiting")
            found.append(
                {
                    "channel": delivery.name or delivery.channel,
                    "node": node,
                    "state": state,
                    "sent": len(delivery.done),
                    "waiting": len(waiting - delivery.done - delivery.dead - delivery.skipped),
                    "dead": len(delivery.dead),
                    "time": delivery.time,
                    "why": delivery.why,
                }
            )
    return found
