"""Curves as SVG: what a report shows without scripts, and in print."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from stepscope.core.numbers import format_value
from stepscope.reports.markup import Markup, tag
from stepscope.store.points import Points

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.core.arrays import Floats
    from stepscope.store.curves import Curves
    from stepscope.store.pyramid import Blocks


WIDTH, HEIGHT = 480, 150
LEFT, RIGHT, TOP, BOTTOM = 58, 8, 8, 20
PLACES = 240
"""Columns of a drawn curve."""
MOST_LINES = 8


@dataclass(frozen=True)
class DrawnLine:
    """One curve: means with the extremes around them."""

    label: str
    x: Floats
    mean: Floats
    low: Floats
    high: Floats
    bad: Floats
    """x of the non-finite points."""


def lines_of(found: Curves, name: str, label: str, *, by_time: bool) -> list[DrawnLine]:
    """Return the curves of one metric, one for each rank and attempt, labeled if there are several."""
    made: dict[tuple[int, int], DrawnLine] = {}
    parts: tuple[Points | Blocks, ...] = (found.points, found.blocks)
    for part in parts:
        codes = [code for code, one in enumerate(part.names) if one == name]
        own = part.select(np.isin(part.name, codes))
        for key in sorted(set(zip(own.rank.tolist(), own.attempt.tolist(), strict=True))):
            one = own.select((own.rank == key[0]) & (own.attempt == key[1]))
            made[key] = _line(one, label, by_time=by_time)
    if len(made) < 2:
        return list(made.values())
    attempts = len({attempt for _, attempt in made}) > 1
    return [
        replace(line, label=_which(label, rank, attempt if attempts else None))
        for (rank, attempt), line in sorted(made.items())[:MOST_LINES]
    ]


def _which(label: str, rank: int, attempt: int | None) -> str:
    parts = [label, f"rank {rank}" if rank >= 0 else "" if rank == -1 else f"node {-rank}"]
    return " ".join(part for part in (*parts, "" if attempt is None else f"attempt {attempt}") if part)


def _line(one: Points | Blocks, label: str, *, by_time: bool) -> DrawnLine:
    if isinstance(one, Points):
        x, fine = one.time / 1e6 if by_time else one.step.astype(np.float64), np.isfinite(one.value)
        return DrawnLine(label, x[fine], *(one.value[fine],) * 3, x[~fine])
    x = one.last_time / 1e6 if by_time else one.last_step.astype(np.float64)
    fine = np.isfinite(one.mean)
    return DrawnLine(label, x[fine], one.mean[fine], one.min[fine], one.max[fine], x[one.nonfinite > 0])


def drawing(lines: Sequence[DrawnLine], unit: str, *, by_time: bool) -> Markup:
    """Return a small chart; empty lines are left out."""
    known = [line for line in lines if len(line.x)]
    if not known:
        return tag("p", "nothing to draw", class_="soft")
    first, low = (min(float(getattr(line, key).min()) for line in known) for key in ("x", "low"))
    last, high = (max(float(getattr(line, key).max()) for line in known) for key in ("x", "high"))
    frame = _Frame(first, last, low, high)
    parts: list[Any] = [frame.grid(unit, by_time=by_time)]
    for place, line in enumerate(known):
        parts += frame.paths(line, f"line-{place % 8}")
    parts += [
        tag("line", x1=frame.x(at), x2=frame.x(at), y1=0, y2=TOP, class_="bad")
        for line in known
        for at in line.bad[:: max(1, len(line.bad) // 100)].tolist()
    ]
    return tag("svg", parts, viewBox=f"0 0 {WIDTH} {HEIGHT}", role="img", class_="drawing")


class _Frame:
    """Map values to positions."""

    def __init__(self, first: float, last: float, low: float, high: float) -> None:
        self._first, self._span = first, (last - first) or 1.0
        room = (high - low) * 0.04 or abs(high) * 0.05 or 1.0
        self._low, self._high = low - room, high + room
        self._last = last

    def x(self, value: float) -> float:
        return round(LEFT + (value - self._first) / self._span * (WIDTH - LEFT - RIGHT), 1)

    def y(self, value: float) -> float:
        share = (value - self._low) / (self._high - self._low)
        return round(HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM), 1)

    def grid(self, unit: str, *, by_time: bool) -> list[Markup]:
        made = []
        for value in ticks(self._low, self._high, 4):
            y = self.y(value)
            made.append(tag("line", x1=LEFT, x2=WIDTH - RIGHT, y1=y, y2=y, class_="grid"))
            made.append(tag("text", format_value(value, unit), x=LEFT - 6, y=y + 3, text_anchor="end"))
        for value in ticks(0.0 if by_time else self._first, self._span if by_time else self._last, 4):
            at = self._first + value if by_time else value
            text = format_value(value, "seconds") if by_time else f"{value:.0f}"
            made.append(tag("text", text, x=self.x(at), y=HEIGHT - 6, text_anchor="middle"))
        return made

    def paths(self, line: DrawnLine, style: str) -> list[Markup]:
        x, mean, low, high = thinned(line)
        back = self._points(x[::-1], low[::-1]).replace("M", "L", 1)
        band = tag("path", d=f"{self._points(x, high)}{back}Z", class_=f"band {style}")
        return [*([band] if (high > low).any() else []), tag("path", d=self._points(x, mean), class_=f"mean {style}")]

    def _points(self, x: Floats, y: Floats) -> str:
        return "M" + "L".join(
            f"{self.x(at):g} {self.y(value):g}" for at, value in zip(x.tolist(), y.tolist(), strict=True)
        )


def thinned(line: DrawnLine) -> tuple[Floats, Floats, Floats, Floats]:
    """Return x, mean, lowest and highest on at most PLACES columns; no extreme is lost."""
    size = len(line.x)
    if size <= PLACES:
        return line.x, line.mean, line.low, line.high
    starts = np.unique(np.arange(PLACES) * size // PLACES)
    counts = np.diff(starts, append=size)
    mean = np.add.reduceat(line.mean, starts) / counts
    ends = starts + counts - 1
    return line.x[ends], mean, np.minimum.reduceat(line.low, starts), np.maximum.reduceat(line.high, starts)


def ticks(low: float, high: float, number: int) -> list[float]:
    """Return about this many round values between two."""
    span = high - low
    if not span > 0 or not math.isfinite(span):
        return [low] if math.isfinite(low) else []
    size = 10 ** math.floor(math.log10(span / number))
    step = next((size * factor for factor in (1, 2, 5, 10) if size * factor * number >= span), size * 10)
    first = math.ceil(low / step)
    return [round(place * step, 12) for place in range(first, math.floor(high / step) + 1)]
