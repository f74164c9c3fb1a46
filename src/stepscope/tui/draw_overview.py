"""The overview of a run: progress, main graphs, the step, the machine, alerts."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from stepscope.core.endings import end_words
from stepscope.core.numbers import format_duration, format_share, format_value
from stepscope.core.terminal_text import cut, plain
from stepscope.tui.draw_graphs import graphs
from stepscope.tui.draw_machine import machine_lines, machine_rows
from stepscope.tui.draw_sinks import sink_line
from stepscope.tui.frame import beside, box, fitted, flowed, length, stacked
from stepscope.tui.theme import phase_style, signs_of, state_style
from stepscope.views.ranks import LATE_SECONDS, LATE_SHARE
from stepscope.views.terminal_ranks import lateness

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stepscope.tui.frame import Line, ViewOptions
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
    if scene.sinks:
        lines.append(sink_line(scene.sinks, width))
    beneath = news_box(scene, width, 6 if height >= 45 else 5) if height >= TALL else _news_line(scene, width)
    middle = _middle(scene, width, height - len(lines) - len(beneath), options)
    room = height - len(lines) - len(beneath) - len(middle)
    return [*lines, *graphs(scene, scene.shown, width, room, options), *middle, *beneath]


def progress(scene: TerminalScene, width: int) -> Line:
    """Return step, share, speed and time left on one line, with a bar in the remaining room."""
    told, total, share = scene.status, scene.status.get("total_steps"), scene.status.get("progress")
    step = told.get("step")
    number = "-" if step is None else f"{step:,}".replace(",", " ")
    start: Line = [(" step ", "dim"), (number, "bold")]
    if total:
        start.append((f" of {total:,} ".replace(",", " "), "dim"))
    end: Line = [] if share is None else [(f" {format_value(share, 'ratio')}", "bold")]
    for text in _pace(scene):
        if length(start) + length(end) + len(text) + 3 <= width - 1:
            end.append((f"   {text}", ""))
    room = width - length(start) - length(end) - 2
    if share is None or room < 8:
        return fitted([*start, *end], width)
    whole = int(share * room)
    bar: Line = [(" ", ""), ("━" * whole, "accent"), ("─" * (room - whole), "faint")]
    return fitted([*start, *bar, *end], width)


def _pace(scene: TerminalScene) -> Iterator[str]:
    told, samples = scene.status, scene.samples_per_second
    rate, left, spent = (told.get(key) for key in ("rate", "left", "duration"))
    epoch = scene.last.get("epoch", told.get("epoch"))
    if rate:
        yield format_value(rate, "steps/second") if rate >= 1 else f"{format_value(1 / rate, 'seconds')}/step"
    if samples:
        yield format_value(samples, "samples/second")
    if epoch is not None:
        yield f"epoch {epoch:.3g}"
    if left is not None:
        yield f"{format_duration(round(left))} left"
    elif spent is not None:
        running = scene.state == "running"
        yield f"for {format_duration(round(spent))}" if running else f"took {format_duration(spent)}"


def _news_line(scene: TerminalScene, width: int) -> list[Line]:
    """Return the worst alert on one line; no line if there is none."""
    firing = scene.firing()
    if not firing:
        return []
    more = f"  and {len(firing) - 1} more" if len(firing) > 1 else ""
    return [[*alert_line(firing[0], scene.moment, width - len(more) - 1), (more, "dim")]]


def _middle(scene: TerminalScene, width: int, height: int, options: ViewOptions) -> list[Line]:
    wanted = machine_rows(scene, options)
    rows = min(wanted, max(3, height - 6 - 4 - 2) if height < TALL else height // 3)
    if width >= WIDE and wanted:
        half = width // 3
        rows = max(rows, 3)
        step = step_box(scene, half, rows + 2, exact=True)
        machine = _machine_box(scene, options, width - half, rows)
        return beside([step, machine]) if step else machine
    if height < 15:
        return step_box(scene, width, 4)[: max(0, height - 6)] if height >= 10 else []
    step = step_box(scene, width, 4 if height < TALL else 5)
    return [*step, *_machine_box(scene, options, width, rows)] if wanted else step


def _machine_box(scene: TerminalScene, options: ViewOptions, width: int, rows: int) -> list[Line]:
    return box([("machine", "title")], machine_lines(scene, options, width - 2, rows), width, rows + 2)


def _latest(scene: TerminalScene, step_seconds: float) -> Line:
    """Return the rank that is the latest in the steps shown, if one is late."""
    late = {rank: seconds for rank, (_, seconds) in lateness([*scene.ranks.values()]).items()}
    worst = max(late, key=lambda rank: late[rank], default=-1)
    if worst < 0 or late[worst] < max(LATE_SECONDS, LATE_SHARE * step_seconds):
        return []
    return [(f"rank {worst} is late by {format_value(late[worst], 'seconds')}", "bad")]


def step_box(scene: TerminalScene, width: int, height: int, *, exact: bool = False) -> list[Line]:
    """Return the phases of a step as one bar, with their durations."""
    phases, seconds = scene.phases(), scene.step_seconds()
    if seconds is None:
        return []
    inner = width - 4
    end: Line = _latest(scene, seconds) or ([("recent steps", "dim")] if width >= 60 else [])
    title: Line = [("step ", "title"), (format_value(seconds, "seconds"), "bold")]
    if not phases:
        return box(title, [[(" no phases are recorded", "dim")]], width, height if exact else min(height, 3), end)
    signs = signs_of([phase.name for phase in phases])
    bar = stacked([(phase.share, phase_style(phase.name), signs[phase.name][0]) for phase in phases], inner)
    items: list[Line] = []
    for phase in sorted((one for one in phases if one.share >= 0.005), key=lambda one: -one.share):
        name = [(f"{signs[phase.name][1]} ", phase_style(phase.name)), (f"{plain(phase.name, 24)} ", "")]
        spent = format_value(phase.seconds, "seconds")
        items.append([*name, (f"{format_share(phase.share)} ", "bold"), (spent, "dim")])
    rows = flowed(items, inner, height - 3, gap=2)
    padded: list[Line] = [[(" ", ""), *row] for row in [bar, *rows]]
    return box(title, padded, width, height if exact else min(height, len(padded) + 2), end)


def news_box(scene: TerminalScene, width: int, height: int) -> list[Line]:
    """Return the open alerts; without alerts, the verdict and the latest events."""
    firing = scene.firing()
    rows: list[Line] = [alert_line(row, scene.moment, width - 3) for row in firing]
    rows = rows or [[(" ✔ ", "good"), ("no alerts", "")]]
    room = height - 2 - len(rows)
    if room > 0:
        rows += [event_line(event, width - 3) for event in reversed(scene.events[-room:])]
    return box([(f"alerts {len(firing)}", "bad") if firing else ("alerts", "title")], rows, width, height)


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
    text = cut(f"{step}{plain(event['text'])}", width - len(kind) - 12)
    return [(f" {clock} ", "dim"), (f"{kind}  ", "info"), (text, "")]
