"""The ledger of a recorded run: its time, money and energy by class, forecasts, and advice on machine size.

Prices come from the configuration, else from the built-in table.
"""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from stepscope.analysis.cost import energy, prices, sizing
from stepscope.analysis.cost.ledger import CLASSES, UNPAID, Attempt, Ledger, charge
from stepscope.analysis.series import forecast
from stepscope.core.config import discover, load_or_default
from stepscope.core.errors import StepscopeError
from stepscope.core.remedies import remedy
from stepscope.core.ring import NO_STEP
from stepscope.sources.attempts import attempts_of, is_foreign, nodes_of, series_in, some_ranks
from stepscope.store.states import newest_attempt
from stepscope.views.sums import sums_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from stepscope.analysis.cost.prices import Price, PriceTable
    from stepscope.analysis.finding import Finding
    from stepscope.core.arrays import Floats
    from stepscope.store.points import Points
    from stepscope.store.reader import Past

MACHINE = "power/machine_watts"
METERS = {"processors": ("power/cpu_joules_total", "power/cpu_watts"), "memory": ("power/dram_watts",)}
"""Power meters other than the GPUs', each with its metrics, best first."""
DISK_SECONDS = 600.0
"""Minimum time a disk must be observed before we predict when it fills up."""
MEMORY = {("gpu", "memory_used_bytes"), ("process", "tree_memory_bytes")}
"""Group and last part of the metrics that are searched for a leak."""
MOST_STEPS = 400_000
"""Steps that are read; of a run of more, the ledger is that of ranks on some nodes, evenly chosen."""
MOST_READINGS = 20_000
"""Maximum readings of a memory series searched for a leak; more are joined."""
REMEDIES = {
    "data": remedy("input_bound"),
    "copy": remedy("copy_bound"),
    "stall": remedy("hang"),
    "restart": "make the start faster: cache data and compiled kernels, and fix the cause of the crashes",
    "redone": "save checkpoints more often: work after the last one is lost",
    "start": "load less before the first step: cache the data and the model",
    "other": "this is logging and work between steps: wrap it in phases to see more",
}
"""Remedy for each class of waste."""
DEFINITIONS = {
    "seconds": "seconds of the wall clock by class, mean over the ranks; they sum to wall_seconds",
    "money": "seconds of the class / 3600 * devices * price; nothing for the class `away`",
    "joules": "what the meters counted in each span of time, split like the span",
    "read_ranks": "ranks whose steps were read: of a run of very many steps, those of some nodes stand for all",
    "goodput_ratio": "productive seconds / seconds for which the machine was held",
    "classes": "what is in each class",
    "imported": "format of the log that it comes from; without `timed` the wall clock is the sum of what the log tells",
    "wasted": "money and seconds of data, copy, stall, restart, redone, start and other",
}


@dataclass(frozen=True)
class LedgerOptions:
    """Options of the ledger."""

    table: PriceTable
    price: Price | None = None
    region: str = ""
    steps: int | None = None
    """Total steps of the run; from its configuration by default."""


def account(past: Past, question: LedgerOptions) -> dict[str, Any]:
    """Return the ledger of a run as plain data: time, money, energy, forecasts, advice, and the definitions."""
    some = None if is_foreign(past) else some_ranks(past, MOST_STEPS)
    attempts = attempts_of(past, some)
    ledger = charge(attempts)
    sampled = _sampled(past)
    devices = sampled.gpus or max(1, len({node.node for node in nodes_of(past)}))
    grams = question.table.region(question.region) if question.region else None
    used = energy.measure(ledger, meters_of(past, sampled.names), grams, question.region)
    price, usage = question.price, _usage(ledger, attempts, sampled, question.price)
    advice = [*_exhaustion(past, sampled, some), *sizing.advise(usage, question.table)]
    return {
        **ledger.facts(),
        "ranks": ledger.ranks if some is None else len({rank for node in nodes_of(past) for rank in node.ranks}),
        "read_ranks": ledger.ranks,
        "imported": _source(past),
        "devices": devices,
        "device": "gpu" if sampled.gpus else "machine",
        "money": None if price is None else _money(ledger, price, devices),
        "energy": None if used is None else used.facts(),
        "wasted": [
            {"class": name, "seconds": spent, "share": ledger.share(name), "remedy": REMEDIES[name]}
            for name, spent in ledger.wasted.items()
        ],
        "forecast": _forecasts(past, attempts, question, devices),
        "advice": [one.facts() for one in advice],
        "classes": CLASSES,
        "definitions": DEFINITIONS,
    }


