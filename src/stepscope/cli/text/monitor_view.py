"""What `monitor` shows of a machine: a line per source, as plain data, as a screen, and as one line for a pipe."""

from __future__ import annotations

import math
import textwrap
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from stepscope.cli.text.plain import LEVELS, cut, plain, shows_unicode, width_of
from stepscope.core.numbers import SIZES, format_value
from stepscope.core.vocabulary import unit_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from stepscope.cli.text.screen import Span

LABEL, VALUE = 11, 11
"""Columns of the first two cells of a line."""
HISTORY = 240
"""Moments that a picture can show."""
PICTURE = (8, 60)
"""Columns of a picture: at least, else there is none, and at most."""
FULL = 0.9
HOT = 80.0
"""Share of memory and temperature (°C) from which a value is highlighted."""
NARROWEST = 30
FEWEST = 4


class Fact(NamedTuple):
    """A part of a line: text and its style."""

    text: str
    style: str = ""


@dataclass(frozen=True)
class Source:
    """One line."""

    label: str
    value: str
    """The figure that says most."""
    level: float | None
    """The same figure as a number, for the picture; None where there is none."""
    is_share: bool
    """Whether the picture goes from 0 to 1; else from 0 to the highest."""
    facts: tuple[Fact, ...] = ()


def figure(value: float | None, unit: str) -> str:
    """Return a value that keeps its width from one moment to the next: whole percents, one decimal for sizes."""
    if value is None or not math.isfinite(value):
        return format_value(value)
    what, slash, _ = unit.partition("/")
    rate = "/s" if slash else ""
    if what == "ratio":
        return f"{value * 100:.0f} %"
    if what == "bytes":
        for factor, label in SIZES:
            if abs(value) >= factor * 0.99995:
                return f"{value / factor:.1f} {label}{rate}"
        return f"{value:.0f} B{rate}"
    if what in {"watts", "celsius"}:
        return f"{value:.0f} {'W' if what == 'watts' else '°C'}"
    return f"{value:.2f}" if not what else format_value(value, unit)


def sources(values: Mapping[str, float], gpus: Sequence[int] | None = None) -> list[Source]:
    """Return the lines of one moment: GPUs first, then the host; what is not known is not in them.

    Args:
        values: in base units, by canonical name.
        gpus: which GPUs to show; all without it.
    """
    groups: dict[str, dict[str, float]] = {}
    for name, value in values.items():
        first, _, rest = name.partition("/")
        groups.setdefault(first, {})[rest] = value
    lines = _gpus(groups.pop("gpu", {}), gpus)
    builders = {"cpu": _cpu, "memory": _memory, "disk": _disk, "network": _network, "pressure": _pressure}
    for name, build in builders.items():
        if name in groups:
            lines.append(build(groups.pop(name), groups))
    groups.pop("cgroup", None)  # its limits stand with processor and memory
    return lines + [_any(name, groups[name]) for name in sorted(groups)]


def _gpus(found: dict[str, float], only: Sequence[int] | None) -> list[Source]:
    cards: dict[int, dict[str, float]] = {}
    node: dict[str, float] = {}
    for name, value in found.items():
        index, slash, rest = name.partition("/")
        if slash and index.isdecimal():
            cards.setdefault(int(index), {})[rest] = value
        elif not slash:
            node[name] = value
    lines = [_gpu(index, card) for index, card in sorted(cards.items()) if only is None or index in only]
    if len(lines) > 1 and only is None and node:
        facts = _facts(node, ("memory", "sum_memory_used_bytes"), ("", "sum_power_watts"))
        facts += _facts({"hottest": node.get("max_temperature_celsius", math.nan)}, ("hottest", "hottest"))
        lines.append(_line(f"{len(lines)} GPUs", node.get("mean_utilization_ratio"), "ratio", facts))
    return lines


def _gpu(index: int, card: Mapping[str, float]) -> Source:
    facts = [*_portion(card.get("memory_used_bytes"), card.get("memory_total_bytes"))]
    heat = card.get("temperature_celsius")
    if heat is not None:
        facts.append(Fact(figure(heat, "celsius"), "yellow" if heat >= HOT else ""))
    facts += _facts(card, ("", "power_watts"), ("fan", "fan_ratio"))
    return _line(f"gpu {index}", card.get("utilization_ratio"), "ratio", facts)


