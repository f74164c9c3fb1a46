"""Asks NCCL's or RCCL's own service (RAS) what each rank has begun: a program of theirs, in a child with a deadline."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from typing import TYPE_CHECKING, Any

from stepscope.samplers.kernel import find_text
from stepscope.watcher.asked_program import AskedProgram
from stepscope.watcher.proc import PROC

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

ANSWER_SECONDS, DEADLINE = "5", 10.0
"""The limit in seconds that its program passes to the service, and the seconds after which the program is killed."""
MOST_OUTPUT, MOST_REPORT = 4 << 20, 512 << 10
"""Bytes that are read of its output, and of the report in an event."""
RAS = "nccl_ras"
_LIBRARIES = {"ncclras": "libnccl.so", "rcclras": "librccl.so"}
_ADDRESS = "NCCL_RAS_ADDR"


class RasQuestion:
    """At most one question at a time."""

    def __init__(self, environ: Mapping[str, str] | None = None, proc: str = PROC) -> None:
        """Ask nothing yet; `environ` has PATH and the address of the service."""
        self._environ = os.environ if environ is None else environ
        self._proc = proc
        self._program = AskedProgram(DEADLINE, MOST_OUTPUT)
        self._command: list[str] = []
        self._is_json = False

    def ask(self, pids: Iterable[int], now: float) -> None:
        """Ask, if one of these processes uses NCCL or RCCL and its program is installed; `now` is in seconds."""
        if self._program.open:
            return
        tool = self._tool(pids)
        if tool:
            host, _, port = self._environ.get(_ADDRESS, "").rpartition(":")
            place = ["-h", host.strip("[]"), "-p", port] if host and port.isdecimal() else []
            self._command = [tool, *place, "-t", ANSWER_SECONDS]
            self._start(["-f", "json"], now)

    def _tool(self, pids: Iterable[int]) -> str:
        names = [name for name in _LIBRARIES if self._environ.get(_ADDRESS)]
        for pid in [] if names else pids:
            maps = find_text(f"{self._proc}/{pid}/maps")
            names += [name for name, library in _LIBRARIES.items() if f"/{library}" in maps]
        found = (shutil.which(name, path=self._environ.get("PATH")) for name in dict.fromkeys(names))
        return next(filter(None, found), "")

    def _start(self, more: list[str], now: float) -> None:
        self._is_json = bool(more)
        with contextlib.suppress(OSError):  # it cannot be started: the other sources remain
            self._program.start([*self._command, *more], now)

    def poll(self, now: float) -> dict[str, Any] | None:
        """Return the event with the report, once; None while there is none."""
        answer = self._program.poll(now)
        if answer is None:
            return None
        if answer.code is None:
            return {"kind": RAS, "why": f"it did not answer within {DEADLINE:g} s"}
        if answer.code and self._is_json:  # versions before 2.28 know no JSON
            self._start([], now)
            return None
        return _event(answer.output)

    def close(self) -> None:
        """End a question that is open."""
        self._program.close()


def _event(data: bytes) -> dict[str, Any]:
    from stepscope.importers.nccl_ras import parse  # a training without NCCL needs none of it

    try:
        report = parse(data)
    except ValueError as error:
        return {"kind": RAS, "why": f"its report could not be read: {error}"[:300]}
    if len(json.dumps(report)) > MOST_REPORT:
        return {"kind": RAS, "why": f"its report has more than {MOST_REPORT >> 10} KiB"}
    return {"kind": RAS, "report": report}
