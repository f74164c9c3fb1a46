"""The console view: the newest lines that the ranks printed, or an earlier part of them, with errors marked."""

from __future__ import annotations

import time
from itertools import islice
from typing import TYPE_CHECKING

from stepscope.core.console_text import COLOUR, for_terminal
from stepscope.core.numbers import format_items
from stepscope.core.terminal_text import ELLIPSIS, width_of
from stepscope.store.console import looks_like_error
from stepscope.tui.frame import box, length

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stepscope.core.console_line import ConsoleLine
    from stepscope.tui.frame import Line, ViewOptions
    from stepscope.views.terminal import TerminalScene
    from stepscope.views.terminal_console import TerminalConsole

MOST_ROWS = 4
"""Rows that one line may take."""
COLOURS = ("black", "red", "green", "yellow", "blue", "magenta", "cyan", "white")
NONE = "nothing was kept of what the ranks print; start the training with `stepscope run`"


def console_view(scene: TerminalScene, width: int, height: int, options: ViewOptions) -> list[Line]:
    """Return the view: the lines that end at `options.newest`, the newest of all by default."""
    console = scene.console
    who = "all ranks" if console.rank is None else f"rank {console.rank}"
    title: Line = [("console", "title"), (f" {who}", "" if console.rank is not None else "dim")]
    if console.lost:
        title.append((f"  {format_items(console.lost, 'line')} not kept", "warn"))
    if not console.lines:
        return box(title, [[(f" {_nothing(scene)}", "dim")]], width, height, _keys(console, None))
    end = min(console.end, max(console.first + 1, console.end if options.newest is None else options.newest))
    columns = len(str(max(line.rank for line in console.lines))) + 1
    body: list[Line] = []
    for place in range(end - console.first - 1, -1, -1):
        body[:0] = _rows(console.lines[place], columns, width - 2)
        if len(body) >= height - 2:
            break
    return box(title, body[-max(0, height - 2) :], width, height, _keys(console, end))


def _nothing(scene: TerminalScene) -> str:
    """Return why there is no line."""
    if not scene.console.is_read:
        return "reading …"
    return NONE if scene.console.rank is None else f"rank {scene.console.rank} has printed nothing that was kept"


def _keys(console: TerminalConsole, end: int | None) -> Line:
    """Return the note in the border: where the view stands, and its keys."""
    newer = 0 if end is None else console.end - end
    stands: Line = [(f"{format_items(newer, 'newer line')}  ", "warn")] if newer else []
    stands += [("end", "key"), (" newest  ", "dim")] if newer else []
    return [*stands, ("↑↓", "key"), (" scroll  ", "dim"), ("←→", "key"), (" rank", "dim")]


def _rows(line: ConsoleLine, columns: int, width: int) -> list[Line]:
    """Return a line as rows: its time and rank, and its text, wrapped."""
    clock = time.strftime("%H:%M:%S", time.localtime(line.time))
    head: Line = [(f" {clock} ", "dim"), (f"{line.rank:>{columns}} ", "accent")]
    is_error = looks_like_error(COLOUR.sub("", line.text))
    head.append(("▌" if is_error else " ", "bad"))
    room = max(1, width - length(head))
    rows = list(islice(wrapped(coloured(line.text, "bad" if is_error else ""), room), MOST_ROWS + 1))
    if len(rows) > MOST_ROWS:
        rows = rows[:MOST_ROWS]
        rows[-1] = [*rows[-1][:-1], (rows[-1][-1][0][:-1] + ELLIPSIS, rows[-1][-1][1])]
    blank: Line = [(" " * length(head[:-1]), ""), head[-1]]
    return [[*(head if place == 0 else blank), *row] for place, row in enumerate(rows or [[]])]


def coloured(text: str, style: str = "") -> Line:
    """Return a line of a console with its colours as styles; `style` is that of text without one.

    Bright and dark colours, bold and dim count; everything else of a line is text, and none of it acts on the terminal.
    """
    found: Line = []
    weight = colour = ""
    codes = [*(code[2:-1] for code in COLOUR.findall(text)), ""]
    for part, code in zip(COLOUR.split(text), codes, strict=True):
        shown = for_terminal(part, in_colour=False)
        if shown:
            found.append((shown, f"{weight} {colour}".strip() or style))
        weight, colour = _changed(code, weight, colour)
    return found


def _changed(codes: str, weight: str, colour: str) -> tuple[str, str]:
    """Return weight and colour after an escape sequence."""
    numbers = iter([int(code) if code.isdecimal() else 0 for code in codes.replace(":", ";").split(";")])
    for code in numbers:
        if code == 0:
            weight = colour = ""
        elif code in {1, 2, 22}:
            weight = {1: "bold", 2: "dim", 22: ""}[code]
        elif code in {38, 48}:  # one of 256 colours, or of all: passed over with its parameters
            for _ in range(1 if next(numbers, 0) == 5 else 3):
                next(numbers, 0)
        elif 30 <= code <= 37 or 90 <= code <= 97:
            colour = f"{'bright_' if code >= 90 else ''}{COLOURS[code % 10]}"
        elif code == 39:
            colour = ""
    return weight, colour


def wrapped(line: Line, width: int) -> Iterator[Line]:
    """Yield rows of at most `width` columns."""
    row: Line = []
    room = width
    for text, style in line:
        rest = text
        while rest:
            taken = _fitting(rest, room)
            if taken == 0 and not row:
                taken = 1  # a wide character in one column
            if taken:
                row.append((rest[:taken], style))
            room -= width_of(rest[:taken])
            rest = rest[taken:]
            if rest:
                yield row
                row, room = [], width
    if row:
        yield row


def _fitting(text: str, room: int) -> int:
    """Return how many of the first characters surely fit into so many columns."""
    if width_of(text[:room]) <= room:
        return min(room, len(text))
    used = 0
    for place, character in enumerate(text):
        used += width_of(character)
        if used > room:
            return place
    return len(text)
