"""What a terminal shows of the consoles of a run: the newest lines of all ranks, or of one, as plain data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from stepscope.store.console import ConsoleQuery

if TYPE_CHECKING:
    from stepscope.core.console_line import ConsoleLine
    from stepscope.store.console import ConsoleAnswer

FIRST = 1000
"""Lines that are read at first."""
MOST = 5000
"""Most lines kept; `stepscope logs` has them all."""


@dataclass
class TerminalConsole:
    """The newest lines, in the order of time; lines count from 0, also those that are no longer kept."""

    rank: int | None = None
    """The rank whose lines are shown; None: all."""
    lines: list[ConsoleLine] = field(default_factory=list)
    first: int = 0
    """The number of the first line that is kept."""
    lost: int = 0
    """Lines that were printed but not kept in the run."""
    is_read: bool = False
    """Whether it has been read at all."""
    cursor: str | None = None
    _places: dict[tuple[str, int, int, int], int] = field(default_factory=dict)

    @property
    def end(self) -> int:
        """The number after that of the newest line."""
        return self.first + len(self.lines)

    def is_of(self, rank: int | None) -> bool:
        """Return whether lines of this rank have been read."""
        return self.is_read and self.rank == rank

    def query(self) -> ConsoleQuery:
        """Return which lines to read next: the newest ones, then those after them."""
        ranks = None if self.rank is None else (self.rank,)
        if self.cursor is None:
            return ConsoleQuery(ranks=ranks, last=FIRST)
        return ConsoleQuery(ranks=ranks, after=self.cursor, limit=FIRST)

    def take(self, answer: ConsoleAnswer) -> None:
        """Add lines; one that has grown replaces its earlier state."""
        self.lost = max(self.lost, answer.dropped)
        self.is_read, self.cursor = True, answer.cursor
        for line in answer.lines:
            key = (line.node, line.attempt, line.rank, line.number)
            place = self._places.get(key)
            if place is not None and place >= self.first:
                self.lines[place - self.first] = line
            else:
                self._places[key] = self.end
                self.lines.append(line)
        too_many = len(self.lines) - MOST
        if too_many > 0:
            del self.lines[:too_many]
            self.first += too_many
            self._places = {key: place for key, place in self._places.items() if place >= self.first}
