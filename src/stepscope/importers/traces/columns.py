"""Turn events into columns, batch by batch, within the limits."""

from __future__ import annotations

import math
from decimal import Decimal, InvalidOperation
from itertools import compress
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from stepscope.core.trace import ABSENT, FIRST_DEVICE, KINDS, OPERATOR, OTHER, OVERHEAD, PYTHON, RUNTIME, Lane, Memory
from stepscope.importers.traces.events import ARGUMENTS, LISTS, NO_LIST, NOTHING, NUMBERS, TEXTS, TraceEvent
from stepscope.importers.traces.kinds import KIND_OF, certain, is_host, kind_of
from stepscope.importers.traces.table import Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from stepscope.importers.traces.table import Rare
    from stepscope.importers.traces.text import TraceLimits

    Numbers = NDArray[np.int64]
    Columns = dict[str, NDArray[Any]]

NANOSECONDS_FROM = 1e17
"""A larger time is in nanoseconds: in microseconds it would be after the year 5000."""
LATEST = float(1 << 62)
"""Maximum plausible time in ns."""
LONGEST_TEXT = 2000
"""Maximum characters of a text."""
OTHER_NAME = "(other)"
FLOWS = frozenset("Xstf")
"""Phases handled before the loop over the rest: whole events, and arrows between events."""
DROPPED = ((PYTHON, OVERHEAD, OTHER), (OPERATOR,), (RUNTIME,))
"""Kinds whose short events are dropped if there are too many, in this order."""
ROOM, FULL = 0.8, 0.95
"""Shares of the limit: what thinning leaves, and what it must leave for reading to continue."""


class Codes(dict[Any, int]):
    """Number things in order of appearance; past the limit all new things share one number."""

    def __init__(self, most: int) -> None:
        """Start empty; assign at most this many numbers."""
        super().__init__()
        self.most = most

    def __missing__(self, key: Any) -> int:
        """Return a new number."""
        if len(self) >= self.most:
            return self.setdefault(OTHER_NAME, len(self))
        code = self[key] = len(self)
        return code