def _cpu(own: dict[str, float], others: dict[str, dict[str, float]]) -> Source:
    cores = sorted((int(name.partition("/")[0]), value) for name, value in own.items() if name[:1].isdecimal())
    facts = _facts(own, ("load", "load_1m"), ("waiting for disks", "iowait_ratio"), ("stolen", "steal_ratio"))
    group = others.get("cgroup", {})
    if "cpu_limit" in group:
        facts.insert(0, Fact(f"limit {group['cpu_limit']:g} processors"))
    throttled = group.get("throttled_ratio")
    if throttled:
        facts.append(Fact(f"throttled {figure(throttled, 'ratio')}", "yellow"))
    if cores:
        picture = _picture([value for _, value in cores[:64]], 1.0) if shows_unicode() else ""
        facts.insert(0, Fact(f"{len(cores)} processors {picture}".rstrip()))
    return _line("cpu", own.get("usage_ratio"), "ratio", facts)


def _memory(own: dict[str, float], others: dict[str, dict[str, float]]) -> Source:
    group, swap = others.get("cgroup", {}), others.pop("swap", {})
    limit, total = group.get("memory_limit_bytes"), own.get("total_bytes")
    if limit is not None and (total is None or limit < total):
        facts = [*_portion(group.get("memory_used_bytes"), limit), Fact("limit of the container")]
    else:
        facts = [*_portion(own.get("used_bytes"), total)]
    if swap.get("used_bytes"):
        facts += _facts(swap, ("swap", "used_bytes"))
    return _line("memory", own.get("used_ratio"), "ratio", facts)


def _disk(own: dict[str, float], _others: object) -> Source:
    read, written = own.get("read_bytes_per_second"), own.get("write_bytes_per_second")
    names = (("read", "read_bytes_per_second"), ("write", "write_bytes_per_second"), ("busy", "busy_ratio"))
    facts = _facts(own, *names, ("free", "free_bytes"))
    return _line("disk", _sum(read, written), "bytes/second", facts)


def _network(own: dict[str, float], _others: object) -> Source:
    received, sent = own.get("received_bytes_per_second"), own.get("sent_bytes_per_second")
    names = (("received", "received_bytes_per_second"), ("sent", "sent_bytes_per_second"))
    return _line("network", _sum(received, sent), "bytes/second", _facts(own, *names))


def _pressure(own: dict[str, float], _others: object) -> Source:
    names = ((part, f"{part}_some_ratio") for part in ("cpu", "memory", "io"))
    shares = [own[name] for _, name in names if name in own]
    wanted = (("waited for cpu", "cpu_some_ratio"), ("for memory", "memory_some_ratio"), ("for disks", "io_some_ratio"))
    return _line("pressure", max(shares, default=None), "ratio", _facts(own, *wanted))


def _any(name: str, own: Mapping[str, float]) -> Source:
    """Return the line of a source that has none of its own: the first figure, and every one with its name."""
    facts = [Fact(f"{_words(metric)} {figure(value, unit_of(metric))}") for metric, value in own.items()]
    first = next(iter(own), "")
    return Source(name, figure(own.get(first), unit_of(first)), own.get(first), unit_of(first) == "ratio", tuple(facts))


def _words(name: str) -> str:
    """Return a metric's name without its unit, in words."""
    ends = ("_ratio", "_bytes", "_watts", "_celsius", "_hertz", "_joules", "_seconds", "_per_second", "_total")
    for end in (*ends, *ends):
        name = name.removesuffix(end)
    return name.replace("_", " ").replace("/", " ")


def _line(label: str, level: float | None, unit: str, facts: Sequence[Fact]) -> Source:
    return Source(label, figure(level, unit), level, is_share=unit == "ratio", facts=tuple(facts))


def _facts(values: Mapping[str, float], *wanted: tuple[str, str]) -> list[Fact]:
    """Return those of the wanted figures that are there, each as `label figure`."""
    units = {"hottest": "celsius"}
    return [
        Fact(f"{label} {figure(values[name], units.get(name) or unit_of(name))}".strip())
        for label, name in wanted
        if name in values and not math.isnan(values[name])
    ]


def _portion(used: float | None, total: float | None) -> Iterator[Fact]:
    """Yield how much of something is in use: `22.0 of 24.0 GiB`, in one unit."""
    if used is None:
        return
    if not total:
        yield Fact(figure(used, "bytes"))
        return
    factor, label = next(((factor, label) for factor, label in SIZES if total >= factor), (1.0, "B"))
    yield Fact(f"{used / factor:.1f} of {total / factor:.1f} {label}", "yellow" if used / total >= FULL else "")


def _sum(*parts: float | None) -> float | None:
    known = [part for part in parts if part is not None]
    return sum(known) if known else None


def _picture(levels: Sequence[float | None], top: float) -> str:
    """Return a column of blocks per level, from 0 to `top`; a gap where there is none."""
    return "".join(
        " "
        if level is None or not math.isfinite(level)
        else LEVELS[min(len(LEVELS) - 1, max(0, round(level / top * (len(LEVELS) - 1))))]
        for level in levels
    )


