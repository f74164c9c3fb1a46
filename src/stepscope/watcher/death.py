"""The end of a trainer: which process it is, how it ended, and why."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import struct
from typing import TYPE_CHECKING, NamedTuple

from stepscope.core import ring
from stepscope.core.endings import BY_HAND, INTERRUPTED, OUT_OF_MEMORY, end_by_error
from stepscope.core.numbers import format_bytes
from stepscope.core.ring import lock_holder
from stepscope.store.states import KILLED
from stepscope.watcher.proc import PROC, read_stat

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stepscope.watcher.oom import Oom

_INFO = struct.Struct("QQ11Ii")
"""struct pidfd_info in its first version: mask, cgroup, ids, and the wait status at the end."""
_GET_INFO = 3 << 30 | _INFO.size << 16 | 0xFF << 8 | 11
_INFO_EXIT = 1 << 3
_WARNINGS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
"""Signals that schedulers send before they end a job."""


class Trainee:
    """The process that writes a ring, held by a pidfd, which is never reused for another process as a pid is."""

    def __init__(self, pid: int, descriptor: int, started: int, *, may_look: bool, proc: str = PROC) -> None:
        """Take over a pidfd; use `find`."""
        self.pid, self.started = pid, started
        self._descriptor, self._may_look, self._proc = descriptor, may_look, proc
        self._status: int | None = None

    @classmethod
    def find(cls, descriptor: int, proc: str = PROC) -> Trainee | None:
        """Return the process that holds the writer's lock of the ring open at `descriptor`; None if it is invisible.

        The lock is checked again after the pidfd is open: with the same holder, the pidfd belongs to it.
        """
        try:
            pid = lock_holder(descriptor, ring.LOCK_WRITER)
            if not pid or not hasattr(os, "pidfd_open"):
                return None
            handle = os.pidfd_open(pid)
        except (OSError, OverflowError):
            return None
        stat = read_stat(pid, proc)
        if stat is None or lock_holder(descriptor, ring.LOCK_WRITER) != pid:
            os.close(handle)
            return None
        return cls(pid, handle, stat.started, may_look=stat.start_of_stack != 0, proc=proc)

    @classmethod
    def of(cls, handle: int, pid: int, proc: str = PROC) -> Trainee | None:
        """Return the process of a pidfd that we inherited, ended or not; None if `handle` is no pidfd."""
        try:
            with open(f"{proc}/self/fdinfo/{handle}", "rb") as file:
                if b"\nPid:" not in file.read(4096):
                    return None
            copy = os.dup(handle)
        except OSError:
            return None
        stat = read_stat(pid, proc)
        return cls(pid, copy, stat.started if stat else -1, may_look=False, proc=proc)

    def fileno(self) -> int:
        """Return the pidfd, which becomes readable when the process has ended; -1 once closed."""
        return self._descriptor

    def dead(self, seconds: float = 0.0) -> bool:
        """Return whether the process has ended, reaped or not, within so many seconds."""
        poll = select.poll()
        if self._descriptor >= 0:
            poll.register(self._descriptor, select.POLLIN)
        return bool(poll.poll(seconds * 1000))

    def status(self) -> int | None:
        """Return the wait status of the ended process; None while it lives, or if the status is unavailable.

        /proc has it until the parent reaps the process; then the pidfd has it, on Linux 6.15 and later.
        """
        if self._status is None and self.dead():
            for ask in (self._of_zombie, self._of_reaped, self._of_zombie):  # it may be reaped between the first two
                if self._status is None:
                    self._status = ask()
        return self._status

    def _of_zombie(self) -> int | None:
        stat = read_stat(self.pid, self._proc)
        if stat is None or stat.started != self.started or stat.state not in "ZX":
            return None
        return stat.exit_code if self._may_look or stat.exit_code else None  # 0 may mean that we must not read it

    def _of_reaped(self) -> int | None:
        asked = bytearray(_INFO.pack(_INFO_EXIT, *[0] * 13))
        try:
            fcntl.ioctl(self._descriptor, _GET_INFO, asked)
        except OSError:  # an older kernel
            return None
        mask, *_, status = _INFO.unpack(asked)
        return int(status) if mask & _INFO_EXIT else None

    def signal(self, number: int) -> None:
        """Send a signal to this process, never to another with the same pid; OSError if that is not possible."""
        signal.pidfd_send_signal(self._descriptor, number)

    def close(self) -> None:
        """Close the pidfd."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class EndEvidence(NamedTuple):
    """The evidence about the end of one rank."""

    status: int | None = None
    """The wait status; None if unavailable."""
    state: int = ring.STATE_RUNNING
    """The last state in the ring, one of its STATE_ constants."""
    error: str = ""
    """The exception that the run reported, as `Type: text`."""
    oom: Oom | None = None
    scheduler: str = ""
    """The scheduler of the job: SLURM, Kubernetes, or ""."""
    warned: bool = False
    """This watcher got SIGTERM shortly before, so the whole job did."""
    shutting_down: bool = False
    """The machine is going down."""
    after: str = ""
    """An earlier end that explains this one, as in "rank 3 failed"."""
    alive: bool = False
    """The process still lives, without its ring."""
    at_prompt: bool = False
    """The process was a notebook's kernel or another interactive session."""


