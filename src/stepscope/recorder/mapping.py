"""Create the ring's file, reserve its space, map it and lock it; or provide a stand-in."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import struct
import zlib
from typing import TYPE_CHECKING, Any

from stepscope.core import ring
from stepscope.core.own_file import close_own, identity_of
from stepscope.core.records import CHECKSUM

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

PackError = (OverflowError, struct.error)
"""What packing raises for a number that does not fit its column."""
SCRATCH_SEGMENT = 1 << 16
_ORDERED_STORES = {"x86_64", "AMD64", "i386", "i686"}


class Mapping:
    """A mapped ring: payload through `buffer`, header words through `words`. `path` is None for a stand-in."""

    def __init__(
        self, buffer: Any, words: memoryview, segment_bytes: int, base: int, *, checked: bool, descriptor: int = -1
    ) -> None:
        """Wrap memory whose segments start at offset `base`; `checked` records end with a checksum."""
        self.buffer, self.words, self.segment_bytes, self.base = buffer, words, segment_bytes, base
        self.checked, self.descriptor, self._identity = checked, descriptor, identity_of(descriptor)
        self.path: Path | None = None

    @classmethod
    def scratch(cls) -> Mapping:
        """Return memory that nothing reads, for a recorder that is off."""
        memory = bytearray(SCRATCH_SEGMENT)
        words = memoryview(bytearray(ring.WORDS * 8)).cast("Q")
        return cls(memory, words, SCRATCH_SEGMENT // ring.SEGMENTS // 8 * 8, 0, checked=False)

    def packer(self, layout: struct.Struct) -> Callable[..., None]:
        """Return the function that writes a record of this layout; off x86 it adds the checksum."""
        if not self.checked:
            return layout.pack_into

        def pack(buffer: Any, offset: int, *values: Any) -> None:
            layout.pack_into(buffer, offset, *values)
            end = offset + layout.size
            CHECKSUM.pack_into(buffer, end, zlib.crc32(buffer[offset:end]))

        return pack

    @property
    def overhead(self) -> int:
        """Bytes that a record needs beyond its layout."""
        return CHECKSUM.size if self.checked else 0

    def close(self) -> None:
        """Unmap and close, which also releases the writer's lock."""
        if self.path is None:
            return
        self.words.release()
        with contextlib.suppress(BufferError):  # a slice is still in use: the process' end unmaps it
            self.buffer.close()
        close_own(self.descriptor, self._identity)
        self.path = None


def create(
    path: Path,
    ring_bytes: int,
    identity: ring.RingIdentity,
    machine: str | None = None,
    is_welcome: Callable[[], bool] = lambda: True,
) -> Mapping:
    """Create a ring at `path` that is reserved, mapped and locked before any process can find it.

    `is_welcome` is called once its space is reserved: of several ranks that start at once, each then sees the others.
    Raises OSError if there is no space or no permission.
    """
    hidden = path.with_name(f".{path.name}.new")
    descriptor = os.open(hidden, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        reserve(descriptor, ring_bytes)
        _ask(is_welcome)
        mapping = _map(descriptor, ring_bytes, identity, (machine or os.uname().machine) not in _ORDERED_STORES)
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, ring.LOCK_WRITER)
        os.rename(hidden, path)
    except OSError:
        os.close(descriptor)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(hidden)
        raise
    mapping.path = path
    return mapping


def _ask(is_welcome: Callable[[], bool]) -> None:
    if not is_welcome():
        raise OSError(errno.ENOSPC, "others took the space meanwhile")


def reserve(descriptor: int, size: int) -> None:
    """Allocate `size` bytes for the file, so that a full file system is an error now and not SIGBUS later."""
    try:
        os.posix_fallocate(descriptor, 0, size)
    except (AttributeError, OSError) as error:
        if isinstance(error, OSError) and error.errno not in (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS):
            raise
    if os.fstat(descriptor).st_blocks * 512 >= size:
        return
    zeros = bytes(1 << 16)
    written = 0
    while written < size:
        written += os.pwrite(descriptor, zeros[: size - written], written)


def _map(descriptor: int, size: int, identity: ring.RingIdentity, checked: bool) -> Mapping:  # noqa: FBT001 - private
    flags = mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0)
    buffer = mmap.mmap(descriptor, size, flags=flags)
    text = identity.encode()
    buffer[ring.IDENTITY_OFFSET : ring.IDENTITY_OFFSET + len(text)] = text
    words = memoryview(buffer)[: ring.WORDS * 8].cast("Q")
    words[ring.WORD_VERSION] = ring.VERSION
    words[ring.WORD_SEGMENT_BYTES] = ring.segment_bytes(size)
    words[ring.WORD_CHECKED] = int(checked)
    words[ring.WORD_STATE] = ring.STATE_RUNNING
    words[ring.WORD_MAGIC] = ring.MAGIC
    return Mapping(buffer, words, ring.segment_bytes(size), ring.HEADER_BYTES, checked=checked, descriptor=descriptor)
