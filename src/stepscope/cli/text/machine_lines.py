"""Print the machine as text: one sample on one line, and the means over a run; and the end of a run."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

from stepscope.analysis.first_error.judge import ranks_text
from stepscope.cli.text.table import Cell, Column, table
from stepscope.core.numbers import format_count, format_portion, format_share, format_value
from stepscope.core.terminal_text import cut, plain
from stepscope.core.vocabulary import unit_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from stepscope.cli.text.terminal import Paint

LABEL = 10
FOLDED = 6
"""Groups of errors of other ranks that are listed under the first error."""
MOST_INSTANCES = 16
Figures = dict[str, dict[str, float | None]]
FACTS = {
    "disk": (("read", "read_bytes_per_second"), ("write", "write_bytes_per_second")),
    "network": (("received", "received_bytes_per_second"), ("sent", "sent_bytes_per_second")),
}
"""Rates of a source that its part of the line shows, each with its word."""
SHARES = {"cpu": "usage_ratio", "memory": "used_ratio"}
PRESSURES = ("cpu_some_ratio", "memory_some_ratio", "io_some_ratio")
ORDER = ("cpu", "memory", "disk", "network", "pressure")
HIDDEN = {"cgroup", "swap"}
"""Groups that only explain processor and memory."""


def one_line(values: Mapping[str, float], gpus: Sequence[int] | None = None) -> str:
    """Return a sample on one line: GPUs first, then the host; unknown values are left out.

    Args:
        values: in base units, by canonical name.
        gpus: indices of the GPUs to show; None: all.
    """
    groups = _grouped(values)
    parts = list(_cards(groups.pop("gpu", {}), gpus))
    names = [*(name for name in ORDER if name in groups), *sorted(groups.keys() - {*ORDER, *HIDDEN})]
    return plain("  ".join([*parts, *filter(None, (_part(name, groups[name]) for name in names))]))


def _grouped(values: Mapping[str, float]) -> dict[str, dict[str, float]]:
    groups: dict[str, dict[str, float]] = {}
    for name, value in values.items():
        first, _, rest = name.partition("/")
        groups.setdefault(first, {})[rest] = value
    return groups


def _part(name: str, own: Mapping[str, float]) -> str:
    """Return one source with its values; empty if none of them is known."""
    if name in SHARES:
        texts = [_known(own, SHARES[name])]
    elif name in FACTS:
        texts = [f"{word} {text}" if (text := _known(own, metric)) else "" for word, metric in FACTS[name]]
    elif name == "pressure":
        most = max((own[name] for name in PRESSURES if name in own), default=math.nan)
        texts = [_known({"ratio": most}, "ratio")]
    else:
        texts = [_known(own, next(iter(own)))]
    known = ", ".join(filter(None, texts))
    return f"{name} {known}" if known else ""


def _cards(values: Mapping[str, float], only: Sequence[int] | None) -> Iterator[str]:
    cards = {int(index): card for index, card in _grouped(values).items() if index.isdecimal()}
    shown = [(index, card) for index, card in sorted(cards.items()) if only is None or index in only]
    for number, card in shown:
        used = card.get("memory_used_bytes")
        memory = "" if used is None else format_portion(used, card.get("memory_total_bytes"))
        names = ("utilization_ratio", "temperature_celsius", "power_watts", "fan_ratio")
        use, heat, power, fan = (_known(card, name) for name in names)
        known = ", ".join(filter(None, [use, memory, heat, power, fan and f"fan {fan}"]))
        if known:
            yield f"gpu {number} {known}"
    if len(shown) > 1 and only is None and (mean := _known(values, "mean_utilization_ratio")):
        yield f"{len(shown)} GPUs {mean}"


def _known(values: Mapping[str, float], name: str) -> str:
    value, unit = values.get(name), unit_of(name)
    if value is None or math.isnan(value):
        return ""
    return format_share(value) if unit == "ratio" else format_value(value, unit)


def machine_lines(facts: dict[str, Any], width: int, paint: Paint) -> Iterator[str]:
    """Yield a line per source: how much of it was in use, on average and at most."""
    found: Figures = facts["metrics"]
    names = {what.replace("/", " "): plain(name) for what, name in facts.get("devices", {}).items()}
    for label, figures in _sources(found):
        parts = [names[label], *figures] if figures and label in names else figures
        if parts:
            yield f"  {paint(label.ljust(LABEL), 'dim')}{cut(', '.join(parts), width - LABEL - 2)}"
    for what, why in facts["absent"].items():
        if what in {"gpu", "nvidia"} and not any(name.startswith("gpu/") for name in found):
            yield paint(cut(f"  {'no gpu'.ljust(LABEL)}{plain(why)}", width), "dim")


def _sources(found: Figures) -> Iterator[tuple[str, list[str]]]:
    """Yield each source with what is known of it."""
    for label, parts in HOST.items():
        yield label, [text for how, name, what in parts for text in how(found, name, what)]
    for rank in _instances(found, "process"):
        yield f"rank {rank}", _process(found, f"process/{rank}")
    for index in _instances(found, "gpu"):
        yield f"gpu {index}", _gpu(found, f"gpu/{index}")


def _process(found: Figures, name: str) -> list[str]:
    cores = found.get(f"{name}/tree_cpu_ratio", {}).get("mean")
    parts = [] if cores is None else [f"{cores:.2f} processors"]
    parts += _use(found, f"{name}/tree_memory_bytes", "memory")
    workers = found.get(f"{name}/workers", {}).get("max")
    return parts + ([f"{workers:.0f} data workers"] if workers else [])


def _gpu(found: Figures, name: str) -> list[str]:
    memory = _use(found, f"{name}/memory_used_bytes", "memory")
    total = found.get(f"{name}/memory_total_bytes", {}).get("last")
    if memory and total:
        memory = [f"{memory[0]} of {format_value(total, 'bytes')}"]
    heat, power = _mean(found, f"{name}/temperature_celsius", "at"), _mean(found, f"{name}/power_watts", "drawing")
    return [*_use(found, f"{name}/utilization_ratio", "in use"), *memory, *heat, *power]


def _instances(found: Figures, group: str) -> list[int]:
    numbers = {name.split("/")[1] for name in found if name.startswith(f"{group}/") and name.count("/") > 1}
    return sorted(int(number) for number in numbers if number.isdecimal())[:MOST_INSTANCES]


def _texts(found: Figures, name: str, *keys: str) -> list[str]:
    """Return figures of a metric as text; nothing if its mean or last value is unknown."""
    figures = found.get(name, {})
    return [] if figures.get(keys[0]) is None else [format_value(figures[key], unit_of(name)) for key in keys]


def _use(found: Figures, name: str, what: str) -> list[str]:
    texts = _texts(found, name, "mean", "max")
    return [f"{texts[0]} {what} (most {texts[1]})"] if texts else []


def _mean(found: Figures, name: str, what: str) -> list[str]:
    return [f"{what} {text}" for text in _texts(found, name, "mean")]


def _last(found: Figures, name: str, what: str) -> list[str]:
    return [f"{text} {what}" for text in _texts(found, name, "last")]


def _notable(found: Figures, name: str, what: str) -> list[str]:
    """Return a share, unless it was always below 1 %."""
    return _use(found, name, what) if (found.get(name, {}).get("max") or 0.0) >= 0.01 else []


HOST = {
    "cpu": (
        (_use, "cpu/usage_ratio", "in use"),
        (_notable, "cpu/iowait_ratio", "waiting for disks"),
        (_notable, "cpu/steal_ratio", "stolen by the host"),
        (_notable, "cgroup/throttled_ratio", "throttled by the container's limit"),
    ),
    "memory": ((_use, "memory/used_ratio", "in use"), (_notable, "swap/used_ratio", "of the swap")),
    "disk": (
        (_mean, "disk/read_bytes_per_second", "read"),
        (_mean, "disk/write_bytes_per_second", "written"),
        (_last, "disk/free_bytes", "free"),
    ),
    "network": (
        (_mean, "network/received_bytes_per_second", "received"),
        (_mean, "network/sent_bytes_per_second", "sent"),
    ),
    "power": ((_mean, "power/cpu_watts", "processors"), (_mean, "temperature/cpu_celsius", "at")),
}
"""What the host's sources show: how, which metric, and a word for it."""


