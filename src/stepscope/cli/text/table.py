"""Tables aligned by display width, cut where there is no room, then coloured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from stepscope.core.terminal_text import cut, width_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.cli.text.terminal import Paint

GAP = "  "


@dataclass(frozen=True)
class Column:
    """A column of a table."""

    title: str
    right: bool = False
    """Whether its text is right-aligned."""
    narrowest: int = 0
    """Minimum width in terminal columns when it is cut; 0: never cut."""
    optional: bool = False
    """Whether it may be dropped where there is no room, from the last column on."""


@dataclass(frozen=True)
class Cell:
    """A text, already plain, and its style."""

    text: str
    style: str = ""


def table(
    columns: Sequence[Column], rows: Sequence[Sequence[Cell | str]], width: int, paint: Paint, indent: int = 0
) -> list[str]:
    """Return the lines of a table with its titles; columns that are empty in every row are left out."""
    cells = [[cell if isinstance(cell, Cell) else Cell(cell) for cell in row] for row in rows]
    cells.insert(0, [Cell(column.title, "dim") for column in columns])
    used = [place for place in range(len(columns)) if any(row[place].text for row in cells[1:])]
    while True:
        shown = [columns[place] for place in used]
        widths = _fit([_widest(place, cells) for place in used], shown, width - indent)
        spare = [place for place in used if columns[place].optional]
        if _total(widths) <= width - indent or not spare:
            break
        used.remove(spare[-1])
    return [" " * indent + _line([row[place] for place in used], shown, widths, paint) for row in cells]


def _total(widths: list[int]) -> int:
    return sum(widths) + len(GAP) * (len(widths) - 1)


def _widest(place: int, rows: list[list[Cell]]) -> int:
    return max(width_of(row[place].text) for row in rows)


def _fit(widths: list[int], columns: list[Column], width: int) -> list[int]:
    """Shrink the widest column that may be cut until the line fits, if it can."""
    widths = list(widths)
    while _total(widths) > width:
        loose = [place for place, column in enumerate(columns) if column.narrowest and widths[place] > column.narrowest]
        if not loose:
            break
        widths[max(loose, key=lambda place: widths[place])] -= 1
    return widths


def _line(row: list[Cell], columns: list[Column], widths: list[int], paint: Paint) -> str:
    parts = []
    for cell, column, width in zip(row, columns, widths, strict=True):
        text = cut(cell.text, width)
        space = " " * (width - width_of(text))
        painted = paint(text, cell.style)
        parts.append(space + painted if column.right else painted + space)
    return GAP.join(parts).rstrip()
