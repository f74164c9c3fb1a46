"""The files of consoles: `console/<node>/<attempt>-<rank>-<n>.log`, lines of JSON with a checksum.

A record is a line, or says how many lines are missing here. A line that had no end yet is written again under the same
number when it grows: the last record of a number counts. Each rank has one writer, which counts its segments from 0.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from stepscope.core.console_line import ConsoleLine
from stepscope.store.checked_line import decode_line, encode_line

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path

    from stepscope.store.layout import RunFolder

FOLDER = "console"
SEGMENT_BYTES = 1 << 20
LONGEST_RECORD = 1 << 18
"""Bytes of the longest line of a segment: every character of a text may take twelve."""
STREAMS = ("", "out", "err")
_SEGMENT = re.compile(r"(\d{1,9})-(\d{1,9})-(\d{1,9})\.log")
_FIRST_BLOCK, _LARGEST_BLOCK = 1 << 14, 1 << 19
_MOST_SECONDS = 253_402_300_799.0
"""The end of the year 9999."""
_SURROGATE = re.compile("[\ud800-\udfff]")


class ConsoleWriterName(NamedTuple):
    """Who writes a console: a rank in an attempt, on a node."""

    node: str
    attempt: int
    rank: int


class LostLines(NamedTuple):
    """A record of lines that were printed but not kept."""

    time: float
    """Seconds since 1970 UTC."""
    number: int
    """The number of the first of them."""
    lines: int
    reason: str


Record = ConsoleLine | LostLines
T = TypeVar("T")
Dull = Callable[[bytes], bool]
"""Whether no line of some lines is of any interest."""


def segment_path(folder: Path, who: ConsoleWriterName, number: int) -> Path:
    """Return the path of a segment in the folder of a run."""
    return folder / FOLDER / who.node / f"{who.attempt}-{who.rank}-{number}.log"


def find_segments(
    folder: RunFolder, ranks: Collection[int] | None = None, attempt: int | None = None
) -> dict[ConsoleWriterName, list[int]]:
    """Return the numbers of each writer's segments, in order; by default of all ranks and attempts."""
    found: dict[tuple[str, str, str], list[int]] = {}
    place = folder.path / FOLDER
    for node in _names(place):
        for name in _names(place / node):
            match = _SEGMENT.fullmatch(name)
            if match:
                found.setdefault((node, match[1], match[2]), []).append(int(match[3]))
    writers = {ConsoleWriterName(node, int(tried), int(rank)): found[node, tried, rank] for node, tried, rank in found}
    return {
        who: sorted(writers[who])
        for who in sorted(writers)
        if (ranks is None or who.rank in ranks) and attempt in {None, who.attempt}
    }


def _names(folder: Path) -> list[str]:
    """Return the names in a folder that may be ours; none if there is no such folder, or nobody may look into it."""
    try:
        return [name for name in os.listdir(folder) if not name.startswith(".") and name.isprintable()]
    except OSError:
        return []


def encode_record(record: Record, *, again: bool = False) -> bytes:
    """Return the line of a record; `again` says that an earlier record has the same number."""
    fields: dict[str, Any] = {"time": round(record.time * 1e6), "n": record.number}
    if isinstance(record, LostLines):
        return encode_line({**fields, "lost": record.lines, "reason": record.reason})
    fields |= {"stream": record.stream, "text": record.text}
    marks = {"open": record.is_open, "cut": record.is_cut, "again": again}
    return encode_line({**fields, **{name: True for name, is_set in marks.items() if is_set}})


def decode_record(line: bytes, who: ConsoleWriterName) -> Record | None:
    """Return the record of a line; None if it is damaged or no record."""
    try:
        fields = decode_line(line)
        time, number = fields["time"] / 1e6, fields["n"]
        if not 0 <= time <= _MOST_SECONDS or not _is_count(number):
            return None
        if "lost" in fields:
            reason = fields["reason"]
            is_fit = _is_count(fields["lost"]) and isinstance(reason, str)
            return LostLines(time, number, fields["lost"], reason) if is_fit else None
        text, stream = fields["text"], fields["stream"]
        if not isinstance(text, str) or stream not in STREAMS:
            return None
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None
    if b"\\ud" in line or b"\\uD" in line:
        text = _SURROGATE.sub("\ufffd", text)
    marks = fields.get("open") is True, fields.get("cut") is True
    return ConsoleLine(time, who.rank, who.attempt, who.node, number, stream, text, marks[0], None, marks[1])


def is_again(line: bytes) -> bool:
    """Return whether the line of a record says that an earlier record has the same number."""
    return b'"again": true' in line  # a text cannot hold this: its quotes are escaped


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53


def forward(path: Path, offset: int = 0, is_dull: Dull = lambda _: False) -> Iterator[tuple[bytes, int]]:
    """Yield the complete lines of a segment from an offset on, each with the offset behind it.

    Of lines that are dull together, only the last is yielded. Lines too long for a record are yielded as empty.
    Raises FileNotFoundError if the segment is gone.
    """
    carry, size = b"", _FIRST_BLOCK
    while data := _block(path, offset + len(carry), size):
        size = _LARGEST_BLOCK
        whole, feed, rest = (carry + data).rpartition(b"\n")
        if feed:
            lines = [whole] if not is_dull(whole) else [whole.rpartition(b"\n")[2]]
            if len(lines[0]) < len(whole):
                offset += len(whole) - len(lines[0])
            for line in lines[0].split(b"\n"):
                offset += len(line) + 1
                yield line, offset
        carry = rest
        if len(carry) > LONGEST_RECORD:
            offset, carry = offset + len(carry), b""
            yield b"", offset


def backward(path: Path, end: int, is_dull: Dull = lambda _: False) -> Iterator[bytes]:
    """Yield the complete lines of a segment before the offset `end`, which is behind a line feed, the last first.

    Of lines that are dull together, only the first is yielded. Lines that are too long for a record are yielded as
    empty. Raises FileNotFoundError if the segment is gone.
    """
    carry, size = b"", _FIRST_BLOCK
    if end <= 0:
        return
    end -= 1  # the last line feed
    while end > 0:
        start = max(0, end - size)
        carry, feed, whole = (_block(path, start, end - start) + carry).partition(b"\n")
        end, size = start, min(4 * size, _LARGEST_BLOCK)
        if feed and is_dull(whole):
            yield whole.partition(b"\n")[0]
        elif feed:
            yield from reversed(whole.split(b"\n"))
        if len(carry) > LONGEST_RECORD:
            carry = b""
    yield carry


def complete_size(path: Path) -> int:
    """Return the offset behind the last complete line of a segment, 0 if there is none.

    Raises OSError, or ValueError for what is no file.
    """
    end = os.stat(path, follow_symlinks=False).st_size
    start = max(0, end - LONGEST_RECORD)
    data = _block(path, start, end - start)
    return start + data.rfind(b"\n") + 1 if b"\n" in data else 0


def _block(path: Path, offset: int, size: int) -> bytes:
    """Return a part of a file; it stays open only for that, as a run may have more segments than files may be open."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):  # a pipe or a device would never end
            raise ValueError("it is no file")
        return os.pread(descriptor, size, offset)
    finally:
        os.close(descriptor)
