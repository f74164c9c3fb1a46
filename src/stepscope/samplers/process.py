"""The trainers of this node and their descendants: CPU time, memory, threads, open files, disk I/O.

Descendants are the data loader workers of a trainer, and everything else it started.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from stepscope.core.vocabulary import BY_NAME, gauge
from stepscope.samplers.kernel import Growth, KernelFile, number
from stepscope.samplers.numa import numa_nodes
from stepscope.samplers.process_files import PAGE, ProcessFiles, ProcessSample, parse_children
from stepscope.samplers.sampler import Sampler

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from collections.abc import Set as AbstractSet

SCAN_EVERY = 5_000_000_000
"""Interval in ns between searches for children of threads other than the main one, and for grandchildren."""
THREADS = 256
"""Maximum threads of the trainer that such a search reads; for its descendants fewer."""
THREADS_BELOW = 16
PROCESSES = 512
"""Maximum processes followed below one trainer."""
SPAWNED = (b"multiprocessing.spawn", b"--multiprocessing-fork")
FORK_SERVER = b"multiprocessing.forkserver"


def is_worker(name: str, command: bytes, parent: bytes, rank: bytes) -> bool:
    """Return whether a process feeds the rank: a data loader worker by name, or a multiprocessing process.

    The last three are command lines: its own, its parent's, and that of the rank, which a forked process inherits.
    """
    if name.startswith("pt_data_worker"):
        return True
    if FORK_SERVER in command:  # the fork server itself, or a process that it forked
        return FORK_SERVER in parent
    return (bool(command) and command == rank) or any(sign in command for sign in SPAWNED)


class Member(NamedTuple):
    """A process below the trainer, as of now."""

    files: ProcessFiles
    look: ProcessSample


class Descendants:
    """The processes below one trainer, followed from birth to death.

    Children of the main thread, which starts the workers, are found at once; those of other threads, and grandchildren,
    within 5 s: reading every thread each time would cost more than everything else.
    """

    def __init__(self, proc: str, head: ProcessFiles) -> None:
        """Follow the descendants of `head`; `proc` is the folder of processes."""
        self._proc, self._head = proc, head
        self._children = KernelFile(f"{head.folder}/task/{head.pid}/children")
        self._members: dict[int, ProcessFiles] = {}
        self._found: set[int] = set()
        self._slots: dict[int, int] = {}
        self._scan_due: int | None = None
        self.unknown = False
        """Whether the kernel does not list the children of a process."""

    def __len__(self) -> int:
        return len(self._members)

    def look(self, now: int, apart: AbstractSet[int], *, keep: bool) -> list[Member]:
        """Return the processes below, oldest first, at the monotonic time `now` in ns.

        Leaves out the processes `apart` with their descendants: other ranks, and the watcher. With `keep`, files of new
        processes may stay open.
        """
        for pid in self._present(now, apart):
            if pid not in self._members and len(self._members) < PROCESSES:
                self._members[pid] = ProcessFiles(self._proc, pid, keep=keep)
        if not self._members:
            return []
        looks = {pid: look for pid, files in self._members.items() if (look := files.look(now)) is not None}
        kin = {self._head.pid, *looks}
        alive = {pid: look for pid, look in looks.items() if look.status.parent in kin}
        for pid in self._members.keys() - alive.keys():
            del self._members[pid]
            self._found.discard(pid)
            self._slots.pop(pid, None)
        found = [Member(self._members[pid], look) for pid, look in alive.items()]
        return sorted(found, key=lambda member: (member.look.status.started, member.files.pid))

    def _present(self, now: int, apart: AbstractSet[int]) -> set[int]:
        try:
            children = set(parse_children(self._children.read_same()))
            self.unknown = False
        except (FileNotFoundError, ProcessLookupError):
            children = set()
            self.unknown = True
        if self._scan_due is None or now >= self._scan_due:
            self._scan_due = now + SCAN_EVERY
            self._found = self._scan(apart)
        return (children | self._found) - apart

    def _scan(self, apart: AbstractSet[int]) -> set[int]:
        found: set[int] = set()
        waiting = self._head.children(THREADS) - apart
        while waiting and len(found) < PROCESSES:
            pid = waiting.pop()
            found.add(pid)
            files = self._members.get(pid) or ProcessFiles(self._proc, pid, keep=False)
            waiting |= files.children(THREADS_BELOW) - apart - found
        return found

    def workers(self, members: list[Member], rank: bytes) -> dict[int, Member]:
        """Return the workers among `members` by slot; a new worker takes the lowest free slot.

        `rank` is the command line of the trainer.
        """
        commands = {member.files.pid: member.files.command(member.look.status.name) for member in members}
        found = {}
        for member in members:
            pid, status = member.files.pid, member.look.status
            if is_worker(status.name, commands[pid], commands.get(status.parent, rank), rank):
                if pid not in self._slots:
                    taken = set(self._slots.values())
                    self._slots[pid] = next(place for place in range(len(taken) + 1) if place not in taken)
                found[self._slots[pid]] = member
        return found


WORKERS = 32
"""Maximum workers of one rank with their own values."""
KEPT = 128
"""Maximum processes whose files stay open; a limit of 1024 open files leaves room for the rest of the watcher."""
PSS_EVERY = 60_000_000_000
"""ns."""
PSS_LIMIT = 2 << 30
"""Bytes. Above this, summing the pages would hold the trainer's memory lock for too long."""
HIDDEN = {"stat": "*", "io": "read_bytes_per_second", "smaps_rollup": "pss_bytes", "fd": "open_files"}
"""The value that is missing if a file may not be read."""

