"""The stacks of a trainer: request them with a signal or py-spy, read the answer, compare two of them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zlib
from typing import TYPE_CHECKING, Any, NamedTuple

from stepscope.session.stacks import SIGNAL
from stepscope.watcher.proc import PROC, read_signals, read_stat, threads

if TYPE_CHECKING:
    from stepscope.watcher.death import Trainee

ANSWER_SECONDS, SPY_SECONDS = 1.0, 5.0
"""Seconds that a process may take to write its stacks (one that sleeps in the kernel never does), and py-spy."""
LEAST_LOOKS = 5
"""Minimum checks for the answer: while a machine is suspended, the process cannot write it."""
MOST_BYTES, FULL_BYTES = 256 << 10, 1 << 20
"""Bytes that are read of one dump, and the size from which the file of dumps, in shared memory, is emptied."""
MOST_THREADS, MOST_FRAMES = 64, 60

Thread = dict[str, Any]
"""`thread` (an id), `name` if known, `frames`: innermost first, each with `file`, `line` and `function`."""

_HEAD = re.compile(r"^(Current thread|Thread) (0x[0-9a-f]+)(?: \[(.*)\])? \(most recent call first\):$")
_FRAME = re.compile(r'^  File (?:"(.*)"|\?\?\?), line (\d+|\?\?\?) in (.*)$')


def parse_dump(text: str) -> list[Thread]:
    """Parse the output of faulthandler; other lines are skipped."""
    found: list[Thread] = []
    for line in text.splitlines():
        head = _HEAD.match(line)
        if head is not None:
            thread: Thread = {"thread": head[2], "frames": []}
            if head[3]:
                thread["name"] = head[3]
            if head[1] != "Thread":
                thread["current"] = True
            found.append(thread)
            continue
        frame = _FRAME.match(line)
        if frame is not None and found:
            number = int(frame[2]) if frame[2].isdecimal() else 0
            found[-1]["frames"].append({"file": frame[1] or "", "line": number, "function": frame[3]})
    return found


def parse_spy(text: str) -> list[Thread]:
    """Parse the output of `py-spy dump --json`; ValueError if it is something else."""
    try:
        return [
            {
                "thread": hex(int(thread["thread_id"])),
                **({"name": str(thread["thread_name"])} if thread.get("thread_name") else {}),
                "frames": [
                    {"file": str(frame["filename"]), "line": int(frame["line"]), "function": str(frame["name"])}
                    for frame in thread["frames"]
                ],
            }
            for thread in json.loads(text)
        ]
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not the output of py-spy: {error}") from error


def main_thread(found: list[Thread]) -> Thread | None:
    """Return the main thread: by its name, otherwise the last one, since the newest comes first."""
    named = [thread for thread in found if thread.get("name") == "MainThread"]
    return named[0] if named else found[-1] if found else None


def trim(found: list[Thread], most_threads: int = MOST_THREADS, most_frames: int = MOST_FRAMES) -> list[Thread]:
    """Return stacks that fit into an event: the main thread first, and only the innermost frames of each thread."""
    main = main_thread(found)
    ordered = sorted(found, key=lambda thread: thread is not main)[:most_threads]
    return [{**thread, "frames": thread["frames"][:most_frames]} for thread in ordered]


def digest(facts: Any) -> str:
    """Return a short text that is equal for equal stacks."""
    text = json.dumps(facts, sort_keys=True).encode()
    return f"{zlib.crc32(text):08x}{zlib.adler32(text):08x}{len(text):x}"


_PROMPT_FILES = ("ipykernel", "IPython", "prompt_toolkit", "_pyrepl", "code.py", "pdb.py", "ray/_private/worker.py")
_WAITING_FILES = ("selectors.py", "asyncio/", "tornado/", "zmq/", "prompt_toolkit", "_pyrepl", "code.py", "cmd.py")
_CELL = ("run_cell", "run_code", "run_ast_nodes", "runcode")


def at_prompt(found: list[Thread]) -> bool:
    """Return whether the main thread waits for a person: at a prompt, or in the event loop of an idle notebook."""
    main = main_thread(found)
    if main is None:
        return False
    frames = main["frames"]
    if not frames:
        return True  # the prompt of a plain interpreter is C code without any Python frame
    inner = frames[0]
    if inner["function"] == "main_loop" and _of(inner, ("ray/_private/worker.py",)):  # an actor between two calls
        return True
    if any(_of(frame, ("pdb.py",)) and frame["function"] in ("interaction", "_cmdloop") for frame in frames[:6]):
        return True
    prompt = any(_of(frame, _PROMPT_FILES) for frame in frames)
    return prompt and _of(inner, _WAITING_FILES) and not any(frame["function"] in _CELL for frame in frames)


def _of(frame: dict[str, Any], parts: tuple[str, ...]) -> bool:
    path = "/" + frame["file"].replace("\\", "/").lstrip("/")
    return any(f"/{part}" in path for part in parts)


class StackAnswer(NamedTuple):
    """The result of a request for stacks."""

    source: str
    """faulthandler or py-spy; "" without stacks."""
    stacks: list[Thread]
    waits: list[dict[str, object]]
    """Each thread with its state and the kernel function in which it waits."""
    why: str = ""
    """Why there are no stacks."""

    @property
    def digest(self) -> str:
        """Equal for two samples in which all threads were at the same place."""
        if self.stacks:
            places = [[thread["thread"], thread["frames"]] for thread in self.stacks]
            return digest([self.source, sorted(places, key=lambda place: str(place[0]))])
        # A sleeping thread may briefly appear as running, so only the function in which it sleeps counts.
        return digest([self.why, [[wait["thread"], wait["waits_in"]] for wait in self.waits]])


class Asking:
    """Requests one rank's stacks: one request at a time, answered over several ticks without waiting."""

    def __init__(self, trainee: Trainee, path: str, proc: str = PROC, spy: str | None = None) -> None:
        """Ask `trainee`, which writes to the file at `path`; `spy` is the path of py-spy, None to search for it."""
        self._trainee, self._path, self._proc = trainee, path, proc
        self._spy: str = find_spy() if spy is None else spy
        self._asked: int | None = None
        self._source, self._why = "", ""
        self._start = self._size = self._looks = 0
        self._child: subprocess.Popen[bytes] | None = None
        self._output = -1

    @property
    def open(self) -> bool:
        """Whether a request is not answered yet."""
        return self._asked is not None

    def ask(self, now: int) -> None:
        """Request the stacks at `now` (monotonic ns), unless a request is open."""
        if self.open:
            return
        self._asked, self._source, self._why = now, "", ""
        self._why = self._send()
        if not self._source and not self._stopped() and self._spy:
            self._start_spy()

    def _send(self) -> str:
        """Send the signal if that is safe; return why not, otherwise ""."""
        if SIGNAL is None or not os.path.exists(self._path):
            return "stacks are switched off"
        if self._stopped():
            return "the process is stopped"
        signals = read_signals(self._trainee.pid, self._proc)
        if signals is None or not signals.catches(SIGNAL):
            return "the process does not catch the signal any more"
        self._start = self._size = self._file_size()
        self._looks = 0
        self._source = "faulthandler"
        if signals.awaits(SIGNAL):  # an earlier request is pending: one answer serves both
            return ""
        try:
            self._trainee.signal(SIGNAL)
        except OSError as error:
            self._source = ""
            return f"the signal could not be sent: {error.strerror}"
        return ""

    def _stopped(self) -> bool:
        stat = read_stat(self._trainee.pid, self._proc)
        return stat is not None and stat.state in "Tt"

    def _start_spy(self) -> None:
        command = [self._spy, "dump", "--nonblocking", "--json", "--pid", str(self._trainee.pid)]
        nowhere = subprocess.DEVNULL
        try:
            self._output = os.memfd_create("py-spy")  # nobody would read a pipe, which is full at 64 KiB
            self._child = subprocess.Popen(command, stdin=nowhere, stdout=self._output, stderr=nowhere)
            self._source = "py-spy"
        except OSError as error:
            self._why += f"; py-spy: {error.strerror}"
            self._end_spy()

    def answer(self, now: int) -> StackAnswer | None:
        """Return the answer, None while it may still come; `now` is monotonic, in ns."""
        if self._asked is None:
            return None
        read = {"faulthandler": self._dump, "py-spy": self._spied}.get(self._source)
        text = "" if read is None else read((now - self._asked) / 1e9)
        if text is None:
            return None
        self._asked = None
        found: list[Thread] = []
        try:
            found = parse_spy(text) if self._source == "py-spy" and text else parse_dump(text)
        except ValueError as error:
            self._why = str(error)
        waits = threads(self._trainee.pid, self._proc)
        if found:
            return StackAnswer(self._source, trim(found), waits)
        return StackAnswer("", [], waits, self._why or "the process did not answer")

    def _dump(self, waited: float) -> str | None:
        """Return the dump once the file stops growing; "" if none came, None to keep waiting."""
        size, before = self._file_size(), self._size
        self._size = size
        self._looks += 1
        waits = waited < ANSWER_SECONDS or self._looks < LEAST_LOOKS
        if waits and (size <= self._start or size != before):
            return None
        if size <= self._start:
            return ""
        try:
            descriptor = os.open(self._path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            return ""
        try:
            data = os.pread(descriptor, MOST_BYTES, self._start)
            if size > FULL_BYTES:
                os.ftruncate(descriptor, 0)
        finally:
            os.close(descriptor)
        return data.decode("utf-8", "replace")

    def _file_size(self) -> int:
        try:
            return os.stat(self._path).st_size
        except OSError:
            return 0

    def _spied(self, waited: float) -> str | None:
        if self._child is None:
            return ""
        code = self._child.poll()
        if code is None and waited < SPY_SECONDS:
            return None
        if code is None:
            self._child.kill()
            self._child.wait()
        text = os.pread(self._output, MOST_BYTES * 4, 0).decode("utf-8", "replace") if code == 0 else ""
        self._why = "" if code == 0 else "py-spy may not look into the process, or took too long"
        self._end_spy()
        return text

    def _end_spy(self) -> None:
        if self._output >= 0:
            os.close(self._output)
        self._child, self._output = None, -1

    def close(self) -> None:
        """Cancel an open request."""
        if self._child is not None:
            self._child.kill()
            self._child.wait()
        self._end_spy()
        self._asked = None


def find_spy(path: str | None = None) -> str:
    """Return the path of py-spy: next to our interpreter, or in the folders of `path`; "" if it is not installed."""
    folders = [os.path.dirname(sys.executable), *(os.environ.get("PATH", "") if path is None else path).split(":")]
    candidates = [f"{folder}/py-spy" for folder in folders if folder]
    return next((found for found in candidates if os.path.isfile(found) and os.access(found, os.X_OK)), "")