class Board:
    """The lines of all sources with their recent past, for a screen."""

    def __init__(self, title: str, gpus: Sequence[int] | None = None) -> None:
        """Begin without a past; `title` names the machine."""
        self._title, self._gpus = title, gpus
        self._sources: list[Source] = []
        self._past: dict[str, deque[float | None]] = {}
        self.right = ""
        """What stands at the right of the title."""
        self.notes: Sequence[str] = ()
        """What stands below the sources."""

    def take(self, values: Mapping[str, float]) -> None:
        """Take in a moment. A source that is silent now leaves a gap in its picture."""
        self._sources = sources(values, self._gpus)
        levels = {source.label: source.level for source in self._sources}
        for label in {**self._past, **levels}:
            self._past.setdefault(label, deque(maxlen=HISTORY)).append(levels.get(label))

    def draw(self, columns: int, rows: int) -> list[list[Span]]:
        """Return the lines for a terminal of that size; never more than fit."""
        width, rows = max(columns, NARROWEST), max(rows, FEWEST)
        lines = [self._head(width)]
        lines += [self._source(source, width) for source in self._sources] or [[(" nothing to show yet", "dim")]]
        notes: list[list[Span]] = [[(f" {cut(plain(note), width - 2)}", "dim")] for note in self.notes]
        room = rows - 1  # the last row stays free: a terminal scrolls when it is filled
        if len(lines) + len(notes) > room:
            notes = notes[-max(0, min(len(notes), room - 3)) :] if room > 3 else []
        hidden = len(lines) + len(notes) - room
        if hidden > 0:
            lines = [
                *lines[: room - len(notes) - 1],
                [(cut(f" and {hidden + 1} more; make the window taller", width), "dim")],
            ]
        return [*lines, *notes]

    def _head(self, width: int) -> list[Span]:
        left = f" {cut(plain(self._title), max(10, width - 2 - width_of(self.right) - 2))}"
        space = width - width_of(left) - width_of(self.right) - 1
        return [(left, "bold"), *([(" " * space + self.right, "dim")] if space > 0 else [])]

    def _source(self, source: Source, width: int) -> list[Span]:
        line: list[Span] = [
            (f" {cut(plain(source.label), LABEL - 2):<{LABEL - 1}}", "dim"),
            (f"{source.value:>{VALUE}}", ""),
            ("  ", ""),
        ]
        room = min(PICTURE[1], (width - LABEL - VALUE - 2) // 3)
        if room >= PICTURE[0] and shows_unicode():
            line += [(self._trace(source, room), "cyan"), ("  ", "")]
        left = width - sum(width_of(text) for text, _ in line) - 1
        return [*line, *_fitted(source.facts, left)]

    def _trace(self, source: Source, room: int) -> str:
        past = list(self._past.get(source.label, ()))[-room:]
        known = [level for level in past if level is not None and math.isfinite(level)]
        top = 1.0 if source.is_share else max(known, default=0.0)
        return _picture(past, top or 1.0).rjust(room) if known else " " * room


def _fitted(facts: Sequence[Fact], room: int) -> Iterator[Span]:
    """Yield as many facts as there is room for; the last one may be cut."""
    for place, fact in enumerate(facts):
        text = plain(fact.text) if place == 0 else f", {plain(fact.text)}"
        if width_of(text) > room:
            if room >= 12:
                yield cut(text, room), fact.style
            return
        room -= width_of(text)
        yield text, fact.style


def one_line(values: Mapping[str, float], gpus: Sequence[int] | None = None) -> str:
    """Return a moment as one line, for logs and pipes."""
    parts = []
    for source in sources(values, gpus):
        shown = [source.value] if source.value and source.value != "-" else []
        facts = [fact.text for fact in source.facts if not any(block in fact.text for block in LEVELS)]
        if source.level is None or source.label.startswith("gpu"):
            shown += facts[:4]
        elif not source.is_share:
            shown = facts[:2] or shown
        if shown:
            parts.append(f"{source.label} {', '.join(shown)}")
    return plain("  ".join(parts))


def absences(absent: Mapping[str, str], width: int) -> Iterator[Fact]:
    """Yield the lines that say what this machine does not tell, why, and what to do."""
    label = min(30, max((len(what) for what in absent), default=0))
    for what, why in sorted(absent.items(), key=lambda item: not item[0].startswith("gpu")):
        reason, _, remedy = why.partition("; ")
        text = f"{reason}{f' → {remedy}' if shows_unicode() else f'; {remedy}'}" if remedy else reason
        start = f" - {cut(plain(what), label):<{label}}  "
        for number, line in enumerate(textwrap.wrap(plain(text), max(20, width - len(start) - 1))):
            yield Fact(f"{' ' * len(start) if number else start}{line}", "dim")
