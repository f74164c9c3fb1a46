"""The keeper: a process beside each rank that hands on what the rank prints, unchanged, and keeps it in the run.

Each stream has a thread that reads it, and writes to where it went before: that waits exactly as the program would have
waited, as for a stopped terminal. The run's disk has a thread of its own, so that a slow or full one delays nothing.
The keeper ends when no process can print any more: those that the rank started may live longer than it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import stat
import sys
import termios
import threading
import time
from collections import deque
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.core.clock import boot_id
from stepscope.core.console_brief import DRAIN, DRAINED, PID_BYTES, ConsoleBrief
from stepscope.core.places import find_places
from stepscope.core.spawn import KEPT_FROM
from stepscope.store.console_segments import ConsoleWriterName
from stepscope.store.console_writer import SegmentWriter
from stepscope.store.layout import node_name
from stepscope.watcher.console_book import SELDOM, ConsoleBook
from stepscope.watcher.journal import Journal

if TYPE_CHECKING:
    from collections.abc import Callable

READ = 1 << 18
"""Bytes of one read."""
SWITCH_SECONDS = 0.0002
"""Seconds that the disk's thread may keep the interpreter: what the program prints must not wait for it."""
NAP, FEW = 0.004, 1024
"""Seconds to let lines gather after a read of few bytes: a wake-up costs the program more than a line does."""
PIECE = 1 << 14
"""Bytes that are written to the run together, without what the lines' facts take."""
MOST_WAITING = 16 << 20
"""Bytes that may wait for the run's disk; beyond, the oldest are not kept: the last words tell most."""
PROGRAM = 0
"""The descriptor that means the rank's process, as `spawn.start_detached` gives it; another file on old systems."""
LOOK_EVERY = 0.2
"""Seconds between two looks at the size of the terminal."""
SETTLE = 0.4
"""Seconds that an answer to DRAIN waits for the disk."""
NOT_OURS = (
    *(signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM, signal.SIGTTOU),
    *(signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU, signal.SIGALRM),
)
"""Signals that mean the program, as schedulers send them to a whole job: its last words are worth the most."""
LAST_WORK = 60.0
"""Seconds for the disk when all is handed on: nobody waits for the keeper any more."""


class ConsoleRecording:
    """The thread that writes the book: nothing else waits for the disk."""

    def __init__(self, book: ConsoleBook) -> None:
        """Start with nothing to write; `start` begins."""
        self._book = book
        self._items: deque[tuple[str, float, bytes]] = deque()
        self._news = threading.Condition()
        self._waiting = 0
        self._lost_lines = 0
        self._torn: dict[str, tuple[float, bytes]] = {}
        """Streams of which lines were dropped: when, and the start of the line that goes on in what is left."""
        self._is_ending = self._is_busy = False
        self._thread = threading.Thread(target=self._work, name="console-disk", daemon=True)
        self.start = self._thread.start

    def put(self, stream: str, data: bytes) -> None:
        """Take bytes that were printed now; drops and counts the oldest if too many wait. Never waits for a disk."""
        with self._news:
            self._items.append((stream, time.time(), data))
            self._waiting += len(data)
            while self._waiting > MOST_WAITING and len(self._items) > 1:
                self._drop_oldest()
            self._news.notify()

    def _drop_oldest(self) -> None:
        stream, printed, data = self._items.popleft()
        self._waiting -= len(data)
        lines, feed, start = data.rpartition(b"\n")
        if feed:
            self._lost_lines += lines.count(b"\n") + 1
            self._torn[stream] = printed, start

    def is_settled(self) -> bool:
        """Return whether everything taken so far is in the run."""
        with self._news:
            return not self._items and not self._is_busy

    def close(self, seconds: float) -> None:
        """Write what is left, and wait at most this long for it."""
        with self._news:
            self._is_ending = True
            self._news.notify()
        self._thread.join(seconds)

    def _work(self) -> None:
        while True:
            items, lost, torn = self._next()
            for stream, (printed, _) in torn.items():
                self._book.tear(stream, printed)
            self._book.lose(time.time(), lost, "more was printed than could be kept in time")
            starts = [(stream, printed, start) for stream, (printed, start) in torn.items() if start]
            for stream, printed, data in [*starts, *items]:
                for at in range(0, len(data), PIECE):
                    self._book.feed(stream, printed, data[at : at + PIECE])
                    self._book.write_complete(time.time())
            if self._is_ending and not items:
                self._book.close(time.time())
                return
            self._book.flush(time.time(), all_open=self._is_ending)

    def _next(self) -> tuple[list[tuple[str, float, bytes]], int, dict[str, tuple[float, bytes]]]:
        """Wait for bytes, or until an open line is due; return them, and what was dropped before them."""
        with self._news:
            self._is_busy = False
            due = self._book.due()
            if not self._items and not self._is_ending:
                self._news.wait(None if due is None else min(SELDOM, max(0.01, due - time.time())))
            items, lost, torn = list(self._items), self._lost_lines, self._torn
            self._items.clear()
            self._waiting, self._lost_lines, self._torn = 0, 0, {}
            self._is_busy = bool(items)
            return items, lost, torn


