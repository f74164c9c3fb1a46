"""The rows of W&B's history, decoded many at once: all rows advance together, item by item."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from stepscope.core.ring import NO_STEP
from stepscope.core.step_axes import axis_of
from stepscope.importers.binary.gathered_points import GatheredPoints
from stepscope.importers.binary.wire import fields, varint
from stepscope.importers.rows import values
from stepscope.importers.source import json_value
from stepscope.importers.words import moment, number

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from stepscope.core.arrays import Floats, Integers
    from stepscope.importers.binary.wire import Field
    from stepscope.importers.run_builder import RunBuilder

JSON_TEXT = 16
TYPED: dict[int, Callable[[Field], Any]] = {
    3: lambda _field: None,
    4: lambda field: bool(field.integer),
    5: lambda field: field.integer >> 1 ^ -(field.integer & 1),
    6: lambda field: field.real,
    7: lambda field: field.text,
    8: lambda field: json_value(field.text),
}
"""Fields of a value that has a type, which W&B writes beside or instead of a JSON text; integers are zigzag."""
ITEM, NAMES, TEXT = 0x0A, (0x0A, 0x12), (0x82, 0x01)
"""Keys on the wire: an item of a row, its key or nested key, its JSON text."""
STEP, STEP_NUMBER = b"\x12", b"\x08"
SHORT_STEP = 10
"""A message with a step of fewer bytes holds a varint of up to 56 bits, which is positive."""
NUMBER, INTEGER = 0x31, 0x28
"""Keys of a value with a type, which W&B writes after the text."""
NUMERIC = np.isin(np.arange(256), list(b"-0123456789NI"))
"""Which bytes a number in JSON starts with, NaN and Infinity included."""
MOST_STEP = 2.0**62
KIND = "._type"
"""End of the name under which W&B says what an object is: an image, a table."""
FEW = 8
"""Minimum number of rows that advance together; fewer are decoded faster one by one."""
FARTHEST = 600
"""Bytes behind the data that may be looked at: two lengths of one byte."""


class OddItem(NamedTuple):
    """An item that is not just a key and a number."""

    place: int
    row: int
    name: str
    value: Any


def item(message: bytes) -> tuple[str, Any]:
    """Return the name of an item as W&B shows it, and its value; one with a type is exact where JSON is not."""
    keys: list[str] = []
    value: Any = None
    has_type = False
    for part in fields(message):
        if part.number in {1, 2} and part.data:
            keys.append(part.text)
        elif part.number in TYPED:
            value, has_type = TYPED[part.number](part), True
        elif part.number == JSON_TEXT and not has_type:
            value = json_value(part.text)
    return ".".join(keys), value


def add_history(messages: Sequence[bytes], run: RunBuilder, axes: Mapping[str, str]) -> None:
    """Add calls of `wandb.log`; `axes` says which metric is the step of which."""
    rows = _HistoryRows(messages)
    items = _without_media(rows, rows.items(), run)
    for _ in range(np.count_nonzero(rows.is_bad)):
        run.note("records that cannot be decoded, left out")
    time = np.array([moment(one) for one in rows.values_of("_timestamp", items).tolist()])
    counted = _whole(rows.values_of("_step", items))
    own = np.where(rows.steps == NO_STEP, counted, rows.steps)
    axis_steps: dict[str | None, Integers] = {None: own}

    def steps(axis: str | None) -> Integers:
        if axis not in axis_steps:
            found = _whole(rows.values_of(str(axis), items))
            axis_steps[axis] = np.where(found == NO_STEP, own, found)
        return axis_steps[axis]

    points = GatheredPoints()
    metrics = {code: name for code, name in enumerate(items.names) if not name.startswith("_")}  # others are W&B's own
    axis_of_code = {code: axis_of(name, axes) if axes else None for code, name in metrics.items()}
    codes = np.array([points.code(name) if code in metrics else -1 for code, name in enumerate(items.names)], np.int64)
    for axis in dict.fromkeys(axis_of_code.values()):
        chosen = np.array([axis_of_code.get(code, "") == axis for code in range(len(codes))], bool)
        mine = np.flatnonzero(chosen[items.code])
        row = items.row[mine]
        points.add_columns(items.place[mine], codes[items.code[mine]], steps(axis)[row], time[row], items.value[mine])
    for odd in rows.odd:
        if not rows.is_bad[odd.row] and not odd.name.startswith("_"):
            for offset, (name, value) in enumerate(values({odd.name: odd.value}, run.not_a_number, join=".")):
                step = int(steps(axis_of(name, axes))[odd.row])
                points.add(odd.place + offset, name, step, float(time[odd.row]), value)
    points.move_to(run)


class _Items(NamedTuple):
    """Items that are a name and a number."""

    place: Integers
    row: Integers
    code: Integers
    """Index of the name."""
    value: Floats
    names: list[str]

    def of(self, name: str) -> Integers:
        """Return the indices of the items with a name."""
        return np.flatnonzero(self.code == self.names.index(name)) if name in self.names else np.empty(0, np.int64)


def _without_media(rows: _HistoryRows, items: _Items, run: RunBuilder) -> _Items:
    """Return items without the numbers that describe images and other media, such as a width; remove odd ones too."""
    found: dict[str, set[int]] = {}
    for odd in rows.odd:
        if odd.name.endswith(KIND):
            found.setdefault(odd.name.removesuffix(KIND), set()).add(odd.row)
            run.not_a_number(odd.name.removesuffix(KIND), None)
    if not found:
        return items
    is_kept = np.ones(len(items.row), bool)
    for name, some in found.items():
        is_part = np.array([other.startswith(f"{name}.") for other in items.names], bool)
        is_kept &= ~(is_part[items.code] & np.isin(items.row, list(some)))
        rows.odd = [odd for odd in rows.odd if odd.row not in some or not odd.name.startswith(f"{name}.")]
    return _Items(items.place[is_kept], items.row[is_kept], items.code[is_kept], items.value[is_kept], items.names)


class _HistoryRows:
    """The content of some rows."""

    def __init__(self, messages: Sequence[bytes]) -> None:
        self._data = b"".join(messages)
        self._bytes = np.frombuffer(self._data + bytes(FARTHEST), np.uint8)
        self._ends = np.cumsum([len(message) for message in messages], dtype=np.int64)
        self.steps = np.full(len(messages), NO_STEP, np.int64)
        """The step in a row's own field."""
        self.is_bad = np.zeros(len(messages), bool)
        self.odd: list[OddItem] = []

    def items(self) -> _Items:
        """Return the items that are a key and a number; others are decoded one by one into `odd`."""
        row, start, stop = self._spans()
        data = self._bytes
        text = start + data[start + 1] + 5
        text_end = text + data[text - 1]
        fits = np.isin(data[start], NAMES) & (data[start + 1] < 0x80) & (data[text - 1] < 0x80) & NUMERIC[data[text]]
        fits &= (data[text - 3] == TEXT[0]) & (data[text - 2] == TEXT[1])
        is_double = (text_end + 9 == stop) & (data[text_end] == NUMBER)
        is_integer = (text_end < stop) & (data[text_end] == INTEGER) & (data[stop - 1] < 0x80)
        fits &= (text_end == stop) | is_double | is_integer
        try:
            found = [float(self._data[at:end]) for at, end in _pairs(text[fits], text_end[fits])]
        except ValueError:  # it only looks like a number, never so in a file of W&B
            fits[:], found = False, []
        value = np.full(len(row), np.nan)
        value[fits] = found
        value[fits & is_double] = self._doubles(text_end[fits & is_double] + 1)
        for index in np.flatnonzero(~fits).tolist():
            self._add_odd(int(row[index]), int(start[index]), self._data[start[index] : stop[index]])
        fits &= ~self.is_bad[row]
        keys = [self._data[at:end] for at, end in _pairs(start[fits] + 2, text[fits] - 3)]
        codes = {key: code for code, key in enumerate(dict.fromkeys(keys))}
        code = np.fromiter(map(codes.__getitem__, keys), np.int64, len(keys))
        return _Items(start[fits], row[fits], code, value[fits], [key.decode("utf-8", "replace") for key in codes])

    def _spans(self) -> tuple[Integers, Integers, Integers]:
        """Return row, start and end of each item; what follows the items of a row is decoded by itself."""
        at = np.concatenate([[0], self._ends[:-1]]).astype(np.int64)
        rows, found = np.arange(len(at)), []
        while len(rows) >= FEW:
            here = at[rows]
            low, high = self._bytes[here + 1].astype(np.int64), self._bytes[here + 2].astype(np.int64)
            is_short = low < 0x80
            start = here + np.where(is_short, 2, 3)
            stop = start + np.where(is_short, low, low & 0x7F | high << 7)
            fits = (self._bytes[here] == ITEM) & (is_short | (high < 0x80)) & (stop <= self._ends[rows])
            rows, start, stop = rows[fits], start[fits], stop[fits]
            found.append((rows, start, stop))
            at[rows] = stop
            rows = rows[stop < self._ends[rows]]
        singly = [span for row in rows.tolist() for span in self._walked(row, at)]
        if singly or not found:
            found.append(tuple(np.array(singly, np.int64).reshape(-1, 3).T))
        for row in np.flatnonzero(at < self._ends).tolist():
            self._add_rest(row, int(at[row]))
        row, start, stop = map(np.concatenate, zip(*found, strict=True))
        order = np.argsort(start)
        return row[order], start[order], stop[order]

    def _walked(self, row: int, at: Integers) -> Iterator[tuple[int, int, int]]:
        """Yield the same for one row, from a place on, and move that place."""
        here, end = int(at[row]), int(self._ends[row])
        while here < end and self._data[here] == ITEM:
            try:
                size, start = varint(self._data, here + 1)
            except ValueError:
                return
            if start + size > end:
                return
            yield row, start, start + size
            here = at[row] = start + size

    def _add_rest(self, row: int, at: int) -> None:
        """Add what comes after the items of a row: mostly just its step; any other order of fields, too."""
        rest = self._data[at : self._ends[row]]
        try:
            if rest[:1] == STEP and rest[2:3] == STEP_NUMBER and rest[1] == len(rest) - 2 < SHORT_STEP:
                self.steps[row] = varint(rest, 3)[0]
                return
            for offset, field in enumerate(fields(rest)):
                if field.number == 1:
                    self._add_odd(row, at + offset, field.data)
                elif field.number == 2:
                    self.steps[row] = next((part.signed for part in fields(field.data) if part.number == 1), 0)
        except ValueError:
            self.is_bad[row] = True

    def _add_odd(self, row: int, place: int, message: bytes) -> None:
        try:
            self.odd.append(OddItem(place, row, *item(message)))
        except ValueError:
            self.is_bad[row] = True

    def _doubles(self, at: Integers) -> Floats:
        found: Floats = self._bytes[at[:, np.newaxis] + np.arange(8)].view("<f8")[:, 0].astype(np.float64)
        return found

    def values_of(self, name: str, items: _Items) -> Floats:
        """Return a metric's value in each row, NaN where it has none."""
        found = np.full(len(self.steps), np.nan)
        mine = items.of(name)
        found[items.row[mine]] = items.value[mine]
        for odd in self.odd:
            if odd.name == name:
                found[odd.row] = figure if (figure := number(odd.value)) is not None else np.nan
        return found


def _pairs(starts: Integers, ends: Integers) -> Iterator[tuple[int, int]]:
    return zip(starts.tolist(), ends.tolist(), strict=True)


def _whole(found: Floats) -> Integers:
    """Return numbers as steps, as `words.whole` does; NO_STEP for what is none."""
    is_step = np.abs(found) < MOST_STEP
    return np.where(is_step, np.where(is_step, found, 0).astype(np.int64), NO_STEP)
