"""Lines that hold only a name and a number: values of the step above them."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from stepscope.importers.words import parsed, plain, scaled

if TYPE_CHECKING:
    from stepscope.importers.points import Points

FIGURE = re.compile(
    r"\W{0,12}([A-Za-z][A-Za-z0-9 _/()-]{1,60}?)\s{0,20}[:=][:=\s]{0,20}"
    r"([-+]?[\d.]{1,30}(?:[eE][-+]?\d{1,3})?)(%?)(?:\s{0,4}\(.{0,80}\))?\s{0,20}"
)
"""A line that holds only a name and a number."""
LEAST_TIMES = 2
"""Number of steps at which a value must occur to be a metric and not a setting."""


class Place(NamedTuple):
    """What a value belongs to."""

    step: int
    rank: int
    attempt: int


def figure_in(line: str) -> tuple[str, float] | None:
    """Return the name and number in a line, or None; a percentage becomes a ratio."""
    found = FIGURE.fullmatch(line)
    value = parsed(found[2]) if found is not None else None
    if found is None or value is None:
        return None
    return plain(found[1]), scaled(value, 0.01 if found[3] else 1.0)


class Figures:
    """Values that are held back until it is known whether they occur at several steps."""

    def __init__(self, points: Points) -> None:
        """Start empty; call `finish` when all lines are read."""
        self._points = points
        self._found: defaultdict[str, list[tuple[float, Place]]] = defaultdict(list)

    def add(self, line: str, place: Place) -> bool:
        """Keep the value in a line; return False if there is none."""
        figure = figure_in(line)
        if figure is not None:
            self._found[figure[0]].append((figure[1], place))
        return figure is not None

    def finish(self) -> None:
        """Turn values of several steps into metrics; one of a single step is a summary, or chance."""
        for name, found in self._found.items():
            if name in self._points.columns:
                self._points.leave_out("figures that the line of their step tells too", name, len(found))
            elif len({place.step for _, place in found}) < LEAST_TIMES:
                self._points.leave_out("figures of one step only", name, len(found))
            else:
                for value, place in found:
                    self._points.add(name, value, place.step, rank=place.rank, attempt=place.attempt)