class TraceBuilder:
    """Collects events as columns, within the limits."""

    def __init__(self, limits: TraceLimits) -> None:
        self.limits = limits
        self.names, self.words = Codes(limits.texts), Codes(limits.texts)
        self.categories, self.lanes = Codes(10_000), Codes(1_000_000)
        self.table = Table(limits.events)
        self.scale = 0
        """ns per unit of time in the trace: 1 or 1 000; 0 until the first event shows it."""
        self.labels: dict[tuple[str, Any, Any], str] = {}
        """Names of processes and threads."""
        self.memory: list[tuple[int, ...]] = []
        self.open: dict[int, list[TraceEvent]] = {}
        """Events that have started but not ended (phase B without E), by lane."""
        self.unpaired = self.untimed = self.dropped = self.cut = 0
        self.full = False
        """Whether nothing more fits."""
        self.shortest: dict[int, int] = {}
        """Events of a kind shorter than this, in ns, are left out."""

    def add(self, events: Sequence[TraceEvent]) -> None:
        """Add a batch."""
        whole = [event for event in events if event.ph == "X"]
        if len(whole) < len(events):
            whole += self._others(events)
        if self.full:
            self.cut += len(whole)
        elif whole:
            self._keep(whole)

    def _others(self, events: Sequence[TraceEvent]) -> list[TraceEvent]:
        """Handle events that are not whole; return those that have become whole."""
        ended, reports = [], []
        for event in events:
            if event.ph in FLOWS:
                continue
            if event.ph == "M":
                self._label(event)
            elif event.ph in {"i", "I"}:
                if event.name == "[memory]":
                    reports.append(event)
            elif event.ph == "B":
                self.open.setdefault(self._lane(event), []).append(event)
            elif event.ph == "E":
                begun = self.open.get(self._lane(event))
                if begun:
                    ended.append(_joined(begun.pop(), event))
                else:
                    self.unpaired += 1
        if reports:
            self._remember(reports)
        return ended

    def _label(self, event: TraceEvent) -> None:
        args = event.args or NOTHING
        text = args.labels if event.name == "process_labels" else args.name
        if isinstance(text, str):
            thread = event.tid if event.name == "thread_name" else None
            self.labels[str(event.name), event.pid, thread] = text[:LONGEST_TEXT]

    def _remember(self, events: list[TraceEvent]) -> None:
        times, known = self._times([event.ts for event in events])
        for event, time in zip(compress(events, known), times[known].tolist(), strict=True):
            args = event.args or NOTHING
            device = whole(args.device_id) if whole(args.device_type) != 0 else ABSENT
            numbers = (args.size, args.address, args.allocated, args.reserved)
            self.memory.append((time, *map(whole, numbers), device, self._lane(event)))

    def _lane(self, event: TraceEvent) -> int:
        return self.lanes[event.pid, event.tid, None, None]

    def _keep(self, events: list[TraceEvent]) -> None:
        """Add events to the table; make room if there are too many."""
        given = (event.args or NOTHING for event in events)
        args = dict(zip(ARGUMENTS, zip(*map(msgspec.structs.astuple, given), strict=True), strict=True))
        start, timed = self._times([event.ts for event in events])
        length, _ = self._times([event.dur for event in events])
        category = [self.categories[event.cat] for event in events]
        columns: Columns = {
            "start": start,
            "end": start + np.maximum(length, 0),
            "name": np.array([self.names[event.name] for event in events], np.int32),
            "category": np.array(category, np.int16),
            "lane": np.array(self._lanes(events, args, category), np.int32),
            "correlation": _narrow(whole_numbers(args["correlation"])),
            "external": _narrow(whole_numbers(_either(args["external"], args["external_old"]))),
        }
        self.untimed += int((~timed).sum())
        short = self._short(columns)
        self.dropped += int((short & timed).sum())
        kept = timed & ~short
        rare = self._rare(args)
        if not kept.all():
            place = np.cumsum(kept) - 1
            columns = {key: column[kept] for key, column in columns.items()}
            pairs = rare.items()
            rare = {key: (place[at[own]], value[own]) for key, (at, value) in pairs if (own := kept[at]).any()}
        self.table.add(columns, rare)
        if len(self.table) > self.limits.events:
            self._thin()

    def _lanes(self, events: list[TraceEvent], args: dict[str, tuple[Any, ...]], category: list[int]) -> list[int]:
        """Return the lane of each event: on a device, its stream too."""
        lanes = self.lanes
        host = {code for text, code in self.categories.items() if is_host(str(text or ""))}
        return [
            lanes[event.pid, event.tid, None, None] if code in host else lanes[event.pid, event.tid, device, stream]
            for event, device, stream, code in zip(events, args["device"], args["stream"], category, strict=True)
        ]

    def _rare(self, args: dict[str, tuple[Any, ...]]) -> Rare:
        found: Rare = {}
        for own, key in NUMBERS.items():
            rows, values = _present(args[own], None)
            if rows:
                found[key] = np.array(rows, np.int64), whole_numbers(values)
        for own, key in TEXTS.items():
            rows, values = _present(args[own], NO_LIST if own in LISTS else None)
            if rows:
                codes = [self.words[_text(value, listed=own in LISTS)] for value in values]
                found[key] = np.array(rows, np.int64), np.array(codes, np.int32)
        return found

    def _times(self, values: list[Any]) -> tuple[Numbers, NDArray[np.bool_]]:
        """Return times in ns, exactly, and which of them are valid."""
        if not self.scale and values:
            self.scale = scale_of(values)
        return nanoseconds(values, self.scale or 1000)

    def _short(self, columns: Columns) -> NDArray[np.bool_]:
        if not self.shortest:
            return np.zeros(len(columns["start"]), bool)
        least = np.array([self.shortest.get(kind, 0) for kind in range(len(KINDS))], np.int64)
        return np.asarray(columns["end"] - columns["start"] < least[self._known(columns["category"])], bool)

    def _known(self, category: NDArray[Any]) -> NDArray[np.int8]:
        """Return the kinds of categories; those that only a lane can decide count as the device's."""
        table = [KIND_OF.get(str(text or "").strip().lower(), FIRST_DEVICE) for text in self.categories]
        return np.asarray(np.array([*table, FIRST_DEVICE], np.int8)[category], np.int8)

    def _thin(self) -> None:
        """Drop the shortest host events, of Python first and of the runtime last; at the limit, stop reading."""
        table = self.table
        surplus = len(table) - int(ROOM * self.limits.events)
        kind = self._known(table.view("category"))
        kept = np.ones(len(table), bool)
        for group in DROPPED:
            rows = np.flatnonzero(np.isin(kind, group))
            if surplus <= 0 or not len(rows):
                continue
            length = table.view("end")[rows] - table.view("start")[rows]
            number = min(surplus, len(rows))
            order = np.argpartition(length, number - 1)
            kept[rows[order[:number]]] = False
            self.shortest.update(dict.fromkeys(group, int(length[order[number - 1]])))
            surplus -= number
        self.dropped += len(kept) - int(kept.sum())
        table.keep(kept)
        self.full = len(table) > FULL * self.limits.events

    def kinds(self, lanes: list[Lane], names: list[str]) -> NDArray[np.int8]:
        """Return the kind of every event kept, in order (consumes the categories)."""
        category = self.table.take("category")
        texts = [str(text or "") for text in self.categories]
        known = [ABSENT if (alone := certain(text)) is None else alone for text in texts]
        kind = np.array([*known, ABSENT], np.int8)[category]
        unknown = np.flatnonzero(kind == ABSENT)
        if len(unknown):
            columns = (category.astype(np.int32), self.table.view("lane"), self.table.view("name"))
            rows = np.stack([column[unknown] for column in columns])
            different, place = np.unique(rows, axis=1, return_inverse=True)
            found = [kind_of(texts[one], lanes[two], names[three]) for one, two, three in different.T]
            kind[unknown] = np.array(found, np.int8)[place.ravel()]
        return kind

    def lane_list(self) -> list[Lane]:
        """Return the lanes with their names in the trace."""
        found = []
        for pid, tid, device, stream in (key if isinstance(key, tuple) else (key,) * 4 for key in self.lanes):
            named = self.labels.get(("process_name", pid, None), "")
            labels = self.labels.get(("process_labels", pid, None), "")
            thread = self.labels.get(("thread_name", pid, tid), "")
            found.append(Lane(pid, tid, f"{named} {labels}".strip(), thread.strip(), whole(device), whole(stream)))
        return found

    def memory_table(self, origin: int) -> Memory:
        """Return the allocator reports, ordered by time."""
        table = np.array(sorted(self.memory, key=lambda row: row[0]), np.int64).reshape(-1, 7)
        time, size, address, allocated, reserved, device, lane = table.T
        return Memory(time - origin, size, address, allocated, reserved, device.astype(np.int32), lane.astype(np.int32))


