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
from stepscope.core.endings import BY_HAND, INTERRUPTED, end_by_error
from stepscope.core.numbers import format_bytes
from stepscope.core.ring import lock_holder
from stepscope.store.states import KILLED
from stepscope.watcher.proc import PROC, read_stat

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from stepscope.watcher.oom import Oom

_INFO = struct.Struct("QQ11Ii")
"""struct pidfd_info in its first version: mask, cgroup, ids, and the wait status at the end."""
_GET_INFO = 3 << 30 | _INFO.size << 16 | 0xFF << 8 | 11
_INFO_EXIT = 1 << 3
_WARNINGS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
"""What schedulers send before they take a job away."""


class Trainee:
    """The process that writes a ring, held by a pidfd: its pid may be given to another one, this may not."""

    def __init__(self, pid: int, descriptor: int, started: int, *, may_look: bool, proc: str = PROC) -> None:
        """Take over a pidfd; use `find`."""
        self.pid, self.started = pid, started
        self._descriptor, self._may_look, self._proc = descriptor, may_look, proc
        self._status: int | None = None

    @classmethod
    def find(cls, descriptor: int, proc: str = PROC) -> Trainee | None:
        """Return the process that holds the writer's lock of the ring open at `descriptor`; None if we cannot see it.

        The lock is checked again after opening the pidfd: if the holder is the same, the pidfd belongs to it.
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
        """Return the process of a pidfd that was handed to us, ended or not; None if `handle` is no pidfd."""
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

    def dead(self) -> bool:
        """Return whether the process has ended, reaped or not."""
        return wait([self], 0.0)

    def status(self) -> int | None:
        """Return the wait status of the ended process; None while it lives, or if the status is unavailable.

        Before the parent has reaped it, /proc has the status; afterwards the pidfd has it, on Linux 6.15 and later.
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
        return stat.exit_code if self._may_look or stat.exit_code else None  # 0 also means that we may not read it

    def _of_reaped(self) -> int | None:
        asked = bytearray(_INFO.pack(_INFO_EXIT, *[0] * 13))
        try:
            fcntl.ioctl(self._descriptor, _GET_INFO, asked)
        except OSError:  # a kernel that does not know this question
            return None
        mask, *_, status = _INFO.unpack(asked)
        return int(status) if mask & _INFO_EXIT else None

    def signal(self, number: int) -> None:
        """Send a signal to this very process; raise OSError if that is not possible."""
        signal.pidfd_send_signal(self._descriptor, number)

    def close(self) -> None:
        """Close the pidfd."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def wait(trainees: Iterable[Trainee], seconds: float) -> bool:
    """Sleep for `seconds`, or until one of these processes has ended; return whether one has."""
    poll = select.poll()
    for trainee in trainees:
        if trainee.fileno() >= 0:
            poll.register(trainee.fileno(), select.POLLIN)
    return bool(poll.poll(max(0.0, seconds) * 1000))


class EndEvidence(NamedTuple):
    """The evidence about the end of one rank."""

    status: int | None = None
    """The wait status; None if unavailable."""
    state: int = ring.STATE_RUNNING
    """The last state in the ring, one of its STATE_ constants."""
    error: str = ""
    """The exception that the run reported, as `Type: text`."""
    said: int | None = None
    """The exit code as the run or its parent reported it, where the status is unavailable."""
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
    """The process lives on, without its ring."""
    at_prompt: bool = False
    """It was a notebook's kernel or another interactive session."""


class End(NamedTuple):
    """How a rank ended."""

    state: str
    """finished, interrupted, failed, killed, oom-killed, preempted or lost."""
    cause: str
    certain: bool = True

    def event(self, evidence: EndEvidence) -> dict[str, object]:
        """Return the event that describes this end, with the figures behind it."""
        facts: dict[str, object] = {"kind": "ended", "state": self.state, "cause": self.cause, "certain": self.certain}
        if evidence.status is not None:
            number = os.WTERMSIG(evidence.status) if os.WIFSIGNALED(evidence.status) else 0
            facts |= {"signal": signal_name(number)} if number else {"exit_code": os.WEXITSTATUS(evidence.status)}
        elif evidence.said is not None:
            facts["exit_code"] = evidence.said
        if self.state == "oom-killed" and evidence.oom is not None:
            facts |= {"limit_bytes": evidence.oom.limit, "rss_bytes": evidence.oom.rss}
        return facts


def judge(evidence: EndEvidence) -> End:
    """Decide how a rank ended: by its own last state if it set one, else by the evidence of its death."""
    if evidence.state == ring.STATE_FINISHED:
        return End("finished", "")
    if evidence.state == ring.STATE_FAILED:
        return _failed(evidence)
    if evidence.status is None:
        return _unseen(evidence)
    if os.WIFSIGNALED(evidence.status):
        return _by_signal(evidence, os.WTERMSIG(evidence.status))
    return _by_exit(evidence, os.WEXITSTATUS(evidence.status))


