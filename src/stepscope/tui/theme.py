"""Styles by name, in the terminal's own sixteen colours: they follow the user's light or dark theme."""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING

from rich.style import Style

from stepscope.core.endings import is_bad

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

STYLES = {
    "dim": "bright_black",
    "faint": "bright_black",
    "border": "bright_black",
    "title": "bold",
    "accent": "bold cyan",
    "good": "green",
    "warn": "yellow",
    "bad": "bold red",
    "info": "blue",
    "key": "bold cyan",
    "tab": "bold reverse",
    "line0": "cyan",
    "line1": "green",
    "line2": "magenta",
    "line3": "blue",
    "line4": "yellow",
    "line5": "bright_cyan",
    "heat0": "green",
    "heat1": "bright_green",
    "heat2": "yellow",
    "heat3": "bright_yellow",
    "heat4": "bright_red",
    "heat5": "red",
    "selected": "reverse",
}
LINES = 6
FILLS = "█▒▓░"
"""Parts of a bar where there is no colour."""
PHASE_STYLES = {
    "data": "yellow",
    "copy": "bright_yellow",
    "forward": "cyan",
    "backward": "blue",
    "optimizer": "green",
    "communication": "magenta",
    "evaluation": "bright_cyan",
    "checkpoint": "bright_magenta",
    "compile": "bright_blue",
    "other": "bright_black",
}
STATES = {"running": "good", "finished": "info", "interrupted": "warn", "": "dim"}


@functools.lru_cache(maxsize=256)
def style_of(name: str) -> Style:
    """Return a style: names of STYLES or of the terminal's colours, separated by blanks; `on_X` is a background."""
    words = (f"on {STYLES.get(word[3:], word[3:])}" if word.startswith("on_") else word for word in name.split())
    return Style.parse(" ".join(STYLES.get(word, word) for word in words))


def signs_of(names: Sequence[str], environ: Mapping[str, str] | None = None) -> dict[str, tuple[str, str]]:
    """Return for each phase the character that fills its part of a bar, and the character before its name.

    They are the same for all phases with colour, and differ without it (NO_COLOR).
    """
    environ = os.environ if environ is None else environ
    if not environ.get("NO_COLOR"):
        return dict.fromkeys(names, ("█", "■"))
    return {name: (FILLS[place % len(FILLS)],) * 2 for place, name in enumerate(names)}


def phase_style(name: str) -> str:
    """Return the colour of a phase, the same everywhere."""
    return PHASE_STYLES.get(name, "bright_green")


def state_style(state: str, cause: str = "") -> str:
    """Return the style of a run's state: anything but running, finished well and interrupted is bad."""
    return "bad" if is_bad(state, cause) else STATES.get(state, "bad")
