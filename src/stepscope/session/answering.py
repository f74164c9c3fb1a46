"""Answer the watcher's questions about this process: a thread that sleeps until it is asked where all threads are.

A handler of faulthandler reads frames while their threads change them, and now and then the process dies of it. This
thread holds the interpreter lock while it reads, so nothing moves. The watcher writes a line to a FIFO beside the ring,
`<number> stacks` or `<number> record`; the answer is a file beside it. While nobody asks, the thread costs nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import stat
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from stepscope.core.native_thread import has_native_threads, start_native_thread
from stepscope.core.places import ANSWER_SUFFIX, ASK_SUFFIX, FLIGHT_SUFFIX, REPLIER
from stepscope.core.spawn import SpawnError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import FrameType

MOST_THREADS, MOST_FRAMES = 64, 60
"""Maximum threads, and frames of each, in an answer: at most a few milliseconds of the interpreter lock."""
MOST_QUESTION = 4096
SETTLE_SECONDS = 0.05
TASKS = "/proc/self/task"
C10D = "torch._C._distributed_c10d"
DUMPS = ("_dump_nccl_trace", "_dump_fr_trace")


class Answering:
    """The thread, once it is needed: in a process with one thread, a signal handler interrupts only itself."""

    def __init__(self, ring: Path) -> None:
        """Prepare for the ring at `ring`; nothing is created yet."""
        self._fifo = str(ring.with_suffix(ASK_SUFFIX))
        self._answer, self._flight = str(ring.with_suffix(ANSWER_SUFFIX)), str(ring.with_suffix(FLIGHT_SUFFIX))
        self._descriptor = -1
        self._file: tuple[int, int] | None = None
        """Device and number of the FIFO: its descriptor may be closed by code that closes everything."""
        self._is_over = False

    def look(self) -> None:
        """Start the thread if the process has other threads by now; costs one system call until then."""
        if self._is_over or self._descriptor >= 0:
            return
        try:
            is_alone = os.stat(TASKS).st_nlink <= 3  # one folder for each thread, and two links of its own
        except OSError:  # another system than Linux: the watcher cannot ask
            is_alone = True
        if is_alone:
            return
        if not has_native_threads() or not _holds_still():
            self._is_over = True
            return
        try:
            os.mkfifo(self._fifo, 0o600)
            self._descriptor = os.open(self._fifo, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
            facts = os.fstat(self._descriptor)
            self._file = (facts.st_dev, facts.st_ino)
            start_native_thread(self._serve, REPLIER)
        except (OSError, SpawnError):  # no space, or no more threads: then there are no stacks
            self.forget()

    def stop(self) -> None:
        """End the thread, so that nothing stays open; waits for that for SETTLE_SECONDS at most."""
        self._is_over = True
        if self._descriptor < 0:
            return
        with contextlib.suppress(OSError):  # closed by other code
            if self._is_ours() and _takes_more(self._descriptor):
                os.write(self._descriptor, b"\n")
        until = time.monotonic() + SETTLE_SECONDS
        while self._descriptor >= 0 and time.monotonic() < until:
            time.sleep(0.0002)

    def forget(self) -> None:
        """Close the FIFO, in a process in which the thread does not run, such as the child of a fork."""
        self._is_over = True
        descriptor, self._descriptor = self._descriptor, -1
        with contextlib.suppress(OSError):  # closed by other code
            if descriptor >= 0 and self._is_ours(descriptor):
                os.close(descriptor)

    def _is_ours(self, descriptor: int | None = None) -> bool:
        facts = os.fstat(self._descriptor if descriptor is None else descriptor)
        return stat.S_ISFIFO(facts.st_mode) and (facts.st_dev, facts.st_ino) == self._file

    def _serve(self) -> None:
        """Answer until the run ends."""
        try:
            while self._is_ours():
                question = os.read(self._descriptor, MOST_QUESTION)
                if self._is_over:
                    break
                self._reply(question)
        except OSError:  # the descriptor was closed by other code; there are no more answers
            pass
        finally:
            self.forget()

    def _reply(self, question: bytes) -> None:
        number, _, what = question.decode("ascii", "replace").strip().rpartition("\n")[2].partition(" ")
        facts: dict[str, Any] = {"number": number, "monotonic_ns": time.monotonic_ns()}
        dumps = _dumps() if what == "record" else []
        try:
            facts["stacks"] = stacks_of(sys._current_frames(), threading.get_ident())  # noqa: SLF001 - made for this
        except Exception as error:  # noqa: BLE001 - code of the user may have replaced anything; the watcher reports it
            facts["problem"] = repr(error)[:200]
        facts["has_record"] = bool(dumps)
        _put(self._answer, json.dumps(facts).encode("utf-8", "replace"))
        if dumps:
            _put(self._flight, f"{number}\n".encode() + b"".join(map(_record, dumps)))


def _takes_more(descriptor: int) -> bool:
    """Return whether a write would not wait; a poll, as select knows no descriptor above 1023."""
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    return bool(poll.poll(0))


def _dumps() -> list[Callable[..., bytes]]:
    """Return the functions of torch that dump its records: NCCL has one of its own, other backends share another."""
    module = sys.modules.get(C10D)
    return [dump for name in DUMPS if (dump := getattr(module, name, None)) is not None]


def _record(dump: Callable[..., bytes]) -> bytes:
    """Return a record as torch dumps it: a pickle; an empty one says that there is none."""
    try:
        try:
            return dump(includeStackTraces=False)  # with them, the first dump takes seconds
        except TypeError:  # torch before 2.4 takes no arguments
            return dump()
    except Exception:  # noqa: BLE001 - another version of torch, or a device that does not answer
        return b""


def _holds_still() -> bool:
    """Return whether no frame moves while one thread runs Python; a build without the interpreter lock has no such."""
    has_lock = getattr(sys, "_is_gil_enabled", None)
    return has_lock is None or bool(has_lock())


def stacks_of(frames: dict[int, FrameType], but_for: int = 0) -> list[dict[str, Any]]:
    """Return the stacks of threads as plain data: the main thread first, frames innermost first, without one thread."""
    names = {ident: thread.name for ident, thread in list(getattr(threading, "_active", {}).items())}
    main = threading.main_thread().ident
    found = []
    for ident in sorted(frames, key=lambda one: one != main)[: MOST_THREADS + 1]:
        if ident == but_for:
            continue
        stack: list[dict[str, Any]] = []
        frame: FrameType | None = frames[ident]
        while frame is not None and len(stack) < MOST_FRAMES:
            code = frame.f_code
            stack.append({"file": code.co_filename, "line": frame.f_lineno or 0, "function": code.co_name})
            frame = frame.f_back
        name = names.get(ident)
        found.append({"thread": f"0x{ident:016x}", **({"name": str(name)} if name else {}), "frames": stack})
    return found


def _put(path: str, data: bytes) -> None:
    """Write a file at once, in place of an older answer; without space there is no answer."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    part = f"{path}~"
    try:
        descriptor = os.open(part, flags, 0o600)
        try:
            whole = os.write(descriptor, data) == len(data)
        finally:
            os.close(descriptor)
        if whole:
            os.rename(part, path)
        else:
            os.unlink(part)
    except OSError:
        with contextlib.suppress(OSError):  # it was not created
            os.unlink(part)
