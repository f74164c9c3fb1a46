"""Advice on the size of the machine, from how it was used: fewer or more GPUs, a bigger batch, a cheaper card.

Every piece of advice names its evidence. The stated gain is an upper bound: the gain if everything else scales.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stepscope.analysis.finding import INFO, WARNING, Finding
from stepscope.core import remedies
from stepscope.core.numbers import format_share

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.analysis.cost.prices import PricedGpu, PriceTable

GIB = 2.0**30
LOW_MEMORY, FULL_MEMORY = 0.5, 0.95
"""Share of a GPU's memory at its peak below which a batch twice as big fits, and above which the next one may not.
Activations grow with the batch, weights do not, so that half of the memory is always enough for twice the batch."""
LOW_USE = 0.4
"""Mean utilisation of GPUs below which they mostly wait. Any running kernel counts as use, so this is a low bound: the
card in gpu-telemetry-nvidia-smi, which mostly waits, has 0.10 while it holds more than 5 GB."""
WAITING = 0.15
"""Share of the time spent on data, or on communication, from which it is the first thing to fix."""
HEADROOM = 1.15
"""A smaller card must hold this many times the peak."""
WORTH = 0.1
"""Share of the cost that advice must save to be given."""
FEWEST_SECONDS = 60.0
"""Shortest run to judge, in seconds."""


@dataclass(frozen=True)
class Usage:
    """How a run used its machine; None if not measured."""

    seconds: float
    gpus: int = 0
    utilization: float | None = None
    """Mean over GPUs and time, 0 to 1."""
    memory_peak: float | None = None
    """Most bytes on the fullest GPU."""
    memory_total: float | None = None
    """Bytes that one GPU has."""
    data_ratio: float | None = None
    """Share of the time spent waiting for data."""
    communication_ratio: float | None = None
    goodput_ratio: float | None = None
    processors_used: float | None = None
    """Processors in use on average."""
    processors_own: float | None = None
    """Processors of these that the run's own processes use; None if unknown."""
    processors: float | None = None
    """Processors that there are."""
    workers: float | None = None
    """Data loader workers of a rank."""
    card: PricedGpu | None = None
    per_hour: float | None = None
    """Price of one GPU and hour."""
    provider: str = ""
    """Whose price that is: other cards are then compared at that provider's prices; empty: at the median."""


MOST_TIMES = 8
"""Maximum factor by which advice enlarges a batch: a batch that fits need not learn well."""


def advise(usage: Usage, table: PriceTable | None = None) -> list[Finding]:
    """Return advice on the size of the machine, the most worth first; empty if it fits or too little is known."""
    if usage.seconds < FEWEST_SECONDS:
        return []
    found = [_input(usage), *_batch(usage), _fewer(usage), _cheaper(usage, table), _processors(usage)]
    return sorted((one for one in found if one is not None), key=lambda one: -(one.gain_ratio or 0.0))


def _gpus(number: int) -> str:
    return f"{number} GPU{'' if number == 1 else 's'}"


def _input(usage: Usage) -> Finding | None:
    """Put data first: while GPUs wait for it, more of them only wait more."""
    share = usage.data_ratio
    if share is None or share < WAITING:
        return None
    text = f"{format_share(share)} of the time the training waits for data: more or faster GPUs would not help"
    known = None not in {usage.processors, usage.processors_used, usage.workers}
    spare = (usage.processors or 0) - (usage.processors_used or 0)
    if known and spare >= 1:
        advice = f"raise num_workers ({usage.workers:.0f} now): {spare:.1f} of {usage.processors:.0f} processors idle"
    else:
        advice = remedies.remedy("input_bound")
    return Finding("input_bound", text, WARNING, advice, {"data_ratio": share, "idle_processors": spare}, share)


def _batch(usage: Usage) -> list[Finding]:
    peak, total = usage.memory_peak, usage.memory_total
    if not peak or not total or not math.isfinite(peak / total):
        return []
    share = peak / total
    evidence = {"memory_peak_bytes": peak, "memory_total_bytes": total}
    if share > FULL_MEMORY:
        text = f"a GPU was {format_share(share)} full at its peak: a longer batch or fragmentation may end the run"
        remedy = "smaller batches with gradient accumulation, activation checkpointing, or a card with more memory"
        return [Finding("memory_full", text, WARNING, remedy, evidence)]
    waits = (usage.data_ratio or 0.0) >= WAITING
    if share < LOW_MEMORY and not waits and (usage.utilization is None or usage.utilization < 0.95):
        times = min(2 ** int(math.log2(1 / max(share, 1 / 64))), MOST_TIMES)
        text = f"the fullest GPU used {format_share(share)} of its memory at its peak"
        up_to = f"2 to {times}" if times > 2 else "2"
        remedy = f"try a batch {up_to} times as big, with a learning rate that suits it"
        unused = 1 - usage.utilization if usage.utilization is not None else None
        return [Finding("bigger_batch", text, INFO, remedy, evidence, unused)]
    return []


