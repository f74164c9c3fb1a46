"""What the machine says: quotas, GPUs that are slowed down or idle, swap, leaks, fragmentation, full disks."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from stepscope.analysis.diagnosis.composition import is_disturbed, others_use
from stepscope.analysis.finding import CRITICAL, INFO, WARNING, Finding
from stepscope.analysis.forecast import HOUR, SOON, disk_full, spell
from stepscope.analysis.leak import assess
from stepscope.core.remedies import remedy
from stepscope.core.vocabulary import format_value

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stepscope.analysis.diagnosis.evidence import Evidence, Track

THROTTLED = 0.2
"""Share of the scheduling periods in which a control group's quota ran out, from which on it is a finding."""
GPU_THROTTLED = 0.1
"""Share of the samples in which a GPU was held down by heat or power."""
GPU_IDLE = 0.5
"""Utilisation below which a GPU waits: S3-035's threshold."""
FRAGMENTED = 0.3
"""Share of the reserved memory in split blocks; it matters where memory is short."""
SHORT = 0.85
SWAPPED, SWAP_PRESSURE = 64 * 2**20, 0.05
"""Bytes that went to swap during the run, and share of the time in which something waited for memory."""
LEAST_RISE, LEAST_RISE_SHARE = 24 * 2**20, 0.05
"""Growth of memory that is worth a finding: bytes, and share of its level."""
FEWEST_READINGS = 16
FIRST_STEPS = 3
"""Steps before which memory is still being taken."""
OWN_WRITES = 0.5
"""Share of what fills the disk that the run itself must write to be told of it."""
SLOWDOWNS = {
    "hw_slowdown": "heat or power (hardware slowdown)",
    "hw_thermal": "heat",
    "sw_thermal": "heat",
    "power_brake": "the power supply of the machine",
}
"""Reasons for a lower clock that are trouble; a power cap is how many cards run by design, unless it is always on."""
CAPPED = 0.9


def machine(evidence: Evidence) -> Iterator[Finding]:
    """Yield what is wrong with the machine under the run."""
    yield from _quota(evidence)
    yield from _swap(evidence)
    yield from leaks(evidence)
    yield from _disk(evidence)
    yield from _gpus(evidence)


def _quota(evidence: Evidence) -> Iterator[Finding]:
    share = evidence.mean("cgroup/throttled_ratio")
    steps = evidence.leader
    if share is None or share < THROTTLED or steps is None:
        return
    limit = evidence.mean("cgroup/cpu_limit")
    text = f"the processor quota{f' of {limit:.3g} processors' if limit else ''} ran out in {share:.0%} of the periods"
    facts = {"throttled_ratio": share, "cpu_limit": limit}
    cost = share * steps.total
    yield Finding("cpu_throttled", text, WARNING, remedy("cpu_throttled"), facts, confidence=0.9, cost_seconds=cost)


def _swap(evidence: Evidence) -> Iterator[Finding]:
    used = evidence.track("swap/used_bytes")
    pressure = evidence.mean("pressure/memory_some_stalled_ratio")
    if used is None or len(used.finite()) < 2:
        return
    value = used.finite().value
    grown = float(value.max() - value[0])
    if grown < SWAPPED or (pressure is not None and pressure < SWAP_PRESSURE):
        return
    text = f"{format_value(grown, 'bytes')} of memory went to swap during the run"
    facts = {"swapped_bytes": grown, "waiting_ratio": pressure}
    yield Finding("swapping", text, WARNING, remedy("swapping"), facts, confidence=0.8 if pressure else 0.6)


def leaks(evidence: Evidence) -> Iterator[Finding]:
    """Yield memory that grows and does not stop: of each rank, and of each GPU."""
    host = evidence.mean("cgroup/memory_limit_bytes") or evidence.mean("memory/total_bytes")
    told: set[int] = set()
    # What is imported, loaded and compiled is kept: memory that grows before the steps go on is none that is lost.
    since = max((float(event["time"]) for event in evidence.of_kind("compile")), default=-math.inf)
    since = max(
        [since, *(float(steps.end[min(FIRST_STEPS, len(steps) - 1)]) for steps in evidence.ranks if len(steps))]
    )
    for rank, track in evidence.series.get("memory/resident_bytes", {}).items():
        finding = _leak(f"memory of rank {rank}", track.within(since, math.inf), host, rank)
        if finding is not None:
            told.add(rank)
            yield finding
    for name, by_rank in evidence.matching("process/", "/tree_memory_bytes").items():
        rank = int(name.split("/")[1])
        for track in by_rank.values():
            what, later = f"memory of rank {rank} and its workers", track.within(since, math.inf)
            finding = _leak(what, later, host, rank) if rank not in told else None
            if finding is not None:
                told.add(rank)
                yield finding
    for what in ("memory_allocated_bytes", "memory_used_bytes"):
        for name, by_rank in evidence.matching("gpu/", f"/{what}").items():
            card = name.split("/")[1]
            limit = evidence.mean(f"gpu/{card}/memory_total_bytes")
            for rank, track in by_rank.items():
                finding = _leak(f"memory of GPU {card}", track, limit, rank) if rank not in told else None
                if finding is not None:
                    told.add(rank)
                    yield finding


