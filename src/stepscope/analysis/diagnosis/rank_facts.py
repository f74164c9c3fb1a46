"""What is known of each rank beside its durations: its work, its processor, its GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepscope.analysis.series.robust import median
from stepscope.analysis.stragglers.cause import STEP_FACTS
from stepscope.analysis.stragglers.group import place_facts
from stepscope.core.coordinates import PLACED

if TYPE_CHECKING:
    from stepscope.analysis.diagnosis.evidence import Evidence, Track


PROCESS = ("run_wait_ratio", "cpu_ratio", "numa_node")
HOT = ("throttle_hw_thermal", "throttle_sw_thermal")
BRAKED = ("throttle_hw_slowdown", "throttle_power_brake")


def rank_facts(evidence: Evidence) -> dict[int, dict[str, float]]:
    """Return the facts of each rank: see `stepscope.analysis.stragglers.cause.FACTS`."""
    found: dict[int, dict[str, float]] = {steps.rank: {} for steps in evidence.ranks}
    for name, fact in STEP_FACTS.items():
        for rank, track in evidence.series.get(name, {}).items():
            value = track.finite().value
            if rank in found and len(value):
                found[rank][fact] = median(value)
    for rank, facts in found.items():
        for name in PROCESS:
            for track in evidence.series.get(f"process/{rank}/{name}", {}).values():
                _mean(facts, name, evidence.during(track))
    for event in evidence.of_kind(PLACED):
        if event.get("rank") in found:
            found[event["rank"]] |= place_facts(event.get("coordinates"))
    for rank, (source, gpu) in _gpus(evidence).items():
        for name, key in (("sm_clock_hertz", "gpu_clock_hertz"), ("temperature_celsius", "gpu_celsius")):
            _mean(found[rank], key, evidence.series.get(f"gpu/{gpu}/{name}", {}).get(source))
        for names, key in ((HOT, "gpu_hot_ratio"), (BRAKED, "gpu_braked_ratio")):
            for name in names:
                _mean(found[rank], key, evidence.series.get(f"gpu/{gpu}/{name}", {}).get(source))
    return found


def _mean(facts: dict[str, float], key: str, track: Track | None) -> None:
    """Add the mean of a series; of several series the highest counts."""
    if track is not None and len(track.finite()):
        facts[key] = max(track.mean, facts.get(key, track.mean))


def _gpus(evidence: Evidence) -> dict[int, tuple[int, int]]:
    """Return the source of samples and the GPU of each rank, where a node has as many GPUs as ranks.

    The ranks of a node use its GPUs in order, as launchers place them. Samples of a node have a number below 0 instead
    of a rank; those of its processes tell which ranks run there.
    """
    ranks: dict[int, set[int]] = {}
    gpus: dict[int, set[int]] = {}
    for name, tracks in evidence.series.items():
        group, _, rest = name.partition("/")
        number, _, metric = rest.partition("/")
        if not number.isdecimal():
            continue
        for source in tracks:
            if group == "process" and metric == "cpu_ratio":
                ranks.setdefault(source, set()).add(int(number))
            elif group == "gpu" and metric == "utilization_ratio":
                gpus.setdefault(source, set()).add(int(number))
    return {
        rank: (source, gpu)
        for source in ranks.keys() & gpus.keys()
        if len(ranks[source]) == len(gpus[source])
        for rank, gpu in zip(sorted(ranks[source]), sorted(gpus[source]), strict=True)
        if any(steps.rank == rank for steps in evidence.ranks)
    }
