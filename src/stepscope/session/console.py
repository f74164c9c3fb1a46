"""Keep what this process prints: its descriptors 1 and 2 lead through a keeper, which changes nothing for the program.

A terminal is replaced by a pseudo-terminal and anything else by a pipe, so that `isatty`, colours, progress bars and
buffering stay the same; standard input and the controlling terminal stay the original ones. If both descriptors lead to
the same place, they share one pipe: the order in which lines appear counts more than knowing the stream of each.

This process keeps the reading ends open too. So a keeper that dies does no harm: a thread puts the original descriptors
back, and hands on what other processes still print into the pipe.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import os
import select
import signal
import sys
import termios
import threading
from typing import TYPE_CHECKING, NamedTuple

from stepscope.core.console_brief import DRAIN, PID_BYTES, ConsoleBrief
from stepscope.core.errors import in_words
from stepscope.core.native_thread import start_native_thread
from stepscope.core.own_file import identity_of
from stepscope.core.spawn import SpawnError, start_detached
from stepscope.core.standard_streams import closed_streams_reserved
from stepscope.recorder.complaints import tell

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

KEEPER = "stepscope.watcher.console_keeper"
PIPE_BYTES = 1 << 20
"""Bytes that the program may be ahead of the keeper, if the system allows it."""
PATIENCE = 0.5
"""Seconds that the end of this process waits until everything printed was handed on."""
LOOK_EVERY = 1.0
"""Seconds between two looks at a keeper that says nothing: a signal may have stopped it."""
_READ = 1 << 16


class _Channel(NamedTuple):
    """How descriptors of the program lead to the keeper."""

    stream: str
    numbers: tuple[int, ...]
    """Which descriptors: 1, 2, or both."""
    source: int
    """Where the keeper reads."""
    sink: int
    """Where the program writes, until it has been put in place."""
    original: int
    """A copy of the first of the descriptors, as it was."""
    identity: tuple[int, int]
    """Device and inode of the sink."""


class ConsoleCapture:
    """The capture of this process; `capture` starts it."""

    def __init__(self, channels: Sequence[_Channel], asks: int, answers: int) -> None:
        """Take open files; `begin` puts them in place."""
        self._channels, self._asks, self._answers = channels, asks, answers
        ours = [asks, answers, *(end for channel in channels for end in (channel.source, channel.original))]
        self._ours = {descriptor: identity_of(descriptor) for descriptor in ours}
        self._pid = os.getpid()
        self._is_released = False
        self._is_handed_on = threading.Event()

    def begin(self) -> None:
        """Let the program print into the channels."""
        start_native_thread(self._guard, "stepscope-print")
        for channel in self._channels:
            for number in channel.numbers:
                os.dup2(channel.sink, number)
            os.close(channel.sink)
        os.register_at_fork(after_in_child=self._leave)
        atexit.register(self.release)

    def release(self) -> None:
        """Put the original descriptors back, after everything printed so far has reached them; waits half a second."""
        if self._pid != os.getpid() or self._is_released:
            return
        self._is_released = True
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except (OSError, ValueError, AttributeError):  # closed, or not a file: nothing to flush
                continue
            except Exception as error:  # noqa: BLE001 - an object of the program's own may raise anything
                tell(f"cannot flush what the program prints: {in_words(error, 200)}; its end may be missing in the run")
        self._restore()
        if self._is_intact(self._asks):
            with contextlib.suppress(OSError):  # the keeper is gone, and the guard hands on what was left
                os.write(self._asks, DRAIN)
            self._is_handed_on.wait(PATIENCE)
        atexit.unregister(self.release)

    def _is_intact(self, descriptor: int) -> bool:
        """Return whether a file of ours is still ours: a program may close every number, and use it again."""
        return self._ours[descriptor] is not None and identity_of(descriptor) == self._ours[descriptor]

    def _restore(self) -> None:
        """Put the original descriptors back, unless the program has replaced ours."""
        for channel in self._channels:
            for number in channel.numbers:
                if identity_of(number) == channel.identity and self._is_intact(channel.original):
                    os.dup2(channel.original, number)

    def _guard(self) -> None:
        """Wait for the keeper's answer; when it ends, take its place."""
        keeper = 0
        if self._is_intact(self._answers):
            keeper = int.from_bytes(_read(self._answers, PID_BYTES), "little")
        while self._is_intact(self._answers):
            if not _ready([self._answers], LOOK_EVERY):
                self._wake(keeper)
            elif _read(self._answers, 1):
                self._is_handed_on.set()
            else:
                break
        left = {channel.source: channel.original for channel in self._channels if self._is_intact(channel.source)}
        _hand_on(left, 0)
        self._restore()
        _hand_on(left, 0)
        self._is_handed_on.set()
        _hand_on(left, None)  # other processes may still print into the channels

    def _wake(self, keeper: int) -> None:
        """Let a keeper that was stopped by a signal go on, if output waits for it: soon the program would wait."""
        sources = [channel.source for channel in self._channels if self._is_intact(channel.source)]
        if _ready(sources, 0) and _is_stopped(keeper):
            with contextlib.suppress(OSError):  # it has gone just now
                os.kill(keeper, signal.SIGCONT)

    def _leave(self) -> None:
        """In the child of a fork: hold nothing open but what the program prints into."""
        for descriptor in self._ours:
            if self._is_intact(descriptor):
                os.close(descriptor)
        self._channels, self._ours = (), dict.fromkeys(self._ours)