METRICS = (
    gauge("process/*/cpu_ratio", "CPU time of the rank's process, as a share of one CPU."),
    BY_NAME["process/*/memory_bytes"],
    gauge(
        "process/*/pss_bytes",
        "Memory of the rank's process, with shared pages divided among their users; once a minute, below 2 GiB.",
    ),
    gauge(
        "process/*/run_wait_ratio",
        "Share of time in which the main thread of the rank's process was ready to run but waited for a CPU.",
    ),
    gauge(
        "process/*/numa_node",
        "NUMA node on whose CPUs the main thread of the rank's process ran last; only on machines with several.",
        "",
    ),
    gauge("process/*/threads", "Threads of the rank's process.", "threads"),
    gauge("process/*/open_files", "Open files, sockets and pipes of the rank's process.", "files"),
    gauge("process/*/read_bytes_per_second", "Bytes per second that the rank's process read from disks."),
    gauge("process/*/write_bytes_per_second", "Bytes per second that the rank's process wrote to disks."),
    gauge("process/*/children", "Running child processes of the rank's process.", "processes"),
    gauge("process/*/workers", "Data loader workers and other multiprocessing processes.", "processes"),
    gauge("process/*/tree_cpu_ratio", "CPU time of the rank and all its child processes, as a share of one CPU."),
    gauge(
        "process/*/tree_memory_bytes",
        "Resident memory of the rank and all its child processes; shared pages count once per process.",
    ),
    gauge(
        "process/*/tree_read_bytes_per_second",
        "Bytes per second that the rank and all its child processes read from disks.",
    ),
    gauge(
        "process/*/tree_requested_bytes_per_second",
        "Bytes per second that the rank and all its child processes read, from disks, page cache, pipes and sockets.",
    ),
    gauge("process/*/worker/*/cpu_ratio", "CPU time of a worker, as a share of one CPU."),
    gauge("process/*/worker/*/memory_bytes", "Resident memory of a worker."),
)


class OpenFiles:
    """Count the open files of processes: with one call if the kernel offers the count (Linux 6.2), else by listing."""

    def __init__(self, proc: str) -> None:
        """Check whether the size of a folder of files below `proc` is their number."""
        own = f"{proc}/self/fd"
        try:
            self._sized = os.stat(own).st_size == len(os.listdir(own)) - 1 > 0  # the listing itself opens one more
        except OSError:
            self._sized = False

    def count(self, files: ProcessFiles) -> int | None:
        """Return how many files a process has open; None if that is not visible."""
        folder = f"{files.folder}/fd"
        try:
            return os.stat(folder).st_size if self._sized else len(os.listdir(folder))
        except PermissionError as error:
            files.hidden["fd"] = error.strerror or str(error)
            return None
        except OSError:  # it has just ended
            return None


