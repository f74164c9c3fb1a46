"""Findings about the machine: quotas, swap, leaks, full disks and GPUs."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from stepscope.analysis.diagnosis.case import machine_wide
from stepscope.analysis.diagnosis.composition import OTHERS, is_disturbed, others_use
from stepscope.analysis.finding import CRITICAL, INFO, WARNING, Finding
from stepscope.analysis.series.forecast import FAR, HOUR, SOON, disk_full, together
from stepscope.analysis.series.leak import STEADY, MemoryTrend, assess
from stepscope.analysis.series.robust import median
from stepscope.core.numbers import format_duration, format_share, format_value
from stepscope.core.remedies import remedy

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stepscope.analysis.diagnosis.evidence import Evidence, RankSteps, Track
    from stepscope.core.arrays import Floats

THROTTLED, HELD = 0.2, 0.05
"""Minimum share of the scheduling periods in which a cgroup's quota ran out, and of the time in which it throttled
threads, for a finding."""
SWAPPED, SWAP_PRESSURE, SWAPPED_BLINDLY = 64 * 2**20, 0.05, 0.05
"""Minimum bytes swapped during the run, and share of time in which processes waited for memory; and the share of all
memory that must be swapped if the waiting time is unknown."""
LEAST_RISE, LEAST_RISE_SHARE = 24 * 2**20, 0.05
"""Minimum growth of memory for a finding: bytes, and share of its level."""
FEWEST_READINGS = 16
STILL = MemoryTrend(STEADY, "nothing grows")
"""Trend of a process that does not grow."""
FIRST_STEPS = 3
"""Steps during which memory is still being allocated."""
OWN_WRITES = 0.5
"""Share of the disk's growth that the run itself must write for a finding."""
FEWEST_SAMPLES = 8
"""Minimum samples of a GPU."""
SLOWED = 0.1
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


def machine(evidence: Evidence) -> Iterator[Finding]:
    """Yield the findings about the machine."""
    for part in (_quota, _swap, _leaks, _disk, _cards):
        yield from part(evidence)


def _quota(evidence: Evidence) -> Iterator[Finding]:
    share = evidence.mean("cgroup/throttled_ratio")
    steps = evidence.leader
    if share is None or share < THROTTLED or steps is None:
        return
    limit = evidence.mean("cgroup/cpu_limit")
    text = f"the CPU quota{f' of {limit:.3g} CPUs' if limit else ''} ran out in {format_share(share)} of the periods"
    facts = {"throttled_ratio": share, "cpu_limit": limit, "step_seconds": steps.total / max(1, steps.count)}
    throttled, advice = _throttled(evidence), remedy("cpu_throttled")
    if throttled is None:
        cost = share * steps.total
        yield Finding("cpu_throttled", text, WARNING, advice, facts, confidence=0.9, cost_seconds=cost)
    elif throttled >= HELD:
        text += f", and threads were throttled for {format_share(throttled)} of the time"
        yield machine_wide("cpu_throttled", text, advice, steps, throttled, "with all the CPUs it needs", facts)


def _throttled(evidence: Evidence) -> float | None:
    """Return the share of the time in which a quota throttled the threads; None if it was not counted.

    It is relative to the seconds in which threads ran or were throttled, and at least to the whole time if no other
    program used the processors.
    """
    counted = evidence.during(evidence.finite("cgroup/throttled_seconds_total"))
    trees = [one for by in evidence.matching("process/", "/tree_cpu_ratio").values() for one in by.values()]
    running = sum(evidence.during(one).mean for one in trees)
    if len(counted) < 2 or counted.time[-1] <= counted.time[0] or not running > 0:
        return None
    held = float(counted.value[-1] - counted.value[0]) / float(counted.time[-1] - counted.time[0])
    machine_used, processors = evidence.mean("cpu/machine_usage_ratio"), evidence.mean("cpu/count")
    others = machine_used * processors - running if machine_used is not None and processors else 0.0
    whole = held + running
    return held / (whole if processors and others > OTHERS * processors else max(1.0, whole)) if held > 0 else None


