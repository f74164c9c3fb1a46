"""What is selected or scrolled to in a view, and how keys change it: pure functions over the scene and the options."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from stepscope.tui.draw_alerts import listed
from stepscope.tui.draw_ranks import lines_of, selected_rank

if TYPE_CHECKING:
    from stepscope.tui.frame import ViewOptions
    from stepscope.views.terminal import TerminalScene

FAR = 100_000
"""Lines to the first or the last one."""


def moved(scene: TerminalScene, options: ViewOptions, by: int) -> ViewOptions:
    """Return the options after scrolling, or selecting an alert, rank or node, by so many lines."""
    if options.view == "alerts":
        most = max(0, len(listed(scene)) - 1)
        return replace(options, chosen=max(0, min(most, options.chosen + by)))
    if options.view == "ranks":
        most = max(0, lines_of(scene, options) - 1)
        return replace(options, line=max(0, min(most, options.line + by)))
    if options.view == "console":
        console = scene.console
        to = max(console.first + 1, (console.end if options.newest is None else options.newest) + by)
        return replace(options, newest=None if to >= console.end else to)
    return options if by >= FAR else replace(options, scroll=max(0, options.scroll + by))


def console_rank(scene: TerminalScene, options: ViewOptions) -> int | None:
    """Return the rank that is selected in Ranks, or that of the selected alert; None if there is none."""
    if options.view == "ranks":
        return selected_rank(scene, options)
    rows = listed(scene)
    rank = rows[min(options.chosen, len(rows) - 1)].get("rank") if rows else None
    return rank if isinstance(rank, int) and rank >= 0 else None


def next_rank(scene: TerminalScene, rank: int | None, by: int) -> int | None:
    """Return the rank after another, or before it; None, all ranks, is before the first."""
    known = [None, *sorted(scene.ranks)]
    return known[((known.index(rank) if rank in known else 0) + by) % len(known)]
