"""By how much the clocks of nodes differ, from steps that end on all of them at once, and from their heartbeats.

In synchronous training a step ends at the same true moment on every rank: the median difference of the recorded end
times is the offset of the clocks, within milliseconds. A heartbeat tells a node's own time and, by the age of its file,
that of the file server: good to about a second, whatever the ranks do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from stepscope.core.node_names import shown_nodes
from stepscope.core.numbers import format_value

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stepscope.core.arrays import Floats, Integers

STEPS, HEARTBEAT, REFERENCE, UNKNOWN = "steps", "heartbeat", "reference", "unknown"
FEWEST = 8
"""Common steps that are needed."""
DRIFT = 1e-4
"""Most that a clock gains on another, in seconds per second: cheap quartz at a bad temperature."""
TOGETHER = 0.25
"""Share of a step by which ranks that meet in it may end it apart."""
BEAT_SPREAD = 1.0
"""Seconds by which a heartbeat may be wrong: it is written a little after its time is taken."""
AGREE = 5.0
"""Seconds by which the two sources may differ; beyond it, the ranks started apart and do not meet in a step."""
WORTH_SAYING = 0.5
"""Seconds of difference from which it is reported."""
TINY = 1e-3
"""Seconds that are as good as none."""


@dataclass(frozen=True)
class ClockOffset:
    """By how much the clock of a node is ahead of the clock of the node with rank 0."""

    seconds: float
    """To subtract from the node's times."""
    spread_seconds: float
    """How far off that may be."""
    source: str
    """steps, heartbeat, reference (the node with rank 0), or unknown: then it counts as 0."""

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as plain data."""
        return {"seconds": self.seconds, "spread_seconds": self.spread_seconds, "source": self.source}


@dataclass(frozen=True)
class StepEnds:
    """When a rank of a node ended some steps, by the clock of the node."""

    step: Integers
    end: Floats
    """Seconds since 1970."""


def from_steps(own: StepEnds, reference: StepEnds) -> ClockOffset | None:
    """Return the offset of a node from the steps that both have; None if they do not end them together."""
    step, mine, theirs = np.intersect1d(own.step, reference.step, return_indices=True)
    if len(step) < FEWEST:
        return None
    apart, when = own.end[mine] - reference.end[theirs], reference.end[theirs]
    usual = float(np.median(np.diff(when) / np.maximum(np.diff(step), 1)))
    middle = len(apart) // 2
    early, late = apart[:middle], apart[middle:]
    noise = max(_spread(early), _spread(late))
    moved = abs(float(np.median(late) - np.median(early)))
    if noise > TOGETHER * max(usual, 0.0) + 1e-3 or moved > DRIFT * float(when[-1] - when[0]) + 4 * noise + 1e-3:
        return None
    return ClockOffset(float(np.median(apart)), max(noise, moved / 2), STEPS)


def judged(by_steps: ClockOffset | None, by_beat: float | None) -> ClockOffset:
    """Return the offset of a node, from what its steps and its heartbeat tell (seconds; None if it tells nothing).

    The steps are more exact. Unless the heartbeat contradicts them: ranks that never meet may be apart by any time.
    """
    if by_steps is not None and (by_beat is None or abs(by_steps.seconds - by_beat) <= AGREE):
        return by_steps
    return ClockOffset(0.0, 0.0, UNKNOWN) if by_beat is None else ClockOffset(by_beat, BEAT_SPREAD, HEARTBEAT)


def facts(offsets: Mapping[str, ClockOffset]) -> dict[str, Any]:
    """Return the offsets as plain data: most seconds apart, a sentence for people if it matters, and every node."""
    nodes = {node: offset.as_dict() for node, offset in sorted(offsets.items())}
    return {"apart_seconds": difference(offsets), "text": sentence(offsets), "nodes": nodes}


def difference(offsets: Mapping[str, ClockOffset]) -> float:
    """Return by how many seconds the clocks differ at most."""
    seconds = [one.seconds for one in offsets.values()]
    return max(seconds, default=0.0) - min(seconds, default=0.0)


def sentence(offsets: Mapping[str, ClockOffset]) -> str:
    """Return what people should know about the clocks; empty if they hardly differ."""
    apart = difference(offsets)
    if apart < WORTH_SAYING:
        return ""
    shown = shown_nodes(offsets)
    ends = (max(offsets, key=lambda node: offsets[node].seconds), min(offsets, key=lambda node: offsets[node].seconds))
    worst = [f"{shown[node]} is {ahead(offsets[node].seconds)}" for node in ends if abs(offsets[node].seconds) > TINY]
    whole = f"those of the nodes differ by up to {format_value(apart, 'seconds')}"
    return f"{whole} ({', '.join(worst)}); times are corrected"


def ahead(seconds: float) -> str:
    """Return an offset in words, such as "31.2 s ahead"."""
    return f"{format_value(abs(seconds), 'seconds')} {'ahead' if seconds >= 0 else 'behind'}"


def _spread(values: Floats) -> float:
    return 1.4826 * float(np.median(np.abs(values - np.median(values)))) if len(values) else 0.0