class RankEnd(NamedTuple):
    """How a rank ended."""

    state: str
    """finished, interrupted, failed, killed, oom-killed, preempted or lost."""
    cause: str
    certain: bool = True

    def event(self, evidence: EndEvidence) -> dict[str, object]:
        """Return the event that describes this end, with its evidence."""
        facts: dict[str, object] = {"kind": "ended", "state": self.state, "cause": self.cause, "certain": self.certain}
        if evidence.status is not None:
            number = os.WTERMSIG(evidence.status) if os.WIFSIGNALED(evidence.status) else 0
            facts |= {"signal": signal_name(number)} if number else {"exit_code": os.WEXITSTATUS(evidence.status)}
        if self.state == "oom-killed" and evidence.oom is not None:
            facts |= {"limit_bytes": evidence.oom.limit, "rss_bytes": evidence.oom.rss}
        return facts


def decide_end(evidence: EndEvidence) -> RankEnd:
    """Decide how a rank ended: by the last state that it set, otherwise by the evidence of its death."""
    if evidence.state == ring.STATE_FINISHED:
        return RankEnd("finished", "")
    if evidence.state == ring.STATE_FAILED:
        return _failed(evidence)
    if evidence.status is None:
        return _unseen(evidence)
    if os.WIFSIGNALED(evidence.status):
        return _by_signal(evidence, os.WTERMSIG(evidence.status))
    return _by_exit(evidence, os.WEXITSTATUS(evidence.status))


def _failed(evidence: EndEvidence) -> RankEnd:
    kind, _, text = evidence.error.partition(": ")
    if kind == "SystemExit":  # leaving a `with` block in this way is no failure by itself
        code = 0 if text in ("", "None") else int(text) & 0xFF if text.lstrip("-").isdecimal() else 1
        return _by_exit(evidence._replace(error=""), code)
    state, cause = end_by_error(evidence.error)
    if state != INTERRUPTED and _after_interrupt(evidence):
        return RankEnd(INTERRUPTED, f"{cause}, after {evidence.after}")
    return RankEnd(state, cause + ("" if state == INTERRUPTED else _workers_oom(evidence.oom)))


def _by_signal(evidence: EndEvidence, number: int) -> RankEnd:
    name = signal_name(number)
    oom = evidence.oom
    if number == signal.SIGKILL and oom is not None:
        return RankEnd("oom-killed", _memory(oom), certain=oom.named or oom.kills > 0)
    if evidence.after:
        return RankEnd(INTERRUPTED if _after_interrupt(evidence) else "killed", f"{name}, after {evidence.after}")
    if number == signal.SIGINT:
        return RankEnd(INTERRUPTED, f"{BY_HAND} (SIGINT)")
    taken = _taken(evidence, number)
    if taken:
        return RankEnd("preempted", f"{name} {taken}")
    if evidence.at_prompt and number in (signal.SIGTERM, signal.SIGHUP):
        return RankEnd(INTERRUPTED, f"the notebook or prompt that it ran in was closed ({name})")
    dumped = ", with a core dump" if evidence.status is not None and os.WCOREDUMP(evidence.status) else ""
    return RankEnd("killed", f"killed by {name}{dumped}")


