"""Reads pickles of plain data without running anything: numbers, text, bytes and built-in containers, nothing else.

It is a small machine for the opcodes of protocols 0 to 5 that build such data. All others, which import a name, call
something or refer to an object elsewhere, are refused by name. Nothing of Python's own pickle module is used.
"""

from __future__ import annotations

import struct
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

MOST_BYTES = 128 << 20
"""A dump of 2000 collectives with all their frames takes 10 MiB."""
MOST_SECONDS, MOST_OPERATIONS, MOST_STACK = 20.0, 8_000_000, 1_000_000
"""Such a dump takes two million operations. Each makes at most one object, so memory is limited, too."""
MOST_LINE = 1 << 20
"""Bytes of a value that is written as text."""
MOST_DIGITS, MOST_LONG = 300, 128
"""Digits of a number as text, and bytes of a long one."""
CHECK_EVERY = 1 << 14
"""Operations between two looks at the clock."""
_MARK = object()
_KEYS = (str, int, float, bytes, type(None))
_NAMES = (
    *("GLOBAL", "STACK_GLOBAL", "REDUCE", "BUILD", "INST", "OBJ", "NEWOBJ", "NEWOBJ_EX"),
    *("PERSID", "BINPERSID", "EXT1", "EXT2", "EXT4", "NEXT_BUFFER", "READONLY_BUFFER"),
)
REFUSED = dict(zip(b"c\x93Rbio\x81\x92PQ\x82\x83\x84\x97\x98", _NAMES, strict=True))
"""Opcodes that would make an object of a class, call something or fetch something."""


class UnsafePickleError(ValueError):
    """A pickle that holds something other than plain data."""


class CutPickleError(ValueError):
    """A pickle whose end is missing."""

    def __init__(self, start: Any) -> None:
        """Keep what is whole at its start: dicts and lists hold what was complete."""
        super().__init__("it is cut")
        self.start = start


def read_plain(data: bytes, seconds: float = MOST_SECONDS, clock: Callable[[], float] = time.monotonic) -> Any:
    """Return the plain data in a pickle.

    Raises:
        UnsafePickleError: it would import, call or fetch something; nothing of that is done.
        CutPickleError: its end is missing.
        ValueError: it is no pickle, or is larger or takes longer than a dump may.
    """
    if len(data) > MOST_BYTES:
        raise ValueError(f"it is longer than {MOST_BYTES >> 20} MiB")
    return _Machine(data, clock() + seconds, clock).run()


def read_plain_each(data: bytes) -> list[Any]:
    """Return the plain data in pickles that follow each other; raise as `read_plain` does."""
    found, at = list[Any](), 0
    until = time.monotonic() + MOST_SECONDS
    while at < len(data):
        machine = _Machine(data, until, time.monotonic, at)
        found.append(machine.run())
        at = machine.position
    return found


