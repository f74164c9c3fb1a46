"""The overview of a run: progress, main graphs, the step, the machine, alerts."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from stepscope.core.endings import end_words
from stepscope.core.numbers import format_duration, format_share, format_value
from stepscope.core.terminal_text import cut, plain
from stepscope.tui.draw_graphs import graphs
from stepscope.tui.draw_head import progress
from stepscope.tui.draw_machine import machine_lines, machine_rows
from stepscope.tui.frame import beside, box, flowed, stacked
from stepscope.tui.theme import phase_style, signs_of, state_style

if TYPE_CHECKING:
    from stepscope.tui.frame import ViewOptions
    from stepscope.tui.text import Line
    from stepscope.views.terminal import TerminalScene

MARKS = {"critical": ("✖", "bad"), "warning": ("▲", "warn"), "info": ("●", "info")}
TALL = 28
"""Rows from which on alerts and events have a box of their own."""
WIDE = 150
"""Columns from which on step and machine stand beside each other."""


def overview(scene: TerminalScene, width: int, height: int, options: ViewOptions) -> list[Line]:
    """Return the view."""
    lines: list[Line] = [progress(scene, width)]
    cause = scene.status.get("cause")
    if cause:
        lines.append([(f" {plain(end_words(scene.state, cause))}", state_style(scene.state, cause))])
    beneath = news_box(scene, width, 6 if height >= 45 else 5) if height >= TALL else _news_line(scene, width)
    middle = _middle(scene, width, height - len(lines) - len(beneath), options)
    room = height - len(lines) - len(beneath) - len(middle)
    return [*lines, *graphs(scene, scene.shown, width, room, options), *middle, *beneath]


def _news_line(scene: TerminalScene, width: int) -> list[Line]:
    """Return the worst alert on one line; no line if there is none."""
    firing = scene.firing()
    if not firing:
        return []
    more = f"  and {len(firing) - 1} more" if len(firing) > 1 else ""
    return [[*alert_line(firing[0], scene.moment, width - len(more) - 1), (more, "dim")]]


def _middle(scene: TerminalScene, width: int, height: int, options: ViewOptions) -> list[Line]:
    """Return the step and the machine."""
    wanted = machine_rows(scene, options)
    rows = min(wanted, max(3, height - 6 - 4 - 2) if height < TALL else height // 3)
    if width >= WIDE and wanted:
        half = width // 3
        tall = max(rows, 3) + 2
        step = step_box(scene, half, tall, exact=True)
        machine = box(
            [("machine", "title")], machine_lines(scene, options, width - half - 2, tall - 2), width - half, tall
        )
        return beside([step, machine]) if step else machine
    if height < 15:
        return step_box(scene, width, 4)[: max(0, height - 6)] if height >= 10 else []
    step = step_box(scene, width, 4 if height < TALL else 5)
    if not wanted:
        return step
    return [*step, *box([("machine", "title")], machine_lines(scene, options, width - 2, rows), width, rows + 2)]


def step_box(scene: TerminalScene, width: int, height: int, *, exact: bool = False) -> list[Line]:
    """Return the phases of a step as one bar, with their durations."""
    phases, seconds = scene.phases(), scene.step_seconds()
    if seconds is None:
        return []
    inner = width - 4
    end: Line = [("recent steps", "dim")] if width >= 60 else []
    title: Line = [("step ", "title"), (format_value(seconds, "seconds"), "bold")]
    if not phases:
        return box(title, [[(" no phases are recorded", "dim")]], width, height if exact else min(height, 3), end)
    signs = signs_of([phase.name for phase in phases])
    bar = stacked([(phase.share, phase_style(phase.name), signs[phase.name][0]) for phase in phases], inner)
    items: list[Line] = [
        [
            (f"{signs[phase.name][1]} ", phase_style(phase.name)),
            (f"{plain(phase.name, 24)} ", ""),
            (f"{format_share(phase.share)} ", "bold"),
            (format_value(phase.seconds, "seconds"), "dim"),
        ]
        for phase in sorted(phases, key=lambda one: -one.share)
        if phase.share >= 0.005
    ]
    rows = flowed(items, inner, height - 3, gap=2)
    padded: list[Line] = [[(" ", ""), *row] for row in [bar, *rows]]
    return box(title, padded, width, height if exact else min(height, len(padded) + 2), end)


def news_box(scene: TerminalScene, width: int, height: int) -> list[Line]:
    """Return the open alerts; without alerts, the verdict and the latest events."""
    rows: list[Line] = [alert_line(row, scene.moment, width - 3) for row in scene.firing()]
    if not rows:
        rows = [[(" ✔ ", "good"), ("no alerts", "")]]
    room = height - 2 - len(rows)
    if room > 0:
        rows += [event_line(event, width - 3) for event in reversed(scene.events[-room:])]
    number = len(scene.firing())
    title: Line = [("alerts", "title")] if not number else [(f"alerts {number}", "bad")]
    return box(title, rows, width, height)


def alert_line(row: dict[str, Any], now: float, width: int) -> Line:
    """Return an alert on one line."""
    mark, style = MARKS.get(row["severity"], ("●", "dim"))
    if row["state"] == "acknowledged":
        style = "dim"
    elif row["state"] == "resolved":
        mark, style = "✔", "good"
    age = format_duration(round(max(0.0, (row["until"] or now) - row["since"])))
    text = f"{plain(row['rule'], 40)}  {plain(row['text'])}"
    state = "" if row["state"] == "firing" else f"  {plain(row['state'], 20)}"
    return [(f" {mark} ", style), (cut(text, width - len(age) - len(state) - 5), style), (f"  {age}{state}", "dim")]


def event_line(event: dict[str, Any], width: int) -> Line:
    """Return an event on one line."""
    when = event.get("time")
    clock = time.strftime("%H:%M:%S", time.localtime(when)) if isinstance(when, (int, float)) else "--:--:--"
    step = f"step {event['step']}  " if event.get("step") is not None else ""
    kind = plain(event["kind"], 24)
    return [
        (f" {clock} ", "dim"),
        (f"{kind}  ", "info"),
        (cut(f"{step}{plain(event['text'])}", width - len(kind) - 12), ""),
    ]
