"""The alerts view: alerts with evidence and remedy, the diagnosis, and events."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

from stepscope.core.numbers import format_duration, format_value
from stepscope.core.terminal_text import plain
from stepscope.tui.draw_overview import MARKS, alert_line, event_line
from stepscope.tui.frame import box

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stepscope.tui.frame import Line, ViewOptions
    from stepscope.views.terminal import TerminalScene

SOURCES = "sources"
"""Evidence of a verdict on a hang, by its source."""


def listed(scene: TerminalScene) -> list[dict[str, Any]]:
    """Return the alerts in the order of the list: those that are not over first."""
    firing = scene.firing()
    ids = {row["alert"] for row in firing}
    return [*firing, *(row for row in scene.alerts if row["alert"] not in ids)]


def alerts_view(scene: TerminalScene, width: int, height: int, options: ViewOptions) -> list[Line]:
    """Return the view."""
    rows = listed(scene)
    chosen = min(options.chosen, max(0, len(rows) - 1))
    tall = max(4, min(len(rows) + 2, height // 3))
    lines = _list(scene, rows, chosen, width, tall)
    if rows:
        tall = height // 2 if rows[chosen]["evidence"].get(SOURCES) else min(8, height // 4)
        lines += _detail(rows[chosen], scene, width, max(4, tall))
    room = height - len(lines)
    lines += _diagnosis(scene, width, room - 4 if room >= 9 else room)
    room = height - len(lines)
    if room >= 3:
        events = [event_line(event, width - 3) for event in reversed(scene.events)]
        lines += box([("events", "title")], events or [[(" nothing yet", "dim")]], width, room)
    return lines


def _list(scene: TerminalScene, rows: list[dict[str, Any]], chosen: int, width: int, height: int) -> list[Line]:
    if not rows:
        return box([("alerts", "title")], [[(" ✔ ", "good"), ("none so far", "")]], width, 3)
    first = max(0, chosen - (height - 3))
    shown: list[Line] = [
        [(">" if place == chosen else " ", "key"), *alert_line(row, scene.moment, width - 5)]
        for place, row in enumerate(rows[first : first + height - 2], first)
    ]
    keys: Line = [("↑↓", "key"), (" choose  ", "dim"), ("a", "key"), (" acknowledge", "dim")]
    return box([("alerts", "title")], shown, width, height, keys if scene.state == "running" else ())


def _detail(row: dict[str, Any], scene: TerminalScene, width: int, height: int) -> list[Line]:
    """Return the alert that is chosen, in full."""
    inner = width - 4
    place = [f"rank {row['rank']}"] if row.get("rank") is not None else []
    place += [f"step {row['step']}"] if row.get("step") is not None else []
    begun = format_duration(round(max(0.0, scene.moment - row["since"])))
    about = ", ".join([f"began {begun} ago", *place])
    lines: list[Line] = [[(f" {text}", "")] for text in textwrap.wrap(plain(row["text"]), inner)]
    remedy = f"→ {plain(row['remedy'])}" if row["remedy"] else ""
    lines += [[(f" {text}", "good")] for text in textwrap.wrap(remedy, inner)]
    lines += [[(f" {text}", "")] for text in _sources(row["evidence"].get(SOURCES), inner)]
    known = {key: value for key, value in row["evidence"].items() if value is not None and key != SOURCES}
    evidence = ", ".join(f"{plain(key, 40)} {_fact(value)}" for key, value in known.items())
    lines += [[(f" {text}", "dim")] for text in textwrap.wrap(evidence, inner)]
    _, style = MARKS.get(row["severity"], ("", "dim"))
    return box([(plain(row["rule"], 60), style)], lines, width, min(height, len(lines) + 2), [(about, "dim")])


def _sources(shown: Any, width: int) -> Iterator[str]:
    """Yield what each source of a verdict on a hang shows."""
    for name, sentences in shown.items() if isinstance(shown, dict) else ():
        label = f"{plain(name, 20).replace('_', ' ')}: "
        for sentence in sentences if isinstance(sentences, list) else ():
            rest = " " * len(label)
            yield from textwrap.wrap(plain(sentence), width, initial_indent=label, subsequent_indent=rest)
            label = rest


def _fact(value: Any) -> str:
    return format_value(value) if isinstance(value, float) else plain(value, 80)


def _diagnosis(scene: TerminalScene, width: int, height: int) -> list[Line]:
    """Return the verdict and its remedies."""
    facts = scene.diagnosis
    if height < 3:
        return []
    title: Line = [("diagnosis", "title")]
    if facts is None:
        text = "reading …" if scene.loading else "press d: why is it slow, or going wrong?"
        return box(title, [[(f" {text}", "dim")]], width, 3)
    inner, lines = width - 5, list[list[tuple[str, str]]]()
    for one in facts["findings"]:
        mark, style = MARKS.get(one["severity"], ("●", "dim"))
        first, *rest = textwrap.wrap(plain(one["text"]), inner) or [""]
        lines += [[(f" {mark} ", style), (first, "")], *([(f"   {text}", "")] for text in rest)]
        if one.get("remedy"):
            lines += [[(f"   {text}", "good")] for text in textwrap.wrap(f"→ {plain(one['remedy'])}", inner)]
    if not lines:
        lines = [[(" ✔ ", "good"), (plain(facts["summary"]), "")]]
    end: Line = [(plain(facts["primary"], 60), "bold")]
    return box(title, lines, width, min(height, len(lines) + 2), end)
