"""The parts of a printed page: titles, labelled facts and notes, cut to the width of the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stepscope.core.terminal_text import cut

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stepscope.cli.text.terminal import Paint


class Sheet:
    """Facts of a command, printed as lines of a given width."""

    label_width = 10
    """Columns of the labels."""

    def __init__(self, facts: dict[str, Any], width: int, paint: Paint) -> None:
        """Take the facts as they are printed for --json."""
        self._facts, self._width, self._paint = facts, width, paint

    def _title(self, text: str, rest: str = "") -> Iterator[str]:
        yield ""
        yield self._paint(text, "bold") + (f"  {cut(rest, self._width - len(text) - 2)}" if rest else "")

    def _fact(self, label: str, text: str, style: str = "") -> str:
        shown = self._paint(cut(text, self._width - self.label_width - 2), style)
        return f"  {self._paint(label.ljust(self.label_width), 'dim')}{shown}"

    def _note(self, text: str) -> str:
        return self._paint(cut(f"  {text}", self._width), "dim")