def _leak(name: str, track: Track, limit: float | None, rank: int) -> Finding | None:
    """Return growth of memory as a finding, with its rate and when memory ends."""
    if len(track) < FEWEST_READINGS:
        return None
    trend = assess(track.time, track.value, limit=limit)
    risen, level = trend.risen or 0.0, trend.level or 0.0
    if not trend.growing or trend.rate is None or risen < max(LEAST_RISE, LEAST_RISE_SHARE * level):
        return None
    hourly = format_value(trend.rate * HOUR, "bytes")
    text = f"{name} grows by {hourly} an hour"
    steps = track.step[-1] - track.step[0]
    if steps > 0:
        each = trend.rate * float(track.time[-1] - track.time[0]) / float(steps)
        text += f", {format_value(each, 'bytes')} a step"
    severity = WARNING
    if trend.left is not None:
        text += f"; at this rate it is full in {spell(trend.left)}"
        severity = CRITICAL if (trend.left_low or trend.left) < SOON else WARNING
    facts = {**trend.facts(), "of": name}
    return Finding(
        "memory_leak", text, severity, remedy("memory_leak"), facts, confidence=0.9, rank=rank if rank >= 0 else None
    )


def _disk(evidence: Evidence) -> Iterator[Finding]:
    """Yield that the disk will be full soon, if it is the run itself that fills it."""
    track = evidence.track("disk/free_bytes")
    finding = disk_full(track.time, track.value) if track is not None and len(track) >= FEWEST_READINGS else None
    rate = finding.evidence.get("rate") if finding is not None else None
    if finding is None or not rate or finding.severity != CRITICAL:
        return
    written = [
        track.mean for by in evidence.matching("process/", "/write_bytes_per_second").values() for track in by.values()
    ]
    if sum(written) > OWN_WRITES * float(rate):
        yield Finding("disk_full", finding.text, CRITICAL, remedy("disk_full"), finding.evidence, confidence=0.7)


def _gpus(evidence: Evidence) -> Iterator[Finding]:
    cards = sorted(
        {name.split("/")[1] for name in evidence.matching("gpu/", "/utilization_ratio") if name.count("/") == 2}
    )
    steps = evidence.leader
    total = steps.total if steps is not None else 0.0
    for card in cards:
        yield from _slowed(evidence, card, total)
        yield from _fragmented(evidence, card)
    used = {card: evidence.mean(f"gpu/{card}/utilization_ratio") for card in cards}
    idle = {card: share for card, share in used.items() if share is not None and share < GPU_IDLE}
    if idle and total > 0:
        worst = min(idle, key=lambda card: idle[card])
        text = f"GPU {worst} computes only {idle[worst]:.0%} of the time" + (
            f", {len(idle)} of {len(cards)} below half" if len(idle) > 1 else ""
        )
        facts = {"utilization_ratio": used}
        cost = (1 - idle[worst]) * total
        yield Finding("gpu_idle", text, INFO, remedy("gpu_idle"), facts, confidence=0.8, cost_seconds=cost)


def _slowed(evidence: Evidence, card: str, total: float) -> Iterator[Finding]:
    shares = {why: evidence.mean(f"gpu/{card}/throttle_{why}") or 0.0 for why in (*SLOWDOWNS, "power_cap")}
    why = max(SLOWDOWNS, key=lambda one: shares[one])
    if shares[why] < GPU_THROTTLED:
        if shares["power_cap"] < CAPPED:
            return
        why = "power_cap"
    said = SLOWDOWNS.get(why, "its power limit")
    text = f"GPU {card} is slowed down by {said} in {shares[why]:.0%} of the samples"
    facts = {"card": card, "reasons": shares, "temperature_celsius": evidence.mean(f"gpu/{card}/temperature_celsius")}
    severity = WARNING if why != "power_cap" else INFO
    yield Finding(
        "gpu_throttled",
        text,
        severity,
        remedy("gpu_throttled", why=said),
        facts,
        confidence=0.9,
        cost_seconds=0.3 * shares[why] * total,
    )


def _fragmented(evidence: Evidence, card: str) -> Iterator[Finding]:
    share = evidence.mean(f"gpu/{card}/memory_fragmentation_ratio")
    reserved, whole = (evidence.mean(f"gpu/{card}/memory_{what}_bytes") for what in ("reserved", "total"))
    if share is None or share < FRAGMENTED or reserved is None or whole is None or reserved < SHORT * whole:
        return
    text = f"{share:.0%} of the memory that torch holds of GPU {card} lies in split blocks, "
    text += f"and {reserved / whole:.0%} of the card is held"
    facts = {"fragmentation_ratio": share, "reserved_bytes": reserved, "total_bytes": whole}
    yield Finding("fragmentation", text, WARNING, remedy("fragmentation"), facts, confidence=0.8)


def busy(evidence: Evidence) -> str:
    """Return a sentence if others used the machine while the run went on, else nothing: it is no finding of the run."""
    others = others_use(evidence)
    if others is None or not evidence.processors or not is_disturbed(evidence) or others < 0.2:
        return ""
    text = f"other programs took {others:.1f} of {evidence.processors:.0f} processors: "
    return text + "shares and gains are those of steps that they did not disturb"