class HandedOnStream(threading.Thread):
    """Hands one stream on, from where the program writes it to where it went before."""

    def __init__(self, name: str, source: int, target: int, keep: Callable[[str, bytes], None], ended: int) -> None:
        """Read `source` and write `target`, both open files; a byte into `ended` says that this is over."""
        super().__init__(name=f"console-{name or 'both'}", daemon=True)
        self._stream, self._source, self._target, self._keep, self._ended = name, source, target, keep, ended
        self._is_busy = self._is_over = False
        self.is_refused = False
        """Whether the reader of the output has gone: the program must learn that."""
        self.complain: Callable[[str], None] = lambda _: None
        """Takes the reason, once, why what is printed cannot be handed on."""
        self.is_terminal = os.isatty(target)
        self._at_once = select.PIPE_BUF if stat.S_ISFIFO(os.fstat(target).st_mode) else READ
        """Bytes of one write: those to a pipe stay whole, as long as they are short."""

    def run(self) -> None:
        """Hand on until nobody can write any more."""
        poll = select.poll()
        poll.register(self._source, select.POLLIN)
        rest = b""
        try:
            while not self.is_refused:
                poll.poll()
                self._is_busy = True
                data = self._read()
                if data:
                    self._keep(self._stream, data)
                self.follow_size()
                whole = rest + data
                # A line of which the end is waiting is handed on with its end, as the program wrote it.
                at = whole.rfind(b"\n") + 1 if poll.poll(0) else len(whole)
                rest = whole[at:] if at else b""
                self._write(whole[:at] if at else whole)
                if not data:
                    break
                self._is_busy = False
                if len(data) < FEW:
                    time.sleep(NAP)
        finally:
            self._is_over = True
            let_go(self._target)
            os.write(self._ended, b"e")

    def is_drained(self) -> bool:
        """Return whether everything printed so far was handed on."""
        if self._is_over:  # a source that has ended can always be read
            return True
        waiting = select.select([self._source], [], [], 0)[0]  # before the flag: it is set before the source is read
        return not waiting and not self._is_busy

    def follow_size(self) -> None:
        """Give the program's terminal the size that the real one has now, and say so: it may have looked too early."""
        if not self.is_terminal:
            return
        with contextlib.suppress(OSError):  # one of them has gone
            size = fcntl.ioctl(self._target, termios.TIOCGWINSZ, bytes(8))
            if size != fcntl.ioctl(self._source, termios.TIOCGWINSZ, bytes(8)):
                fcntl.ioctl(self._source, termios.TIOCSWINSZ, size)
                if hasattr(signal, "pidfd_send_signal"):
                    signal.pidfd_send_signal(PROGRAM, signal.SIGWINCH)

    def _read(self) -> bytes:
        try:
            return os.read(self._source, READ)
        except OSError:  # a terminal that nobody has open any more says EIO
            return b""

    def _write(self, data: bytes) -> None:
        while data:
            try:
                data = data[os.write(self._target, data[: whole_lines(data, self._at_once)]) :]
            except BlockingIOError:  # made non-blocking by another program that shares it
                select.select([], [self._target], [], 1.0)
            except BrokenPipeError:
                self.is_refused = True
                return
            except OSError as error:  # a full disk, a closed terminal: the program goes on, and the run has its lines
                self.complain(error.strerror or str(error))
                return


