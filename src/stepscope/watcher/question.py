"""A question to the thread in a trainer that tells where all threads are; see `session/answering.py`."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any, NamedTuple

from stepscope.core.places import ANSWER_SUFFIX, ASK_SUFFIX, FLIGHT_SUFFIX, REPLIER
from stepscope.samplers.kernel import find_text
from stepscope.watcher.proc import PROC, children_of, read_stat

MOST_BYTES, MOST_RECORD_BYTES = 4 << 20, 16 << 20
"""Bytes that are read of the stacks, and of the record of collectives."""
LEAST_TRIES, LEAST_TICKS = 20, 5
"""How often the thread must have asked for the interpreter lock in vain (it asks 200 times a second, and sleeps without
a question), and the ticks of processor time that the one thread which computed has had meanwhile. A thread that runs
Python releases the lock within microseconds. So the owner of the lock is in C code, and no Python frame moves."""
MAIN_SHARE = 0.9
"""Share of the processor time that this one thread has had; threads that take turns to run Python have less."""
_SWITCHES = "voluntary_ctxt_switches:"


class ThreadReply(NamedTuple):
    """What the thread has written."""

    stacks: list[dict[str, Any]]
    problem: str
    record: bytes
    """A pickle by torch; empty if there is none."""


class _Threads(NamedTuple):
    """What the threads of a process have done so far."""

    tries: int
    """How often ours has waited."""
    ticks: dict[int, int]
    """Processor time of each other thread."""
    running: int
    """How many of them compute now, or would like to."""


class Question:
    """One question at a time to the process whose ring has `path` as a sibling."""

    def __init__(self, path: str, pid: int, proc: str = PROC) -> None:
        """Ask nothing yet; `path` is any file beside the ring with its name, `pid` the trainer's."""
        self._fifo, self._answer, self._flight = (
            str(Path(path).with_suffix(suffix)) if path else "" for suffix in (ASK_SUFFIX, ANSWER_SUFFIX, FLIGHT_SUFFIX)
        )
        self._pid, self._proc = pid, proc
        self._descriptor = -1
        self._number = ""
        self._before: _Threads | None = None

    def ask(self, now: int, *, record: bool) -> bool:
        """Ask at `now` (monotonic ns); return False if nobody listens. `record`: also for torch's collectives."""
        self._number, self._before = str(now), None
        if not self._fifo:
            return False
        try:
            if self._descriptor < 0:
                flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
                self._descriptor = os.open(self._fifo, flags)
            for path in (self._answer, self._flight):
                Path(path).unlink(missing_ok=True)
            os.write(self._descriptor, f"{self._number} {'record' if record else 'stacks'}\n".encode())
        except OSError:  # the thread was never started, or has ended
            self.close()
            return False
        return True

    def reply(self) -> ThreadReply | None:
        """Return the reply; None while it is not complete."""
        data = _read(self._answer, MOST_BYTES)
        if not data:
            return None
        try:
            facts = json.loads(data)
            if facts["number"] != self._number:
                return None
            stacks = [dict(thread) for thread in facts.get("stacks", ())]
            problem, has_record = str(facts.get("problem", "")), bool(facts.get("has_record"))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return ThreadReply([], "its answer was not readable", b"")
        number, _, record = _read(self._flight, MOST_RECORD_BYTES).partition(b"\n") if has_record else (b"", b"", b"")
        if has_record and number.decode("ascii", "replace") != self._number:
            return None
        for path in (self._answer, self._flight):
            with contextlib.suppress(OSError):  # it takes space in shared memory until the ring is removed
                Path(path).unlink(missing_ok=True)
        return ThreadReply(stacks, problem, record)

    def is_held_up(self) -> bool:
        """Return whether the thread asks in vain for the interpreter lock, and no other can be running Python."""
        now = self._look() if self._descriptor >= 0 else None
        if now is None:
            return False
        if self._before is None:
            self._before = now
        before, tries = self._before, now.tries - self._before.tries
        spent = [now.ticks[thread] - before.ticks.get(thread, 0) for thread in now.ticks]
        most = max(spent, default=0)
        is_one = (most >= LEAST_TICKS and most >= MAIN_SHARE * sum(spent)) or not (any(spent) or now.running)
        return tries >= LEAST_TRIES and is_one

    def _look(self) -> _Threads | None:
        """Return what the threads of the process have done so far; None if ours is not among them."""
        tries, ticks, running = None, {}, 0
        for thread in children_of(f"{self._proc}/{self._pid}/task"):
            place = f"{self._proc}/{self._pid}/task/{thread}"
            if find_text(f"{place}/comm").rstrip("\n") == REPLIER:
                lines = find_text(f"{place}/status").splitlines()
                found = [line.split()[1] for line in lines if line.startswith(_SWITCHES)]
                tries = int(found[0]) if found and found[0].isdecimal() else None
                continue
            stat = read_stat(thread, f"{self._proc}/{self._pid}/task")
            if stat is not None:
                ticks[thread] = stat.user + stat.system
                running += stat.state == "R"
        return None if tries is None else _Threads(tries, ticks, running)

    def close(self) -> None:
        """Close the FIFO."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _read(path: str, most: int) -> bytes:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:  # there is no answer yet
        return b""
    with os.fdopen(descriptor, "rb") as file:
        return file.read(most)