class _Machine:
    """The stack, the memo and the position of one pickle."""

    def __init__(self, data: bytes, until: float, clock: Callable[[], float], at: int = 0) -> None:
        self._data, self._at, self._until, self._clock = data, at, until, clock
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}

    @property
    def position(self) -> int:
        """Where the next pickle begins, after this one was read."""
        return self._at

    def run(self) -> Any:
        data, count = self._data, 0
        try:
            while True:
                if self._at >= len(data):
                    raise self._cut()
                code = data[self._at]
                self._at += 1
                count += 1
                if code == 0x2E:  # STOP
                    break
                handler = _HANDLERS.get(code)
                if handler is None:
                    raise self._unknown(code)
                handler(self)
                if count % CHECK_EVERY == 0:
                    self._check(count)
            if len(self._stack) != 1 or self._stack[0] is _MARK:
                raise ValueError("it ends with something left over")
        except (IndexError, KeyError, struct.error, AttributeError, TypeError, OverflowError) as error:
            raise ValueError("it is cut or damaged") from error
        return self._stack[0]

    def _unknown(self, code: int) -> ValueError:
        if code in REFUSED:
            return UnsafePickleError(f"it holds more than plain data (opcode {REFUSED[code]}), which is never executed")
        return ValueError(f"it is cut or no pickle (byte {code:#04x} at {self._at - 1})")

    def _check(self, count: int = 0) -> None:
        if self._clock() > self._until:
            raise ValueError("it takes too long to read")
        if len(self._stack) > MOST_STACK or count > MOST_OPERATIONS:
            raise ValueError("it holds more objects than a dump may")

    def take(self, size: int) -> bytes:
        """Return the next bytes."""
        end = self._at + size
        if end > len(self._data):
            raise self._cut()
        found = self._data[self._at : end]
        self._at = end
        return found

    def _cut(self) -> CutPickleError:
        """Return the error about a missing end, with what is whole: containers that are open are closed."""
        stack, is_whole = self._stack, True
        for _ in range(sum(value is _MARK for value in stack)):
            items = self.since_mark()
            into = stack[-1] if stack else None
            if isinstance(into, list):  # of rows; the last may have only begun, and would mislead
                into.extend(items if is_whole and items[-1:] != [{}] else items[:-1])
            elif isinstance(into, dict):
                self.set_items(items[: len(items) // 2 * 2])
            is_whole = False
        return CutPickleError(stack[0] if stack else None)

    def line(self) -> str:
        """Return the text up to the end of the line."""
        end = self._data.find(b"\n", self._at, self._at + MOST_LINE)
        if end < 0:
            raise self._cut()
        found = self._data[self._at : end].decode("latin-1")
        self._at = end + 1
        return found

    def sized(self, width: int) -> bytes:
        """Return bytes whose length comes first, in so many bytes."""
        return self.take(int.from_bytes(self.take(width), "little"))

    def push(self, value: Any) -> None:
        """Put a value on the stack."""
        self._stack.append(value)

    def top(self, kind: type) -> Any:
        """Return the container on top of the stack."""
        found = self._stack[-1]
        if type(found) is not kind:
            raise ValueError("it is damaged")
        return found

    def since_mark(self) -> list[Any]:
        """Take all values since the last mark."""
        stack = self._stack
        at = len(stack) - 1
        while stack[at] is not _MARK:
            at -= 1
            if at < 0:
                raise ValueError("it is damaged")
        found = stack[at + 1 :]
        del stack[at:]
        return found

    def pop(self) -> Any:
        """Take one value."""
        found = self._stack.pop()
        if found is _MARK:
            raise ValueError("it is damaged")
        return found

    def put(self, number: int) -> None:
        """Remember the value on top of the stack."""
        if self._stack[-1] is _MARK:
            raise ValueError("it is damaged")
        self._memo[number] = self._stack[-1]

    def memoize(self) -> None:
        """Remember the value on top of the stack under the next number."""
        self.put(len(self._memo))

    def get(self, number: int) -> None:
        """Put a remembered value on the stack."""
        self._stack.append(self._memo[number])

    def extend(self) -> None:
        """Add the values since the last mark to the list below them."""
        items = self.since_mark()
        self.top(list).extend(items)

    def duplicate(self) -> None:
        """Put the value on top of the stack there again."""
        self.push(self.pop())
        self.push(self._stack[-1])

    def set_items(self, items: list[Any]) -> None:
        """Add keys and values to the dict on top of the stack."""
        into = self.top(dict)
        if len(items) % 2:
            raise ValueError("it is damaged")
        for number, (key, value) in enumerate(zip(items[::2], items[1::2], strict=True)):
            if not isinstance(key, _KEYS):  # a tuple of tuples of … would overflow the C stack when it is hashed
                raise ValueError(f"a key is a {type(key).__name__}")  # noqa: TRY004
            into[key] = value
            if number % 256 == 0:  # keys of equal hashes take quadratic time
                self._check()


def _number(machine: _Machine) -> int:
    text = machine.line().strip().removesuffix("L")
    if len(text) > MOST_DIGITS:
        raise ValueError("a number is too long")
    return int(text)


def _int_or_bool(machine: _Machine) -> None:
    text = machine.line().strip()
    if len(text) > MOST_DIGITS:
        raise ValueError("a number is too long")
    machine.push(text == "01" if text in ("00", "01") else int(text))


def _long(machine: _Machine, width: int) -> None:
    data = machine.sized(width)
    if len(data) > MOST_LONG:
        raise ValueError("a number is too long")
    machine.push(int.from_bytes(data, "little", signed=True))


def _string(machine: _Machine) -> None:
    text = machine.line().strip()
    if len(text) < 2 or text[0] != text[-1] or text[0] not in "'\"":
        raise ValueError("it is damaged")
    machine.push(text[1:-1])


def _text(machine: _Machine, width: int) -> None:
    machine.push(machine.sized(width).decode("utf-8", "replace"))


def _append(machine: _Machine) -> None:
    value = machine.pop()
    machine.top(list).append(value)


def _set_item(machine: _Machine) -> None:
    value, key = machine.pop(), machine.pop()
    machine.set_items([key, value])


def _tuple(machine: _Machine, size: int) -> None:
    machine.push(tuple([machine.pop() for _ in range(size)][::-1]))


def _dict(machine: _Machine) -> None:
    items = machine.since_mark()
    machine.push({})
    machine.set_items(items)


_HANDLERS: dict[int, Callable[[_Machine], Any]] = {
    0x80: lambda m: m.take(1),  # PROTO
    0x95: lambda m: m.take(8),  # FRAME
    0x28: lambda m: m.push(_MARK),
    0x30: lambda m: m.pop(),  # POP
    0x31: lambda m: m.since_mark(),  # POP_MARK
    0x32: lambda m: m.duplicate(),
    0x4E: lambda m: m.push(None),
    0x88: lambda m: m.push(value=True),
    0x89: lambda m: m.push(value=False),
    0x49: _int_or_bool,
    0x4C: lambda m: m.push(_number(m)),
    0x4A: lambda m: m.push(int.from_bytes(m.take(4), "little", signed=True)),
    0x4B: lambda m: m.push(m.take(1)[0]),
    0x4D: lambda m: m.push(int.from_bytes(m.take(2), "little")),
    0x8A: lambda m: _long(m, 1),
    0x8B: lambda m: _long(m, 4),
    0x46: lambda m: m.push(float(m.line()[:MOST_DIGITS])),
    0x47: lambda m: m.push(struct.unpack(">d", m.take(8))[0]),
    0x53: _string,
    0x54: lambda m: m.push(m.sized(4).decode("latin-1")),  # BINSTRING of Python 2
    0x55: lambda m: m.push(m.sized(1).decode("latin-1")),
    0x56: lambda m: m.push(m.line().encode("latin-1").decode("raw_unicode_escape")),  # UNICODE
    0x58: lambda m: _text(m, 4),
    0x8C: lambda m: _text(m, 1),
    0x8D: lambda m: _text(m, 8),
    0x42: lambda m: m.push(m.sized(4)),
    0x43: lambda m: m.push(m.sized(1)),
    0x8E: lambda m: m.push(m.sized(8)),
    0x96: lambda m: m.push(m.sized(8)),  # BYTEARRAY8, as bytes
    0x5D: lambda m: m.push([]),
    0x61: _append,
    0x65: lambda m: m.extend(),
    0x6C: lambda m: m.push(m.since_mark()),
    0x29: lambda m: m.push(()),
    0x85: lambda m: _tuple(m, 1),
    0x86: lambda m: _tuple(m, 2),
    0x87: lambda m: _tuple(m, 3),
    0x74: lambda m: m.push(tuple(m.since_mark())),
    0x7D: lambda m: m.push({}),
    0x73: _set_item,
    0x75: lambda m: m.set_items(m.since_mark()),
    0x64: _dict,
    0x8F: lambda m: m.push([]),  # EMPTY_SET: its members as a list
    0x90: lambda m: m.extend(),
    0x91: lambda m: m.push(m.since_mark()),  # FROZENSET
    0x70: lambda m: m.put(_number(m)),
    0x71: lambda m: m.put(m.take(1)[0]),
    0x72: lambda m: m.put(int.from_bytes(m.take(4), "little")),
    0x94: lambda m: m.memoize(),
    0x67: lambda m: m.get(_number(m)),
    0x68: lambda m: m.get(m.take(1)[0]),
    0x6A: lambda m: m.get(int.from_bytes(m.take(4), "little")),
}
