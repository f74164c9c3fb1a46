"""Findings about GPUs: throttled by heat or power, idle, or with fragmented memory. Each GPU is judged by itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from stepscope.analysis.diagnosis.tell import machine_wide
from stepscope.analysis.finding import INFO, WARNING, Finding
from stepscope.core.numbers import format_share
from stepscope.core.remedies import remedy

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stepscope.analysis.diagnosis.evidence import Evidence, RankSteps, Track

FEWEST = 8
"""Fewest samples of a GPU to judge it."""
THROTTLED = 0.1
"""Share of the samples in which a GPU was held down by heat or power."""
CAPPED = 0.9
IDLE = 0.5
"""Utilization below which a GPU counts as idle."""
UNUSED, USED = 0.02, 0.1
"""Utilisation that a card never exceeds which the run does not use, if another card has at least the second."""
FRAGMENTED = 0.3
"""Share of the reserved memory in split blocks; it matters where memory is short."""
SHORT = 0.85
SLOWDOWNS = {
    "hw_slowdown": ("heat or power (hardware slowdown)", ""),
    "hw_thermal": ("heat", "heat"),
    "sw_thermal": ("heat", "heat"),
    "power_brake": ("the machine's power supply", "supply"),
}
"""Reasons for a lower clock that are trouble, for people, and the cause by which their remedy is found; a power cap is
how many cards run by design, unless it is always on."""


@dataclass(frozen=True, eq=False)
class _Card:
    """One GPU of one node; the node is the rank of its samples."""

    number: str
    node: int
    evidence: Evidence

    def track(self, what: str) -> Track | None:
        """Return a metric of it, during the steps where there are samples of them."""
        found = self.evidence.track(f"gpu/{self.number}/{what}", self.node)
        return self.evidence.during(found.finite()) if found is not None else None

    def mean(self, what: str) -> float | None:
        """Return the mean of a metric of this GPU; None if it is missing."""
        found = self.track(what)
        return found.mean if found is not None and len(found) else None

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
    slowed = [one for card in found for one in _slowed(card, evidence.leader)]
    yield from sorted(slowed, key=lambda one: -(one.cost_seconds or 0.0))[:1]
    yield from [one for card in found for one in _fragmented(card)][:1]
    yield from _idle(found, evidence)


def _slowed(card: _Card, steps: RankSteps | None) -> Iterator[Finding]:
    shares = {why: card.mean(f"throttle_{why}") or 0.0 for why in (*SLOWDOWNS, "power_cap")}
    why = max(SLOWDOWNS, key=lambda one: shares[one])
    if shares[why] < THROTTLED:
        if shares["power_cap"] < CAPPED:
            return
        why = "power_cap"
    said, cause = SLOWDOWNS.get(why, ("its power limit", "power"))
    text = f"{card.name} is slowed down by {said} in {format_share(shares[why])} of the samples"
    facts = {
        "card": card.number,
        "reasons": shares,
        "temperature_celsius": card.mean("temperature_celsius"),
        "cause": cause,
    }
    lost = _lost(card, f"throttle_{why}")
    if lost is not None:
        facts["clock_lost_ratio"] = lost
        text += f", losing {format_share(lost)} of its clock"
    severity = WARNING if why != "power_cap" else INFO
    advice = remedy("gpu_throttled", cause, why=said)
    if lost is None or steps is None or severity == INFO:
        yield Finding("gpu_throttled", text, severity, advice, facts, confidence=0.9)
        return
    share = shares[why] * lost * (card.mean("utilization_ratio") or 0.0)
    yield machine_wide("gpu_throttled", text, advice, steps, share, "at its full clock", facts)


def _lost(card: _Card, reason: str) -> float | None:
    """Return the share of its clock that a card loses while it is held down; None if unknown its usual one."""
    clock, held = card.track("sm_clock_hertz"), card.track(reason)
    if clock is None or held is None or len(held) < FEWEST or len(clock) < FEWEST:
        return None
    place = np.clip(np.searchsorted(held.time, clock.time), 0, len(held) - 1)
    slow = held.value[place] > 0
    busy = card.track("utilization_ratio")
    if busy is not None and len(busy):  # an idle card lowers its clock by itself
        slow_or_free = busy.value[np.clip(np.searchsorted(busy.time, clock.time), 0, len(busy) - 1)] > USED
    else:
        slow_or_free = np.ones(len(clock), bool)
    low, high = clock.value[slow & slow_or_free], clock.value[~slow & slow_or_free]
    if not len(low) or len(high) < 3:
        return None
    return max(0.0, 1 - float(np.median(low)) / float(np.median(high)))


def _fragmented(card: _Card) -> Iterator[Finding]:
    # The allocator of each rank reports its own memory, the driver that of the whole GPU.
    evidence, number = card.evidence, card.number
    for rank, track in evidence.series.get(f"gpu/{number}/memory_fragmentation_ratio", {}).items():
        held = evidence.track(f"gpu/{number}/memory_reserved_bytes", rank)
        share, whole = track.mean, card.mean("memory_total_bytes")
        if held is None or not whole or share < FRAGMENTED or held.mean < SHORT * whole:
            continue
        text = f"{format_share(share)} of the memory that torch reserves on {card.name} is in split blocks, "
        text += f"and {format_share(held.mean / whole)} of the card is reserved"
        facts = {"fragmentation_ratio": share, "reserved_bytes": held.mean, "total_bytes": whole}
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
    facts = {"utilization_ratio": {card.name: share for card, share in used.items()}}
    on_processors = any(one.get("device") == "cpu" for one in evidence.of_kind("torch_setup"))
    if on_processors and max(used.values()) < USED:
        text += "; the model runs on the CPU"
        advice = remedy("gpu_idle", "unused")
        yield Finding("gpu_idle", text, WARNING, advice, {**facts, "cause": "unused"}, None, 0.8, cost)
        return
    yield Finding("gpu_idle", text, INFO, remedy("gpu_idle"), facts, confidence=0.8, cost_seconds=cost)
