"""List the recorded runs, newest first.

Shows name, state, cause of the end, last step, duration and age of each run. Unreadable runs are listed as broken, with
the reason.
"""

from __future__ import annotations

import shlex
import time
from typing import TYPE_CHECKING, Any

from stepscope.cli.command import add_shared, show
from stepscope.cli.text.number import whole
from stepscope.cli.text.table import Cell, Column, table
from stepscope.core.command_line import typed
from stepscope.core.endings import is_bad
from stepscope.core.numbers import format_age, format_count, format_duration, format_items
from stepscope.core.terminal_text import cut, plain
from stepscope.store.catalog import RunInfo, chosen_root, elsewhere, runs

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence
    from pathlib import Path

    from stepscope.cli.text.terminal import Paint

MOST_ELSEWHERE = 5
"""Most other folders that are listed."""
SHOWN = 20
"""Runs that the table shows by default."""
STYLES = {
    "running": "cyan",
    "finished": "green",
    **dict.fromkeys(("interrupted", "preempted", "lost", "stalled"), "yellow"),
    **dict.fromkeys(("failed", "killed", "oom-killed", "broken", "hung"), "red"),
}
COLUMNS = (
    Column("run", narrowest=24),
    Column("name", narrowest=8),
    Column("project", narrowest=7, optional=True),
    Column("state"),
    Column("step", right=True),
    Column("duration", right=True, optional=True),
    Column("age", right=True),
)


def style_of(state: str, cause: str = "") -> str:
    """Return the colour of a run's state."""
    return "red" if is_bad(state, cause) else STYLES.get(state, "")


def prepare(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    add_shared(parser, "dir")
    parser.add_argument("--project", metavar="P", help="only runs of this project")
    states = ", ".join(STYLES)
    parser.add_argument("--state", metavar="S", choices=list(STYLES), help=f"only runs in this state: {states}")
    text = f"show at most N runs, 0: all (default: {SHOWN} in a table, all as JSON)"
    parser.add_argument("-n", dest="limit", metavar="N", type=whole(0), help=text)
    add_shared(parser, "json")


def run(options: argparse.Namespace) -> int:
    """Print the list."""
    root, is_given = chosen_root(options.dir)
    everything = runs(root)
    of_project = [info for info in everything if options.project in {None, info.project}]
    chosen = [info for info in of_project if options.state in {None, info.state}]
    limit = SHOWN if options.limit is None and not options.json else options.limit
    shown = chosen[: limit or None]

    def page(width: int, paint: Paint) -> list[str]:
        lines = listing(shown, time.time(), width, paint) if shown else _nothing(len(everything))
        others = _elsewhere(elsewhere(root)) if not everything and not is_given else []
        return [*others, *lines, *_footer(str(root), everything, len(chosen), len(shown), paint)]

    return show(options, {"root": str(root), "total": len(everything), "runs": [facts(info) for info in shown]}, page)


def facts(info: RunInfo) -> dict[str, Any]:
    """Return one run as plain data; times in seconds."""
    return {**info.__dict__, "path": str(info.path)}


def listing(shown: Sequence[RunInfo], now: float, width: int, paint: Paint) -> list[str]:
    """Return the table: one line per run, and another with the cause of its end, if any."""
    lines = table(COLUMNS, [_row(info, now) for info in shown], width, paint)
    result = lines[:1]
    for info, line in zip(shown, lines[1:], strict=True):
        result.append(line)
        if info.cause:
            result.append(paint(cut(f"  {plain(info.cause)}", width), "dim"))
    return result


def _row(info: RunInfo, now: float) -> list[Cell | str]:
    name = "" if info.name == info.id else plain(info.name)
    state = Cell(plain(info.state), style_of(info.state, info.cause))
    figures = (format_count(info.step), format_duration(info.duration), format_age(now - info.created))
    return [Cell(plain(info.id), "bold"), name, plain(info.project), state, *figures]


def _elsewhere(others: Sequence[Path]) -> list[str]:
    """Return a hint to other folders with runs of this user."""
    commands = [f"    {typed()} runs --dir {shlex.quote(plain(str(other)))}" for other in others[:MOST_ELSEWHERE]]
    return ["Your runs are elsewhere:", "", *commands, ""] if commands else []


def _nothing(total: int) -> list[str]:
    if total:
        return ["No run matches."]
    return [
        "No runs yet. Record one:",
        "",
        "    import stepscope",
        "",
        '    with stepscope.init(project="mnist") as run:',
        "        for batch in run.data(loader):",
        "            with run.step():",
        '                run.log({"loss": loss})',
        "",
        "or watch a small training with planted faults: stepscope demo",
        "",
    ]


def _footer(root: str, everything: Sequence[RunInfo], matching: int, shown: int, paint: Paint) -> list[str]:
    """Return the line below the table: the folder, and how many runs are not shown."""
    of = f"{format_count(matching)} of " if matching < len(everything) else ""
    parts = [of + format_items(len(everything), "run")]
    running = sum(info.state == "running" for info in everything)
    if running:
        parts.append(f"{running} running")
    if shown < matching:
        parts.append(f"the newest {shown} shown, -n 0 shows all")
    text = f"{', '.join(parts)} in {plain(root)}"
    return ["", paint(text, "dim")] if everything else [paint(f"(looked in {plain(root)})", "dim")]
