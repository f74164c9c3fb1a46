"""The dialogues: choice of metrics, and help."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from stepscope.core.terminal_text import plain

if TYPE_CHECKING:
    from collections.abc import Sequence

    from textual.app import ComposeResult

MOST = 500
"""Most metrics that are listed; typing filters them."""
FRAME = """
{name} {{ align: center middle; background: transparent; }}
{name} > Vertical {{
    width: {width}; max-width: 96%; height: {height}; max-height: 92%;
    border: round ansi_cyan; background: ansi_default; padding: 0 1;
}}
{name} Static {{ color: ansi_bright_black; }}
"""


class Pick(ModalScreen["list[str] | None"]):
    """Choose which metrics have a graph: type to narrow the list, enter to tick, escape when done."""

    DEFAULT_CSS = (
        FRAME.format(name="Pick", width=72, height="80%")
        + """
Pick Input, Pick Input:focus { border: none; height: 1; padding: 0; background: ansi_default; }
Pick OptionList, Pick OptionList:focus { border: none; height: 1fr; padding: 0; background: ansi_default; }
"""
    )
    BINDINGS: ClassVar = [
        Binding("escape", "done", "done"),
        Binding("down", "list", "list", show=False),
        Binding("tab", "swap", "swap", show=False, priority=True),
    ]

    def __init__(self, names: Sequence[tuple[str, str]], shown: Sequence[str]) -> None:
        """Offer names, each with its source; `shown` are ticked."""
        super().__init__()
        self._names, self._ticked = list(names), list(shown)

    def compose(self) -> ComposeResult:
        """Lay out."""
        with Vertical():
            yield Static("Metrics with a graph: type to find, enter ticks, esc shows them")
            yield Input(placeholder="part of a name")
            yield OptionList()

    def on_mount(self) -> None:
        """List everything."""
        self._list("")
        self.query_one(Input).focus()

    def _list(self, wanted: str) -> None:
        words = wanted.lower().split()
        found = [name for name, _ in self._names if all(word in name.lower() for word in words)]
        found.sort(key=lambda name: name not in self._ticked)
        options = self.query_one(OptionList)
        at = options.highlighted
        options.clear_options()
        options.add_options([Option(self._text(name), id=f"n{place}") for place, name in enumerate(found[:MOST])])
        self._found = found
        if found:
            options.highlighted = min(at or 0, len(found) - 1)

    def _text(self, name: str) -> str:
        mark = "[bold cyan]■[/]" if name in self._ticked else "[bright_black]□[/]"
        return f"{mark} {plain(name, 200).replace('[', chr(92) + '[')}"

    def on_input_changed(self, event: Input.Changed) -> None:
        """Narrow the list down."""
        self._list(event.value)

    def on_input_submitted(self) -> None:
        """Toggle the highlighted metric."""
        at = self.query_one(OptionList).highlighted
        if at is not None:
            self._tick(at)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Toggle the clicked metric."""
        self._tick(event.option_index)

    def _tick(self, at: int) -> None:
        name = self._found[at]
        (self._ticked.remove if name in self._ticked else self._ticked.append)(name)
        self.query_one(OptionList).replace_option_prompt_at_index(at, self._text(name))

    def action_list(self) -> None:
        """Go down the list."""
        self.query_one(OptionList).action_cursor_down()

    def action_swap(self) -> None:
        """Go from the line to the list and back."""
        options = self.query_one(OptionList)
        (self.query_one(Input) if options.has_focus else options).focus()

    def action_done(self) -> None:
        """Show the chosen metrics."""
        self.dismiss(self._ticked)


KEYS = (
    ("q", "quit"),
    ("tab, 1 to 6", "next view, a view by its number; or click it"),
    ("/", "choose which metrics have a graph"),
    ("l", "scale: automatic, logarithmic, linear"),
    ("s", "save the screen's data as JSON and CSV to this folder"),
    ("r", "clear the graphs"),
    ("d", "diagnose the run now (in Alerts)"),
    ("a", "acknowledge the chosen alert (in Alerts)"),
    ("g", "by node, or each rank (in Ranks)"),
    ("enter", "the console of the chosen rank or alert"),
    ("left, right", "the console of another rank (in Console)"),
    ("up, down", "scroll, choose an alert or a rank; or the wheel"),
    ("home, end", "first or last; in Console, end follows"),
    ("space", "pause, resume"),
    ("esc", "back to the first view"),
)
NOTES = """
Graphs show the mean of each column, and outliers.
[bold red]▲[/] beyond the scale   [bold red]![/] not a finite number
[yellow]from 90 % full, 80 °C; a GPU below 30 % in a live run[/]
[bold red]from 97 % full, 90 °C[/]"""
HELP = "\n".join(f"[bold cyan]{key:<13}[/]{text}" for key, text in KEYS) + "\n" + NOTES


class Help(ModalScreen[None]):
    """The keys."""

    DEFAULT_CSS = FRAME.format(name="Help", width=70, height="auto") + "Help Static { color: ansi_default; }"
    BINDINGS: ClassVar = [Binding("escape,q,question_mark,enter,space", "dismiss", "close")]

    def compose(self) -> ComposeResult:
        """Lay out."""
        with Vertical():
            yield Static(HELP)

    def on_click(self) -> None:
        """Close."""
        self.dismiss()