def end_lines(facts: dict[str, Any], width: int, paint: Paint) -> Iterator[str]:
    """Yield the end of the run: the events before it, the traceback, the last steps."""
    for event in facts["events"]:
        stamp = time.strftime("%H:%M:%S", time.gmtime(event["time"] or 0))
        step = "" if event["step"] in {None, -(2**63)} else f", step {event['step']}"
        text = f": {plain(event['text'])}" if event["text"] else ""
        number = event["rank"]  # a watcher's is below 0
        rank = f", rank {number}" if isinstance(number, int) and number >= 0 else ""
        yield cut(f"  {stamp} UTC  {plain(str(event['kind']))}{rank}{step}{text}", width)
    first = facts["first_error"]
    if first is not None:
        yield from _first_error_lines(first, width, paint)
    for line in facts["traceback"]:
        yield paint(cut(f"    {plain(line)}", width), "red")
    if facts["steps"]:
        yield from _step_table(facts["steps"], width, paint)


def _first_error_lines(first: dict[str, Any], width: int, paint: Paint) -> Iterator[str]:
    """Yield the first error among the ranks, and the errors of other ranks that follow from it."""
    yield paint(cut(f"  first error: {plain(first['summary'])}", width), "red")
    sure = f"{format_share(first['confidence'])} sure"
    yield cut(f"    why: {plain(first['why'])} ({sure})", width)
    for raised in first["chain"][1:]:
        yield cut(f"    then: {plain(raised)}", width)
    for other in first["others"][:FOLDED]:
        text = f"{ranks_text(other['ranks'])}: {plain(other['why'])}: {plain(other['line'])}"
        yield paint(cut(f"    {text}", width), "dim")
    if first["lines"] or len(first["others"]) > FOLDED:
        yield paint(f"    the last lines of rank {first['rank']}:", "dim")


def _step_table(steps: list[dict[str, Any]], width: int, paint: Paint) -> list[str]:
    known = {name for row in steps for name, value in row.items() if value is not None}
    beside = [name for name in ("loss", "grad_norm", "learning_rate") if name in known]
    phases = _longest(steps)
    shape = [Column("step", right=True), Column("took", right=True)]
    shape += [Column(name, right=True, optional=True) for name in (*phases, *beside)]
    rows = []
    for row in steps:
        spans = [row["seconds"], *(row["phases"].get(phase) for phase in phases)]
        times = [format_value(seconds, "seconds") for seconds in spans]
        rows.append([format_count(row["step"]), *times, *(_figure(row.get(name)) for name in beside)])
    return table(shape, rows, width, paint, 2)


def _figure(value: float | None) -> Cell | str:
    finite = value is None or value - value == 0
    return format_value(value) if finite else Cell(format_value(value), "red")


def _longest(steps: list[dict[str, Any]], most: int = 4) -> list[str]:
    """Return the phases that took the most time in these steps."""
    total: dict[str, float] = {}
    for row in steps:
        for phase, seconds in row["phases"].items():
            total[phase] = total.get(phase, 0.0) + seconds
    return [phase for phase, seconds in sorted(total.items(), key=lambda item: -item[1]) if seconds > 0][:most]