def _source(past: Past) -> dict[str, Any] | None:
    """Return the facts of the log that a run was imported from; None if we recorded it."""
    if not is_foreign(past):
        return None
    timed = any(rank.ended > rank.started for node in nodes_of(past) for rank in node.ranks.values() if rank.ended)
    return {"format": str(past.meta["imported"].get("format")), "timed": timed}


@dataclass(frozen=True)
class _Sampled:
    """Averages of the machine's samples."""

    names: list[str]
    mean: dict[str, float]
    most: dict[str, float]
    gpus: int


def _sampled(past: Past) -> _Sampled:
    groups = ("gpu/", "power/", "process/", "cpu/", "memory/", "cgroup/", "disk/free_bytes")
    names = [name for name in past.names() if name.startswith(groups) and "/worker/" not in name]
    mean, most, cards = {}, {}, set()
    for name, one in sums_of(past, names).items():
        average, highest = one.average(), one.highest()
        if average is None or highest is None:
            continue
        mean[name], most[name] = average, highest
        parts = name.split("/")
        if parts[0] == "gpu" and len(parts) == 3 and parts[1].isdecimal():
            cards |= {(parts[1], int(rank)) for rank in np.unique(one.rank) if rank < 0}
    return _Sampled(names, mean, most, len(cards))


def meters_of(past: Past, names: Sequence[str]) -> list[tuple[str, energy.Meter]]:
    """Return the power meters of a run: of the whole machine if there is one, else of GPUs, CPUs and memory."""
    chosen = dict(_meter_names(set(names)))
    found = []
    for name, label in chosen.items():  # one after another: hundreds of nodes have many samples
        samples: dict[int, list[Points]] = {}
        for _, (rank, _), part in series_in(past.points([name])):
            samples.setdefault(rank, []).append(part)  # a counter continues from attempt to attempt
        make = energy.from_counter if name.endswith("_joules_total") else energy.from_power
        for parts in samples.values():
            time, value = (np.concatenate([getattr(part, key) for part in parts]) for key in ("time", "value"))
            found.append((label, make(time / 1e6, value)))
    return found


def _meter_names(there: set[str]) -> Iterator[tuple[str, str]]:
    """Yield the metric of each meter and what it measures; a counter of joules comes before power."""
    if MACHINE in there:
        yield MACHINE, "machine"
        return
    gpus = sorted({name.split("/")[1] for name in there if name.startswith("gpu/") and name.count("/") == 2})
    ways = {f"gpu {gpu}": (f"gpu/{gpu}/energy_joules_total", f"gpu/{gpu}/power_watts") for gpu in gpus}
    for label, metrics in {**ways, **METERS}.items():
        yield from ((name, label) for name in [name for name in metrics if name in there][:1])


def _money(ledger: Ledger, price: Price, devices: int) -> dict[str, Any]:
    hourly = price.per_hour * devices
    classes = {name: 0.0 if name in UNPAID else seconds / 3600 * hourly for name, seconds in ledger.seconds.items()}
    return {
        "currency": price.currency,
        "per_device_hour": price.per_hour,
        "source": price.source,
        "total": sum(classes.values()),
        "wasted": sum(classes[name] for name in ledger.wasted),
        "classes": classes,
    }


def _forecasts(past: Past, attempts: Sequence[Attempt], question: LedgerOptions, devices: int) -> dict[str, Any] | None:
    """Return when a live run will end, and what it will have cost by then; None for a run that has ended."""
    last = max((one.number for one in attempts), default=None)
    live = [one for one in attempts if one.number == last and one.state == "running" and len(one.end)]
    total = question.steps or forecast.total_steps(past.config)
    if not live or total is None:
        return None
    # A run ends with its slowest rank.
    slowest = min(live, key=lambda one: int(one.step[-1]))
    stepped = slowest.step != NO_STEP
    found, price = forecast.end_of_run(slowest.end[stepped], slowest.step[stepped], total), question.price
    if found is None:
        return None
    cost = None if price is None else price.per_hour * devices * found.seconds / 3600
    return {**found.facts(), "steps": total, "money": cost}