class Trainer:
    """One rank's process with its descendants."""

    def __init__(self, proc: str, rank: int, pid: int, numa: Mapping[int, int]) -> None:
        self._numa = numa
        self.rank, self.files = rank, ProcessFiles(proc, pid)
        self.descendants = Descendants(proc, self.files)
        self._statm = KernelFile(f"{proc}/{pid}/statm")
        self._schedstat = KernelFile(f"{proc}/{pid}/schedstat")
        self._waited = Growth()
        self.pss_due: int | None = None
        self._names: dict[str, str] = {}
        self._resident_seen = b""
        self.memory = 0
        self.ended = False

    def sample(self, now: int, apart: AbstractSet[int], *, keep: bool) -> dict[str, float]:
        """Return the values of the rank by the last part of their names; empty once its process has ended.

        See `Descendants.look` for the parameters.
        """
        look = None if self.ended else self.files.look(now)
        if look is None:
            self.ended = True
            return {}
        self.memory = self._resident(look)
        values = {
            "cpu_ratio": look.cpu_ratio,
            "memory_bytes": float(self.memory),
            "run_wait_ratio": self._run_wait(now),
            "numa_node": self._numa.get(look.status.processor),
            "threads": float(look.status.threads),
            "read_bytes_per_second": look.read_rate,
            "write_bytes_per_second": look.write_rate,
        }
        members = self.descendants.look(now, apart, keep=keep)
        if not self.descendants.unknown:
            values |= self._below(look, members)
        return {name: float(value) for name, value in values.items() if value is not None}

    def named(self, values: Mapping[str, float]) -> dict[str, float]:
        """Return values under their full names."""
        names = self._names
        for name in values.keys() - names.keys():
            names[name] = f"process/{self.rank}/{name}"
        return {names[name]: value for name, value in values.items()}

    def _resident(self, look: ProcessSample) -> int:
        """Return resident memory in bytes: statm is exact where stat is an estimate (Linux 6.2 and later)."""
        try:
            data = self._statm.read_same()
            if data == self._resident_seen:
                return self.memory
            self._resident_seen = data
            return number(data.split(None, 2)[1]) * PAGE
        except (OSError, IndexError):
            return look.status.pages * PAGE

    def _run_wait(self, now: int) -> float | None:
        """Return the share of time in which the main thread waited for a CPU; None if the kernel does not count it."""
        try:
            words = self._schedstat.read_same().split()
            rates = self._waited.of("", (number(words[1]),), now)
        except (OSError, IndexError, ValueError):  # built without CONFIG_SCHED_INFO, or it has just ended
            return None
        return None if rates is None else rates[0] / 1e9

    def _below(self, look: ProcessSample, members: list[Member]) -> dict[str, float | None]:
        workers = self.descendants.workers(members, self.files.command(look.status.name)) if members else {}
        looks = [look, *(member.look for member in members)]
        values: dict[str, float | None] = {
            "children": float(sum(member.look.status.parent == self.files.pid for member in members)),
            "workers": float(len(workers)),
            "tree_memory_bytes": float(self.memory + sum(member.look.status.pages for member in members) * PAGE),
            "tree_cpu_ratio": _sum(entry.cpu_ratio for entry in looks),
            "tree_read_bytes_per_second": _sum(entry.read_rate for entry in looks),
            "tree_requested_bytes_per_second": _sum(entry.call_rate for entry in looks),
        }
        for place, worker in workers.items():
            if place < WORKERS:
                values[f"worker/{place}/cpu_ratio"] = worker.look.cpu_ratio
                values[f"worker/{place}/memory_bytes"] = float(worker.look.status.pages * PAGE)
        return values


def _sum(rates: Iterable[float | None]) -> float | None:
    known = [rate for rate in rates if rate is not None]
    return sum(known) if known else None


class ProcessSampler(Sampler):
    """Read the processes of the ranks, and those below them, in /proc below `root`."""

    name = "process"
    metrics = METRICS

    def __init__(self, ranks: Callable[[], Mapping[int, int]], root: Path = Path("/"), own: int | None = None) -> None:
        """Follow the processes that `ranks` returns at each sample: the pid of every rank of this node.

        `own` is our pid, by default that of this process: if a trainer is process 1 we may be its child.
        """
        self._ranks, self._proc = ranks, f"{root}/proc"
        self._own = os.getpid() if own is None else own
        self._trainers: dict[tuple[int, int], Trainer] = {}
        self._open_files = OpenFiles(self._proc)
        self._numa = numa_nodes(root)

    def sample(self, now: int) -> dict[str, float]:
        """Return the values of every rank whose process is alive; `now` is monotonic time in ns."""
        ranks = self._ranks()
        before, self._trainers = self._trainers, {}
        for key in ranks.items():
            self._trainers[key] = before.get(key) or Trainer(self._proc, *key, self._numa)
        apart = {*ranks.values(), self._own}
        followed = sum(1 + len(trainer.descendants) for trainer in self._trainers.values())
        values: dict[str, float] = {}
        for trainer in self._trainers.values():
            found = trainer.sample(now, apart, keep=followed < KEPT)
            if found:
                open_files = self._open_files.count(trainer.files)
                if open_files is not None:
                    found["open_files"] = float(open_files)
            values |= trainer.named(found)
        return values | self._proportional(now)

    def _proportional(self, now: int) -> dict[str, float]:
        """Return PSS of the rank that has waited longest, once a minute each and only while it is small."""
        for trainer in self._trainers.values():
            if not trainer.ended and (trainer.pss_due is None or now >= trainer.pss_due):
                trainer.pss_due = now + PSS_EVERY
                total = trainer.files.proportional_bytes() if trainer.memory <= PSS_LIMIT else None
                return {} if total is None else {f"process/{trainer.rank}/pss_bytes": float(total)}
        return {}

    def absent(self) -> dict[str, str]:
        """Return which values of which rank are not visible."""
        reasons = {}
        for trainer in self._trainers.values():
            prefix, pid = f"process/{trainer.rank}/", trainer.files.pid
            for file, why in trainer.files.hidden.items():
                reasons[prefix + HIDDEN[file]] = f"/proc/{pid}/{file}: {why}; run as the user of process {pid}"
            if trainer.descendants.unknown and not trainer.ended:
                reasons[f"{prefix}tree_*"] = "the kernel does not list children; it needs CONFIG_PROC_CHILDREN"
            if trainer.memory > PSS_LIMIT:
                reasons[f"{prefix}pss_bytes"] = "above 2 GiB reading it would hold up the training; see memory_bytes"
        return reasons
