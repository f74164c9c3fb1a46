"""Drawings of a trace as SVG: shares as bars, the timeline of a rank, memory over time, who waits for whom."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stepscope.core.numbers import format_bytes, format_duration
from stepscope.reports.markup import Markup, tag

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

WIDTH = 960
"""Width of a drawing in its own units; the page scales it."""
MARGIN = 104
"""Room for the names on the left."""
LANE = 16
"""Height of a lane of a timeline."""

CLASSES = {
    **{kind: kind for kind in ("compute", "communication", "copy", "data", "idle")},
    **dict.fromkeys(("wait", "launch delay", "stream wait", "unknown"), "wait"),
}
"""Color class of each kind of time; any other kind is the host's."""


def colour(kind: str) -> str:
    """Return the color class of a kind of time."""
    return CLASSES.get(kind, "host")


def bar(percent: float | None, kind: str = "compute", width: int = 90) -> Markup:
    """Return a small bar of a share of 100 %."""
    filled = max(0.0, min(100.0, percent or 0.0)) / 100 * width
    shapes = [tag("rect", class_="track", width=width, height=8, rx=2)]
    if filled > 0:
        shapes.append(tag("rect", class_=colour(kind), width=max(round(filled, 2), 0.5), height=8, rx=2))
    return tag("svg", shapes, width=width, height=8, role="img", aria_label=f"{percent or 0:.1f} %")


def stack(shares: Sequence[tuple[str, float]], width: int = 220, height: int = 10, *, wide: bool = False) -> Markup:
    """Return a bar of several shares of 100 %, one after the other; `wide` lets the page widen it."""
    shapes, at = [tag("rect", class_="track", width=width, height=height, rx=2)], 0.0
    for kind, percent in shares:
        length = max(0.0, percent) / 100 * width
        if length > 0:
            part = tag("rect", class_=colour(kind), x=round(at, 2), width=round(length, 2), height=height)
            shapes.append(tag("g", part, tag("title", f"{kind} {percent:.1f} %")))
        at += length
    label = ", ".join(f"{kind} {percent:.1f} %" for kind, percent in shares)
    fixed = {"class_": "wide"} if wide else {"width": width, "height": height}
    return tag("svg", shapes, viewBox=f"0 0 {width} {height}", role="img", aria_label=label, **fixed)


def legend(kinds: Sequence[str]) -> Markup:
    """Return the legend of the colors."""
    boxes = (tag("rect", class_=colour(kind), width=9, height=9, rx=2) for kind in kinds)
    entries = [[tag("svg", box, width=9, height=9), kind] for box, kind in zip(boxes, kinds, strict=True)]
    return tag("p", entries, class_="legend")


def course(timeline: Mapping[str, Any], begin: float = 0.0, whole: float | None = None) -> Markup:
    """Return how busy each kind of work of a rank was over its window: full height is all of the time.

    The window begins `begin` µs after the left edge; `whole` is the width in µs, None if the window fills it.
    """
    lanes = list(timeline["shares"].items())
    length = timeline["length_us"] if whole is None else whole
    scale = (WIDTH - MARGIN) / max(length, 1e-9)
    left, width = MARGIN + begin * scale, timeline["length_us"] * scale
    top = 16 if timeline["steps"] else 2
    height = top + len(lanes) * (LANE + 6) + 16
    shapes: list[Markup] = []
    for place, (name, shares) in enumerate(lanes):
        y = top + place * (LANE + 6)
        shapes += [
            tag("text", name, x=MARGIN - 8, y=y + 12, text_anchor="end"),
            tag("rect", class_="track", x=MARGIN, y=y, width=WIDTH - MARGIN, height=LANE),
            tag("path", class_=colour(name), d=_columns(shares, left, y, width, LANE)),
        ]
    shapes += _steps(timeline["steps"], left, scale, top, height - 16)
    shapes += [
        tag("text", "0", x=MARGIN, y=height - 3),
        tag("text", duration(length), x=WIDTH, y=height - 3, text_anchor="end"),
    ]
    return _wide(shapes, height, "timeline")


def _wide(shapes: Sequence[Markup], height: float, about: str) -> Markup:
    return tag("svg", shapes, viewBox=f"0 0 {WIDTH} {height:g}", class_="wide", role="img", aria_label=about)


