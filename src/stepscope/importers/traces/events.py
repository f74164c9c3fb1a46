"""The events in a trace's JSON, batch by batch, without ever holding the whole text.

A batch is decoded at once, directly into the needed fields (msgspec). Its end is found by trial: a text cut between
`},` and `{` decodes as an array only if the cut really was between two events. Text that this decoder rejects (NaN,
broken UTF-8, control characters, odd types) is decoded event by event with the tolerant one of the standard library.
"""

from __future__ import annotations

import json
import re
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import msgspec

from stepscope.importers.traces.text import PIECE, BadTrace

if TYPE_CHECKING:
    from collections.abc import Iterator

Scalar = str | int | float | bool | None
"""Accepted types of an event's field; anything else counts as absent."""

NUMBERS = {
    "bytes": "bytes",
    "graph_id": "graph id",
    "graph_node": "graph node id",
    "wait_stream": "wait_on_stream",
    "wait_correlation": "wait_on_cuda_event_record_corr_id",
    "wait_event": "wait_on_cuda_event_id",
    "group_size": "Group size",
    "elements_in": "In msg nelems",
    "elements_out": "Out msg nelems",
    "collective_number": "Seq",
    "sequence": "Sequence number",
    "forward_thread": "Fwd thread id",
    "python_id": "Python id",
    "python_parent": "Python parent id",
    "python_module": "Python module id",
}
"""Numbers that few events have: our field, and the argument in the trace."""
TEXTS = {
    "shapes": "Input Dims",
    "types": "Input type",
    "collective": "Collective name",
    "dtype": "dtype",
    "group": "Process Group Name",
    "group_text": "Process Group Description",
    "group_ranks": "Process Group Ranks",
    "sync_kind": "cuda_sync_kind",
    "stack": "Call stack",
}
"""Texts, or lists kept as text, that few events have."""
LISTS = ("shapes", "types", "group_ranks")
ALWAYS = {
    "stream": "stream",
    "device": "device",
    "correlation": "correlation",
    "external": "External id",
    "external_old": "external id",
}
MEMORY = {
    "size": "Bytes",
    "address": "Addr",
    "allocated": "Total Allocated",
    "reserved": "Total Reserved",
    "device_id": "Device Id",
    "device_type": "Device Type",
}
LABELS = {"name": "name", "labels": "labels"}
ARGUMENTS = {**ALWAYS, **NUMBERS, **TEXTS, **MEMORY, **LABELS}

NO_LIST = msgspec.Raw(b"")
Args: Any = msgspec.defstruct(
    "Args",
    [(field, msgspec.Raw, NO_LIST) if field in LISTS else (field, Scalar, None) for field in ARGUMENTS],
    rename=ARGUMENTS,
    gc=False,
)
"""The needed arguments of an event."""
NOTHING = Args()


class TraceEvent(msgspec.Struct, gc=False):
    """One event as in the trace."""

    ph: str = ""
    cat: Scalar = None
    name: Scalar = None
    pid: Scalar = None
    tid: Scalar = None
    ts: Scalar = None
    dur: Scalar = None
    args: Args | None = None


class ExactEvent(TraceEvent, gc=False):
    """The same for times that a binary fraction cannot hold: microseconds since 1970 with decimals."""

    ts: Decimal | None = None  # type: ignore[assignment]


