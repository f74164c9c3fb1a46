"""The ranks of a run as lines of text."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from stepscope.cli.text.table import Cell, Column, table
from stepscope.cli.text.terminal import shows_unicode
from stepscope.core.numbers import ABSENT, format_count, format_items, format_value
from stepscope.core.terminal_text import cut, level_of, plain

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from stepscope.cli.text.terminal import Paint

    Row = Sequence[float | None]

DARKEST = 0.25
"""Share of a usual step from which on a strip is darkest."""
SHADES = " ·░▒▓█"
RANKS = (
    Column("rank", right=True),
    Column("host", narrowest=5),
    Column("place", optional=True),
    Column("state", narrowest=4),
    Column("step", right=True),
    Column("late", right=True),
    Column("mostly in", narrowest=6),
    Column("own time", right=True, optional=True),
    Column("gpu", optional=True),
    Column("strip", narrowest=8, optional=True),
)
GROUPS = (
    Column("group", narrowest=8),
    Column("ranks", right=True),
    Column("late", right=True),
    Column("worst rank", right=True),
    Column("late by", right=True),
    Column("mostly in", narrowest=6),
    Column("behind", right=True, optional=True),
    Column("states", narrowest=8, optional=True),
    Column("strip", narrowest=8, optional=True),
)
PHASES = (
    Column("phase", narrowest=8),
    Column("this rank", right=True),
    Column("median rank", right=True),
    Column("beyond", right=True),
    Column("note", narrowest=8, optional=True),
)


def rank_lines(facts: Mapping[str, Any], width: int, paint: Paint) -> list[str]:
    """Return the summary and the table of ranks, or of groups of ranks."""
    lines = [paint(text, "bold") for text in _wrapped(plain(facts["summary"]), width)]
    if facts["hang"] is not None:
        lines += [paint(text, "red") for text in _wrapped(plain(facts["hang"]["text"]), width)]
    strips = _strips(facts["map"])
    if "groups" in facts:
        rows = [_group(group, strips) for group in facts["groups"]]
        lines += ["", *table(_titled(GROUPS, facts), rows, width, paint)]
    elif facts["rows"]:
        usual = facts["usual_seconds"] or 0.0
        lines += ["", *table(_titled(RANKS, facts), [_rank(row, strips, usual) for row in facts["rows"]], width, paint)]
    notes = [f"and {format_items(facts['more'], 'line')} more; --limit 0 shows all"] if facts["more"] else []
    if facts["last_step"] is not None:
        span = f"steps {format_count(facts['first_step'])} to {format_count(facts['last_step'])}"
        notes.append(f"figures: means of {span}; {facts['definition']}")
    return [*lines, "", *(paint(text, "dim") for note in notes for text in _wrapped(note, width))]


def _titled(columns: Sequence[Column], facts: Mapping[str, Any]) -> list[Column]:
    """Return the columns, the strip under the name of what it shows."""
    shown = facts["map"]
    name = "late" if shown["is_difference"] else plain(shown["what"], 30)
    span = f"steps {format_count(shown['first_step'])} to {format_count(shown['last_step'])}"
    title = name if shown["last_step"] is None else f"{name}, {span}"
    return [*columns[:-1], replace(columns[-1], title=title)]


def _rank(row: Mapping[str, Any], strips: Mapping[int, str], usual: float) -> list[Cell]:
    late, slowest = row["late_seconds"], row["slowest_seconds"]
    tone = "red" if row["is_late"] else ""
    mostly = row["slowest_phase"] if slowest is not None and usual and slowest >= 0.01 * usual else ""
    behind = row["behind_steps"]
    step = ABSENT if row["step"] is None else format_count(row["step"]) + (f" (-{behind})" if behind else "")
    state = row["stall"] or row["state"]
    place = " ".join(f"{name[:1]}{at}" for name, at in row["coordinates"].items())
    return [
        Cell(str(row["rank"]), "bold"),
        Cell(plain(row["host"])),
        Cell(plain(place)),
        Cell(plain(state), "" if row["is_well"] else "red"),
        Cell(step),
        Cell(_signed(late, usual), tone),
        Cell(plain(mostly), tone),
        Cell(format_value(row["own_seconds"], "seconds")),
        Cell(_gpu(row), "red" if row["throttled"] else ""),
        Cell(strips.get(row["rank"], "")),
    ]


def _gpu(row: Mapping[str, Any]) -> str:
    if row["gpu"] is None:
        return ""
    heat = "" if row["temperature"] is None else f" {format_value(round(row['temperature']), 'celsius')}"
    return f"{row['gpu']}{heat}{' throttled' if row['throttled'] else ''}"


def _group(group: Mapping[str, Any], strips: Mapping[int, str]) -> list[Cell]:
    worst = group["worst"]
    states = ", ".join(f"{number} {plain(state)}" for state, number in group["states"].items() if state)
    tone = "red" if group["late"] else ""
    return [
        Cell(plain(group["group"]), "bold"),
        Cell(str(len(group["ranks"]))),
        Cell(str(group["late"]), tone),
        Cell(str(worst["rank"])),
        Cell(format_value(worst["late_seconds"], "seconds"), tone),
        Cell(plain(worst["slowest_phase"]) if worst["is_late"] else "", tone),
        Cell(f"{group['behind_steps']} steps" if group["behind_steps"] else ""),
        Cell(states),
        Cell(strips.get(worst["rank"], "")),
    ]


def _signed(late: float | None, usual: float) -> str:
    if late is None:
        return ABSENT
    if abs(late) < 0.005 * usual:
        return "0"
    return ("+" if late > 0 else "") + format_value(late, "seconds")


def _strips(shown: Mapping[str, Any]) -> dict[int, str]:
    """Return a row of blocks for each rank: how late it was, or how large its value is among all."""
    if not shows_unicode():
        return {}
    draw = _late_strip(shown["usual"]) if shown["is_difference"] else _level_strip(shown["values"])
    return {rank: draw(row) for rank, row in zip(shown["ranks"], shown["values"], strict=True)}


def _late_strip(usual: Sequence[float | None]) -> Callable[[Row], str]:
    def draw(row: Row) -> str:
        shares = (value / own if value is not None and own else None for value, own in zip(row, usual, strict=True))
        return "".join(" " if share is None else _shade(share / DARKEST) for share in shares)

    return draw


def _level_strip(values: Sequence[Row]) -> Callable[[Row], str]:
    known = [value for row in values for value in row if value is not None] or [0.0]
    low, span = min(known), (max(known) - min(known)) or 1.0
    return lambda row: "".join(" " if value is None else level_of((value - low) / span) for value in row)


def _shade(share: float) -> str:
    return SHADES[1 + min(len(SHADES) - 2, max(0, round(share * (len(SHADES) - 2))))]


def step_lines(facts: Mapping[str, Any], width: int, paint: Paint) -> list[str]:
    """Return one step of a rank, its phases beside those of the median rank."""
    who = f"rank {facts['rank']}" + (f" on {plain(facts['host'])}" if facts["host"] else "")
    late = facts["late_seconds"] or 0.0
    text = f"step {format_count(facts['step'])} of {who}: {format_value(facts['step_seconds'], 'seconds')}"
    if facts["ranks"] > 1:
        word = "later" if late >= 0 else "earlier"
        text += f", {format_value(abs(late), 'seconds')} {word} than the median of {facts['ranks']} ranks"
    rows = [_phase(phase, late) for phase in facts["phases"]]
    return [paint(cut(text, width), "bold"), "", *(table(PHASES, rows, width, paint) if rows else [])]


def _phase(phase: Mapping[str, Any], late: float) -> list[Cell]:
    seconds, usual, waits = phase["seconds"], phase["usual_seconds"], phase["may_wait"]
    beyond = None if seconds is None or usual is None else seconds - usual
    tone = "red" if late > 0 and not waits and (beyond or 0.0) > late / 2 else ""
    cells = (format_value(seconds, "seconds"), format_value(usual, "seconds"), _signed(beyond, usual or 0.0))
    note = "may wait for other ranks" if waits else ""
    return [Cell(plain(phase["phase"]), "bold"), *(Cell(cell, tone) for cell in cells), Cell(note, "dim")]


def _wrapped(text: str, width: int) -> list[str]:
    import textwrap

    return textwrap.wrap(text, width) or [""]
