"""One process as /proc shows it: CPU time, memory, threads, files and disk I/O."""

from __future__ import annotations

import contextlib
import os
from typing import NamedTuple

from stepscope.samplers.kernel import Growth, KernelFile, entries, number, read_small, value_of

ENDED = frozenset("ZXx")
"""States of a dead process that has not been reaped."""
IO_KEYS = [b"rchar:", b"wchar:", b"syscr:", b"syscw:", b"read_bytes:", b"write_bytes:"]
TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")


class ProcessStat(NamedTuple):
    """The content of /proc/<pid>/stat."""

    name: str
    state: str
    parent: int
    ticks: int
    """CPU time in kernel ticks."""
    threads: int
    started: int
    """Start time in ticks since boot: with the pid, this identifies the process."""
    pages: int
    """Resident memory."""
    processor: int = -1
    """CPU on which the main thread ran last; -1 if unknown."""


class ProcessSample(NamedTuple):
    """A sample of a process, with rates since the previous one; None for unknown values."""

    status: ProcessStat
    cpu_ratio: float | None
    read_rate: float | None
    """Bytes per second from disks, including network file systems."""
    write_rate: float | None
    call_rate: float | None
    """Bytes per second returned by read calls, from disks, the page cache or pipes; mapped files are not included."""


def parse_status(data: bytes) -> ProcessStat:
    """Parse /proc/<pid>/stat; the name may contain any character, including brackets and spaces."""
    end = data.rindex(b")")
    words = data[end + 1 :].split(None, 37)  # of about fifty fields; the last item is the rest
    if len(words) < 22:
        raise ValueError("too few words in the status of a process")
    state, parent, user, system, threads, started, pages = (words[at] for at in (0, 1, 11, 12, 17, 19, 21))
    return ProcessStat(
        data[data.index(b"(") + 1 : end].decode("utf-8", "replace"),
        state.decode("ascii", "replace"),
        number(parent),
        number(user) + number(system),
        number(threads),
        number(started),
        number(pages),
        number(words[36]) if len(words) > 36 else -1,
    )


def parse_io(data: bytes) -> tuple[int, int, int]:
    """Parse /proc/<pid>/io: bytes of read calls, bytes read from disks, bytes written to disks."""
    words = data.split()
    if len(words) < 12 or words[0:12:2] != IO_KEYS:
        raise ValueError("unknown form of the input and output of a process")
    return number(words[1]), number(words[9]), number(words[11])


class ProcessFiles:
    """The files of one process, never those of a later one with the same pid."""

    def __init__(self, proc: str, pid: int, *, keep: bool = True) -> None:
        """Read the files of `pid` below `proc`; with `keep` its files stay open."""
        self.pid, self.folder = pid, f"{proc}/{pid}"
        self._stat = KernelFile(f"{self.folder}/stat", keep=keep)
        self._io: KernelFile | None = KernelFile(f"{self.folder}/io", keep=keep)
        self._growth = Growth()
        self.started: int | None = None
        self.hidden: dict[str, str] = {}
        """Files that we may not read, with the system's reason."""
        self._command: tuple[str, bytes] | None = None
        self._status: tuple[bytes, ProcessStat] | None = None
        self._totals: tuple[bytes, tuple[int, int, int]] | None = None

    def look(self, now: int) -> ProcessSample | None:
        """Return a sample of the process; None once it has ended. `now` is monotonic time in ns."""
        try:
            status = self._read_status()
        except (FileNotFoundError, ProcessLookupError):
            return None
        except PermissionError as error:  # /proc is mounted with hidepid
            self.hidden["stat"] = error.strerror or str(error)
            return None
        if self.started is None:
            self.started = status.started
        if status.state in ENDED or status.started != self.started:
            return None
        rates = self._growth.of("", (status.ticks, *self._counts()), now)
        if rates is None:
            return ProcessSample(status, None, None, None, None)
        requested, read, written = rates[1:] or (None, None, None)
        return ProcessSample(status, rates[0] / TICKS, read, written, requested)

    def _read_status(self) -> ProcessStat:
        data = self._stat.read_same()
        if self._status is None or data != self._status[0]:  # a sleeping process has not changed
            self._status = (data, parse_status(data))
        return self._status[1]

    def _counts(self) -> tuple[int, ...]:
        """Return bytes of read calls, read from disks and written to disks; empty if not visible."""
        if self._io is None:
            return ()
        try:
            data = self._io.read_same()
            if self._totals is None or data != self._totals[0]:
                self._totals = (data, parse_io(data))
            return self._totals[1]
        except PermissionError as error:
            self.hidden["io"] = error.strerror or str(error)
            self._io = None
            return ()
        except (FileNotFoundError, ProcessLookupError):  # it has just ended
            return ()

    def command(self, name: str) -> bytes:
        """Return the command line, read again when the process has changed its `name`: it ran another program."""
        if self._command is None or self._command[0] != name:
            try:
                self._command = (name, read_small(f"{self.folder}/cmdline"))
            except OSError:  # it has just ended
                return b""
        return self._command[1]

    def children(self, most: int) -> set[int]:
        """Return the processes started by any of the first `most` threads."""
        found: set[int] = set()
        for thread in entries(f"{self.folder}/task")[:most]:
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # the thread has just ended
                found.update(parse_children(read_small(f"{self.folder}/task/{thread}/children")))
        return found

    def proportional_bytes(self) -> int | None:
        """Return memory with shared pages divided among their users (PSS); holds the process's memory lock."""
        try:
            kibibytes = value_of(read_small(f"{self.folder}/smaps_rollup"), b"Pss:")
        except PermissionError as error:
            self.hidden["smaps_rollup"] = error.strerror or str(error)
            return None
        except OSError:
            return None
        return None if kibibytes is None else kibibytes * 1024


def parse_children(data: bytes) -> list[int]:
    """Parse /proc/<pid>/task/<tid>/children."""
    return [number(word) for word in data.split()]
