"""Find out which run, rank and attempt a process is, from its environment alone and without any I/O.

Every rank of one job computes the same run id, so that no rank has to ask another. The order is: the argument, the
variable STEPSCOPE_RUN_ID, the launcher's job key, the launching process on this machine, else a new id.
"""

from __future__ import annotations

import os
import re
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from stepscope.core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

RUN_ID_VARIABLE = "STEPSCOPE_RUN_ID"
ALLOWED = re.compile(r"(?!\.)[A-Za-z0-9_.-]{1,64}")
REQUEUE_STRIDE = 1000
"""Attempt = requeues * this + restarts, so that different pairs of counts never give the same attempt."""
SLURM_SPECIAL_STEP = 0xFFFFFFF0
"""SLURM numbers the batch, interactive and external steps from here up; no `srun` of the user started them."""

RAY_CLUSTER = ("--cluster-id=", "--session-name=")
"""Ray job ids start again with every cluster; its workers have the cluster on their command line."""
PER_RANK_ARGUMENT = re.compile(r"--local[-_]rank\b")
"""The one argument in which the ranks of one launch differ (torch.distributed.launch)."""


class Process(NamedTuple):
    """Identifies a process and its launcher; a pid alone is not enough, because pids are reused."""

    pid: int
    ppid: int
    """The parent, or for a `multiprocessing` child the process that asked for it (not the fork server)."""
    parent_start: str = ""
    """Start of the parent in clock ticks since boot; "" where the system does not report it."""
    boot_id: str = ""
    """This boot of this machine and this pid namespace; the host name where the system does not report them."""
    is_spawned: bool = False
    """Whether `multiprocessing` started it."""
    argv: tuple[str, ...] = ()
    """Its command line; separates two programs of one batch job."""

    @classmethod
    def current(cls, proc: str = "/proc") -> Process:
        """Read the facts of this process; unavailable ones stay empty."""
        family = sys.modules.get("multiprocessing.process")
        parent = family.parent_process() if family is not None else None
        ppid = os.getppid() if parent is None else int(parent.pid or os.getppid())
        arguments = tuple(str(item) for item in getattr(sys, "argv", ()))
        return cls(os.getpid(), ppid, _start_of(ppid, proc), _boot_of(proc), parent is not None, arguments)

    def parent_key(self) -> tuple[str, ...]:
        """Return what names the launching process for as long as the machine lives."""
        return (str(self.ppid), self.parent_start, self.boot_id)


class Distributed(NamedTuple):
    """Rank and size of a process group that is already initialised."""

    rank: int
    world_size: int

    @classmethod
    def current(cls) -> Distributed | None:
        """Ask `torch.distributed` if the program has loaded and initialised it; never import it."""
        module = sys.modules.get("torch.distributed")
        try:
            if module is None or not module.is_available() or not module.is_initialized():
                return None
            return cls(int(module.get_rank()), int(module.get_world_size()))
        except (AttributeError, RuntimeError, TypeError, ValueError):
            return None  # half imported, or torn down meanwhile: no group to ask


class RankPlace(NamedTuple):
    """The place of a process in its job; None where unknown."""

    rank: int
    world_size: int
    local_rank: int | None
    node_rank: int | None
    is_known: bool
    """Whether a launcher or a process group gave the rank; else it defaults to rank 0 of 1."""


class Identity(NamedTuple):
    """Which run, rank and attempt a process is."""

    run_id: str
    source: str
    """Where the id comes from: argument, environment, slurm, torchrun, ray, mpi, spawn or new."""
    rank: int
    world_size: int
    local_rank: int | None
    node_rank: int | None
    attempt: int | None
    """Restarts and requeues so far; None: take the next free one of this rank."""
    warnings: tuple[str, ...] = ()


class _JobKey(NamedTuple):
    """A launcher and its name for this job."""

    launcher: str
    parts: tuple[str, ...]


def identify(
    environ: Mapping[str, str],
    *,
    project: str,
    now: float,
    token: str,
    parent: Process,
    run_id: str | None = None,
    resume: bool = False,
    distributed: Distributed | None = None,
) -> Identity:
    """Return the identity of a process; a pure function of its arguments.

    The project is part of the job's key, so that one job may feed two projects. `now` (seconds since 1970) and `token`
    (a few random characters) make a new id. With `resume`, the run continues as its next free attempt.

    Raises:
        UsageError: the project or the id cannot be a folder name, or there is no run to resume.
    """
    check_project(project)
    place = place_of(environ, distributed)
    key = _job_key(environ, place, parent)
    given = run_id if run_id is not None else environ.get(RUN_ID_VARIABLE) or None
    warnings: tuple[str, ...] = ()
    if given is not None:
        source = "argument" if run_id is not None else "environment"
        chosen = check_run_id(given, "run_id=" if run_id is not None else RUN_ID_VARIABLE)
    else:
        key = key or _local_key(environ, place, parent)
        source = key.launcher if key else "new"
        new = f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime(now))}-{token}"
        chosen = _keyed_id(key, project) if key else check_run_id(new, "token=")
        warnings = _scatter_warning(environ, place, key)
    if resume and source == "new":
        raise UsageError(
            "resume a run", "nothing says which one", f"pass run_id= with its id, or set {RUN_ID_VARIABLE}"
        )
    attempt = None if resume else _attempt(environ, place)
    return Identity(chosen, source, place.rank, place.world_size, place.local_rank, place.node_rank, attempt, warnings)


