"""The processes below a trainer: its data loader workers, and everything else it started."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from stepscope.samplers.kernel import KernelFile
from stepscope.samplers.process_files import ProcessFiles, ProcessSample, parse_children

if TYPE_CHECKING:
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
