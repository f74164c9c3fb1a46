"""What the ranks of a run printed: found by rank, attempt, time, text and level, in the order of time.

Nothing is read that is not needed: the last lines are read from the ends of the files, and a page of lines from where
the one before it ended. So neither the size of the logs nor the number of ranks decides how long an answer takes.
"""

from __future__ import annotations

import base64
import heapq
import itertools
import json
import re
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from stepscope.core.console_line import ConsoleLine
from stepscope.core.errors import UsageError
from stepscope.store import console_segments as segments
from stepscope.store.text_pattern import TextPattern

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator
    from pathlib import Path

    from stepscope.store.console_segments import ConsoleWriterName, Record
    from stepscope.store.layout import RunFolder

LEVELS = ("err", "error")
"""`err`: lines of standard error (or that look like errors, where the streams are one); `error`: that look like errors,
whatever their stream."""
MOST_LINES = 100_000
"""Maximum lines of one answer."""
MOST_WRITERS = 50_000
"""Maximum ranks and attempts read; no real run has more."""
_ERROR_WORDS = (
    *("error", "exception", "traceback", "fatal", "critical", "panic", "segmentation fault", "core dumped"),
    *("out of memory", "aborted", "killed"),
)
_CODED_COLOUR = re.compile(rb"\\u001b\[[0-9;:]*m")
_COLOUR = re.compile("\x1b\\[[0-9;:]*m")
_FEW, _MANY, _MOST_HELD = 16, 1024, 1 << 17
"""Records of a rank that are searched for a pattern at once: few at first, for an early answer; and those of all."""
_MOST_CURSOR = 1 << 22
_Position = tuple[int, int]
"""Segment and offset."""


@dataclass(frozen=True)
class ConsoleQuery:
    """Which lines to read. None selects everything."""

    ranks: Collection[int] | None = None
    attempt: int | None = None
    since: float | None = None
    """First time, in seconds since 1970 UTC."""
    until: float | None = None
    """Last time, in seconds since 1970 UTC."""
    after: str | None = None
    """The cursor of an earlier answer to the same query: only lines that were printed, or grew, since."""
    last: int | None = None
    """Only this many of the newest lines; read from the end."""
    last_each: int | None = None
    """Together with `last`: at most this many of the newest lines of each rank, however much the others print."""
    pattern: str | None = None
    """Plain text, or a regular expression between slashes; see `store.text_pattern`."""
    level: str | None = None
    """One of LEVELS."""
    limit: int = 2000
    """Maximum lines of the answer; the cursor leads to the others."""


@dataclass(frozen=True)
class ConsoleAnswer:
    """Lines in the order of time."""

    lines: list[ConsoleLine]
    cursor: str
    """For `ConsoleQuery.after`: where the answer ends."""
    dropped: int
    """Lines of these ranks that were printed but not kept, because of the size limit or a slow or full disk. There may
    be more of them in what was not read: before the `last` lines, or behind the cursor."""
    problems: list[str]
    more: bool = False
    """Whether there are further lines now, behind the cursor."""


def has_consoles(folder: RunFolder) -> bool:
    """Return whether anything was kept of what the ranks of a run printed."""
    return bool(segments.find_segments(folder))


def console_ranks(folder: RunFolder) -> list[int]:
    """Return the ranks of which lines were kept, in order."""
    return sorted({who.rank for who in segments.find_segments(folder)})


def read_console(folder: RunFolder, query: ConsoleQuery) -> ConsoleAnswer:
    """Return the lines that a query selects; their `step` is left out (`Past.console` adds it).

    Raises:
        UsageError: the pattern, the level or the cursor is not one.
    """
    return _ConsoleReading(folder, query).answer()


class _Found(NamedTuple):
    """A record, and where its segment goes on."""

    who: ConsoleWriterName
    record: Record
    position: _Position
    is_wanted: bool


