"""Why a rank is late: its compute, its data, its host, its link, or more work than the others have."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from stepscope.analysis.series.robust import median
from stepscope.analysis.stragglers.pace import is_talk
from stepscope.core.numbers import format_number, format_share, format_value

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.analysis.stragglers.pace import StepTiming


COMPUTE, DATA, HOST, LINK, WORK, UNKNOWN = "compute", "data", "host", "link", "work", ""
"""Classes of causes; "" if the phases are not recorded."""
PHASE_CAUSES = {
    **dict.fromkeys(("forward", "backward", "optimizer"), COMPUTE),
    "data": DATA,
    **dict.fromkeys(("copy", "other", "logging", "gc"), HOST),
}
"""The class by the phase in which a rank is late; phases of the program's own making are its host code."""
FACTS = {
    "tokens": "tokens per step",
    "samples": "samples per step",
    "run_wait_ratio": "share of the time in which its main thread was ready to run but waited for a CPU",
    "numa_node": "NUMA node on whose CPUs its main thread runs, if it stays on one",
    "pipeline": "number of its pipeline stage",
    "expert": "number of its group of experts",
    "cpu_ratio": "CPU time of its process, as a share of one CPU",
    "gpu_forward_seconds": "forward passes of a step by the clock of its GPU",
    "gpu_clock_hertz": "clock of its GPU",
    "gpu_celsius": "temperature of its GPU",
    "gpu_hot_ratio": "share of the time in which heat reduced the clock of its GPU",
    "gpu_braked_ratio": "share of the time in which power or hardware limits reduced the clock of its GPU",
}
"""What a pace can say beside durations, and what it means."""
STEP_FACTS = {"tokens": "tokens", "samples": "samples", "device/forward_seconds": "gpu_forward_seconds"}
"""Metrics of steps, and the facts that their medians are."""
MORE_WORK, OF_EXCESS = 0.1, 0.3
"""More work is the cause if there is this share more of it, and this share of the time that is spent in excess."""
WAITED = 0.4
"""Waiting for a CPU is the cause if it explains this share of what a rank is late."""
THROTTLED, SLOWER_CLOCK = 0.1, 0.05
"""A GPU is the cause if it was throttled in this share of the time more than the others, or its clock is this share
slower."""


class Cause(NamedTuple):
    """Why a rank is late."""

    kind: str
    """One of the classes."""
    text: str
    """What can be seen of it, with numbers."""
    reason: str = ""
    """What is behind it, where that is seen: other_programs, heat, power, clock; of a group numa, stage, experts."""


def cause_of(late: StepTiming, others: Sequence[StepTiming], phase: str, seconds: float) -> Cause:
    """Return why a rank is late by `seconds` in a step, most of them in `phase`; `others` are on time."""
    if not phase:
        return Cause(UNKNOWN, "no phases are recorded, so the cause cannot be seen")
    mine, theirs = late.phases.get(phase, 0.0), median([one.phases.get(phase, 0.0) for one in others])
    spent = f"{phase} takes it {_time(mine)}, the others {_time(theirs)}"
    if is_talk(phase):
        return Cause(LINK, f"it arrives on time, but {spent}")
    work = _more_work(late, others, mine, theirs) if phase != "gc" else ""
    if work:
        return Cause(WORK, work)
    if _waited_for_others(late, others) * late.seconds >= WAITED * seconds:
        text = f"other programs use its CPUs: it waits for one in {format_share(late.facts['run_wait_ratio'])} of "
        return Cause(COMPUTE, f"{text}the time; {spent}", "other_programs")
    kind = PHASE_CAUSES.get(phase, HOST)
    if kind == COMPUTE:
        why, reason = _device(late, others)
        return Cause(kind, f"{spent}{f'; {why}' if why else ''}", reason)
    return Cause(kind, spent)


def _more_work(late: StepTiming, others: Sequence[StepTiming], mine: float, theirs: float) -> str:
    """Return in words that a rank has more work in a step than the others; "" if it has not."""
    for name in ("tokens", "samples"):
        usual = median([one.facts[name] for one in others if name in one.facts] or [0.0])
        if usual <= 0 or name not in late.facts:
            continue
        more = late.facts[name] / usual - 1
        if more >= MORE_WORK and (theirs <= 0 or more >= OF_EXCESS * (mine / theirs - 1)):
            return f"it has {format_number(late.facts[name], 3)} {name} per step, the others {format_number(usual, 3)}"
    return ""


def _waited_for_others(late: StepTiming, others: Sequence[StepTiming]) -> float:
    """Return the share of the time in which a rank waited for a CPU, beyond what the others would have waited.

    On a busy machine every process that computes waits: more Python code means more waiting, whatever the CPU.
    """
    waited = _beyond(late, others, "run_wait_ratio")
    if waited is None or "cpu_ratio" not in late.facts:
        return waited or 0.0
    pairs = [(one.facts.get("run_wait_ratio", 0.0), one.facts.get("cpu_ratio", 0.0)) for one in others]
    each = median([wait / used for wait, used in pairs if used > 0] or [0.0])
    return min(waited, late.facts["run_wait_ratio"] - each * late.facts["cpu_ratio"])


def _device(late: StepTiming, others: Sequence[StepTiming]) -> tuple[str, str]:
    """Return what is wrong with the GPU of a rank, in words and in a word; empty if nothing can be seen."""
    hot, braked = (_beyond(late, others, name) for name in ("gpu_hot_ratio", "gpu_braked_ratio"))
    warm = late.facts.get("gpu_celsius")
    at = f" at {warm:.0f} °C" if warm is not None else ""
    if hot is not None and hot >= THROTTLED:
        return f"heat reduces the clock of its GPU{at}", "heat"
    if braked is not None and braked >= THROTTLED:
        return "power or hardware limits reduce the clock of its GPU", "power"
    clock = late.facts.get("gpu_clock_hertz")
    usual = median([one.facts["gpu_clock_hertz"] for one in others if "gpu_clock_hertz" in one.facts] or [0.0])
    if clock is not None and usual > 0 and clock < (1 - SLOWER_CLOCK) * usual:
        return f"its GPU runs at {format_value(clock, 'hertz')}, the others at {format_value(usual, 'hertz')}", "clock"
    return "", ""


def _beyond(late: StepTiming, others: Sequence[StepTiming], name: str) -> float | None:
    """Return by how much a fact of a rank exceeds that of the others; None if it is unknown."""
    if name not in late.facts:
        return None
    return late.facts[name] - median([one.facts[name] for one in others if name in one.facts] or [0.0])


def _time(seconds: float) -> str:
    return format_value(seconds, "seconds")