def _failed(evidence: EndEvidence) -> End:
    kind, _, text = evidence.error.partition(": ")
    if kind == "SystemExit":  # leaving through a `with` block is no failure by itself
        return _by_exit(evidence._replace(error=""), _exit_code(text))
    state, cause = end_by_error(evidence.error)
    if state != INTERRUPTED and _after_interrupt(evidence):
        return End(INTERRUPTED, f"{cause}, after {evidence.after}")
    return End(state, cause + ("" if state == INTERRUPTED else _workers_oom(evidence.oom)))


def _exit_code(text: str) -> int:
    """Return the exit code of sys.exit with this argument: any text but a number means 1."""
    if text in ("", "None"):
        return 0
    return int(text) & 0xFF if text.lstrip("-").isdecimal() else 1


def _by_signal(evidence: EndEvidence, number: int) -> End:
    name = signal_name(number)
    oom = evidence.oom
    if number == signal.SIGKILL and oom is not None:
        return End("oom-killed", _memory(oom), certain=oom.named or oom.kills > 0)
    if evidence.after:
        return End(INTERRUPTED if _after_interrupt(evidence) else "killed", f"{name}, after {evidence.after}")
    if number == signal.SIGINT:
        return End(INTERRUPTED, f"{BY_HAND} (SIGINT)")
    taken = _taken(evidence, number)
    if taken:
        return End("preempted", f"{name} {taken}")
    if evidence.at_prompt and number in (signal.SIGTERM, signal.SIGHUP):
        return End(INTERRUPTED, f"the notebook or prompt that it ran in was closed ({name})")
    dumped = ", with a core dump" if evidence.status is not None and os.WCOREDUMP(evidence.status) else ""
    return End("killed", f"killed by {name}{dumped}")


def _by_exit(evidence: EndEvidence, code: int) -> End:
    if code == 0:
        return End("finished", "")
    taken = _taken(evidence, code - 128) if not evidence.error and not evidence.after else ""
    if taken:
        return End("preempted", f"exit code {code} after {signal_name(code - 128)} {taken}")
    if code == 128 + signal.SIGINT and not evidence.error:
        return End(INTERRUPTED, f"{BY_HAND} (exit code {code})")
    cause = f"{evidence.error} (exit code {code})" if evidence.error else f"exit code {code}"
    state = INTERRUPTED if _after_interrupt(evidence) else "failed"
    return End(state, cause + (f", after {evidence.after}" if evidence.after else "") + _workers_oom(evidence.oom))


def _after_interrupt(evidence: EndEvidence) -> bool:
    """Return whether another rank was interrupted before: Ctrl-C reaches some ranks through their launcher or peers."""
    return evidence.after.endswith(INTERRUPTED)


def _taken(evidence: EndEvidence, number: int) -> str:
    """Return what took the machine away, if this signal is how that is done; else ""."""
    if number == signal.SIGKILL and not (evidence.warned or evidence.shutting_down):
        return ""
    if number not in (*_WARNINGS, signal.SIGKILL):
        return ""
    if evidence.shutting_down:
        return "while the machine was shutting down"
    if evidence.scheduler:
        return f"in a {evidence.scheduler} job (preempted, cancelled or out of time)"
    return "to the whole job" if evidence.warned and number != signal.SIGUSR1 else ""


def _unseen(evidence: EndEvidence) -> End:
    """Judge an end whose status is unavailable."""
    if evidence.said is not None and evidence.state == ring.STATE_EXITED:
        return _by_exit(evidence, evidence.said)
    if evidence.state == ring.STATE_EXITED:
        return End("finished", "", certain=False)
    if evidence.oom is not None:
        return End("oom-killed", _memory(evidence.oom), certain=evidence.oom.named)
    if evidence.alive:
        return End("lost", "the process closed its ring or became another program (exec), without finish()")
    if evidence.shutting_down or evidence.warned:
        taken = _taken(evidence, signal.SIGTERM)
        return End("preempted", f"ended {taken}", certain=False)
    return End("killed", KILLED, certain=False)


def _memory(oom: Oom) -> str:
    whose = "memory of the machine" if oom.whole_machine else "limit"
    limit = f"{whose} {format_bytes(oom.limit)}" if oom.limit else f"{whose} unknown"
    return f"out of memory: {limit}" + (f", last seen with {format_bytes(oom.rss)} resident" if oom.rss else "")


def _workers_oom(oom: Oom | None) -> str:
    """Return the hint for a failure that may come from a worker that the kernel killed."""
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
    """Return the scheduler of this job, if it is one that preempts with a signal; else ""."""
    if environ.get("SLURM_JOB_ID"):
        return "SLURM"
    return "Kubernetes" if environ.get("KUBERNETES_SERVICE_HOST") else ""


def shutting_down(root: str = "") -> bool:
    """Return whether systemd is shutting the machine down, or is about to within seconds."""
    return os.path.exists(f"{root}/run/systemd/shutdown/scheduled") or os.path.exists(f"{root}/run/nologin")
