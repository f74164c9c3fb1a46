"""Findings about the machine: quotas, swap, leaks, full disks and GPUs."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from stepscope.analysis.diagnosis.cards import cards
from stepscope.analysis.diagnosis.case import machine_wide
from stepscope.analysis.diagnosis.composition import OTHERS, is_disturbed, others_use
from stepscope.analysis.finding import CRITICAL, WARNING, Finding
from stepscope.analysis.series.forecast import FAR, HOUR, SOON, disk_full, together
from stepscope.analysis.series.leak import STEADY, MemoryTrend, assess
from stepscope.core.numbers import format_duration, format_share, format_value
from stepscope.core.remedies import remedy

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stepscope.analysis.diagnosis.evidence import Evidence, Track

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


def machine(evidence: Evidence) -> Iterator[Finding]:
    """Yield the findings about the machine."""
    for part in (_quota, _swap, _leaks, _disk, cards):
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
    for tracks in _machines(evidence).values():
        found = {rank: one for rank, track in tracks.items() if (one := _of_rank(evidence, rank, track, limit))}
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


def _of_rank(evidence: Evidence, rank: int, tree: Track, limit: float | None) -> tuple[str, Track, MemoryTrend] | None:
    """Return which memory of a rank grows, its own or with its workers, and the trend; None without growth."""
    # Imports, data and compiled code stay in memory: growth before the steps begin is not a leak.
    since = [float(event["time"]) for event in evidence.of_kind("compile")]
    since += [float(steps.end[min(FIRST_STEPS, len(steps) - 1)]) for steps in evidence.ranks if len(steps)]
    workers = " and its workers" if (evidence.mean(f"process/{rank}/workers") or 0.0) >= 1 else ""
    own = evidence.track("memory/resident_bytes", rank)
    for name, track in ((f"memory of rank {rank}", own), (f"memory of rank {rank}{workers}", tree)):
        later = track.within(max(since, default=-math.inf), math.inf) if track is not None else None
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