def _swap(evidence: Evidence) -> Iterator[Finding]:
    """Yield swapping while processes waited for memory; swapped memory that is not needed does no harm."""
    used = evidence.finite("swap/used_bytes").value
    if len(used) < 2:
        return
    grown, held = float(used.max() - used[0]), float(used.max())
    text, advice = f"{format_value(grown, 'bytes')} of memory was swapped out during the run", remedy("swapping")
    facts = {"swapped_bytes": grown, "held_bytes": held, "waiting_ratio": None}
    waiting, steps = evidence.track("pressure/memory_some_stalled_ratio"), evidence.leader
    if waiting is None:
        if grown >= max(SWAPPED, SWAPPED_BLINDLY * (evidence.mean("memory/total_bytes") or 0.0)):
            yield Finding("swapping", text, WARNING, advice, facts, confidence=0.6)
        return
    pressure = evidence.during(waiting).mean
    if held >= SWAPPED and pressure >= SWAP_PRESSURE and steps is not None:
        text = text if grown >= SWAPPED else f"{format_value(held, 'bytes')} of memory is in swap"
        text += f", and processes waited for memory {format_share(pressure)} of the time"
        facts["waiting_ratio"] = pressure
        yield machine_wide("swapping", text, advice, steps, pressure, "if memory suffices", facts)


def _leaks(evidence: Evidence) -> Iterator[Finding]:
    """Yield memory that grows without end, for each rank and each GPU."""
    reported: set[int] = set()
    for rank, finding in _host_leaks(evidence):
        reported.add(rank)
        yield finding
    for what in ("memory_allocated_bytes", "memory_used_bytes"):
        for name, by_rank in evidence.matching("gpu/", f"/{what}").items():
            card = name.split("/")[1]
            limit = evidence.mean(f"gpu/{card}/memory_total_bytes")
            for rank, track in by_rank.items():
                trend = _grown(track, limit) if rank not in reported else None
                if trend is not None:
                    reported.add(rank)
                    yield _leak(f"memory of GPU {card}", track, trend, rank)


def _host_leaks(evidence: Evidence) -> Iterator[tuple[int, Finding]]:
    """Yield the ranks whose host memory grows; the ranks of one machine fill it together."""
    limit = evidence.mean("cgroup/memory_limit_bytes") or evidence.mean("memory/total_bytes")
    # Imports, data and compiled code stay in memory: growth before the steps begin is not a leak.
    begun = [float(event["time"]) for event in evidence.of_kind("compile")]
    begun += [float(steps.end[min(FIRST_STEPS, len(steps) - 1)]) for steps in evidence.ranks if len(steps)]
    since = max(begun, default=-math.inf)
    for tracks in _machines(evidence).values():
        found = {rank: one for rank, track in tracks.items() if (one := _of_rank(evidence, rank, track, limit, since))}
        others = [STILL] * (len(tracks) - len(found))
        held = sum(float(track.value[-1]) for track in tracks.values())
        joined = together([*(trend for _, _, trend in found.values()), *others], held, limit)
        for (rank, (name, track, _)), trend in zip(found.items(), joined, strict=False):
            yield rank, _leak(name, track, trend, rank, shared=len(found) > 1)


def _machines(evidence: Evidence) -> dict[int, dict[int, Track]]:
    """Return by machine and rank the memory of its process tree, or of the rank alone if that is unknown."""
    found: dict[int, dict[int, Track]] = {}
    for name, by_node in evidence.matching("process/", "/tree_memory_bytes").items():
        for node, track in by_node.items():
            found.setdefault(node, {})[int(name.split("/")[1])] = track.finite()
    known = {rank for tracks in found.values() for rank in tracks}
    for rank, track in evidence.series.get("memory/resident_bytes", {}).items():
        if rank not in known:
            found.setdefault(min(found, default=-1), {})[rank] = track.finite()
    return {node: {rank: track for rank, track in sorted(of.items()) if len(track)} for node, of in found.items()}


