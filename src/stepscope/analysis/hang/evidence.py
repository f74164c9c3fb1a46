"""The evidence of a hang as plain data: what is known of each rank, and what NCCL's RAS says of its communicators."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from stepscope.analysis.hang.operation import RecordedOp
from stepscope.analysis.hang.record import FlightRecord, RecordedGroup

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "FlightRecord",
    "HangEvidence",
    "RankEvidence",
    "RasCommunicator",
    "RasReport",
    "RecordedGroup",
    "RecordedOp",
]


@dataclass(frozen=True)
class RankEvidence:
    """What is known of one rank at the time of the hang."""

    rank: int
    node: str = ""
    state: str = "running"
    """As in the run: running, finished, failed, killed, …; its end counts only if it came before the others stood."""
    cause: str = ""
    """How it ended, as text."""
    step: int | None = None
    """The last step."""
    steps: int | None = None
    """Completed steps."""
    phase: str = ""
    """The long phase that it is in, such as checkpoint; empty if none."""
    silent_seconds: float | None = None
    """Since its last step ended."""
    usual_seconds: float | None = None
    """Of a usual step."""
    stacks: tuple[Mapping[str, Any], ...] = ()
    """Its threads: `thread`, `name`, `frames`, innermost first, each with `file`, `line` and `function`."""
    waits: tuple[Mapping[str, Any], ...] = ()
    """Its threads as the kernel sees them: `thread`, `name`, `state`, `waits_in`; the first is the main one."""
    stall: str = ""
    """"" while it moves, stalled, or hung."""
    no_stacks: str = ""
    """Why there are no stacks."""
    record: FlightRecord | None = None
    ended: float | None = None
    """Seconds since 1970; None while it runs, or if that is unknown."""


@dataclass(frozen=True)
class RasCommunicator:
    """One communicator of NCCL, as its RAS reports it."""

    name: str
    """Its hash."""
    counts: Mapping[int, Mapping[str, int]] = field(default_factory=dict)
    """By rank of the job (of the communicator if that is unknown): how many of each collective it has begun."""
    status: Mapping[int, str] = field(default_factory=dict)
    """By rank: RUNNING, INIT, ABORT, …"""
    missing: tuple[int, ...] = ()
    """Ranks that did not answer."""
    dead: tuple[int, ...] = ()
    """Ranks whose process RAS knows to have ended."""
    size: int = 0


@dataclass(frozen=True)
class RasReport:
    """What NCCL's RAS said, once or twice."""

    communicators: tuple[RasCommunicator, ...] = ()
    before: tuple[RasCommunicator, ...] = ()
    """An earlier reading, to see what has moved since; empty if there was one reading only."""
    version: str = ""


@dataclass(frozen=True)
class HangEvidence:
    """All that is known of a job that may hang."""

    ranks: tuple[RankEvidence, ...] = ()
    world_size: int | None = None
    """Ranks that the job has; None if that is unknown."""
    ras: RasReport | None = None
    offsets: Mapping[str, float] = field(default_factory=dict)
    """Seconds to subtract from the times of each node."""
    problems: tuple[str, ...] = ()
    """What could not be used, one sentence each."""

    def of_rank(self, rank: int) -> RankEvidence | None:
        """Return what is known of one rank; None if nothing is."""
        return next((one for one in self.ranks if one.rank == rank), None)
