"""Print one sample of a machine as one line, for logs and pipes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from stepscope.core.numbers import format_portion, format_share, format_value
from stepscope.core.terminal_text import plain
from stepscope.core.vocabulary import unit_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

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
    groups: dict[str, dict[str, float]] = {}
    for name, value in values.items():
        first, _, rest = name.partition("/")
        groups.setdefault(first, {})[rest] = value
    parts = list(_gpus(groups.pop("gpu", {}), gpus))
    names = [*(name for name in ORDER if name in groups), *sorted(groups.keys() - {*ORDER, *HIDDEN})]
    return plain("  ".join([*parts, *filter(None, (_source(name, groups[name]) for name in names))]))


def _source(name: str, own: Mapping[str, float]) -> str:
    """Return one source with its values; empty if none of them is known."""
    if name in SHARES:
        texts = [_text(own, SHARES[name])]
    elif name in FACTS:
        texts = [f"{word} {text}" if (text := _text(own, metric)) else "" for word, metric in FACTS[name]]
    elif name == "pressure":
        most = max((own[name] for name in PRESSURES if name in own), default=math.nan)
        texts = [_text({"ratio": most}, "ratio")]
    else:
        texts = [_text(own, next(iter(own)))]
    known = ", ".join(filter(None, texts))
    return f"{name} {known}" if known else ""


def _gpus(values: Mapping[str, float], only: Sequence[int] | None) -> Iterator[str]:
    cards: dict[int, dict[str, float]] = {}
    for name, value in values.items():
        index, _, rest = name.partition("/")
        if index.isdecimal():
            cards.setdefault(int(index), {})[rest] = value
    shown = [(index, card) for index, card in sorted(cards.items()) if only is None or index in only]
    for number, card in shown:
        used = card.get("memory_used_bytes")
        memory = "" if used is None else format_portion(used, card.get("memory_total_bytes"))
        use, heat, power, fan = (
            _text(card, name) for name in ("utilization_ratio", "temperature_celsius", "power_watts", "fan_ratio")
        )
        known = ", ".join(filter(None, [use, memory, heat, power, fan and f"fan {fan}"]))
        if known:
            yield f"gpu {number} {known}"
    if len(shown) > 1 and only is None and (mean := _text(values, "mean_utilization_ratio")):
        yield f"{len(shown)} GPUs {mean}"


def _text(values: Mapping[str, float], name: str) -> str:
    value, unit = values.get(name), unit_of(name)
    if value is None or math.isnan(value):
        return ""
    return format_share(value) if unit == "ratio" else format_value(value, unit)
