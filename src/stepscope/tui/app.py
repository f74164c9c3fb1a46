"""The terminal dashboard: Textual handles keys, mouse and size; `screen.draw` draws the content."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from rich.segment import Segment
from textual.app import App
from textual.binding import Binding
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from stepscope.alerts.user_requests import ask
from stepscope.core.errors import StepscopeError
from stepscope.tui.draw_alerts import listed
from stepscope.tui.draw_ranks import is_grouped
from stepscope.tui.frame import Frame, ViewOptions
from stepscope.tui.reading import SECONDS, command, environment, opened
from stepscope.tui.saving import save
from stepscope.tui.screen import draw, views
from stepscope.tui.selection import FAR, console_rank, moved, next_rank
from stepscope.tui.theme import style_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from textual import events
    from textual.app import ComposeResult

    from stepscope.tui.feed import SceneFeed
    from stepscope.tui.frame import Line
    from stepscope.tui.reading import PastRequest

NOTE_SECONDS = 4.0
"""Seconds that a note is shown."""
FOLLOW_SECONDS = 2.0
"""Seconds between two checks for a newer run."""


class Canvas(Widget, can_focus=True):
    """The whole screen; only changed lines are redrawn, which keeps slow links usable."""

    DEFAULT_CSS = "Canvas { width: 1fr; height: 1fr; }"

    def __init__(self) -> None:
        """Start blank."""
        super().__init__()
        self._lines: list[Line] = []
        self._strips: list[Strip] = []
        self.frame = Frame()

    def show(self, frame: Frame) -> None:
        """Show another screen."""
        self.frame = frame
        changed = [place for place, line in enumerate(frame.lines) if self._lines[place : place + 1] != [line]]
        strips = self._strips[: len(frame.lines)]
        strips += [Strip.blank(0)] * (len(frame.lines) - len(strips))
        for place in changed:
            strips[place] = Strip([Segment(text, style_of(style)) for text, style in frame.lines[place]])
        self._lines, self._strips = frame.lines, strips
        if changed:
            self.refresh(*[Region(0, place, self.size.width, 1) for place in changed])

    def render_line(self, y: int) -> Strip:
        """Return one line."""
        return self._strips[y] if y < len(self._strips) else Strip.blank(self.size.width)


class TopApp(App[None]):
    """The dashboard."""

    CSS = "Screen { background: ansi_default; }"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar = [
        Binding("q", "quit", "quit"),
        Binding("ctrl+c", "quit", "quit", priority=True),
        Binding("tab", "next", "next view", priority=True),
        Binding("shift+tab", "next(-1)", "view before", priority=True),
        *(Binding(str(number), f"go({number})", "view") for number in range(1, 7)),
        Binding("slash", "pick", "choose metrics"),
        Binding("s", "save", "save"),
        Binding("r", "reset", "reset history"),
        Binding("l", "log", "logarithmic"),
        Binding("d", "diagnose", "diagnose"),
        Binding("g", "group", "ranks by node"),
        Binding("a", "acknowledge", "acknowledge"),
        Binding("space", "pause", "pause"),
        Binding("question_mark", "help", "help"),
        Binding("down,j", "move(1)", "down"),
        Binding("up,k", "move(-1)", "up"),
        Binding("pagedown", "move(10)", "page down"),
        Binding("pageup", "move(-10)", "page up"),
        Binding("right", "rank(1)", "next rank"),
        Binding("left", "rank(-1)", "rank before"),
        Binding("enter", "console", "its console"),
        Binding("home", f"move({-FAR})", "first"),
        Binding("end", f"move({FAR})", "last"),
        Binding("escape", "home", "back"),
    ]

    def __init__(
        self,
        feed: SceneFeed,
        interval: float = 0.5,
        options: ViewOptions | None = None,
        newer: Callable[[SceneFeed], SceneFeed | None] | None = None,
        folder: Path | None = None,
    ) -> None:
        """Show `feed` every `interval` seconds.

        Args:
            feed: the source; closed at the end, like all later feeds.
            interval: seconds.
            options: initial view options.
            newer: returns the feed to switch to, or None; called every two seconds.
            folder: where `s` saves; the working directory by default.
        """
        super().__init__(ansi_color=True)
        self.feed, self._interval, self._newer, self._folder = feed, interval, newer, folder
        self.options = options or ViewOptions(view=views(feed.scene)[0])
        self._canvas = Canvas()
        self._also: list[tuple[float, Callable[[], object]]] = []
        self._diagnosed: object = None
        self._reader: asyncio.subprocess.Process | None = None

    def also_every(self, seconds: float, do: Callable[[], object]) -> None:
        """Call a function at an interval while the dashboard runs."""
        self._also.append((seconds, do))

    def compose(self) -> ComposeResult:
        """Put the canvas on the screen."""
        yield self._canvas

    def on_mount(self) -> None:
        """Start the timers."""
        loop = asyncio.get_running_loop()
        codes = {signal.SIGINT: 0, signal.SIGTERM: 128 + signal.SIGTERM, signal.SIGHUP: 128 + signal.SIGHUP}
        for number, code in codes.items():  # so that the terminal is restored
            with contextlib.suppress(ValueError, NotImplementedError, RuntimeError):
                loop.add_signal_handler(number, self.exit, None, code)
        self._canvas.focus()
        for seconds, do in [(self._interval, self._tick), *self._also]:
            self.set_interval(seconds, do)
        if self._newer is not None:
            self.set_interval(FOLLOW_SECONDS, self._follow)
        self.call_after_refresh(self._tick)

    def on_unmount(self) -> None:
        """Close everything."""
        if self._reader is not None and self._reader.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._reader.kill()
        self.feed.close()

    def on_resize(self, _: events.Resize) -> None:
        """Redraw for the new size."""
        self.call_after_refresh(self.draw)

    def _tick(self) -> None:
        paused, rank = self.options.paused, self.options.rank
        try:
            if not paused:
                self.feed.poll()
            if self.options.view == "console" and not (paused and self.feed.scene.console.is_of(rank)):
                self.feed.follow_console(rank)
        except (StepscopeError, OSError) as error:
            self.feed.scene.note = str(error)
        asked = self.feed.wanted() if self._reader is None else None
        if asked is not None:
            self.run_worker(self._read(self.feed, asked), exit_on_error=False)
        self.draw()

    def draw(self) -> None:
        """Redraw the screen."""
        width, height = self._canvas.size
        if width and height:
            self._canvas.show(draw(self.feed.scene, self.options, width, height))

    async def _read(self, feed: SceneFeed, asked: PastRequest) -> None:
        """Read the past of a run in another process."""
        if feed.path is None:
            return
        pipe = asyncio.subprocess.PIPE
        self._reader = await asyncio.create_subprocess_exec(
            *command(feed.path, asked), stdin=asyncio.subprocess.DEVNULL, stdout=pipe, stderr=pipe, env=environment()
        )
        try:
            out, complaint = await asyncio.wait_for(self._reader.communicate(), SECONDS)
            if self._reader.returncode:
                last = complaint.decode(errors="replace").strip().splitlines()[-1:]
                feed.failed(last[0] if last else "the reading process ended")
            else:
                feed.answered(*opened(out))
        except (asyncio.TimeoutError, OSError, ValueError) as error:
            feed.failed(str(error) or f"it took longer than {SECONDS:.0f} s")
        finally:
            if self._reader.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    self._reader.kill()
            self._reader = None
        self.draw()

    def _follow(self) -> None:
        if self._newer is None or self.options.paused:
            return
        found = self._newer(self.feed)
        if found is not None:
            self.feed.close()
            self.feed = found
            view = self.options.view if self.options.view in views(found.scene) else views(found.scene)[0]
            self.options = replace(self.options, view=view, scroll=0, chosen=0, rank=None, newest=None)
            self._tick()

    def say(self, text: str) -> None:
        """Show a note for some seconds."""
        scene = self.feed.scene
        scene.note = text
        self.draw()

        def clear() -> None:
            if scene.note == text:
                scene.note = ""
                self.draw()

        self.set_timer(NOTE_SECONDS, clear)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Disable our keys while a dialogue is open."""
        del parameters
        return len(self.screen_stack) <= 1 or action in {"quit", "focus_next", "focus_previous"}

    def action_next(self, by: int = 1) -> None:
        """Show the next view."""
        known = views(self.feed.scene)
        self._go(known[(known.index(self.options.view) + by) % len(known)])

    def action_go(self, number: int) -> None:
        """Show a view by its number."""
        known = views(self.feed.scene)
        if number <= len(known):
            self._go(known[number - 1])

    def _go(self, view: str) -> None:
        self.options = replace(self.options, view=view, scroll=0)
        if view == "alerts" and self._diagnosed is not self.feed:
            self.action_diagnose()
        if view == "console":
            self._tick()
        self.draw()

    def action_diagnose(self) -> None:
        """Diagnose the run now."""
        self._diagnosed = self.feed
        self.feed.ask_diagnosis()
        if self.feed.scene.is_run:
            self.feed.scene.loading = True

    def action_move(self, by: int) -> None:
        """Scroll, or select an alert, rank or node."""
        self.options = moved(self.feed.scene, self.options, by)
        self.draw()

    def action_group(self) -> None:
        """Show the ranks by node, or each of them."""
        if self.options.view == "ranks":
            self.options = replace(self.options, grouped=not is_grouped(self.feed.scene, self.options), line=0)
            self.draw()

    def action_rank(self, by: int) -> None:
        """Show the console of the next rank, or that of all before the first."""
        if self.options.view == "console":
            self._show_console(next_rank(self.feed.scene, self.options.rank, by))

    def action_console(self) -> None:
        """Show the console of the selected rank, or of the rank of the selected alert."""
        if self.options.view in {"ranks", "alerts"}:
            self._show_console(console_rank(self.feed.scene, self.options))

    def _show_console(self, rank: int | None) -> None:
        self.options = replace(self.options, rank=rank, newest=None)
        self._go("console")

    def action_home(self) -> None:
        """Go back to the first view."""
        self._go(views(self.feed.scene)[0])

    def action_log(self) -> None:
        """Cycle the scale: automatic, logarithmic, linear."""
        after: dict[bool | None, bool | None] = {None: True, True: False, False: None}
        self.options = replace(self.options, log=after[self.options.log])
        self.say({None: "scale: automatic", True: "scale: logarithmic", False: "scale: linear"}[self.options.log])

    def action_pause(self) -> None:
        """Pause or resume."""
        self.options = replace(self.options, paused=not self.options.paused)
        self.draw()

    def action_reset(self) -> None:
        """Clear the graphs."""
        self.feed.reset()
        self.say("graphs cleared")

    def action_save(self) -> None:
        """Save the scene."""
        try:
            paths = save(self.feed.scene, self._folder)
        except OSError as error:
            self.say(f"cannot save: {error.strerror or error}")
        else:
            self.say(f"saved {paths[0].name} and .csv")

    def action_acknowledge(self) -> None:
        """Acknowledge the selected alert."""
        path, rows = self.feed.path, listed(self.feed.scene)
        if path is None or not rows or self.options.view != "alerts":
            return
        row = rows[min(self.options.chosen, len(rows) - 1)]
        if self.feed.scene.state != "running" or row["state"] != "firing":
            self.say("only a firing alert of a live run can be acknowledged")
            return
        try:
            ask(path, {"do": "acknowledge", "alert": row["alert"], "by": os.environ.get("USER", "")})
        except (OSError, StepscopeError) as error:
            self.say(str(error))
        else:
            self.say("acknowledged; its watcher records it within a second")

    def action_pick(self) -> None:
        """Choose the metrics with a graph."""
        from stepscope.tui.dialogues import Pick

        if self.feed.scene.is_run:
            names = [(name, source) for name, source in self.feed.known() if source != "own"]
            self.push_screen(Pick(names, self.feed.scene.shown), self._picked)

    def _picked(self, names: list[str] | None) -> None:
        if names:
            self.feed.show(names)
            if self.options.view not in {"overview", "metrics"}:
                self._go("metrics")
            self._tick()

    def action_help(self) -> None:
        """Show the keys."""
        from stepscope.tui.dialogues import Help

        self.push_screen(Help())

    def on_click(self, event: events.Click) -> None:
        """Run the action under the mouse pointer."""
        hit = next((one for one in self._canvas.frame.hits if one.at(event.x, event.y)), None)
        if hit is None or len(self.screen_stack) > 1:
            return
        action, _, rest = hit.action.partition(" ")
        if action == "view":
            self._go(rest)
        else:
            self.call_later(self.run_action, action)

    def on_mouse_scroll_down(self) -> None:
        """Scroll with the wheel."""
        self.action_move(1)

    def on_mouse_scroll_up(self) -> None:
        """Scroll with the wheel."""
        self.action_move(-1)
