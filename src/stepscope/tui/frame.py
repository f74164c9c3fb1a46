"""Layout of a screen as plain data: a line is a list of (text, style) pairs; boxes and bars are made of lines."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from stepscope.core.terminal_text import bar_of, cut, level_of, width_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Span = tuple[str, str]
    """Text, and its style by name: see theme.py."""
    Line = list[Span]
    Tile = Callable[[int, int], list[Line]]


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
    line: int = 0
    """Index of the selected rank or node."""
    grouped: bool | None = None
    """Whether the ranks are shown by node; None: if there are many."""
    rank: int | None = None
    """The rank whose console is shown; None: all."""
    newest: int | None = None
    """The number after that of the last line of the console that is shown; None: follow the newest."""
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


def left(text: str, width: int) -> str:
    """Return the text left-aligned in `width` columns."""
    shown = cut(text, width)
    return shown + " " * (width - width_of(shown))


def right(text: str, width: int) -> str:
    """Return the text right-aligned in `width` columns."""
    shown = cut(text, width)
    return " " * (width - width_of(shown)) + shown


def length(line: Sequence[Span]) -> int:
    """Return the columns of a line."""
    return sum(width_of(text) for text, _ in line)


def fitted(line: Sequence[Span], width: int) -> Line:
    """Return a line of exactly so many columns: cut, or filled with blanks."""
    found: Line = []
    room = width
    for text, style in line:
        taken = width_of(text)
        if taken > room:
            text = cut(text, room)  # noqa: PLW2901 - the rest does not fit
            taken = width_of(text)
        if text:
            found.append((text, style))
        room -= taken
        if room <= 0:
            return found
    return [*found, (" " * room, "")]


def apart(start: Sequence[Span], end: Sequence[Span], width: int) -> Line:
    """Return a line with one part at the left and one at the right; the left part is cut if needed."""
    room = width - length(end)
    if room < 4:
        return fitted(start, width)
    kept = fitted(start, room - 1)
    return [*kept, (" ", ""), *end]


def meter(share: float | None, width: int, style: str) -> Line:
    """Return a bar of a share from 0 to 1, in eighths of a column."""
    if share is None:
        return [("·" * width, "faint")]
    full = bar_of(share, width)
    return [(full, style), ("·" * (width - len(full)), "faint")]


def spark(levels: Sequence[float | None], width: int, top: float) -> str:
    """Return one row of small bars from 0 to `top`, the newest at the right; None leaves a gap."""
    shown = [" " if level is None or level != level else level_of(level / (top or 1.0)) for level in levels[-width:]]  # noqa: PLR0124 - NaN
    return "".join(shown).rjust(width)


def box(title: Sequence[Span], body: Sequence[Line], width: int, height: int, end: Sequence[Span] = ()) -> list[Line]:
    """Return a box of exactly so many columns and rows, its title and a note in the border."""
    inner = width - 2
    rows = [*body[: height - 2], *([[]] * max(0, height - 2 - len(body)))]
    lines: list[Line] = [[("╭", "border"), *_border(title, end, inner), ("╮", "border")]]
    lines += [[("│", "border"), *fitted(row, inner), ("│", "border")] for row in rows]
    return [*lines, [("╰" + "─" * inner + "╯", "border")]]


def _border(title: Sequence[Span], end: Sequence[Span], inner: int) -> Line:
    """Return a border line with a text at the left and at the right, as far as they fit."""
    first = _cut_line(title, inner - 4)
    line: Line = [("─ ", "border"), *first, (" ", "")] if first else []
    room = inner - length(line)
    if end and length(end) + 4 <= room:
        fill = room - length(end) - 3
        return [*line, ("─" * fill, "border"), (" ", ""), *end, (" ", ""), ("─", "border")]
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


def beside(parts: Sequence[Sequence[Line]]) -> list[Line]:
    """Return parts of equal height side by side."""
    return [[span for line in lines for span in line] for lines in zip(*parts, strict=True)]


def widths(total: int, number: int) -> list[int]:
    """Return the widths of so many parts that fill `total` columns, or their heights."""
    return [total * (place + 1) // number - total * place // number for place in range(number)]


def tiled(parts: Sequence[Tile], width: int, height: int, across: int, rows: int) -> list[Line]:
    """Return parts in so many rows and columns that fill the room; each is called with its width and height."""
    lines: list[Line] = []
    for row, tall in enumerate(widths(height, rows)):
        own = parts[row * across : (row + 1) * across]
        lines += beside([part(wide, tall) for part, wide in zip(own, widths(width, len(own)), strict=True)])
    return lines


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