def check_project(name: object) -> str:
    """Return a project name that can be a folder name, or raise UsageError with one that could."""
    if isinstance(name, str) and ALLOWED.fullmatch(name):
        return name
    raise UsageError(f"use project name {_shown(name)}", _fault(name), f"call it {_suggestion(name, 'training')!r}")


def check_run_id(run_id: object, given_by: str = "run_id=") -> str:
    """Return a run id that can be a folder name, or raise UsageError; the display name is separate text."""
    if isinstance(run_id, str) and ALLOWED.fullmatch(run_id):
        return run_id
    remedy = f"set {given_by} to something like {_suggestion(run_id, 'my-run')!r} and put free text into name="
    raise UsageError(f"use run id {_shown(run_id)}", _fault(run_id), remedy)


def _shown(value: object) -> str:
    return ascii(value[:40]) if isinstance(value, str) else f"of type {type(value).__name__}"


def _fault(value: object) -> str:
    if not isinstance(value, str):
        return "it is no text"
    if not value:
        return "it is empty"
    if len(value) > 64:
        return f"it has {len(value)} characters, the limit is 64"
    return "only letters A-Z, digits, '_', '-' and '.' are allowed, and no '.' in front"


def _suggestion(value: object, otherwise: str) -> str:
    text = value[:200] if isinstance(value, str) else ""
    return re.sub(r"[^A-Za-z0-9_.]+", "-", text).strip(".-")[:64] or otherwise


def _count(environ: Mapping[str, str], *names: str, below: int = 2**31) -> int | None:
    """Return the first of these variables that is a whole number from 0 and below a limit."""
    for name in names:
        text = environ.get(name, "").strip()
        if text.isdecimal() and text.isascii() and len(text) < 20 and int(text) < below:
            return int(text)
    return None


def place_of(environ: Mapping[str, str], distributed: Distributed | None = None) -> RankPlace:
    """Return where a process stands: the process group knows best, then torchrun, then SLURM, then MPI."""
    local = _count(environ, "LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")
    node = _count(environ, "GROUP_RANK", "NODE_RANK")
    in_step = _slurm_step(environ) is not None
    candidates = [
        (distributed.rank, distributed.world_size) if distributed else (None, None),
        (_count(environ, "RANK"), _count(environ, "WORLD_SIZE")),
        (_count(environ, "SLURM_PROCID"), _slurm_tasks(environ)) if in_step else (None, None),
        (_count(environ, "OMPI_COMM_WORLD_RANK", "PMI_RANK"), _count(environ, "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")),
    ]
    if in_step and "RANK" not in environ:
        local = _count(environ, "SLURM_LOCALID") if local is None else local
    if in_step:
        node = _count(environ, "SLURM_NODEID") if node is None else node
    for rank, size in candidates:
        if rank is not None and size is not None and rank < size:
            return RankPlace(rank, size, local, node, is_known=True)
    return RankPlace(0, 1, local, node, is_known=False)


def _slurm_step(environ: Mapping[str, str]) -> int | None:
    """Return the number of the `srun` that started this process; None in a batch script or an interactive shell.

    Also None in a Ray worker: it inherits the step of its raylet, which differs on each node.
    """
    if "RAY_JOB_ID" in environ:
        return None
    step = _count(environ, "SLURM_STEP_ID", "SLURM_STEPID", below=2**63)
    return step if step is not None and step < SLURM_SPECIAL_STEP else None


def _slurm_tasks(environ: Mapping[str, str]) -> int | None:
    return _count(environ, "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS")


def _job_key(environ: Mapping[str, str], place: RankPlace, process: Process) -> _JobKey | None:
    """Return the launcher's name for this job, the same on every node."""
    elastic = environ.get("TORCHELASTIC_RUN_ID", "")
    ray = environ.get("RAY_JOB_ID")
    slurm = None if ray else _slurm_key(environ, process)
    if slurm is not None:
        return slurm
    if elastic and elastic.lower() != "none":
        return _JobKey("torchrun", (elastic,))
    # Without a rank it is a task or a trial of its own: many of them share one Ray job and must not merge.
    if ray and place.is_known:
        return _JobKey("ray", (ray, *(item for item in process.argv if item.startswith(RAY_CLUSTER))))
    return None


