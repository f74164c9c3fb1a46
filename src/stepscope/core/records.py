"""The layout of a record in a ring, and the one reader for it: by group, by row, or as numpy columns.

A training logs the same kinds of rows again and again. Such rows are evenly spaced, so the heads of all rows of one
kind form a column of words that is read and compared as a whole: walking a million records one by one would take
Python a second. docs/reference/format.md describes the layout for people.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import numpy as np
    from numpy.typing import NDArray

    from stepscope.core.columns import RowSchema, SchemaTable

RECORD = struct.Struct("<IIQqq")
"""Head of a record: length in bytes, schema id, sequence, monotonic time in ns, step."""
PAIR = struct.Struct("<Qd")
"""One (name id, value) pair in a record of SCHEMA_PAIRS."""
PAD = struct.Struct("<II")
CHECKSUM = struct.Struct("<Q")
"""Off x86 a record ends with the crc32 of everything before it."""
SCHEMA_PAD, SCHEMA_PAIRS, SCHEMA_EVENT = 0, 1, 3
FIRST_SCHEMA, MAX_SCHEMAS = 16, 1024
NO_STEP = -(2**63)
"""Step of a row that belongs to no step, such as a sample of the machine."""
HEAD_WORDS = RECORD.size // 8
"""Words of 8 bytes in the head of a record: length and schema, sequence, time, step."""
WORD_SEQUENCE, WORD_TIME, WORD_STEP = 1, 2, 3
"""Position of these words in a record."""
LONGEST_CYCLE = 8
"""Longest cycle of kinds of rows that is recognised as a pattern."""
FIRST_GUESS = 8
"""Repetitions of a pattern that are compared at first; four times as many after each full match."""
NS = 1e9
Head = tuple[int, int, int, int, int, int]
"""Offset and length in bytes, schema id, sequence, monotonic time in ns, step."""


class RecordGroup(NamedTuple):
    """Records of one kind at even distances."""

    offset: int
    """Of the first record, in bytes."""
    stride: int
    """Bytes from one record to the next; other records may be in between."""
    size: int
    """Number of records."""
    length: int
    """Bytes of each record."""
    schema: int

    def offsets(self) -> range:
        """Return where each record begins."""
        return range(self.offset, self.offset + self.size * self.stride, self.stride)

    def column(self, data: bytes, word: int) -> list[int]:
        """Return one signed word of each record; `word` counts from the beginning of the record."""
        words = memoryview(data)[: len(data) // 8 * 8].cast("q")
        first, step = self.offset // 8 + word, self.stride // 8
        return words[first : first + (self.size - 1) * step + 1 : step].tolist()


def groups(data: bytes) -> list[RecordGroup]:
    """Return the records by kind, those of one pattern next to each other; the first invalid record ends them."""
    return _walk(data)[0]


def last_sequence(data: bytes) -> int:
    """Return the highest sequence; -1 without a record."""
    return max((group.column(data, WORD_SEQUENCE)[-1] for group in groups(data)), default=-1)


def whole_records(data: bytes) -> tuple[int, bool]:
    """Return where the last whole record ends, and whether only padding follows it."""
    _, end, complete = _walk(data)
    return end, complete


def _walk(data: bytes) -> tuple[list[RecordGroup], int, bool]:
    words = memoryview(data)[: len(data) // 8 * 8].cast("Q")
    found: list[RecordGroup] = []
    position, turns = 0, FIRST_GUESS
    while True:
        cycle, span, complete = _cycle(words, position)
        if not cycle:
            return found, position * 8, complete
        most = min((len(words) - position) // span, turns)
        good = min(_matching(words, position + at, span, most, head) for at, head in cycle)
        found += [RecordGroup((position + at) * 8, span * 8, good, head & 0xFFFFFFFF, head >> 32) for at, head in cycle]
        turns = turns * 4 if good == most else FIRST_GUESS
        position += good * span


def _cycle(words: memoryview, start: int) -> tuple[list[tuple[int, int]], int, bool]:
    """Return the records from `start` until the first kind comes again: (index, first word) of each, and their words.

    The last item is False if the walk ended at an invalid record.
    """
    found: list[tuple[int, int]] = []
    index, size = 0, len(words)
    while len(found) < LONGEST_CYCLE and start + index + HEAD_WORDS <= size:
        head = words[start + index]
        if found and head == found[0][1]:
            break
        length = head & 0xFFFFFFFF
        if head == 0 or length < HEAD_WORDS * 8 or length % 8 or start + index + length // 8 > size:
            return found, index, head == 0
        found.append((index, head))
        index += length // 8
    return found, index, True


def _matching(words: memoryview, first: int, step: int, count: int, head: int) -> int:
    """Return how many words from `first` on, `step` apart, equal `head`: at least the first, at most `count`."""
    column = words[first : first + (count - 1) * step + 1 : step].tolist()
    if column == [head] * count:
        return count
    return next(index for index, word in enumerate(column) if word != head)


def heads(data: bytes) -> list[Head]:
    """Return the head of each record, in order; the first invalid record ends them."""
    found = []
    offset, size = 0, len(data)
    unpack = RECORD.unpack_from
    while offset + RECORD.size <= size:
        head = unpack(data, offset)
        length = head[0]
        if length < RECORD.size or offset + length > size:
            break
        found.append((offset, *head))
        offset += length
    return found


def first_head(data: bytes) -> Head:
    """Return the head of the first record; there must be one."""
    return (0, *RECORD.unpack_from(data))


def payload(data: bytes, offset: int, *, checked: bool) -> bytes:
    """Return the bytes of a record after its head, without its checksum if it is `checked`."""
    length = PAD.unpack_from(data, offset)[0]
    return data[offset + RECORD.size : offset + length - (CHECKSUM.size if checked else 0)]


def row_values(data: bytes, offset: int, schema: RowSchema) -> dict[str, float]:
    """Return the values of a row by name, durations in seconds; {} if the schema does not fit the row."""
    try:
        values = struct.unpack_from(f"<{schema.kinds}", data, offset + RECORD.size)
    except struct.error:
        return {}  # a reader of the run counts such rows
    return {
        name: value / NS if kind == "q" else value
        for name, kind, value in zip(schema.names, schema.kinds, values, strict=False)
    }


def pair_values(data: bytes, offset: int, names: list[str], *, checked: bool) -> dict[str, float]:
    """Return the values of a row of (name id, value) pairs, which runs with very many names write."""
    body = payload(data, offset, checked=checked)
    pairs = PAIR.iter_unpack(body[: len(body) - len(body) % PAIR.size])
    return {names[number]: value for number, value in pairs if number < len(names)}


def rows(
    pieces: Iterable[bytes], table: SchemaTable, *, checked: bool = False
) -> Iterator[tuple[int, int, dict[str, float]]]:
    """Yield monotonic time in ns, step or NO_STEP, and values by name of each row; undeclared rows are left out."""
    for data in pieces:
        for offset, _, number, _, time, step in heads(data):
            if number == SCHEMA_PAIRS:
                values = pair_values(data, offset, table.names, checked=checked)
            else:
                schema = table.schemas.get(number)
                is_whole = schema and len(schema.kinds) == len(schema.names)
                values = row_values(data, offset, schema) if schema and is_whole else {}
            if values:
                yield time, step, values


class RecordArray:
    """Records of one kind as numpy columns. Imports numpy, so nothing on the training thread may use it."""

    def __init__(self, words: NDArray[np.int64], starts: NDArray[np.int64]) -> None:
        """Take the words of `words_of`, and the index of the first word of each record."""
        self._words, self._starts = words, starts
        self.sequence: NDArray[np.int64] = words[starts + WORD_SEQUENCE]
        self.time_ns: NDArray[np.int64] = words[starts + WORD_TIME]
        """Monotonic."""
        self.step: NDArray[np.int64] = words[starts + WORD_STEP]

    def raw(self, columns: Any) -> NDArray[np.int64]:
        """Return the chosen columns as words, one row per record; view them as float64 where they are no duration."""
        found: NDArray[np.int64] = self._words[self._starts[:, None] + HEAD_WORDS + columns]
        return found

    def pairs(self, width: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return the name ids and values of records that hold `width` pairs each, record by record.

        The ids are unsigned in the file: a negative one here is an invalid id beyond 2**63.
        """
        import numpy as np

        table = self.raw(np.arange(2 * width))
        return table[:, ::2].ravel(), np.ascontiguousarray(table[:, 1::2]).view(np.float64).ravel()


def words_of(data: bytes) -> NDArray[np.int64]:
    """Return data as little-endian words of 8 bytes, without a copy."""
    import numpy as np

    return np.frombuffer(data, "<i8", len(data) // 8)