@dataclass
class _ConsoleReading:
    """One query."""

    folder: RunFolder
    query: ConsoleQuery
    problems: list[str] = field(default_factory=list)
    dropped: int = 0

    def __post_init__(self) -> None:
        query = self.query
        if query.level is not None and query.level not in LEVELS:
            raise UsageError(f"read level {query.level!r} of a console", "there is none", f"use {' or '.join(LEVELS)}")
        self.pattern = TextPattern(query.pattern) if query.pattern else None
        self.after = _decoded(query.after)
        self.limit = max(1, min(query.limit, MOST_LINES))
        found = segments.find_segments(self.folder, query.ranks, query.attempt)
        if len(found) > MOST_WRITERS:
            self.problems.append(f"console: only {MOST_WRITERS} of {len(found)} ranks were read: too many for a run")
        self.files = dict(list(found.items())[:MOST_WRITERS])
        self.words = self._needed_words()

    def answer(self) -> ConsoleAnswer:
        self.dropped += sum(map(self._gap, self.files))
        lines, positions, more = self._newest() if self.query.last is not None else self._oldest()
        return ConsoleAnswer(lines, _encoded(positions), self.dropped, self.problems, more)

    def _newest(self) -> tuple[list[ConsoleLine], dict[ConsoleWriterName, _Position], bool]:
        ends = {who: (found[-1], self._end(who, found[-1])) for who, found in self.files.items()}
        parts = [
            _first_wanted(self._searched(self._backwards(who, end)), self.query.last_each) for who, end in ends.items()
        ]
        wanted = min(self.query.last or 0, self.limit)
        lines: list[ConsoleLine] = []
        for found in heapq.merge(*parts, key=_age):
            if len(lines) >= wanted:
                break
            if found.is_wanted and isinstance(found.record, ConsoleLine):
                lines.append(found.record)
        return lines[::-1], ends, False

    def _backwards(self, who: ConsoleWriterName, end: _Position) -> Iterator[_Found]:
        """Yield the lines of a writer that may be wanted, the newest first."""
        grown: set[int] = set()  # numbers of lines whose later record we have had
        for number in reversed(self.files[who]):
            damaged, path = 0, self._path(who, number)
            size = end[1] if number == end[0] else self._end(who, number)
            for line in self._surely(path, segments.backward(path, size, self._is_dull_block)):
                if self._is_dull(line) and self.query.since is None:
                    continue
                record = segments.decode_record(line, who)
                if isinstance(record, ConsoleLine):
                    is_old = record.number in grown
                    (grown.add if segments.is_again(line) else grown.discard)(record.number)
                    if not is_old and self._may_want(record):
                        yield _Found(who, record, end, is_wanted=True)
                    if self.query.since is not None and record.time < self.query.since:
                        return
                elif record is not None:
                    self.dropped += record.lines
                else:
                    damaged += 1
            self._note(path, damaged)

    def _oldest(self) -> tuple[list[ConsoleLine], dict[ConsoleWriterName, _Position], bool]:
        positions = {who: self._start(who) for who in self.files}
        parts = [self._searched(self._forwards(who, positions[who])) for who in self.files]
        lines: dict[tuple[ConsoleWriterName, int], ConsoleLine] = {}
        more = False
        for found in heapq.merge(*parts, key=lambda one: one.record.time):
            if len(lines) >= self.limit:
                more = True
                break
            positions[found.who] = found.position
            if isinstance(found.record, ConsoleLine):
                lines.pop((found.who, found.record.number), None)  # an earlier state of the same line
                if found.is_wanted:
                    lines[found.who, found.record.number] = found.record
            else:
                self.dropped += found.record.lines
        return list(lines.values()), positions, more

    def _forwards(self, who: ConsoleWriterName, start: _Position) -> Iterator[_Found]:
        """Yield the records of a writer from a position on."""
        for number in self.files[who]:
            if number < start[0]:
                continue
            damaged, path = 0, self._path(who, number)
            first = start[1] if number == start[0] else 0
            for line, offset in self._surely(path, segments.forward(path, first, self._is_dull_block)):
                record = segments.decode_record(line, who)
                if record is None:
                    damaged += 1
                    continue
                if self.query.until is not None and record.time > self.query.until:
                    return
                may_want = isinstance(record, ConsoleLine) and self._may_want(record)
                yield _Found(who, record, (number, offset), may_want)
            self._note(path, damaged)

    def _start(self, who: ConsoleWriterName) -> _Position:
        """Return where to begin: at the cursor, or in the last segment that begins before the first time wanted."""
        if who in self.after:
            return self.after[who]
        numbers = self.files[who]
        low, high = 0, len(numbers) - 1 if self.query.since is not None else 0
        while low < high:
            middle = (low + high + 1) // 2
            begins = self._edge(who, numbers[middle], is_first=True)
            if begins is not None and begins.time <= (self.query.since or 0.0):
                low = middle
            else:
                high = middle - 1
        return numbers[low], 0

    def _searched(self, found: Iterator[_Found]) -> Iterator[_Found]:
        """Yield records; those without the pattern are wanted no more."""
        if self.pattern is None:
            yield from found
            return
        size, most = _FEW, max(_FEW, min(_MANY, _MOST_HELD // max(1, len(self.files))))
        while batch := list(itertools.islice(found, size)):
            size = min(2 * size, most)
            texts = [_COLOUR.sub("", one.record.text) if isinstance(one.record, ConsoleLine) else "" for one in batch]
            for one, matches in zip(batch, self.pattern.matches(texts), strict=True):
                yield one if matches else one._replace(is_wanted=False)

    def _may_want(self, line: ConsoleLine) -> bool:
        """Return whether a line is wanted if it has the pattern."""
        query = self.query
        if query.since is not None and line.time < query.since:
            return False
        if query.until is not None and line.time > query.until:
            return False
        if query.level == "err" and line.stream == "out":
            return False
        needs_error = query.level == "error" or (query.level == "err" and not line.stream)
        return not needs_error or looks_like_error(_COLOUR.sub("", line.text))

    def _needed_words(self) -> tuple[bytes, ...]:
        """Return words of which every wanted line has one, as they are in a file; empty if there are none such."""
        plain = self.pattern.plain if self.pattern is not None else ""
        if plain and plain.isascii() and plain.isprintable() and not {'"', "\\"} & set(plain):
            return (plain.encode(),)
        return tuple(word.encode() for word in _ERROR_WORDS) if self.query.level == "error" else ()

    def _is_dull(self, lines: bytes) -> bool:
        """Return whether lines need not be decoded, as they surely have none of the words looked for."""
        if not self.words or b'"lost": ' in lines or segments.is_again(lines):
            return False
        if b"\\u001b" in lines:
            lines = _CODED_COLOUR.sub(b"", lines)
        lower = lines.lower()
        return b"\\u" not in lines and not any(word in lower for word in self.words)

    def _is_dull_block(self, lines: bytes) -> bool:
        """Return whether surely none of the lines of a part of a file is wanted."""
        if self.pattern is None or self.pattern.plain:
            return self._is_dull(lines)
        if b'"lost": ' in lines or segments.is_again(lines):
            return False
        if b"\\u001b" in lines:
            lines = _CODED_COLOUR.sub(b"", lines)
        return b"\\" not in lines and not self.pattern.may_be_in(lines.decode("ascii", "replace"))

    def _path(self, who: ConsoleWriterName, number: int) -> Path:
        return segments.segment_path(self.folder.path, who, number)

    def _gap(self, who: ConsoleWriterName) -> int:
        """Return how many lines were in the segments that are gone: the numbers that are missing between two others."""
        lost = 0
        for former, number in itertools.pairwise([-1, *self.files[who]]):
            if number == former + 1:
                continue
            last = self._edge(who, former, is_first=False) if former >= 0 else None
            first = self._edge(who, number, is_first=True)
            if first is not None:
                lost += max(0, first.number - (-1 if last is None else last.number) - 1)
        return lost

    def _edge(self, who: ConsoleWriterName, number: int, *, is_first: bool) -> Record | None:
        """Return the first or the last record of a segment that can be read."""
        path = self._path(who, number)
        lines = (line for line, _ in segments.forward(path)) if is_first else None
        for line in self._surely(path, lines or segments.backward(path, self._end(who, number))):
            record = segments.decode_record(line, who)
            if record is not None:
                return record
        return None

    def _surely(self, path: Path, lines: Iterator[segments.T]) -> Iterator[segments.T]:
        """Yield the lines of a file as far as it can be read."""
        try:
            yield from lines
        except (OSError, ValueError) as error:
            self._unread(path, error)

    def _end(self, who: ConsoleWriterName, number: int) -> int:
        """Return the offset behind the last complete line of a segment."""
        path = self._path(who, number)
        try:
            return segments.complete_size(path)
        except (OSError, ValueError) as error:
            self._unread(path, error)
            return 0

    def _unread(self, path: Path, error: OSError | ValueError) -> None:
        cause = error.strerror if isinstance(error, OSError) else error
        problem = f"{path.parent.name}/{path.name}: not read: {cause}"
        is_gone = isinstance(error, FileNotFoundError)  # the writer deletes old segments of a long console
        if not is_gone and problem not in self.problems:
            self.problems.append(problem)

    def _note(self, path: Path, damaged: int) -> None:
        if damaged:
            self.problems.append(f"{path.parent.name}/{path.name}: {damaged} damaged lines were passed over")


def _at(offset: int) -> int:
    if not 0 <= offset < 2**62:
        raise ValueError("no offset")
    return offset


def looks_like_error(text: str) -> bool:
    """Return whether a line has a word that programs use for errors."""
    lower = text.lower()
    return any(word in lower for word in _ERROR_WORDS)


def _first_wanted(found: Iterable[_Found], most: int | None) -> Iterator[_Found]:
    """Yield records up to the last of `most` wanted ones; None: all."""
    count = 0
    for one in found:
        yield one
        count += one.is_wanted
        if count == most:
            return


def _age(found: _Found) -> float:
    return -found.record.time


def _encoded(positions: dict[ConsoleWriterName, _Position]) -> str:
    """Return positions as a short text without special characters."""
    plain = [[*who, *position] for who, position in positions.items()]
    return base64.urlsafe_b64encode(zlib.compress(json.dumps(plain, separators=(",", ":")).encode())).decode()


def _decoded(cursor: str | None) -> dict[ConsoleWriterName, _Position]:
    if not cursor:
        return {}
    try:
        unpacking = zlib.decompressobj()
        plain = json.loads(unpacking.decompress(base64.urlsafe_b64decode(cursor.encode()), _MOST_CURSOR))
        return {
            segments.ConsoleWriterName(str(node), int(attempt), int(rank)): (int(number), _at(int(offset)))
            for node, attempt, rank, number, offset in plain
        }
    except (ValueError, TypeError, OverflowError, zlib.error, RecursionError) as error:
        remedy = "pass the cursor of an earlier answer, or none"
        raise UsageError("go on in a console", "that is not a cursor", remedy) from error