def capture(run: str, rank: int, attempt: int, limit: int) -> ConsoleCapture | None:
    """Start to keep what this process prints, at most `limit` bytes of it in a run; None if it prints nowhere.

    Raises OSError or SpawnError if that is impossible; then everything is as it was.
    """
    streams = _streams()
    if not streams:
        return None
    with closed_streams_reserved():
        return _started(run, ConsoleBrief(rank, attempt, limit, tuple(name for name, _ in streams)), streams)


def _started(run: str, brief: ConsoleBrief, streams: Sequence[tuple[str, tuple[int, ...]]]) -> ConsoleCapture:
    """Start a keeper and lead the streams to it; raises as `capture`."""
    opened: list[int] = []
    try:
        channels = [_channel(stream, numbers, opened) for stream, numbers in streams]
        asks_read, asks = _pipe(opened)
        answers, answers_write = _pipe(opened)
        ends = [end for channel in channels for end in (channel.source, channel.original)]
        start_detached(KEEPER, run, brief.encode(), keep=[asks_read, answers_write, *ends])
        for descriptor in (asks_read, answers_write):
            opened.remove(descriptor)
            os.close(descriptor)
        found = ConsoleCapture(channels, asks, answers)
        found.begin()
    except (OSError, SpawnError, termios.error) as error:
        for descriptor in opened:
            _close(descriptor)
        raise error if isinstance(error, (OSError, SpawnError)) else SpawnError(str(error)) from error
    return found


def _streams() -> list[tuple[str, tuple[int, ...]]]:
    """Return the streams that are open, each with its descriptors."""
    found = [(name, number) for name, number in (("out", 1), ("err", 2)) if identity_of(number) is not None]
    if len(found) == 2 and _is_same(1, 2):
        return [("", (1, 2))]
    return [(name, (number,)) for name, number in found]


def _is_same(first: int, second: int) -> bool:
    """Return whether two descriptors lead to the same place, where the order of what is written shows."""
    if identity_of(first) != identity_of(second):
        return False
    if not os.path.isfile(f"/proc/self/fd/{first}"):
        return True
    # Two openings of one file have positions of their own; one opening has one set of flags. This flag has no effect
    # on files.
    before = fcntl.fcntl(first, fcntl.F_GETFL)
    fcntl.fcntl(first, fcntl.F_SETFL, before ^ os.O_NONBLOCK)
    try:
        return (fcntl.fcntl(second, fcntl.F_GETFL) ^ before) & os.O_NONBLOCK != 0
    finally:
        fcntl.fcntl(first, fcntl.F_SETFL, before)


def _channel(stream: str, numbers: tuple[int, ...], opened: list[int]) -> _Channel:
    source, sink = _terminal(numbers[0], opened) if os.isatty(numbers[0]) else _pipe(opened, PIPE_BYTES)
    original = fcntl.fcntl(numbers[0], fcntl.F_DUPFD_CLOEXEC, 3)
    opened.append(original)
    identity = identity_of(sink)
    assert identity is not None  # noqa: S101 - just opened
    return _Channel(stream, numbers, source, sink, original, identity)


def _terminal(like: int, opened: list[int]) -> tuple[int, int]:
    """Return a pseudo-terminal with the size and the modes of another one; it hands bytes on as they are."""
    source, sink = os.openpty()
    opened += [source, sink]
    modes = termios.tcgetattr(like)
    modes[1] &= ~termios.OPOST  # the original terminal does that
    termios.tcsetattr(sink, termios.TCSANOW, modes)
    fcntl.ioctl(sink, termios.TIOCSWINSZ, fcntl.ioctl(like, termios.TIOCGWINSZ, bytes(8)))
    return source, sink


def _pipe(opened: list[int], size: int = 0) -> tuple[int, int]:
    source, sink = os.pipe()
    opened += [source, sink]
    if size:
        with contextlib.suppress(OSError):  # more than this user may have; the usual size will do
            fcntl.fcntl(sink, getattr(fcntl, "F_SETPIPE_SZ", 1031), size)
    return source, sink


def _ready(sources: Iterable[int], timeout: float | None) -> list[int]:
    """Return the files that can be read or have ended; wait for one, at most `timeout` seconds."""
    poll = select.poll()
    for source in sources:
        poll.register(source, select.POLLIN)
    return [source for source, _ in poll.poll(None if timeout is None else timeout * 1000)]


def _is_stopped(pid: int) -> bool:
    """Return whether a process was stopped by a signal."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b") ")[2][:1] == b"T"
    except OSError:  # it has gone, or the system shows no processes
        return False


def _hand_on(left: dict[int, int], timeout: float | None) -> None:
    """Write what can be read from each source to its target, until all have ended, or for a while none has more.

    Those that have ended are taken out of `left`.
    """
    while left:
        ready = _ready(left, timeout)
        if not ready:
            return
        for source in ready:
            data = _read(source, _READ)
            if not data or not _write(left[source], data):
                del left[source]


def _read(source: int, most: int) -> bytes:
    try:
        return os.read(source, most)
    except OSError:  # a terminal that nobody writes to any more says EIO; the program may close every number
        return b""


def _write(target: int, data: bytes) -> bool:
    """Write everything, as slowly as the target takes it; return whether it did."""
    while data:
        try:
            data = data[os.write(target, data) :]
        except BlockingIOError:
            poll = select.poll()  # select knows no descriptor above 1023
            poll.register(target, select.POLLOUT)
            poll.poll(1000)
        except OSError:
            return False
    return True


def _close(descriptor: int) -> None:
    with contextlib.suppress(OSError):  # closed by code that closes everything
        os.close(descriptor)
