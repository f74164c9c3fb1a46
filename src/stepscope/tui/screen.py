"""Draw a whole screen of any size as plain data: the title, the tabs, the chosen view, and the line of keys."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from stepscope.core.numbers import format_value
from stepscope.core.terminal_text import cut, plain, width_of
from stepscope.tui.draw_alerts import alerts_view
from stepscope.tui.draw_console import console_view
from stepscope.tui.draw_graphs import metrics_view
from stepscope.tui.draw_machine import machine_view
from stepscope.tui.draw_overview import overview
from stepscope.tui.draw_ranks import ranks_view
from stepscope.tui.frame import Frame, Hit, apart, filled, fitted, length
from stepscope.tui.theme import state_style

if TYPE_CHECKING:
    from stepscope.tui.frame import Line, ViewOptions
    from stepscope.views.terminal import TerminalScene

SMALLEST = (40, 10)
DRAWN = {
    "overview": overview,
    "metrics": metrics_view,
    "machine": machine_view,
    "ranks": ranks_view,
    "alerts": alerts_view,
    "console": console_view,
}
STALE_SECONDS = 5.0
KEYS = (
    ("tab", "view", "next"),
    ("/", "metrics", "pick"),
    ("l", "log", "log"),
    ("s", "save", "save"),
    ("r", "reset", "reset"),
    ("space", "pause", "pause"),
    ("?", "help", "help"),
    ("q", "quit", "quit"),
)
MACHINE_KEYS = frozenset(("save", "reset", "pause", "help", "quit"))


def views(scene: TerminalScene) -> list[str]:
    """Return the views that a scene has."""
    return list(DRAWN) if scene.is_run else ["machine"]


def title(scene: TerminalScene, options: ViewOptions, width: int) -> Line:
    """Return the title line: name, project, state and time."""
    clock = time.strftime("%H:%M:%S", time.localtime(scene.now))
    end: Line = [*([("paused ", "warn")] if options.paused else []), (f"{clock} ", "dim")]
    if not scene.is_run:
        return apart([(" stepscope ", "accent"), (plain(scene.title), "bold"), ("  this machine", "dim")], end, width)
    start: Line = [(" stepscope ", "accent"), (plain(scene.title, 80), "bold")]
    if scene.project:
        start.append((f"  {plain(scene.project, 60)}", "dim"))
    if scene.id != scene.title and width >= 100:
        start.append((f"  {plain(scene.id, 60)}", "dim"))
    style = state_style(scene.state, str(scene.status.get("cause") or ""))
    mark: Line = [("● ", style), (scene.state or "reading", style), ("  ", "")]
    quiet = silence(scene)
    if quiet is not None:
        mark = [(f"● silent for {format_value(quiet, 'seconds')}  ", "warn")]
    return apart(start, [*mark, *end], width)


def silence(scene: TerminalScene) -> float | None:
    """Return how long a running run has been silent, in seconds; None if that is normal."""
    heard = scene.status.get("heard")
    if scene.state != "running" or heard is None:
        return None
    quiet = scene.now - float(heard)
    return quiet if quiet > STALE_SECONDS else None


def tabs(scene: TerminalScene, options: ViewOptions, width: int) -> tuple[Line, list[Hit]]:
    """Return the tabs, the current view marked, and where each can be clicked."""
    line: Line = [(" ", "")]
    hits = []
    for number, name in enumerate(views(scene), 1):
        firing = len(scene.firing()) if name == "alerts" else 0
        text = f" {number} {name.title()} {firing} " if firing else f" {number} {name.title()} "
        style = "tab" if name == options.view else "bad" if firing else "dim"
        hits.append(Hit(1, length(line), width_of(text), 1, f"view {name}"))
        line.append((text, style))
    note = plain(scene.note) if scene.note else "reading the past …" if scene.loading else ""
    note = cut(note, max(0, width - length(line) - 3))
    return apart(line, [(f"{note} ", "warn" if scene.note else "dim")] if note else [], width), hits


def draw(scene: TerminalScene, options: ViewOptions, width: int, height: int) -> Frame:
    """Return the screen: exactly `height` lines of `width` columns."""
    if width < SMALLEST[0] or height < SMALLEST[1]:
        text = f"{SMALLEST[0]}x{SMALLEST[1]} needed"
        return Frame(filled([title(scene, options, width), [(text, "warn")]], width, height))
    line, hits = tabs(scene, options, width)
    last, more = keys(scene, height - 1, width)
    foot = [fitted([(f" {plain(options.hint)}", "info")], width), last] if options.hint else [last]
    tall = height - 2 - len(foot)
    body = filled(DRAWN[options.view](scene, width, tall, options), width, tall)
    lines = [fitted(title(scene, options, width), width), fitted(line, width), *body, *foot]
    return Frame(lines, [*hits, *more])


def keys(scene: TerminalScene, y: int, width: int) -> tuple[Line, list[Hit]]:
    """Return the line of keys, and where each can be clicked."""
    line: Line = [(" ", "")]
    hits = []
    for key, text, action in KEYS:
        if not scene.is_run and action not in MACHINE_KEYS:
            continue
        if length(line) + len(key) + len(text) + 3 > width:
            break
        hits.append(Hit(y, length(line), len(key) + len(text) + 1, 1, action))
        line += [(key, "key"), (f" {text}  ", "dim")]
    return fitted(line, width), hits
