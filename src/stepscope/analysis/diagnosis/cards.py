"""Findings about GPUs: throttled by heat or power, idle, or with fragmented memory. Each GPU is judged by itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from stepscope.analysis.diagnosis.case import machine_wide
from stepscope.analysis.finding import INFO, WARNING, Finding
from stepscope.analysis.series.robust import median
from stepscope.core.numbers import format_share
from stepscope.core.remedies import remedy

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stepscope.analysis.diagnosis.evidence import Evidence, RankSteps, Track
    from stepscope.core.arrays import Floats

FEWEST = 8
"""Minimum samples of a GPU."""
THROTTLED = 0.1
"""Minimum share of the samples in which heat or power throttled a GPU."""
CAPPED = 0.9
IDLE = 0.5
"""Utilization below which a GPU counts as idle."""
UNUSED, USED = 0.02, 0.1
"""The run does not use a GPU that stays below the first utilization while another one reaches the second."""
FRAGMENTED = 0.3
"""Minimum share of the reserved memory in split blocks; it matters only if memory is short."""
SHORT = 0.85
SLOWDOWNS = {
    "hw_slowdown": ("heat or power (hardware slowdown)", ""),
    "hw_thermal": ("heat", "heat"),
    "sw_thermal": ("heat", "heat"),
    "power_brake": ("the machine's power supply", "supply"),
}
"""Reasons for a lower clock that are a problem: in words, and the cause that chooses the remedy. A power cap is normal
for many GPUs, unless it is always active."""


@dataclass(frozen=True, eq=False)
class _Card:
    """One GPU of one node; the rank of its samples is the node."""

    number: str
    node: int
    evidence: Evidence

    def track(self, what: str) -> Track:
        """Return the finite samples of a metric, those during the steps if there are enough."""
        return self.evidence.during(self.evidence.finite(f"gpu/{self.number}/{what}", self.node))

    def mean(self, what: str) -> float | None:
        """Return the mean of a metric of this GPU; None if it is missing."""
        found = self.track(what)
        return found.mean if len(found) else None

    @property
    def name(self) -> str:
        """Return its label, with its node if there are several."""
        nodes = {rank for by in self.evidence.matching("gpu/", "/utilization_ratio").values() for rank in by}
        return f"GPU {self.number}" + (f" of node {-self.node - 1}" if len(nodes) > 1 and self.node < 0 else "")


def cards(evidence: Evidence) -> Iterator[Finding]:
    """Yield the findings about the GPUs of a run."""
    found = [
        _Card(name.split("/")[1], node, evidence)
        for name, by in sorted(evidence.matching("gpu/", "/utilization_ratio").items())
        if name.count("/") == 2
        for node, track in sorted(by.items())
        if len(track.finite()) >= FEWEST
    ]
    slowed = [one for card in found if (one := _slowed(card, evidence.leader)) is not None]
    yield from sorted(slowed, key=lambda one: -(one.cost_seconds or 0.0))[:1]
    yield from [one for card in found for one in _fragmented(card)][:1]
    yield from _idle(found, evidence)


def _slowed(card: _Card, steps: RankSteps | None) -> Finding | None:
    shares = {why: card.mean(f"throttle_{why}") or 0.0 for why in (*SLOWDOWNS, "power_cap")}
    why = max(SLOWDOWNS, key=lambda one: shares[one])
    if shares[why] < THROTTLED:
        why = "power_cap"
        if shares[why] < CAPPED:
            return None
    reason, cause = SLOWDOWNS.get(why, ("its power limit", "power"))
    text = f"{card.name} is slowed down by {reason} in {format_share(shares[why])} of the samples"
    temperature = card.mean("temperature_celsius")
    facts = {"card": card.number, "reasons": shares, "temperature_celsius": temperature, "cause": cause}
    lost = _clock_lost(card, f"throttle_{why}")
    if lost is not None:
        facts["clock_lost_ratio"] = lost
        text += f", losing {format_share(lost)} of its clock"
    advice = remedy("gpu_throttled", cause, why=reason)
    if lost is None or steps is None or why == "power_cap":
        severity = INFO if why == "power_cap" else WARNING
        return Finding("gpu_throttled", text, severity, advice, facts, confidence=0.9)
    share = shares[why] * lost * (card.mean("utilization_ratio") or 0.0)
    return machine_wide("gpu_throttled", text, advice, steps, share, "at its full clock", facts)


def _clock_lost(card: _Card, reason: str) -> float | None:
    """Return the share of its clock that a GPU loses while it is throttled; None if its usual clock is unknown."""
    clock, throttled, busy = (card.track(what) for what in ("sm_clock_hertz", reason, "utilization_ratio"))
    if len(throttled) < FEWEST or len(clock) < FEWEST:
        return None
    slow = _at(throttled, clock.time) > 0
    # An idle GPU lowers its clock by itself.
    used = _at(busy, clock.time) > USED if len(busy) else np.ones(len(clock), bool)
    low, high = clock.value[slow & used], clock.value[~slow & used]
    return max(0.0, 1 - median(low) / median(high)) if len(low) and len(high) >= 3 else None


def _at(track: Track, times: Floats) -> Floats:
    """Return the sample of a metric at, or after, each time."""
    return np.asarray(track.value[np.clip(np.searchsorted(track.time, times), 0, len(track) - 1)])


def _fragmented(card: _Card) -> Iterator[Finding]:
    # The allocator of each rank reports its own memory, the driver that of the whole GPU.
    evidence, prefix, whole = card.evidence, f"gpu/{card.number}", card.mean("memory_total_bytes")
    for rank, track in evidence.series.get(f"{prefix}/memory_fragmentation_ratio", {}).items():
        held, share = evidence.finite(f"{prefix}/memory_reserved_bytes", rank).mean, track.mean
        if whole and share >= FRAGMENTED and held >= SHORT * whole:
            text = f"{format_share(share)} of the memory that torch reserves on {card.name} is in split blocks, "
            text += f"and {format_share(held / whole)} of the card is reserved"
            facts = {"fragmentation_ratio": share, "reserved_bytes": held, "total_bytes": whole}
            yield Finding("fragmentation", text, WARNING, remedy("fragmentation"), facts, confidence=0.8)


def _idle(found: list[_Card], evidence: Evidence) -> Iterator[Finding]:
    """Yield idle GPUs: a symptom whose cause the steps may show."""
    used = {card: card.mean("utilization_ratio") or 0.0 for card in found}
    if max(used.values(), default=0.0) >= USED:  # cards that are there and that the run does not use
        used = {card: share for card, share in used.items() if share >= UNUSED}
    idle = {card: share for card, share in used.items() if share < IDLE}
    if not idle:
        return
    worst = min(idle, key=lambda card: idle[card])
    steps = evidence.leader
    cost = (1 - idle[worst]) * steps.total if steps is not None and len(steps) else None
    text = f"{worst.name} is busy only {format_share(idle[worst])} of the time"
    text += f", {len(idle)} of {len(used)} below half" if len(idle) > 1 else ""
    facts: dict[str, Any] = {"utilization_ratio": {card.name: share for card, share in used.items()}}
    severity, cause = INFO, ""
    if evidence.is_on_cpu and max(used.values()) < USED:
        text += "; the model runs on the CPU"
        severity, cause = WARNING, "unused"
        facts["cause"] = cause
    yield Finding("gpu_idle", text, severity, remedy("gpu_idle", cause), facts, confidence=0.8, cost_seconds=cost)