def _usage(ledger: Ledger, attempts: Sequence[Attempt], sampled: _Sampled, price: Price | None) -> sizing.Usage:
    def values(figures: dict[str, float], group: str, last: str) -> list[float]:
        return [value for name, value in figures.items() if name.startswith(group) and name.endswith(last)]

    utilization = values(sampled.mean, "gpu/", "/utilization_ratio")
    own = values(sampled.mean, "process/", "/tree_cpu_ratio")
    waited = sum(float(np.nansum(one.phases["communication"])) for one in attempts if "communication" in one.phases)
    stepped = sum(float(np.nansum(one.seconds)) for one in attempts)
    usage = sampled.mean.get("cpu/usage_ratio")
    processors = sampled.most.get("cgroup/cpu_limit") or sampled.most.get("cpu/count")
    return sizing.Usage(
        seconds=ledger.paid_seconds,
        gpus=sampled.gpus,
        utilization=sum(utilization) / len(utilization) if utilization else None,
        memory_peak=max(values(sampled.most, "gpu/", "/memory_used_bytes"), default=None),
        memory_total=max(values(sampled.most, "gpu/", "/memory_total_bytes"), default=None),
        data_ratio=ledger.share("data"),
        communication_ratio=waited / stepped if stepped > 0 else None,
        goodput_ratio=ledger.goodput_ratio,
        processors_used=None if usage is None or processors is None else usage * processors,
        processors_own=sum(own) if own else None,
        processors=processors,
        workers=max(values(sampled.most, "process/", "/workers"), default=None),
        card=price.card if price else None,
        per_hour=price.per_hour if price else None,
        provider=price.provider if price else "",
    )


def _exhaustion(past: Past, sampled: _Sampled, ranks: Collection[int] | None) -> Iterator[Finding]:
    """Yield leaks and disks that fill up, in the last attempt."""
    host = sampled.most.get("cgroup/memory_limit_bytes") or sampled.most.get("memory/total_bytes")
    last = newest_attempt(nodes_of(past))
    machines: dict[int, dict[str, tuple[Floats, Floats]]] = {}
    for name in sampled.names:
        parts = name.split("/")
        if not _may_run_out(parts, ranks):
            continue
        series = past.series(name, attempt=last, points=MOST_READINGS)
        if not len(series.rank):
            continue
        blocks = series.buckets
        time, value = (series.time, series.value) if blocks is None else (blocks.last_time / 1e6, blocks.mean)
        finding = None
        if name == "disk/free_bytes":
            # Other programs write to it too: a minute of theirs does not predict the next hours.
            finding = forecast.disk_full(time, value) if len(time) and time[-1] - time[0] >= DISK_SECONDS else None
        elif parts[0] == "gpu":
            limit = sampled.most.get(f"gpu/{parts[1]}/memory_total_bytes")
            finding = forecast.memory_leak(f"memory of GPU {parts[1]}", time, value, limit)
        else:
            machines.setdefault(int(series.rank[0]), {})[f"memory of rank {parts[1]}"] = time, value
        if finding is not None:
            yield finding
    for readings in machines.values():  # the ranks of one machine fill its memory together
        yield from forecast.shared_leaks(readings, host)


def _may_run_out(parts: list[str], ranks: Collection[int] | None) -> bool:
    """Return whether a metric is of a disk, or of memory of one of the ranks that are read."""
    if parts[0] == "process" and ranks is not None and int(parts[1]) not in ranks:
        return False
    return parts[0] == "disk" or (parts[0], *parts[2:]) in MEMORY


@functools.cache
def _settings() -> tuple[PriceTable, str, str]:
    """Return the configured table, price and region; read once."""
    config = load_or_default(discover(Path.cwd(), os.environ), environ=os.environ)
    try:
        table = prices.load(config.get("ledger.prices") or None)
    except StepscopeError:  # `stepscope ledger` reports what is wrong with the file
        table = prices.load(None)
    return table, str(config.get("ledger.price") or ""), str(config.get("ledger.region") or "")


def card_name(past: Past, known: PriceTable) -> str | None:
    """Return the name of the run's GPU, if it has one and the table lists it."""
    names = (name for machine in past.machines() for name in machine.devices.values())
    return next((name for name in names if known.card(name) is not None), None)


def price_of(past: Past) -> Price | None:
    """Return the hourly price of one device of the run; None if unknown."""
    table, configured, _ = _settings()
    wanted = configured or card_name(past, table)
    try:
        return table.price(wanted) if wanted else None
    except StepscopeError:  # `stepscope ledger` reports what is wrong with the price
        return None


def usual_account(past: Past) -> dict[str, Any]:
    """Return the ledger of a run with the configured prices and region."""
    table, _, region = _settings()
    return account(past, LedgerOptions(table, price_of(past), region if table.region(region) is not None else ""))


def cost(past: Past, seconds: float | None) -> dict[str, Any] | None:
    """Return the cost of a run so far: its duration on its GPUs, or on its machines if a price is configured."""
    price = price_of(past)
    if price is None or not seconds:
        return None
    machines = past.machines()
    last = max((machine.attempt for machine in machines), default=0)
    devices = sum(what.startswith("gpu/") for one in machines if one.attempt == last for what in one.devices)
    return {"amount": price.per_hour * max(devices, 1) * seconds / 3600, "currency": price.currency}
