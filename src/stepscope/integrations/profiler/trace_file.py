"""The Chrome trace of a profile on disk: never larger than its limit, never more than the disk can hold."""

from __future__ import annotations

import gzip
import os
import shutil
from typing import TYPE_CHECKING, NamedTuple

from stepscope.core.numbers import format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

MAX_BYTES = 256 << 20
"""Default size limit of a trace."""
PACKING = 8
"""Compression makes a trace at least this many times smaller (measured: 12 to 25 times)."""
EVENT_BYTES, SHAPES_BYTES, STACK_BYTES = 300, 250, 600
"""Approximate bytes of JSON per event, and in addition with shapes and with stacks."""


class TraceFile(NamedTuple):
    """The file of a trace."""

    path: Path | None
    size: int = 0
    """Bytes on disk; 0 without a file."""
    note: str = ""
    """Why it is compressed or left out; empty if neither."""


def expected_bytes(events: int, *, shapes: bool = False, stacks: bool = False) -> int:
    """Return the approximate size of a trace of so many events before compression."""
    return events * (EVENT_BYTES + SHAPES_BYTES * shapes + STACK_BYTES * stacks)


def keep(
    write: Callable[[str], object],
    path: Path,
    expected: int,
    max_bytes: int = MAX_BYTES,
    free: Callable[[Path], int] = lambda folder: shutil.disk_usage(folder).free,
) -> TraceFile:
    """Write a trace to `path`; compress it to `path`.gz if it is larger than `max_bytes`, and drop it if still larger.

    Its folder is created, for this user only; OSError if that is impossible. `write` writes the trace to the file of
    the given name, `expected` comes from `expected_bytes`, and `free` returns the free bytes of a folder's disk.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if expected > PACKING * max_bytes:
        return TraceFile(None, 0, f"the trace, about {format_bytes(expected)}, was left out: {_remedy(max_bytes)}")
    if expected > free(path.parent) // 2:
        return TraceFile(None, 0, f"the trace, about {format_bytes(expected)}, was left out: the disk is too full")
    part, packed = path.with_name(f".{path.name}.part"), path.with_name(f"{path.name}.gz")
    try:
        write(str(part))
        os.chmod(part, 0o600)
        size = part.stat().st_size
        if size <= max_bytes:
            os.replace(part, path)
            packed.unlink(missing_ok=True)  # of a trace of the same name before
            return TraceFile(path, size)
        with part.open("rb") as whole, gzip.open(packed, "wb", compresslevel=3) as file:
            shutil.copyfileobj(whole, file, 1 << 20)
        os.chmod(packed, 0o600)
        path.unlink(missing_ok=True)
        if packed.stat().st_size <= max_bytes:
            return TraceFile(
                packed, packed.stat().st_size, f"the trace was compressed: it takes {format_bytes(size)} as text"
            )
        packed.unlink()
        return TraceFile(None, 0, f"the trace, {format_bytes(size)}, was left out: {_remedy(max_bytes)}")
    finally:
        part.unlink(missing_ok=True)


def _remedy(max_bytes: int) -> str:
    return f"the cap is {format_bytes(max_bytes)}; profile fewer steps or raise max_bytes"
