"""Graphs of metrics: boxes with the name, the newest value and the best in the border, and the course as braille."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from stepscope.core.numbers import format_short
from stepscope.core.terminal_text import plain, width_of
from stepscope.tui.braille import picture
from stepscope.tui.frame import box, right, tiled
from stepscope.tui.theme import LINES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.tui.frame import Line, ViewOptions
    from stepscope.views.terminal import TerminalCurve, TerminalScene

NARROWEST, LOWEST = 34, 6
"""Columns and rows of the smallest graph, its box included."""
LABEL = 8
"""Columns of the labels at the left of a graph."""


def curve_box(curve: TerminalCurve, options: ViewOptions, place: int, width: int, height: int) -> list[Line]:
    """Return one graph in its box."""
    last, style = curve.history.last, f"line{place % LINES}"
    broken = last is not None and last != last  # noqa: PLR0124 - NaN
    value = format_short(last, curve.unit)
    end: Line = [(value, "bad" if broken else "bold")]
    if curve.best is not None and width >= 44:
        end = [(f"best {format_short(curve.best, curve.unit)}  ", "dim"), *end]
    room = width - width_of(value) - 8
    name = plain(curve.name)[-room:] if width_of(curve.name) > room else plain(curve.name, 80)
    return box([(name, style)], _body(curve, width - 2, height - 2, options, style), width, height, end)


def _body(curve: TerminalCurve, width: int, height: int, options: ViewOptions, style: str) -> list[Line]:
    if not len(curve.history):
        return [[]] * (height // 2) + [[(" nothing yet", "dim")]]
    how = options.log if options.log is not None else None if curve.spans_decades else False
    drawn = picture(curve.history, width - LABEL - 1, height, style, log=how)
    texts = [format_short(drawn.top, curve.unit), *[""] * (height - 2), format_short(drawn.bottom, curve.unit)][:height]
    texts = [text if len(text) <= LABEL else text.replace(" ", "") for text in texts]
    if drawn.log and height > 2:
        texts[1] = "log"
    return [[(f"{right(text, LABEL)} ", "dim"), *line] for text, line in zip(texts, drawn.lines, strict=True)]


def grid(width: int, height: int, number: int) -> tuple[int, int]:
    """Return how many graphs stand beside and above each other in so much room."""
    across = max(1, min(width // NARROWEST, 4))
    rows = max(1, min(height // LOWEST, -(-number // across)))
    while rows > 1 and across > 1 and across * (rows - 1) >= number:
        rows -= 1
    across = min(across, max(1, -(-number // rows)))
    return across, rows


def graphs(
    scene: TerminalScene, names: Sequence[str], width: int, height: int, options: ViewOptions, first: int = 0
) -> list[Line]:
    """Return as many graphs as fit, filling the room."""
    known = [name for name in names if name in scene.curves]
    if not known:
        text = "reading the past …" if scene.loading else "no metric of the training yet"
        return box([("metrics", "title")], [[], [(f" {text}", "dim")]], width, height)
    curves = enumerate((scene.curves[name] for name in known), first)
    boxes = [functools.partial(curve_box, curve, options, place) for place, curve in curves]
    return tiled(boxes, width, height, *grid(width, height, len(known)))


def metrics_view(scene: TerminalScene, width: int, height: int, options: ViewOptions) -> list[Line]:
    """Return every chosen graph; those that do not fit come by scrolling."""
    across, rows = grid(width, height, len(scene.shown))
    page = across * rows
    first = min(options.scroll * across, max(0, len(scene.shown) - page))
    return graphs(scene, scene.shown[first : first + page], width, height, options, first)
