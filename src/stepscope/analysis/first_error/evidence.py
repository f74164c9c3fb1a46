"""What is known about the end of each rank, as plain data, and the answer: the first true error."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from stepscope.core.console_line import ConsoleLine


class Skew(NamedTuple):
    """The clock of a node: seconds to subtract from its times, and how far that may be wrong, in seconds."""

    seconds: float = 0.0
    spread_seconds: float = 0.0


@dataclass(frozen=True)
class EndedRank:
    """How one rank ended, as its watcher saw it; `ended` is seconds since 1970 by the clock of its node."""

    rank: int
    node: str = ""
    state: str = "running"
    cause: str = ""
    ended: float | None = None
    inferred: bool = False
    """Whether nobody saw the end."""
    step: int | None = None
    """The last completed step."""


@dataclass(frozen=True)
class ErrorEvidence:
    """What N ranks printed and how they ended."""

    lines: Mapping[int, Sequence[ConsoleLine]] = field(default_factory=dict)
    """The last lines of each rank, of one attempt, in their order."""
    ends: Sequence[EndedRank] = ()
    errors: Sequence[Mapping[str, Any]] = ()
    """Events with rank, time, error (as in "KeyError: 'x'") and traceback, where the rank reported one."""
    skews: Mapping[str, Skew] = field(default_factory=dict)
    """The clocks of the nodes, by name."""
    world_size: int | None = None


class FoldedError(NamedTuple):
    """Errors of other ranks that follow from the first one: what they printed, and why it does not count."""

    ranks: tuple[int, ...]
    line: str
    why: str


@dataclass(frozen=True)
class FirstError:
    """The error that began a failure; `time` is seconds since 1970 by the clock of rank 0's node."""

    rank: int
    node: str
    time: float | None
    kind: str
    """exception, gpu_memory, host_memory, gpu_fault, device_assert, disk_full, import, worker, native, killed, lost,
    exit, collective, thread, handled, hang, peer, launcher, stopped, preempted or left."""
    summary: str
    """One sentence for people."""
    ranks: tuple[int, ...] = ()
    """All ranks with this same error, in order."""
    error: str = ""
    """The exception or the end itself, without rank and node."""
    lines: tuple[str, ...] = ()
    """The last or most telling lines of the rank, at most 20."""
    chain: tuple[str, ...] = ()
    """Its exceptions, root cause first."""
    others: tuple[FoldedError, ...] = ()
    confidence: float = 0.0
    """From 0 to 1."""
    why: str = ""
    """Why this one is the first."""
    step: int | None = None
    local_time: float | None = None
    """The time by the clock of its own node, as in its console."""

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as plain values."""
        return {**asdict(self), "others": [one._asdict() for one in self.others]}