def _columns(shares: Sequence[float], left: float, top: float, width: float, height: float) -> str:
    """Return the outline of columns, one per share; neighbors form one shape, so that no seam shows."""
    step, bottom = width / max(len(shares), 1), top + height
    parts: list[str] = []
    risen = False
    for place, share in enumerate(shares):
        x = left + place * step
        if share > 0:
            level = bottom - max(0.6, share * height)
            parts.append(f"{'' if risen else f'M{x:.1f} {bottom:g}'}V{level:.1f}H{x + step:.1f}")
        elif risen:
            parts.append(f"V{bottom:g}z")
        risen = share > 0
    return "".join(parts) + (f"V{bottom:g}z" if risen else "")


def _steps(steps: Sequence[Mapping[str, Any]], left: float, scale: float, top: float, bottom: float) -> list[Markup]:
    """Return a line at the start of each step, and its number if there is room."""
    shapes: list[Markup] = []
    free = 0.0
    for step in steps:
        x = left + max(0.0, step["start_us"]) * scale
        shapes.append(tag("line", class_="grid", x1=round(x, 1), x2=round(x, 1), y1=top - 4, y2=bottom))
        if x >= free and x < WIDTH - 50:
            shapes.append(tag("text", f"step {step['number']}", x=round(x + 3, 1), y=top - 5))
            free = x + 60
    return shapes


def memory(entry: Mapping[str, Any]) -> Markup:
    """Return memory in use over time, and reserved memory."""
    times, used, reserved = (entry["timeline"][key] for key in ("time_us", "used_bytes", "reserved_bytes"))
    height, top = 130, 8
    most = max(1, *used, *(reserved or [0]))
    first, span = times[0], max(times[-1] - times[0], 1e-9)

    def place(at: float, value: float) -> str:
        x = MARGIN + (at - first) / span * (WIDTH - MARGIN)
        return f"{x:.1f} {top + (1 - value / most) * (height - top):.1f}"

    line = "L".join(map(place, times, used))
    shapes = [
        tag("path", class_="compute", d=f"M{MARGIN} {height}L{line}L{WIDTH} {height}z", fill_opacity=0.75),
        tag("line", class_="grid", x1=MARGIN, x2=WIDTH, y1=height, y2=height),
        tag("text", format_bytes(most), x=MARGIN - 8, y=top + 8, text_anchor="end"),
        tag("text", "0", x=MARGIN - 8, y=height, text_anchor="end"),
        tag("text", duration(span), x=WIDTH, y=height + 14, text_anchor="end"),
    ]
    if reserved:
        shapes.append(tag("path", class_="reserved", d=f"M{'L'.join(map(place, times, reserved))}"))
    return _wide(shapes, height + 18, "memory over time")


def waiting(waits: Sequence[Sequence[float]], ranks: Sequence[int]) -> Markup:
    """Return who waited for whom as a matrix: rows wait for columns."""
    count, most = len(ranks), max(1e-9, *(value for row in waits for value in row))
    cell = min(28.0, (WIDTH - MARGIN) / max(count, 1))
    shapes: list[Markup] = []
    for at, rank in enumerate(ranks):
        middle = (at + 0.5) * cell
        shapes.append(tag("text", f"rank {rank}", x=MARGIN - 8, y=round(18 + middle + 4, 1), text_anchor="end"))
        shapes.append(tag("text", rank, x=round(MARGIN + middle, 1), y=12, text_anchor="middle"))
    for row, line in enumerate(waits):
        for column, value in enumerate(line):
            x, y, size = round(MARGIN + column * cell, 1), round(18 + row * cell, 1), round(cell - 2, 1)
            about = tag("title", f"rank {ranks[row]} waited {duration(value)} for rank {ranks[column]}")
            box = {"x": x, "y": y, "width": size, "height": size, "rx": 2}
            warm = tag("rect", class_="warm", fill_opacity=round(value / most, 3), **box)
            shapes.append(tag("g", tag("rect", class_="track", **box), warm, about))
    return _wide(shapes, 18 + count * cell, "who waited for whom")


def duration(microseconds: float | None) -> str:
    """Return a duration in microseconds as text."""
    return format_duration(None if microseconds is None else microseconds / 1e6)
