"""Declare the layouts of rows: each is written to the schema file before the first row that uses it."""

from __future__ import annotations

import contextlib
import errno
import os
import struct
import threading
from collections.abc import Callable
from itertools import chain
from threading import get_ident
from typing import TYPE_CHECKING, Any

from stepscope.core.columns import RowSchema, encode_names, encode_schema
from stepscope.core.own_file import close_own, identity_of
from stepscope.core.records import FIRST_SCHEMA, MAX_SCHEMAS, RECORD, SCHEMA_EVENT, SCHEMA_PAIRS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stepscope.recorder.mapping import Mapping

Layout = tuple[Callable[..., None], int, int, bool, bytes]
"""How to write a row: pack function, bytes, schema id, only Python's own numbers so far, kinds for the twin in C."""
PATIENCE = 0.02
"""Seconds to wait for another thread's declaration."""


class TooManyNamesError(Exception):
    """The run has reached its limit of distinct names."""


class Declarations:
    """Provide layouts by names, declared in the schema file; past MAX_SCHEMAS, rows become (name id, value) pairs."""

    def __init__(self, mapping: Mapping, descriptor: int, max_names: int) -> None:
        self._mapping, self._descriptor, self._max_names = mapping, descriptor, max_names
        self._identity = identity_of(descriptor)
        self._lock, self._owner = threading.Lock(), 0
        self._layouts: dict[tuple[tuple[str, ...], str], Layout] = {}
        self._pair_layouts: dict[int, Layout] = {}
        self._ids: dict[str, int] = {}
        self._seen: set[str] = set()

    @property
    def text_bytes(self) -> int:
        """Maximum bytes of a text."""
        return (self._mapping.segment_bytes - RECORD.size - self._mapping.overhead) // 8 * 8

    @property
    def longest(self) -> int:
        """Maximum values in a row that is written as pairs."""
        return self.text_bytes // 16

    @property
    def is_busy(self) -> bool:
        """Whether a declaration is under way."""
        return self._lock.locked()

    def layout(self, names: tuple[str, ...], kinds: str) -> Layout | None:
        """Return the declared layout of these columns; None once there are too many schemas.

        Raises OSError if the schema file cannot be written, TooManyNamesError if a new name is beyond the limit,
        TimeoutError if a declaration is under way: in a thread that does not finish, or below us in this one.
        """
        layout = self._layouts.get((names, kinds))
        if layout is not None:
            return layout
        with self._held():
            if len(self._layouts) >= MAX_SCHEMAS:
                return None
            self._admit(names)
            number = FIRST_SCHEMA + len(self._layouts)
            _append(self._file(), encode_schema(RowSchema(number, names, kinds)))
            layout = self._layouts[names, kinds] = self._pack(kinds, number)
        return layout

    def pairs(self, names: tuple[str, ...], kinds: str = "") -> Layout:
        """Return a layout that writes a row of these columns as pairs, with the names declared. Raises like `layout`.

        A pair holds a float: durations ("q" in `kinds`) become seconds.
        """
        with self._held():
            fresh = [name for name in dict.fromkeys(names) if name not in self._ids]
            if fresh:
                self._admit(tuple(fresh))
                first = len(self._ids)
                _append(self._file(), encode_names(first, fresh))
                self._ids.update((name, first + at) for at, name in enumerate(fresh))
            layout = self._pair_layouts.get(len(names))
            if layout is None:
                layout = self._pair_layouts[len(names)] = self._pack("Qd" * len(names), SCHEMA_PAIRS)
            ids = [self._ids[name] for name in names]
        pack_pairs = layout[0]
        scales = [1e9 if kind == "q" else 1 for kind in kinds or "d" * len(names)]

        def pack(buffer: Any, offset: int, size: int, schema: int, sequence: int, now: int, at: int, *row: Any) -> None:
            values = [value if scale == 1 else value / scale for value, scale in zip(row, scales, strict=True)]
            pairs = chain.from_iterable(zip(ids, values, strict=True))
            pack_pairs(buffer, offset, size, schema, sequence, now, at, *pairs)

        return pack, layout[1], layout[2], layout[3], b""

    def close(self) -> None:
        """Close the schema file; a late thread then fails to declare."""
        with contextlib.suppress(TimeoutError), self._held():  # its current holder still needs the file
            descriptor, self._descriptor = self._descriptor, -1
            if descriptor >= 0:
                close_own(descriptor, self._identity)

    def text(self, size: int) -> Layout:
        """Return the layout of an event whose text takes `size` bytes, a multiple of 8."""
        return self._pack(f"{size}s", SCHEMA_EVENT)

    def _admit(self, names: tuple[str, ...]) -> None:
        fresh = {name for name in names if name not in self._seen}
        if len(self._seen) + len(fresh) > self._max_names:
            raise TooManyNamesError
        self._seen |= fresh

    def _file(self) -> int:
        """Return the schema file; raise OSError if its number is closed, or means a file of the program by now."""
        if self._descriptor >= 0 and identity_of(self._descriptor) != self._identity:
            raise OSError(errno.EBADF, "the program has closed the file with the names of its metrics")
        return self._descriptor

    @contextlib.contextmanager
    def _held(self) -> Iterator[None]:
        """Hold the lock, or give up after PATIENCE, at once in a signal handler that would wait for itself."""
        if self._owner == get_ident() or not self._lock.acquire(timeout=PATIENCE):
            raise TimeoutError
        self._owner = get_ident()
        try:
            yield
        finally:
            self._owner = 0
            self._lock.release()

    def _pack(self, kinds: str, number: int) -> Layout:
        shape = struct.Struct(RECORD.format + kinds)
        plain = kinds.encode() if not self._mapping.overhead and not kinds.strip("dq") else b""
        return self._mapping.packer(shape), shape.size + self._mapping.overhead, number, True, plain


def _append(descriptor: int, data: bytes) -> None:
    """Append all of `data` to the file; a torn entry is truncated again."""
    if descriptor < 0:
        raise TimeoutError("the run has ended")
    before = os.fstat(descriptor).st_size
    written = 0
    try:
        while written < len(data):
            written += os.write(descriptor, data[written:])
    except OSError:
        os.ftruncate(descriptor, before)
        raise
