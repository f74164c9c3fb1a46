"""The title, the tabs, the progress bar, and the line of keys."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from stepscope.core.numbers import format_duration, format_value
from stepscope.core.terminal_text import cut, plain, width_of
from stepscope.tui.frame import Hit
from stepscope.tui.text import apart, fitted, length
from stepscope.tui.theme import state_style

if TYPE_CHECKING:
    from stepscope.tui.frame import ViewOptions
    from stepscope.tui.text import Line
    from stepscope.views.terminal import TerminalScene

VIEWS = {
    "overview": "Overview",
    "metrics": "Metrics",
    "machine": "Machine",
    "ranks": "Ranks",
    "alerts": "Alerts",
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
    return list(VIEWS) if scene.is_run else ["machine"]


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
        text = f" {number} {VIEWS[name]} "
        if name == "alerts" and scene.firing():
            text = f" {number} {VIEWS[name]} {len(scene.firing())} "
        style = "tab" if name == options.view else "bad" if name == "alerts" and scene.firing() else "dim"
        hits.append(Hit(1, length(line), width_of(text), 1, f"view {name}"))
        line.append((text, style))
    note = plain(scene.note) if scene.note else "reading the past …" if scene.loading else ""
    note = cut(note, max(0, width - length(line) - 3))
    return apart(line, [(f"{note} ", "warn" if scene.note else "dim")] if note else [], width), hits


def progress(scene: TerminalScene, width: int) -> Line:
    """Return step, share, speed and time left on one line, with a bar in the remaining room."""
    told, total, share = scene.status, scene.status.get("total_steps"), scene.status.get("progress")
    step = told.get("step")
    number = "-" if step is None else f"{step:,}".replace(",", " ")
    start: Line = [(" step ", "dim"), (number, "bold")]
    if total:
        start.append((f" of {total:,} ".replace(",", " "), "dim"))
    parts = [text for text in (_rate(scene), _samples(scene), _epoch(scene), _time(scene)) if text]
    end: Line = [] if share is None else [(f" {format_value(share, 'ratio')}", "bold")]
    for text in parts:
        if length(start) + length(end) + len(text) + 3 <= width - 1:
            end.append((f"   {text}", ""))
    room = width - length(start) - length(end) - 2
    if share is None or room < 8:
        return fitted([*start, *end], width)
    whole = int(share * room)
    bar: Line = [(" ", ""), ("━" * whole, "accent"), ("─" * (room - whole), "faint")]
    return fitted([*start, *bar, *end], width)


def _rate(scene: TerminalScene) -> str:
    rate = scene.status.get("rate")
    if not rate:
        return ""
    return format_value(rate, "steps/second") if rate >= 1 else f"{format_value(1 / rate, 'seconds')}/step"


def _samples(scene: TerminalScene) -> str:
    rate = scene.samples_per_second
    return f"{format_value(rate, 'samples/second')}" if rate else ""


def _epoch(scene: TerminalScene) -> str:
    epoch = scene.last.get("epoch", scene.status.get("epoch"))
    return f"epoch {epoch:.3g}" if epoch is not None else ""


def _time(scene: TerminalScene) -> str:
    left, spent = scene.status.get("left"), scene.status.get("duration")
    if left is not None:
        return f"{format_duration(round(left))} left"
    if spent is None:
        return ""
    return f"for {format_duration(round(spent))}" if scene.state == "running" else f"took {format_duration(spent)}"


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
