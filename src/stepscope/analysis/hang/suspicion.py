"""What one source of evidence says about a hang, before the sources are merged."""

from __future__ import annotations

from dataclasses import dataclass, field

NONE, NEVER_ARRIVED, DESYNCHRONISED, COLLECTIVE_STUCK = "none", "never_arrived", "desynchronised", "collective_stuck"
DEAD_RANK, OUTSIDE_TORCH, UNKNOWN = "dead_rank", "outside_torch", "unknown"
KINDS = (NONE, NEVER_ARRIVED, DESYNCHRONISED, COLLECTIVE_STUCK, DEAD_RANK, OUTSIDE_TORCH, UNKNOWN)
STEPS, STACKS, FLIGHT_RECORDER, RAS = "steps", "stacks", "flight_recorder", "ras"
SOURCES = (STEPS, STACKS, FLIGHT_RECORDER, RAS)


@dataclass(frozen=True)
class Suspicion:
    """The opinion of one source."""

    source: str
    kind: str = UNKNOWN
    ranks: tuple[int, ...] = ()
    """The cause; empty if the source cannot tell."""
    waiting: tuple[int, ...] = ()
    text: str = ""
    """One sentence without its full stop."""
    sentences: list[str] = field(default_factory=list)
    """What the source shows."""
    confidence: float = 0.5
    """From 0 to 1, if this were the only source."""