def _fewer(usage: Usage) -> Finding | None:
    """Advise fewer GPUs where they wait for each other, or more where they scale."""
    if usage.gpus < 2:
        return None
    waiting = usage.communication_ratio
    if waiting is not None and waiting >= WAITING:
        # Half the GPUs need twice the computing time for the same work, and wait less: that time is saved on all.
        half = usage.gpus // 2
        text = f"{format_share(waiting)} of the time GPUs wait for each other: on {_gpus(half)} the same work may cost "
        text += "up to that much less"
        remedy = f"try {_gpus(half)}, or overlap communication, bigger batches, a faster interconnect"
        return Finding("fewer_gpus", text, INFO, remedy, {"communication_ratio": waiting, "gpus": usage.gpus}, waiting)
    use = usage.utilization
    if use is not None and use < LOW_USE and (usage.data_ratio or 0.0) < WAITING:
        enough = max(1, math.ceil(usage.gpus * use / 0.9))
        if enough < usage.gpus:
            saved = 1 - enough / usage.gpus
            text = f"{usage.gpus} GPUs were in use {format_share(use)} of the time: {enough} could do the same work"
            evidence = {"utilization_ratio": use, "gpus": usage.gpus}
            return Finding("fewer_gpus", text, INFO, f"try {_gpus(enough)}", evidence, saved)
    good = usage.goodput_ratio
    if waiting is not None and waiting < 0.05 and use is not None and use > 0.9 and (good or 0.0) > 0.9:
        text = f"{usage.gpus} GPUs are busy {format_share(use)} of the time"
        text += f" and wait {format_share(waiting)} of it for each other"
        remedy = f"{2 * usage.gpus} GPUs may take little more than half as long"
        evidence = {"utilization_ratio": use, "communication_ratio": waiting}
        return Finding("more_gpus", text, INFO, remedy, evidence)
    return None


def _cheaper(usage: Usage, table: PriceTable | None) -> Finding | None:
    """Advise the card with the lowest cost of the same work that holds the peak."""
    card, peak, price = usage.card, usage.memory_peak, usage.per_hour
    if table is None or card is None or not peak or not price or usage.utilization is None:
        return None
    needed = card.tflops * min(1.0, usage.utilization)
    best, cost = None, (1 - WORTH) * price
    for other in table.cards:
        hourly = other.prices.get(usage.provider) if usage.provider else other.price
        if other is card or hourly is None or other.memory_gib * GIB < HEADROOM * peak:
            continue
        slower = max(1.0, needed / other.tflops)
        if hourly * slower < cost:
            best, cost = (other, hourly, slower), hourly * slower
    if best is None:
        return None
    other, hourly, slower = best
    longer = f"; the run would take up to {slower:.2g} times as long" if slower > 1.05 else ""
    text = (
        f"the peak of {peak / GIB:.3g} GiB fits into {other.memory_gib:.0f} GiB of the {other.name}, "
        f"at {hourly:.2f} {table.currency} an hour instead of {price:.2f}{longer}"
    )
    remedy = f"measure some steps on the {other.name} before you change: its memory and links may be slower, too"
    evidence = {"card": card.name, "other": other.name, "cost_ratio": cost / price, "slower": slower}
    return Finding("cheaper_card", text, INFO, remedy, evidence, 1 - cost / price)


def _processors(usage: Usage) -> Finding | None:
    used, there = usage.processors_used, usage.processors
    if used is None or there is None or there <= 0 or used / there < 0.95:
        return None
    text = f"{used:.1f} of {there:.0f} processors are in use all the time"
    remedy = "a machine with more processors for each GPU, or less work in the data workers"
    if usage.processors_own is not None and usage.processors_own < used / 2:
        text += f", {used - usage.processors_own:.1f} of them by other programs"
        remedy = "end or move the other programs on this machine, or take one of your own"
    return Finding("processors_full", text, WARNING, remedy, {"processors_used": used, "processors": there})


def scaling(measured: Sequence[tuple[int, float]]) -> dict[str, float | None]:
    """Return how throughput grows with GPUs, by Amdahl's law, from two or more (GPUs, samples a second).

    `serial_ratio` is the share of the work that more GPUs do not speed up, `efficiency_ratio` the throughput of the
    largest by that of the smallest times the GPUs, `most_gpus` where half of what another GPU adds is lost.
    """
    known = sorted((int(gpus), float(rate)) for gpus, rate in measured if gpus > 0 and rate > 0 and math.isfinite(rate))
    if len({gpus for gpus, _ in known}) < 2:
        return dict.fromkeys(("serial_ratio", "efficiency_ratio", "most_gpus"))
    (few, slow), (many, fast) = known[0], known[-1]
    efficiency = fast / slow * few / many
    # Time of a sample: t(n) = a + b / n, fitted by least squares over 1 / n.
    inverse, times = [1 / gpus for gpus, _ in known], [1 / rate for _, rate in known]
    mean_x, mean_y = sum(inverse) / len(known), sum(times) / len(known)
    power = sum((x - mean_x) ** 2 for x in inverse)
    parallel = sum((x - mean_x) * (y - mean_y) for x, y in zip(inverse, times, strict=True)) / power
    serial = max(0.0, mean_y - parallel * mean_x)
    if parallel <= 0:
        return {"serial_ratio": 1.0, "efficiency_ratio": efficiency, "most_gpus": float(few)}
    # Of what another GPU adds, (b / (a n + b))**2 is left: half at n = (sqrt 2 - 1) b / a.
    most = max(1.0, (math.sqrt(2) - 1) * parallel / serial) if serial else None
    return {"serial_ratio": serial / (serial + parallel), "efficiency_ratio": efficiency, "most_gpus": most}
