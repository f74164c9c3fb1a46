"""Records that repeat: a training logs the same kinds of rows again and again, and those are found many at a time.

To walk through a million records one by one takes Python a second. Rows of the same kinds in the same order lie at even
distances, so the heads of all rows of one kind are a column of words, which is read and compared as a whole.
"""

from __future__ import annotations

from typing import NamedTuple

HEAD_WORDS = 4
"""Words of 8 bytes in the head of a record: length and schema, sequence, time, step."""
WORD_SEQUENCE, WORD_TIME, WORD_STEP = 1, 2, 3
"""Places of these words in a record."""
LONGEST_CYCLE = 8
"""Kinds of rows in turn that are still seen as a pattern."""
FIRST_GUESS = 8
"""Turns of a pattern that are compared at first; four times as many each time that they were all alike."""


class Group(NamedTuple):
    """Records of one kind at even distances."""

    offset: int
    """Of the first, in bytes."""
    stride: int
    """Bytes from one to the next; other records may lie between."""
    size: int
    """How many there are."""
    length: int
    """Bytes of each."""
    schema: int

    def offsets(self) -> range:
        """Return where each of them begins."""
        return range(self.offset, self.offset + self.size * self.stride, self.stride)

    def column(self, data: bytes, word: int) -> list[int]:
        """Return a word of each, signed; `word` counts from the beginning of the record."""
        words = memoryview(data)[: len(data) // 8 * 8].cast("q")
        first, step = self.offset // 8 + word, self.stride // 8
        return words[first : first + (self.size - 1) * step + 1 : step].tolist()


def groups(data: bytes) -> list[Group]:
    """Return the records of a piece by kind, those of one pattern next to each other; nonsense ends them."""
    return _walk(data)[0]


def last_sequence(data: bytes) -> int:
    """Return the highest sequence in a piece; -1 if it holds no record."""
    return max((group.column(data, WORD_SEQUENCE)[-1] for group in groups(data)), default=-1)


def whole_records(data: bytes) -> tuple[int, bool]:
    """Return where the last whole record ends, and whether nothing but padding follows it."""
    _, end, complete = _walk(data)
    return end, complete


def _walk(data: bytes) -> tuple[list[Group], int, bool]:
    words = memoryview(data)[: len(data) // 8 * 8].cast("Q")
    found: list[Group] = []
    at, turns = 0, FIRST_GUESS
    while True:
        cycle, span, complete = _cycle(words, at)
        if not cycle:
            return found, at * 8, complete
        asked = min((len(words) - at) // span, turns)
        good = min(_alike(words, at + place, span, asked, head) for place, head in cycle)
        found += [Group((at + place) * 8, span * 8, good, head & 0xFFFFFFFF, head >> 32) for place, head in cycle]
        turns = turns * 4 if good == asked else FIRST_GUESS
        at += good * span


def _cycle(words: memoryview, at: int) -> tuple[list[tuple[int, int]], int, bool]:
    """Return the records from `at` until the first kind comes again: (place, first word) each, and their words in all.

    The last is whether the walk ended well: not at something that is no record.
    """
    found: list[tuple[int, int]] = []
    place, size = 0, len(words)
    while len(found) < LONGEST_CYCLE and at + place + HEAD_WORDS <= size:
        head = words[at + place]
        if found and head == found[0][1]:
            break
        length = head & 0xFFFFFFFF
        if head == 0 or length < HEAD_WORDS * 8 or length % 8 or at + place + length // 8 > size:
            return found, place, head == 0
        found.append((place, head))
        place += length // 8
    return found, place, True


def _alike(words: memoryview, first: int, step: int, count: int, head: int) -> int:
    """Return how many words from `first` on, `step` apart, are `head`: at most `count`, at least the first."""
    column = words[first : first + (count - 1) * step + 1 : step].tolist()
    if column == [head] * count:
        return count
    return next(index for index, word in enumerate(column) if word != head)
