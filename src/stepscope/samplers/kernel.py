"""Files written by the kernel, such as those of /proc and /sys: kept open, and parsed defensively."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

PAGE = 4096
WHOLE = PAGE // 2
"""Bytes. The kernel returns records page by page; a read shorter than this was the whole file."""
MOST = 1 << 20
BIGGEST = 1 << 64


class KernelFile:
    """A file that is read repeatedly; keeping it open halves the cost."""

    __slots__ = ("_descriptor", "_keep", "path")

    def __init__(self, path: str, *, keep: bool = True) -> None:
        """Prepare to read `path`; with `keep` it stays open after the first read."""
        self.path, self._keep = path, keep
        self._descriptor = -1

    def read(self) -> bytes:
        """Return the current content, reopening the file if needed; raise OSError if it does not exist."""
        if self._descriptor >= 0:
            try:
                data = _whole(self._descriptor)
            except OSError:  # the device, group or process behind it is gone; its name may be reused by now
                data = b""
            if data:
                return data
            self.close()
        return self._read_anew()

    def read_same(self) -> bytes:
        """Return the current content, never that of a successor with the same name once the file was kept open."""
        return _whole(self._descriptor) if self._descriptor >= 0 else self._read_anew()

    def find_number(self) -> int | None:
        """Return the only number in the file; None if it cannot be read."""
        try:
            return number(self.read())
        except (OSError, ValueError):
            return None

    def close(self) -> None:
        """Close the file; the next read opens it again."""
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)

    def _read_anew(self) -> bytes:
        self._descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            return _whole(self._descriptor)
        finally:
            if not self._keep:
                self.close()

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        # Bound as a default: at interpreter exit, this module's names may be gone before its objects. Ctrl-C may have
        # come before the descriptor was set.
        if getattr(self, "_descriptor", -1) >= 0:
            close(self._descriptor)


def _whole(descriptor: int) -> bytes:
    data = os.pread(descriptor, 4 * PAGE, 0)
    if len(data) < WHOLE:
        return data
    while len(data) < MOST:
        more = os.pread(descriptor, 4 * PAGE, len(data))
        if not more:
            break
        data += more
    return data


def read_small(path: str) -> bytes:
    """Return the stripped content of a rarely read file; raise OSError if it does not exist."""
    return KernelFile(path, keep=False).read().strip()


def find_text(path: str) -> str:
    """Return the content of a small file as text; empty if it cannot be read."""
    try:
        return read_small(path).decode("utf-8", "replace")
    except OSError:
        return ""


def find_number(path: str) -> int | None:
    """Return the only number in a small file; None if it cannot be read."""
    return KernelFile(path, keep=False).find_number()


def entries(folder: str) -> list[str]:
    """Return the sorted names in a folder; empty if it cannot be listed."""
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def graphics_cards(root: Path, vendor: str) -> dict[int, str]:
    """Return the folder in /sys/class/drm of each card of a PCI vendor, by the card's number."""
    folder = f"{root}/sys/class/drm"
    cards = {int(name[4:]): f"{folder}/{name}" for name in entries(folder) if re.fullmatch(r"card\d+", name)}
    return {index: card for index, card in cards.items() if find_text(f"{card}/device/vendor") == vendor}


def number(word: bytes) -> int:
    """Return a count that the kernel wrote; raise ValueError for anything that is not a 64-bit counter."""
    value = int(word)
    if not -BIGGEST < value < BIGGEST:
        raise ValueError("a number of more than 64 bits")
    return value


def pairs(data: bytes) -> dict[bytes, int]:
    """Parse lines of `key value` or `key: value`, as in cgroup files and /proc/<pid>/io; other lines are skipped."""
    found = {}
    for line in data.splitlines():
        words = line.split()
        if len(words) == 2 and words[1].isdigit():
            found[words[0].rstrip(b":")] = number(words[1])
    return found


def value_of(data: bytes, key: bytes) -> int | None:
    """Return the number after `key` at the start of a line; None if there is no such line.

    Cheaper than `pairs` for a single entry of many.
    """
    at = 0 if data.startswith(key) else data.find(b"\n" + key) + 1
    if at == 0 and not data.startswith(key):
        return None
    end = data.find(b"\n", at)
    words = data[at + len(key) : None if end < 0 else end].split()
    return number(words[0]) if words else None


class Growth:
    """Growth per second of rows of counters, one row per instance; the first sample of a row yields nothing."""

    def __init__(self) -> None:
        self._before: dict[str, tuple[int, tuple[int, ...]]] = {}

    def of(self, instance: str, totals: tuple[int, ...], now: int) -> tuple[float, ...] | None:
        """Return the growth per second of each counter of `instance`; None at first and if a counter went back.

        `totals` are their current values, `now` is monotonic time in ns.
        """
        before = self._before.get(instance)
        self._before[instance] = (now, totals)
        if before is None or now <= before[0] or len(before[1]) != len(totals):
            return None
        grown = [after - earlier for earlier, after in zip(before[1], totals, strict=True)]
        if min(grown, default=0) < 0:
            return None
        scale = 1e9 / (now - before[0])
        return tuple(count * scale for count in grown)

    def sums(self, rows: dict[str, tuple[int, ...]], now: int) -> list[float]:
        """Return the growth per second of every column over all instances; empty while no instance has history.

        An instance that appears or disappears causes no jump; a vanished one is forgotten.
        """
        rates = [rate for name, totals in rows.items() if (rate := self.of(name, totals, now)) is not None]
        for gone in self._before.keys() - rows.keys():
            del self._before[gone]
        return [sum(column) for column in zip(*rates, strict=False)]