def _by_exit(evidence: EndEvidence, code: int) -> RankEnd:
    if code == 0:
        return RankEnd("finished", "")
    taken = _taken(evidence, code - 128) if not evidence.error and not evidence.after else ""
    if taken:
        return RankEnd("preempted", f"exit code {code} after {signal_name(code - 128)} {taken}")
    if code == 128 + signal.SIGINT and not evidence.error:
        return RankEnd(INTERRUPTED, f"{BY_HAND} (exit code {code})")
    cause = f"{evidence.error} (exit code {code})" if evidence.error else f"exit code {code}"
    state = INTERRUPTED if _after_interrupt(evidence) else "failed"
    return RankEnd(state, cause + (f", after {evidence.after}" if evidence.after else "") + _workers_oom(evidence.oom))


def _after_interrupt(evidence: EndEvidence) -> bool:
    """Return whether another rank was interrupted before: Ctrl-C reaches some ranks through their launcher or peers."""
    return evidence.after.endswith(INTERRUPTED)


def _taken(evidence: EndEvidence, number: int) -> str:
    """Return what ended the job from outside, if that is done with this signal; otherwise ""."""
    is_kill = number == signal.SIGKILL and (evidence.warned or evidence.shutting_down)
    if number not in _WARNINGS and not is_kill:
        return ""
    if evidence.shutting_down:
        return "while the machine was shutting down"
    if evidence.scheduler:
        return f"in a {evidence.scheduler} job (preempted, cancelled or out of time)"
    return "to the whole job" if evidence.warned and number != signal.SIGUSR1 else ""


def _unseen(evidence: EndEvidence) -> RankEnd:
    """Judge an end whose status is unavailable."""
    if evidence.state == ring.STATE_EXITED:
        return RankEnd("finished", "", certain=False)
    if evidence.oom is not None:
        return RankEnd("oom-killed", _memory(evidence.oom), certain=evidence.oom.named)
    if evidence.alive:
        return RankEnd("lost", "the process closed its ring or became another program (exec), without finish()")
    if evidence.shutting_down or evidence.warned:
        return RankEnd("preempted", f"ended {_taken(evidence, signal.SIGTERM)}", certain=False)
    return RankEnd("killed", KILLED, certain=False)


def _memory(oom: Oom) -> str:
    whose = "memory of the machine" if oom.whole_machine else "limit"
    limit = f"{whose} {format_bytes(oom.limit)}" if oom.limit else f"{whose} unknown"
    return f"{OUT_OF_MEMORY}: {limit}" + (f", last seen with {format_bytes(oom.rss)} resident" if oom.rss else "")


def _workers_oom(oom: Oom | None) -> str:
    """Return a hint that a worker which the kernel killed may have caused the failure."""
    if oom is None or oom.named or not oom.kills:
        return ""
    count = "a process" if oom.kills == 1 else f"{oom.kills} processes"
    limit = f" (limit {format_bytes(oom.limit)})" if oom.limit else ""
    return f"; {count} of its cgroup had been killed for lack of memory{limit}"


def signal_name(number: int) -> str:
    """Return the name of a signal, such as SIGKILL; "signal 40" for one without a name."""
    with contextlib.suppress(ValueError):
        return signal.Signals(number).name
    return f"signal {number}"


def scheduler(environ: Mapping[str, str]) -> str:
    """Return the scheduler of this job, if it preempts with a signal; otherwise ""."""
    if environ.get("SLURM_JOB_ID"):
        return "SLURM"
    return "Kubernetes" if environ.get("KUBERNETES_SERVICE_HOST") else ""


def shutting_down(root: str = "") -> bool:
    """Return whether systemd is shutting the machine down, or is about to within seconds."""
    return os.path.exists(f"{root}/run/systemd/shutdown/scheduled") or os.path.exists(f"{root}/run/nologin")