def _slurm_key(environ: Mapping[str, str], process: Process) -> _JobKey | None:
    job = environ.get("SLURM_ARRAY_JOB_ID") or environ.get("SLURM_JOB_ID") or environ.get("SLURM_JOBID")
    if not job:
        return None
    step = _slurm_step(environ)
    is_shared = step is not None and _slurm_tasks(environ) != 1
    if not is_shared and _is_interactive(environ):
        return None
    parts = (environ.get("SLURM_CLUSTER_NAME", ""), job, environ.get("SLURM_ARRAY_TASK_ID", ""), str(step))
    return _JobKey("slurm", parts if is_shared else (*parts, *_program(process)))


def _is_interactive(environ: Mapping[str, str]) -> bool:
    """Return whether a person types commands into this job: it is never requeued, and it starts many runs."""
    # 0xfffffffa is the interactive step of salloc.
    is_shell = _count(environ, "SLURM_STEP_ID", below=2**63) == SLURM_SPECIAL_STEP + 10
    return is_shell or "SLURM_PTY_PORT" in environ or environ.get("SLURM_JOB_NAME") in {"bash", "interactive", "zsh"}


def _program(process: Process) -> tuple[str, ...]:
    """Return the command line as far as all ranks share it: a batch script may start one program after another."""
    shared = []
    skip = False
    for item in process.argv:
        is_rank = PER_RANK_ARGUMENT.match(item) is not None
        if not is_rank and not skip:
            shared.append(item)
        skip = is_rank and "=" not in item
    return tuple(shared)


def _local_key(environ: Mapping[str, str], place: RankPlace, process: Process) -> _JobKey | None:
    """Return the launching process, which all ranks of this node share and no later launch repeats."""
    if "TORCHELASTIC_RUN_ID" in environ:
        return _JobKey("torchrun", process.parent_key())
    if process.is_spawned and place.is_known:
        return _JobKey("spawn", process.parent_key())
    if place.is_known and _count(environ, "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS") == place.world_size:
        return _JobKey("mpi", process.parent_key())
    return None


def _keyed_id(key: _JobKey, project: str) -> str:
    import hashlib

    text = "\0".join((key.launcher, *key.parts, project))
    return f"{key.launcher}-{hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()[:12]}"


def _scatter_warning(environ: Mapping[str, str], place: RankPlace, key: _JobKey | None) -> tuple[str, ...]:
    """Return the one warning for a job that falls into several runs; once per node, where ranks share a run."""
    remedy = f"set {RUN_ID_VARIABLE} to one value for all of them (or pass run_id=) to record one run"
    if key is None and place.world_size > 1:
        cause = f"this is rank {place.rank} of {place.world_size}, but no launcher names the job"
        return (f"{cause}: each rank records a run of its own; {remedy}",)
    local = _count(environ, "LOCAL_WORLD_SIZE")
    is_unnamed = environ.get("TORCHELASTIC_RUN_ID", "").lower() == "none"
    is_split = key is not None and key.launcher == "torchrun" and is_unnamed and local not in (None, place.world_size)
    if is_split and not place.local_rank:
        cause = f"{local} of {place.world_size} ranks run on this node and torchrun was given no --rdzv-id"
        return (f"{cause}: each node records a run of its own; {remedy}",)
    return ()


def _attempt(environ: Mapping[str, str], place: RankPlace) -> int | None:
    """Return restarts and requeues so far; None if not counted."""
    restarts = _count(environ, "TORCHELASTIC_RESTART_COUNT")
    requeues = _count(environ, "SLURM_RESTART_COUNT")
    if restarts is None and requeues is None:
        # SLURM leaves the count out before the first requeue; ranks of one step must agree on it.
        return 0 if _slurm_step(environ) is not None and place.world_size > 1 else None
    if restarts is None or requeues is None:
        return restarts if requeues is None else requeues
    return min(requeues * REQUEUE_STRIDE + restarts, 2**31 - 1)


def _start_of(pid: int, proc: str) -> str:
    """Return field 22 of /proc/<pid>/stat; the name in field 2 may hold blanks and brackets."""
    try:
        with Path(proc, str(pid), "stat").open("rb") as file:
            return file.read(4096).rpartition(b")")[2].split()[19].decode("ascii", "replace")
    except (OSError, IndexError):  # it is gone, or not ours to read: the identity works without it
        return ""


def _boot_of(proc: str) -> str:
    try:
        boot = Path(proc, "sys/kernel/random/boot_id").read_text(encoding="ascii", errors="replace")
        return f"{boot.strip()} {Path(proc, 'self/ns/pid').readlink()}"
    except OSError:
        return os.uname().nodename if hasattr(os, "uname") else ""
