"""The stacks of a process: read them in the formats of faulthandler and py-spy, compare two of them."""

from __future__ import annotations

import json
import re
import zlib
from typing import Any, NamedTuple

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
    """trainer (its own thread), faulthandler or py-spy; "" without stacks."""
    stacks: list[Thread]
    waits: list[dict[str, object]]
    """Each thread with its state and the kernel function in which it waits."""
    why: str = ""
    """Why there are no stacks."""
    record: bytes = b""
    """Torch's record of collectives, as torch writes it: a pickle; empty if it was not asked for, or there is none."""

    @property
    def digest(self) -> str:
        """Equal for two samples in which all threads were at the same place."""
        if self.stacks:
            places = [[thread["thread"], thread["frames"]] for thread in self.stacks]
            return digest([self.source, sorted(places, key=lambda place: str(place[0]))])
        # A sleeping thread may briefly appear as running, so only the function in which it sleeps counts.
        return digest([self.why, [[wait["thread"], wait["waits_in"]] for wait in self.waits]])