def scale_of(values: list[Any]) -> int:
    """Return the unit of these times in ns: 1 if they are so large that they can only be ns, else 1 000."""
    known = [float(value) for value in map(_decimal, values[:1000]) if value is not None]
    return 1 if known and float(np.median(known)) > NANOSECONDS_FROM else 1000


def nanoseconds(values: list[Any], scale: int) -> tuple[Numbers, NDArray[np.bool_]]:
    """Return times in ns, and which of them are valid; invalid ones are 0."""
    try:
        numbers = np.array(values)
    except (ValueError, OverflowError):
        numbers = np.array([None])
    if numbers.dtype == np.int64 and np.abs(numbers).max(initial=0) < LATEST / scale:
        return numbers * scale, np.ones(len(numbers), bool)
    if numbers.dtype == np.float64 and bool((np.abs(numbers) < LATEST / scale).all()):
        rest, units = np.modf(numbers)  # separate, because their product with 1 000 may need more digits than there are
        return units.astype(np.int64) * scale + np.rint(rest * scale).astype(np.int64), np.ones(len(numbers), bool)
    exact = [_exact(value, scale) for value in values]
    return np.array([value or 0 for value in exact], np.int64), np.array([value is not None for value in exact], bool)


def _exact(value: Any, scale: int) -> int | None:
    number = _decimal(value)
    scaled = None if number is None else number * scale
    return round(scaled) if scaled is not None and abs(scaled) < LATEST else None


def _decimal(value: Any) -> Decimal | None:
    """Return a finite number, however it was written; None if it is invalid."""
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, float) and not math.isfinite(value):
        return None
    try:
        number = Decimal(value.strip()[:64]) if isinstance(value, str) else Decimal(value)
    except InvalidOperation:
        return None
    return number if number.is_finite() else None


def whole(value: Any) -> int:
    """Return an integer from a trace value (hexadecimal text too); ABSENT if it is invalid."""
    if isinstance(value, int):
        return value if -(1 << 63) <= value < 1 << 63 else ABSENT
    if isinstance(value, float):
        return int(value) if math.isfinite(value) and abs(value) < LATEST else ABSENT
    if isinstance(value, str) and len(value) <= 20:
        try:
            return whole(int(value, 0))
        except ValueError:
            return ABSENT
    return ABSENT


def whole_numbers(values: Sequence[Any]) -> Numbers:
    """Return integers from trace values."""
    try:
        numbers = np.array([ABSENT if value is None else value for value in values])
    except (ValueError, OverflowError):
        numbers = np.zeros(0)
    if numbers.dtype == np.int64:
        return numbers
    return np.array([whole(value) for value in values], np.int64)


def _narrow(values: Numbers) -> NDArray[Any]:
    """Return the numbers in half the space if they fit."""
    small = bool((values >= -(1 << 31)).all()) and bool((values < 1 << 31).all())
    return values.astype(np.int32) if small else values


def _either(values: Sequence[Any], others: Sequence[Any]) -> Sequence[Any]:
    if others.count(None) == len(others):
        return values
    return [other if value is None else value for value, other in zip(values, others, strict=True)]


def _present(values: Sequence[Any], absent: Any) -> tuple[list[int], list[Any]]:
    if values.count(absent) == len(values):
        return [], []
    rows = [row for row, value in enumerate(values) if value is not absent]
    return rows, [values[row] for row in rows]


def _text(value: Any, *, listed: bool) -> str:
    """Return a text; a list as compact text."""
    if listed:
        text = bytes(value).decode("utf-8", "replace")
        return ("".join(text.split()) if '"' not in text else text)[:LONGEST_TEXT]
    return str(value)[:LONGEST_TEXT]


def _joined(begin: TraceEvent, end: TraceEvent) -> TraceEvent:
    first, last = _decimal(begin.ts), _decimal(end.ts)
    length = None if first is None or last is None else str(max(Decimal(0), last - first))
    return msgspec.structs.replace(begin, ph="X", dur=length)
