"""A child process with limits that watches foreign files, and tells its parent what is new through a pipe.

The child is not trusted: it sends bytes, which the parent checks. Nor is it waited for: a file system that does not
answer any more holds only the child.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
from typing import TYPE_CHECKING, Any, NoReturn

from stepscope.core.errors import StepscopeError
from stepscope.importers import formats
from stepscope.importers.confinement import ChildLimits, confine, ending, forked, refusal, refusal_of, renew_time
from stepscope.importers.following import HandOver, Tail
from stepscope.importers.scanning import FolderScan, FoundSource
from stepscope.importers.transfer import LENGTH, pieces, runs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    Talk = Callable[[dict[str, Any], Iterable[bytes | memoryview]], None]
    """Sends facts as JSON, and bytes."""
    Work = Callable[[Talk, Callable[[float], bool]], None]
    """Gets a `Talk`, and a function that waits so many seconds and returns False when the work shall end."""

NICE = 10
MOST_FRAME = 2 << 30
"""Maximum bytes of one message."""
READ_BYTES, MOST_READ = 1 << 20, 16 << 20
"""Bytes of one read of a pipe, and of the reads before others get their turn."""
END = b"."
LATEST = 1e11
"""Seconds since 1970 that no file has changed at."""
DAMAGED = "what its reader tells is damaged"


class SourceProcess:
    """A child at work, and the messages that come from it."""

    def __init__(self, what: str, work: Work, limits: ChildLimits | None = None) -> None:
        """Start the child; `what` is verb and object, for an error."""
        self._what, self._limits = what, limits or ChildLimits()
        self._data = bytearray()
        self._from_child, to_parent = os.pipe()
        to_child, self._to_child = os.pipe()
        self.pid = forked()
        if not self.pid:
            os.close(self._from_child)
            os.close(self._to_child)
            _work(work, to_parent, to_child, self._limits)
        os.close(to_parent)
        os.close(to_child)
        os.set_blocking(self._from_child, False)
        self.is_over = False
        """Whether the child has ended, and everything that it said was read."""

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when the child has something to tell."""
        return self._from_child

    def messages(self) -> Iterator[tuple[dict[str, Any], bytes]]:
        """Yield what has come since the last call: facts and bytes.

        Raises:
            StepscopeError: the child failed, or what it says makes no sense.
        """
        left = MOST_READ
        while left > 0 and not self.is_over:
            try:
                piece = os.read(self._from_child, READ_BYTES)
            except BlockingIOError:
                break
            if not piece:
                self._end()
            self._data += piece
            left -= len(piece)
            yield from self._whole()

    def _whole(self) -> Iterator[tuple[dict[str, Any], bytes]]:
        while len(self._data) >= LENGTH:
            size = int.from_bytes(self._data[:LENGTH], "little")
            if size > MOST_FRAME:
                raise StepscopeError(self._what, DAMAGED, "check the file")
            if len(self._data) < LENGTH + size:
                return
            head, _, body = bytes(self._data[LENGTH : LENGTH + size]).partition(b"\n")
            del self._data[: LENGTH + size]
            try:
                facts = json.loads(head)
            except (ValueError, RecursionError):
                facts = None
            if not isinstance(facts, dict):
                raise StepscopeError(self._what, DAMAGED, "check the file")
            if "refusal" in facts:
                raise refusal(self._what, body)
            yield facts, body

    def _end(self) -> None:
        self.is_over = True
        status = os.waitpid(self.pid, 0)[1]
        if status:
            raise StepscopeError(self._what, ending(status, self._limits), "check the file, or give a smaller part")

    def ask_to_end(self) -> None:
        """Ask the child to read what is there, and to end."""
        with contextlib.suppress(OSError):  # it has ended already
            os.write(self._to_child, END)

    def close(self) -> None:
        """End the child. One that a dead file system holds is left behind: nobody can end it."""
        if not self.is_over:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self.pid, os.WNOHANG)
        self.is_over = True
        for descriptor in (self._from_child, self._to_child):
            with contextlib.suppress(OSError):
                os.close(descriptor)