def _of_rank(
    evidence: Evidence, rank: int, tree: Track, limit: float | None, since: float
) -> tuple[str, Track, MemoryTrend] | None:
    """Return which memory of a rank grows after a time, its own or with its workers, and the trend; None if none."""
    workers = " and its workers" if (evidence.mean(f"process/{rank}/workers") or 0.0) >= 1 else ""
    own = evidence.track("memory/resident_bytes", rank)
    for name, track in ((f"memory of rank {rank}", own), (f"memory of rank {rank}{workers}", tree)):
        later = track.within(since, math.inf) if track is not None else None
        trend = _grown(later, limit) if later is not None else None
        if later is not None and trend is not None:
            return name, later, trend
    return None


def _grown(track: Track, limit: float | None) -> MemoryTrend | None:
    """Return the trend of memory that grows without end; None if it does not."""
    if len(track) < FEWEST_READINGS:
        return None
    trend = assess(track.time, track.value, limit=limit)
    risen, level = trend.risen or 0.0, trend.level or 0.0
    if not trend.growing or trend.rate is None or risen < max(LEAST_RISE, LEAST_RISE_SHARE * level):
        return None
    return trend


def _leak(name: str, track: Track, trend: MemoryTrend, rank: int, *, shared: bool = False) -> Finding:
    rate = trend.rate or 0.0
    text = f"{name} grows by {format_value(rate * HOUR, 'bytes')} per hour"
    steps = track.step[-1] - track.step[0]
    if steps > 0:
        each = rate * float(track.time[-1] - track.time[0]) / float(steps)
        text += f", {format_value(each, 'bytes')} per step"
    severity = WARNING
    if trend.left is not None and trend.left < FAR:
        together_with = "together with the other growing ranks it fills the machine in"
        text += f"; {together_with if shared else 'at this rate memory is full in'} {format_duration(trend.left)}"
        severity = CRITICAL if (trend.left_low or trend.left) < SOON else WARNING
    facts, owner = {**trend.facts(), "of": name}, rank if rank >= 0 else None
    return Finding("memory_leak", text, severity, remedy("memory_leak"), facts, confidence=0.9, rank=owner)


def _disk(evidence: Evidence) -> Iterator[Finding]:
    """Yield that the disk will be full soon, if the run itself fills it."""
    track = evidence.track("disk/free_bytes")
    finding = disk_full(track.time, track.value) if track is not None and len(track) >= FEWEST_READINGS else None
    rate = finding.evidence.get("rate") if finding is not None else None
    if finding is None or not rate or finding.severity != CRITICAL:
        return
    written = evidence.matching("process/", "/write_bytes_per_second").values()
    if sum(track.mean for by in written for track in by.values()) > OWN_WRITES * float(rate):
        yield replace(finding, confidence=0.7)


def busy(evidence: Evidence) -> str:
    """Return a sentence if other programs used the machine during the run, else nothing: it is not a finding."""
    others = others_use(evidence)
    if others is None or not evidence.processors or not is_disturbed(evidence) or others < 0.2:
        return ""
    text = f"other programs used {others:.1f} of {evidence.processors:.0f} CPUs: "
    return text + "shares and gains are from the undisturbed steps"


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


def _cards(evidence: Evidence) -> Iterator[Finding]:
    """Yield the findings about the GPUs of a run."""
    found = [
        _Card(name.split("/")[1], node, evidence)
        for name, by in sorted(evidence.matching("gpu/", "/utilization_ratio").items())
        if name.count("/") == 2
        for node, track in sorted(by.items())
        if len(track.finite()) >= FEWEST_SAMPLES
    ]
    slowed = [one for card in found if (one := _slowed(card, evidence.leader)) is not None]
    yield from sorted(slowed, key=lambda one: -(one.cost_seconds or 0.0))[:1]
    yield from [one for card in found for one in _fragmented(card)][:1]
    yield from _idle(found, evidence)


def _slowed(card: _Card, steps: RankSteps | None) -> Finding | None:
    shares = {why: card.mean(f"throttle_{why}") or 0.0 for why in (*SLOWDOWNS, "power_cap")}
    why = max(SLOWDOWNS, key=lambda one: shares[one])
    if shares[why] < SLOWED:
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
    if len(throttled) < FEWEST_SAMPLES or len(clock) < FEWEST_SAMPLES:
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