def whole_lines(data: bytes, most: int) -> int:
    """Return how much to write at once: whole lines of at most `most` bytes together, or everything of a longer one.

    Ranks often share a pipe. One write of that size is not mixed with those of other ranks.
    """
    if len(data) <= most:
        return len(data)
    return data.rfind(b"\n", 0, most) + 1 or data.find(b"\n") + 1 or len(data)


def let_go(descriptor: int) -> None:
    """Close a file, and keep its number taken: its reader sees the end now, however long we work on."""
    nowhere = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)


def main(arguments: list[str]) -> int:
    """Keep the console of one rank. Arguments: the run's folder, and the rank's brief."""
    for number in NOT_OURS:
        signal.signal(number, signal.SIG_IGN)
    os.umask(0o077)
    sys.setswitchinterval(SWITCH_SECONDS)
    folder, brief = Path(arguments[0]), ConsoleBrief.decode(arguments[1])
    asks, answers, *files = range(KEPT_FROM, KEPT_FROM + 2 + 2 * len(brief.streams))
    _answer(answers, os.getpid().to_bytes(PID_BYTES, "little"))  # first: so that the rank can wake us from now on
    journal = Journal(folder / "watcher.log")
    who = ConsoleWriterName(node_name(find_places().disk, boot_id()), brief.attempt, brief.rank)
    recording = ConsoleRecording(ConsoleBook(who, SegmentWriter(folder, who, brief.limit), brief.streams, journal.note))
    recording.start()
    ended, over = os.pipe()
    streams = [
        HandedOnStream(name, source, target, recording.put, over)
        for name, source, target in zip(brief.streams, files[::2], files[1::2], strict=True)
    ]
    for stream in streams:
        stream.complain = partial(_note_refusal, journal)
        stream.start()
    _attend(streams, recording, asks, answers, ended)
    for descriptor in (asks, answers, *files[::2]):  # if a reader has gone, the rank takes our place now
        let_go(descriptor)
    recording.close(LAST_WORK)
    os._exit(0)


def _note_refusal(journal: Journal, reason: str) -> None:
    message = f"cannot hand on what the program prints: {reason}; free its disk, or read it with `stepscope logs`"
    if not journal.counts[message]:  # in a thread: the disk of the run may block, and the program waits for us
        threading.Thread(target=journal.note, args=(message,), daemon=True).start()


def _attend(streams: list[HandedOnStream], recording: ConsoleRecording, asks: int, answers: int, ended: int) -> None:
    """Answer the rank, until every stream has ended, or one cannot be handed on any more."""
    left = len(streams)
    awaited = [asks, ended]
    while left:
        ready = select.select(awaited, [], [], LOOK_EVERY if any(stream.is_terminal for stream in streams) else None)[0]
        for stream in streams:
            stream.follow_size()
        if ended in ready:
            left -= len(os.read(ended, len(streams)))
            if any(stream.is_refused for stream in streams):
                return
        if asks in ready and os.read(asks, 1) == DRAIN:
            _drain(streams, recording)
            _answer(answers, DRAINED)
        elif asks in ready:
            awaited = [ended]  # the rank has gone


def _answer(answers: int, data: bytes) -> None:
    with contextlib.suppress(OSError):  # the rank did not wait for it
        os.write(answers, data)


def _drain(streams: list[HandedOnStream], recording: ConsoleRecording) -> None:
    """Wait until everything printed so far was handed on and is in the run, for at most SETTLE seconds."""
    until = time.monotonic() + SETTLE
    calm = 0
    while calm < 2 and time.monotonic() < until:  # twice: what is written to a terminal arrives a moment later
        calm = calm + 1 if all(stream.is_drained() for stream in streams) and recording.is_settled() else 0
        time.sleep(0.002)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