class Text:
    """The part of a text being decoded: `data` from `at` on."""

    def __init__(self, pieces: Iterator[bytes], value_bytes: int) -> None:
        """Start before the first piece; one value may take `value_bytes`."""
        self.pieces, self.value_bytes = pieces, value_bytes
        self.data, self.at, self.done = b"", 0, False
        self.exact = False
        """Whether fractions are decoded as decimals."""
        self._string: str | None = None

    @property
    def string(self) -> str:
        """The data with one character per byte: positions are the same in both."""
        if self._string is None:
            self._string = self.data.decode("latin-1")
        return self._string

    def more(self) -> bool:
        """Read at least as much again as is left; return whether there was anything."""
        if self.done:
            return False
        rest = self.data[self.at :]
        if len(rest) > self.value_bytes:
            raise BadTrace(f"one value in it is larger than {self.value_bytes:,} bytes, or is never closed")
        fresh, wanted = [rest], max(len(rest), PIECE // 4, 1)
        while wanted > 0 and not self.done:
            piece = next(self.pieces, b"")
            self.done = not piece
            fresh.append(piece)
            wanted -= len(piece)
        self.data, self.at, self._string = b"".join(fresh), 0, None
        return len(self.data) > len(rest)

    def peek(self, ahead: int = 0) -> bytes:
        """Skip whitespace and return the next character, or the one `ahead` positions later."""
        while True:
            found = SOLID.search(self.data, self.at + ahead)
            if found:
                self.at = self.at if ahead else found.start()
                return found[0]
            self.at = self.at if ahead else len(self.data)
            if not self.more():
                return b""

    def take(self, wanted: bytes) -> None:
        """Consume the next character, which must be this one."""
        found = self.peek()
        if found != wanted:
            raise BadTrace(_unexpected(found, wanted))
        self.at += 1

    def value(self) -> Any:
        """Decode and consume the next value, whatever it is."""
        if not self.peek():
            raise BadTrace(CUT)
        while True:
            try:
                value, end = (EXACT_DECODER if self.exact else DECODER).raw_decode(self.string, self.at)
            except json.JSONDecodeError as error:
                if not self.more():
                    raise BadTrace(_broken(error, len(self.data))) from error
            except RecursionError as error:
                raise BadTrace("it is nested too deeply to be a trace") from error
            except ValueError as error:  # a number of thousands of digits
                raise BadTrace(f"it holds a value that cannot be read ({error})") from error
            else:
                if end < len(self.data) or not self.more():  # a number may continue in the next piece
                    self.at = end
                    return value


SOLID = re.compile(rb"[^ \t\r\n]")
BETWEEN = re.compile(rb"\}[ \t\r\n]*,[ \t\r\n]*\Z")
DECODER, EXACT_DECODER = json.JSONDecoder(strict=False), json.JSONDecoder(strict=False, parse_float=Decimal)
BATCH, EXACT_BATCH = msgspec.json.Decoder(list[TraceEvent]), msgspec.json.Decoder(list[ExactEvent])
LONG_TIME = re.compile(rb'"ts"\s*:\s*\d{14,}\.\d')
"""A time that binary fractions do not hold to the nanosecond."""
CUT = "it is cut off before its end"
TRIALS, BRACES = 3, 256
"""Maximum cuts tried, and maximum opening braces examined to find them."""
FACT_BYTES = 1 << 20
"""Maximum text of a fact beside the events."""


def batches(text: Text, facts: dict[str, Any]) -> Iterator[list[TraceEvent]]:
    """Yield the events of a trace in order, and store the other members in `facts`.

    Raises:
        BadTrace: the text is not a trace.
    """
    first = text.peek()
    if first == b"[" and text.peek(1) == b"[":
        facts["rows"] = text.value()
    elif first == b"[":
        yield from _array(text, may_stay_open=True)
    elif first == b"{":
        yield from _members(text, facts)
    else:
        raise BadTrace("it is empty" if not first else f"it is not JSON: it begins with {first!r}")


def _members(text: Text, facts: dict[str, Any]) -> Iterator[list[TraceEvent]]:
    text.take(b"{")
    while text.peek() != b"}":
        key = text.value()
        if not isinstance(key, str):
            raise BadTrace("it is not JSON: a key is not a text")
        text.take(b":")
        if key == "traceEvents" and text.peek() == b"[":
            facts.setdefault("traceEvents", True)
            yield from _array(text)
        else:
            before = text.at
            value = text.value()
            if text.at - before <= FACT_BYTES:
                facts[key] = value
        if text.peek() != b",":
            break
        text.take(b",")
    text.take(b"}")


def _array(text: Text, *, may_stay_open: bool = False) -> Iterator[list[TraceEvent]]:
    """Yield the events of an array and consume its end, which may be missing if the trace is a bare array."""
    text.take(b"[")
    while text.peek() != b"]":
        text.exact = text.exact or LONG_TIME.search(text.data, text.at, text.at + 8192) is not None
        if len(text.data) - text.at < PIECE:
            text.more()
        yield _fast(text) or _slow(text)
        if not text.peek():
            if may_stay_open:
                return
            raise BadTrace(CUT)
    text.take(b"]")
    text.exact = False


def _fast(text: Text) -> list[TraceEvent]:
    """Decode as many whole events as there are, and consume them with their comma; none if the strict decoder fails."""
    end, trials = len(text.data), 0
    decoder = EXACT_BATCH if text.exact else BATCH
    for _ in range(BRACES):
        end = text.data.rfind(b"{", text.at, end)
        if end <= text.at or trials == TRIALS:
            break
        found = BETWEEN.search(text.data, max(text.at, end - 64), end)
        if found is None:
            continue
        trials += 1
        try:
            events = decoder.decode(b"[%b]" % text.data[text.at : found.start() + 1])
        except msgspec.ValidationError:
            break  # whole events, but malformed
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            continue  # not between two events, or not for this decoder: try the next cut, and finally the other decoder
        text.at = end
        return list(events)
    return []


def _slow(text: Text) -> list[TraceEvent]:
    """Decode the events one by one, and consume them with their commas."""
    events: list[TraceEvent] = []
    last = len(text.data) if text.done else max(text.at + 1, len(text.data) - PIECE // 4)
    while text.at < last and text.peek() not in {b"]", b""}:
        events.append(event_of(text.value()))
        if text.peek() == b",":
            text.take(b",")
        elif text.peek() not in {b"]", b""}:
            raise BadTrace(_unexpected(text.peek(), b","))
    return events


def event_of(value: Any) -> TraceEvent:
    """Return an event from any element of the array; without a phase if it is not an event."""
    if not isinstance(value, dict):
        return TraceEvent()
    fields = {name: _scalar(value.get(name)) for name in ("cat", "name", "pid", "tid", "ts", "dur")}
    given = value.get("args")
    given = given if isinstance(given, dict) else {}
    known = {field: given[key] for field, key in ARGUMENTS.items() if key in given}
    lists = {field: msgspec.Raw(json.dumps(known[field]).encode()) for field in LISTS if field in known}
    args = Args(**{field: _scalar(value) for field, value in known.items()} | lists)
    return TraceEvent(ph=str(value.get("ph", "")), args=args, **fields)


def _scalar(value: Any) -> Scalar:
    """Return a plain value; text that was decoded byte by byte is reassembled."""
    if not isinstance(value, str):
        return value if isinstance(value, (int, float, Decimal)) else None  # type: ignore[return-value]
    try:
        return value.encode("latin-1").decode()
    except UnicodeError:  # it was written with escapes, or is not UTF-8
        return value.encode("utf-8", "replace").decode()


def _unexpected(found: bytes, wanted: bytes) -> str:
    return f"it is not JSON: {found!r} where {wanted!r} belongs" if found else CUT


def _broken(error: json.JSONDecodeError, size: int) -> str:
    if error.pos >= size - 1 or error.msg.startswith("Unterminated"):
        return CUT
    return f"it is not JSON ({error.msg.lower()})"
