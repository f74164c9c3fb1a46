"""Layout of a screen: boxes with titles, boxes side by side, stacked bars."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from stepscope.core.terminal_text import cut, width_of
from stepscope.tui.text import apart, fitted, length

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.tui.text import Line, Span


@dataclass(frozen=True)
class ViewOptions:
    """How the scene is drawn: the view and its settings."""

    view: str = "overview"
    log: bool | None = None
    """Whether curves use a logarithmic scale; None: automatic."""
    gpus: tuple[int, ...] | None = None
    """Indices of the shown GPUs; None: all."""
    scroll: int = 0
    """Rows or graphs scrolled past."""
    chosen: int = 0
    """Index of the selected alert."""
    paused: bool = False
    hint: str = ""
    """An extra line above the keys; empty: no line."""


@dataclass(frozen=True)
class Hit:
    """A clickable area of the screen."""

    y: int
    x: int
    width: int
    height: int
    action: str

    def at(self, x: int, y: int) -> bool:
        """Return whether a point lies in it."""
        return self.x <= x < self.x + self.width and self.y <= y < self.y + self.height


@dataclass
class Frame:
    """A drawn screen: lines of equal width, and clickable areas."""

    lines: list[Line] = field(default_factory=list)
    hits: list[Hit] = field(default_factory=list)


def box(title: Sequence[Span], body: Sequence[Line], width: int, height: int, end: Sequence[Span] = ()) -> list[Line]:
    """Return a box of exactly so many columns and rows, its title and a note in the border."""
    inner = width - 2
    head = _border(title, end, inner)
    rows = [*body[: height - 2], *([[]] * max(0, height - 2 - len(body)))]
    lines: list[Line] = [[("╭", "border"), *head, ("╮", "border")]]
    lines += [[("│", "border"), *fitted(row, inner), ("│", "border")] for row in rows]
    lines.append([("╰" + "─" * inner + "╯", "border")])
    return lines


def _border(title: Sequence[Span], end: Sequence[Span], inner: int) -> Line:
    """Return a border line with a text at the left and at the right, as far as they fit."""
    spare = inner - 4
    first = _cut_line(title, spare)
    line: Line = [("─ ", "border"), *first, (" ", "")] if first else []
    room = inner - length(line)
    last = list(end)
    if last and length(last) + 4 <= room:
        fill = room - length(last) - 3
        return [*line, ("─" * fill, "border"), (" ", ""), *last, (" ", ""), ("─", "border")]
    return [*line, ("─" * room, "border")]


def _cut_line(line: Sequence[Span], width: int) -> Line:
    found: Line = []
    for text, style in line:
        room = width - length(found)
        if width_of(text) > room:
            if room > 1:
                found.append((cut(text, room), style))
            return found
        found.append((text, style))
    return found


def beside(parts: Sequence[Sequence[Line]], gap: int = 0) -> list[Line]:
    """Return parts of equal height side by side."""
    between: Line = [(" " * gap, "")] if gap else []
    rows: list[Line] = []
    for lines in zip(*parts, strict=True):
        row: Line = []
        for place, line in enumerate(lines):
            row += [*(between if place else []), *line]
        rows.append(row)
    return rows


def widths(total: int, number: int) -> list[int]:
    """Return the widths of so many parts that fill `total` columns."""
    return [total * (place + 1) // number - total * place // number for place in range(number)]


def filled(lines: Sequence[Line], width: int, height: int) -> list[Line]:
    """Return exactly `height` lines of `width` columns."""
    kept = [fitted(line, width) for line in lines[:height]]
    return kept + [[(" " * width, "")]] * (height - len(kept))


def stacked(parts: Sequence[tuple[float, str, str]], width: int) -> Line:
    """Return one bar of several parts, each (share, style, character)."""
    line: Line = []
    done, at = 0.0, 0
    for share, style, sign in parts:
        done += share
        end = min(width, round(done * width))
        if end > at:
            line.append((sign * (end - at), style))
            at = end
    return fitted(line, width) if at < width else line


def flowed(items: Sequence[Line], width: int, rows: int, gap: int = 3) -> list[Line]:
    """Return items flowed over at most `rows` rows; items that do not fit are dropped."""
    lines: list[Line] = [[]]
    for item in items:
        need = length(item) + (gap if lines[-1] else 0)
        if lines[-1] and length(lines[-1]) + need > width:
            if len(lines) == rows:
                break
            lines.append([])
        lines[-1] += [(" " * gap, "")] if lines[-1] else []
        lines[-1] += item
    return lines


def heading(text: str, width: int, end: Sequence[Span] = ()) -> Line:
    """Return the heading of a part without a box."""
    return apart([(text, "bold")], end, width)
