"""Asks a trainer where its threads are: its own thread for that; else, if that is safe, by a signal; or py-spy."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from stepscope.core.places import REPLIER
from stepscope.session.stacks import SIGNAL
from stepscope.watcher.asked_program import AskedProgram
from stepscope.watcher.proc import PROC, children_of, read_signals, read_stat, threads
from stepscope.watcher.question import Question
from stepscope.watcher.stacks import StackAnswer, parse_dump, parse_spy, trim

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepscope.watcher.death import Trainee
    from stepscope.watcher.stacks import Thread

ANSWER_SECONDS, PATIENCE_SECONDS, SPY_SECONDS = 1.0, 4.0, 5.0
"""Seconds until the signal is considered, for a thread that may answer late on a busy machine, and for py-spy."""
LEAST_LOOKS = 5
"""Minimum checks for the answer: while a machine is suspended, the process cannot write it."""
MOST_BYTES, FULL_BYTES = 256 << 10, 1 << 20
"""Bytes that are read of one dump, and the size from which the file of dumps, in shared memory, is emptied."""
UNANSWERED = "no thread of the process answers"
HELD_UP = "the interpreter does not answer: native code holds its lock"
THREAD, SIGNALLED, SPY = "trainer", "faulthandler", "py-spy"
"""Where stacks come from."""


class Asking:
    """Requests one rank's stacks: one request at a time, answered over several ticks without waiting."""

    def __init__(self, trainee: Trainee, path: str, proc: str = PROC, spy: str | None = None) -> None:
        """Ask `trainee`, which writes to the file at `path`; `spy` is the path of py-spy, None to search for it."""
        self._trainee, self._path, self._proc = trainee, path, proc
        self._spy: str = find_spy() if spy is None else spy
        self._question = Question(path, trainee.pid, proc)
        self._asked: int | None = None
        self._source, self._why, self._record = "", "", b""
        self._held_up = False
        self._start = self._size = self._looks = 0
        self._spying = AskedProgram(SPY_SECONDS, MOST_BYTES * 4)

    @property
    def open(self) -> bool:
        """Whether a request is not answered yet."""
        return self._asked is not None

    def ask(self, now: int, *, record: bool = False) -> None:
        """Request the stacks at `now` (monotonic ns), unless a request is open; `record`: also torch's collectives."""
        if self.open:
            return
        self._asked, self._source, self._why, self._record, self._looks = now, "", "", b"", 0
        self._held_up = False
        if not self._path:
            self._why = "stacks are switched off"
        elif self._is_stopped():
            self._why = "the process is stopped"
        elif self._question.ask(now, record=record):
            self._source = THREAD
        else:
            self._ask_otherwise(is_safe=len(children_of(f"{self._proc}/{self._trainee.pid}/task")) == 1)

    def _ask_otherwise(self, *, is_safe: bool) -> None:
        """Ask by the signal if no frame can move while its handler reads them, otherwise by py-spy."""
        self._source = ""
        self._why = self._send() if is_safe else UNANSWERED
        if not self._source and self._spy:
            self._start_spy()

    def _send(self) -> str:
        """Send the signal if it is caught; return why not, otherwise ""."""
        if SIGNAL is None or not os.path.exists(self._path):
            return "stacks are switched off"
        signals = read_signals(self._trainee.pid, self._proc)
        if signals is None or not signals.catches(SIGNAL):
            return "the process does not catch the signal any more"
        self._start = self._size = self._file_size()
        if not signals.awaits(SIGNAL):  # otherwise an earlier request is pending: one answer serves both
            try:
                self._trainee.signal(SIGNAL)
            except OSError as error:
                return f"the signal could not be sent: {error.strerror}"
        self._source = SIGNALLED
        return ""

    def _is_stopped(self) -> bool:
        stat = read_stat(self._trainee.pid, self._proc)
        return stat is not None and stat.state in "Tt"

    def _start_spy(self) -> None:
        command = [self._spy, "dump", "--nonblocking", "--json", "--pid", str(self._trainee.pid)]
        try:
            self._spying.start(command, 0.0)
            self._source = SPY
        except OSError as error:
            self._why += f"; py-spy: {error.strerror}"

    def answer(self, now: int) -> StackAnswer | None:
        """Return the answer, None while it may still come; `now` is monotonic, in ns."""
        if self._asked is None:
            return None
        read: dict[str, Callable[[float], list[Thread] | None]]
        read = {THREAD: self._replied, SIGNALLED: self._dump, SPY: self._spied}
        source = self._source
        found = read[source]((now - self._asked) / 1e9) if source else []
        if source != self._source:  # another way is tried from now on
            self._asked, self._looks = now, 0
            return None
        if found is None:
            return None
        self._asked = None
        waits = [wait for wait in threads(self._trainee.pid, self._proc) if wait["name"] != REPLIER]
        if found:
            return StackAnswer(self._source, trim(found), waits, HELD_UP if self._held_up else "", self._record)
        why = HELD_UP if self._held_up else self._why or "the process did not answer"
        return StackAnswer("", [], waits, why, self._record)

    def _replied(self, waited: float) -> list[Thread] | None:
        """Return what the thread in the trainer wrote; None to keep waiting."""
        self._looks += 1
        reply = self._question.reply()
        if reply is not None:
            self._why, self._record = reply.problem, reply.record
            return reply.stacks
        self._held_up = self._question.is_held_up()
        if waited < ANSWER_SECONDS or self._looks < LEAST_LOOKS:
            return None
        if self._held_up or waited >= PATIENCE_SECONDS:
            self._ask_otherwise(is_safe=self._held_up)
            return [] if not self._source else None
        return None

    def _dump(self, waited: float) -> list[Thread] | None:
        """Return the dump once the file stops growing; [] if none came, None to keep waiting."""
        size, before = self._file_size(), self._size
        self._size = size
        self._looks += 1
        waits = waited < ANSWER_SECONDS or self._looks < LEAST_LOOKS
        if waits and (size <= self._start or size != before):
            return None
        if size <= self._start:
            return []
        try:
            descriptor = os.open(self._path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            return []
        try:
            data = os.pread(descriptor, MOST_BYTES, self._start)
            if size > FULL_BYTES:
                os.ftruncate(descriptor, 0)
        finally:
            os.close(descriptor)
        return parse_dump(data.decode("utf-8", "replace"))

    def _file_size(self) -> int:
        try:
            return os.stat(self._path).st_size
        except OSError:
            return 0

    def _spied(self, waited: float) -> list[Thread] | None:
        found = self._spying.poll(waited)
        if found is None:
            return None
        if found.code != 0:
            self._why = "py-spy may not look into the process, or took too long"
            return []
        try:
            return parse_spy(found.output.decode("utf-8", "replace"))
        except ValueError as error:
            self._why = str(error)
            return []

    def close(self) -> None:
        """Cancel an open request."""
        self._spying.close()
        self._question.close()
        self._asked = None


def find_spy(path: str | None = None) -> str:
    """Return the path of py-spy: next to our interpreter, or in the folders of `path`; "" if it is not installed."""
    folders = [os.path.dirname(sys.executable), *(os.environ.get("PATH", "") if path is None else path).split(":")]
    candidates = [f"{folder}/py-spy" for folder in folders if folder]
    return next((found for found in candidates if os.path.isfile(found) and os.access(found, os.X_OK)), "")
