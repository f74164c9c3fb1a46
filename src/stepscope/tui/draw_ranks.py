"""The ranks of a run: a heat map of their recent steps, and a table."""

from __future__ import annotations

import itertools
from statistics import median
from typing import TYPE_CHECKING

from stepscope.core.numbers import format_change, format_value
from stepscope.core.terminal_text import cut, plain
from stepscope.tui.draw_machine import percent
from stepscope.tui.frame import box

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.tui.frame import Line, ViewOptions
    from stepscope.views.terminal import TerminalRank, TerminalScene

SLOW = (1.05, 1.15, 1.3, 1.6, 2.0)
"""Times the usual step from which on a cell takes the next colour."""
LEGEND: Line = [
    *(("■", "heat0"), (" usual ", "dim")),
    *(("■", "heat2"), (" +15 % ", "dim")),
    *(("■", "heat4"), (" +60 % ", "dim")),
    *(("■", "heat5"), (" twice", "dim")),
]


def heat_of(seconds: float, usual: float) -> str:
    """Return the colour of a step that takes so long where it usually takes `usual`."""
    ratio = seconds / usual if usual > 0 else 1.0
    return f"heat{sum(ratio >= limit for limit in SLOW)}"


def usual_step(ranks: Sequence[TerminalRank]) -> float:
    """Return the median of all recent steps, in seconds."""
    every = sorted(seconds for rank in ranks for seconds in rank.steps if seconds == seconds)  # noqa: PLR0124 - NaN
    return every[len(every) // 2] if every else 0.0


def ranks_view(scene: TerminalScene, width: int, height: int, options: ViewOptions) -> list[Line]:
    """Return the view: the map above, the table below."""
    ranks = [rank for _, rank in sorted(scene.ranks.items())]
    if not ranks:
        return box([("ranks", "title")], [[(" no rank has written yet", "dim")]], width, height)
    usual = usual_step(ranks)
    table_rows = min(len(ranks) + 3, max(5, height // 2))
    upper = height - table_rows
    lines = heat_box(ranks, usual, width, upper, options) if upper >= 4 else []
    return [*lines, *table_box(ranks, usual, width, height - len(lines), options)]


def heat_box(ranks: Sequence[TerminalRank], usual: float, width: int, height: int, options: ViewOptions) -> list[Line]:
    """Return a row for each rank and a column for each recent step; two ranks to a line where they are many."""
    inner, rows = width - 2, height - 2
    if len(ranks) > rows * 2:
        body = _cells(ranks, usual, inner, rows)
    elif len(ranks) > rows:
        body = [_pair(one, two, usual, inner) for one, two in itertools.zip_longest(ranks[::2], ranks[1::2])]
    else:
        body = [_row(rank, usual, inner) for rank in ranks[options.scroll :]]
    title: Line = [("step time of the ranks, recent steps", "title")]
    return box(title, body, width, min(height, len(body) + 2), LEGEND if width >= 90 else ())


def _row(rank: TerminalRank, usual: float, width: int) -> Line:
    label = f" {rank.rank:>5} "
    shown = list(rank.steps)[-(width - len(label) - 12) :]
    wide = max(1, (width - len(label) - 12) // max(1, rank.steps.maxlen or 1))
    cells = [("■" * wide, heat_of(seconds, usual)) for seconds in shown]
    return [(label, "dim"), *cells, (f"  {format_value(rank.step_seconds, 'seconds')}", "")]


def _pair(first: TerminalRank, second: TerminalRank | None, usual: float, width: int) -> Line:
    """Return two ranks on one line, with half blocks."""
    label = f" {first.rank:>5} "
    size = width - len(label) - 1
    upper, lower = list(first.steps)[-size:], list(second.steps)[-size:] if second else []
    line: Line = [(label, "dim")]
    for above, below in itertools.zip_longest(upper, lower):
        top = "" if above is None else heat_of(above, usual)
        line.append(("▀", top if below is None else f"{top} on_{heat_of(below, usual)}"))
    return line


def _cells(ranks: Sequence[TerminalRank], usual: float, width: int, rows: int) -> list[Line]:
    """Return a cell for each rank: very many of them."""
    per_row = max(1, width - 9)
    lines: list[Line] = []
    for start in range(0, min(len(ranks), per_row * rows), per_row):
        means = [rank.step_seconds for rank in ranks[start : start + per_row]]
        cells = [("■", "faint" if mean is None else heat_of(mean, usual)) for mean in means]
        lines.append([(f" {ranks[start].rank:>5} ", "dim"), *cells])
    return lines


def lateness(ranks: Sequence[TerminalRank]) -> dict[int, tuple[float, float]]:
    """Return each rank's own seconds per step, and how far they are behind the median of the others.

    Ranks that synchronize in every step have equal step times; the late rank shows in the time before they meet. If
    that was not measured, the whole step counts.
    """
    own = {rank.rank: rank.own_seconds for rank in ranks}
    if any(seconds is None for seconds in own.values()):
        own = {rank.rank: rank.step_seconds for rank in ranks}
    known = {rank: seconds for rank, seconds in own.items() if seconds is not None}
    return {
        rank: (seconds, seconds - median([*(other for one, other in known.items() if one != rank)] or [seconds]))
        for rank, seconds in known.items()
    }


def table_box(ranks: Sequence[TerminalRank], usual: float, width: int, height: int, options: ViewOptions) -> list[Line]:
    """Return the ranks as a table, the slowest first."""
    measured = all(rank.own_seconds is not None for rank in ranks)
    time = "own time" if measured else "step time"
    titles = f" {'rank':>5} {'state':<9} {'step':>9} {time:>10} {'against':>8} {'data':>6}"
    titles += f" {'cpu':>6} {'memory':>11}"
    rows: list[Line] = [[(titles, "dim")]]
    late = lateness(ranks)
    order = sorted(ranks, key=lambda rank: -late.get(rank.rank, (0.0, 0.0))[0])
    for rank in order[options.scroll : options.scroll + height - 3]:
        mean, behind = late.get(rank.rank, (None, 0.0))
        ratio = "" if mean is None or not usual else format_change(behind / usual).removesuffix(" more")
        total = sum(sum(recent) for recent in rank.phases.values())
        data = sum(rank.phases.get("data", ())) / total if total > 0 else None
        memory = rank.values.get("tree_memory_bytes", rank.values.get("memory_bytes"))
        cpu = rank.values.get("tree_cpu_ratio", rank.values.get("cpu_ratio"))
        bad = rank.state not in {"running", "finished"}
        line: Line = [(f" {rank.rank:>5} ", "bold"), (f"{cut(plain(rank.state), 9):<9} ", "bad" if bad else "")]
        line += [(f"{rank.step if rank.step is not None else '-':>9} {format_value(mean, 'seconds'):>10} ", "")]
        line += [(f"{ratio:>8} ", heat_of(usual + behind, usual)), (f"{percent(data):>6} {percent(cpu):>6} ", "")]
        rows.append([*line, (f"{format_value(memory, 'bytes'):>11}", ""), (f"  {plain(rank.node, 40)}", "dim")])
    tall = min(height, len(rows) + 2)
    return box([("ranks", "title")], rows, width, tall, [(f"{len(ranks)}, the slowest first", "dim")])