def _work(work: Work, to_parent: int, to_child: int, limits: ChildLimits) -> NoReturn:
    """Do the work in the child and exit, without the parent's cleanup."""
    code = 1

    def talk(facts: dict[str, Any], body: Iterable[bytes | memoryview]) -> None:
        parts = [json.dumps(facts).encode(), b"\n", *body]
        for part in (sum(map(len, parts)).to_bytes(LENGTH, "little"), *parts):
            _write(to_parent, memoryview(part))
        renew_time(limits)

    def wait(seconds: float) -> bool:
        renew_time(limits)
        if not select.select([to_child], [], [], seconds)[0]:
            return True
        if not os.read(to_child, 1):  # our parent has ended
            os._exit(1)
        return False

    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)  # both may go to the whole group; our parent decides
        with contextlib.suppress(OSError):
            os.nice(NICE)
        confine(limits)
        try:
            work(talk, wait)
        except BrokenPipeError:  # our parent has ended
            os._exit(1)
        except Exception as error:  # noqa: BLE001 - a reader that fails on a file must report it, not vanish
            talk({"refusal": True}, [refusal_of(error, limits)])
        code = 0
    finally:
        os._exit(code)


def _write(descriptor: int, data: memoryview) -> None:
    data = data.cast("B")
    while len(data):
        data = data[os.write(descriptor, data) :]


class TailProcess(SourceProcess):
    """Follows one file or folder."""

    def __init__(self, path: str, form: str) -> None:
        """Follow the source at `path`, which has the format of this name."""
        self.path = path
        self.is_known = False
        """Whether it has said something."""

        def work(talk: Talk, wait: Callable[[float], bool]) -> None:
            def send(what: HandOver) -> None:
                talk({key: value for key, value in what._asdict().items() if key != "runs"}, pieces(what.runs))

            Tail(path, formats.FORMATS[form], send, wait).run()

        super().__init__(f"follow {path!r}", work)

    def handed_over(self) -> Iterator[HandOver]:
        """Yield what was new in the source since the last call; raises as `messages` does."""
        for facts, body in self.messages():
            try:
                start, over, gone = (facts[key] is True for key in ("is_start", "is_over", "is_gone"))
                notes = tuple(map(str, facts["notes"]))
                changed = float(facts["changed"])
                found = HandOver(runs(body)[0], start, over, gone, changed if 0 <= changed < LATEST else 0.0, notes)
            except (ValueError, TypeError, KeyError, RecursionError) as error:
                raise StepscopeError(self._what, f"{DAMAGED} ({error})", "check the file") from error
            yield found


class ScanProcess(SourceProcess):
    """Finds sources at a path as they appear."""

    def __init__(self, path: str, form: str | None, skip: str = "") -> None:
        """Search a folder, or look at one file; only for a format, if one is given; not below `skip`."""

        def work(talk: Talk, wait: Callable[[float], bool]) -> None:
            scan = FolderScan(path, form, skip)
            goes_on = True
            while goes_on:
                found = scan.look()
                talk({"found": [each._asdict() for each in found], "problem": scan.problem}, [])
                goes_on = wait(scan.pause)

        super().__init__(f"follow {path!r}", work)

    def found(self) -> Iterator[tuple[list[FoundSource], str]]:
        """Yield what each look has found since the last call: new sources, and why there is none."""
        for facts, _ in self.messages():
            try:
                yield [_source(each) for each in facts["found"]], str(facts["problem"])
            except (TypeError, KeyError, ValueError) as error:
                raise StepscopeError(self._what, f"{DAMAGED} ({error})", "check the folder") from error


def _source(facts: dict[str, Any]) -> FoundSource:
    if facts["format"] not in formats.FORMATS:
        raise ValueError("there is no such format")
    return FoundSource(str(facts["path"]), str(facts["format"]), str(facts["group"]), float(facts["changed"]))
