"""One measured figure, and how all of them are printed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

ONE_OVER = "1/x"
"""Unit of a ratio that is shown as a fraction."""


@dataclass(frozen=True)
class Options:
    """What the person asked for, and where to work."""

    scratch: Path
    quick: bool = False
    kills: int = 200
    huge: bool = False
    seed: int = 0
    only: str = ""
    """Part of the names of the cases to run, where a group has cases."""
    loaded: bool = False
    """Whether the other core is kept busy, where a group can do that."""


@dataclass(frozen=True)
class Figure:
    """A number with its unit and the limit it must not exceed; no value: it could not be measured here."""

    key: str
    what: str
    value: float | None
    unit: str = ""
    limit: float | None = None
    beside: str = ""
    """The peers' numbers, or what the number is made of."""

    @property
    def verdict(self) -> str:
        """Return pass or MISS, `not run` without a value, nothing without a limit."""
        if self.value is None:
            return "not run"
        if self.limit is None:
            return ""
        return "pass" if self.value <= self.limit else "MISS"

    def shown(self, number: float | None) -> str:
        """Return a number in the figure's unit, three digits long."""
        if number is None:
            return ""
        if self.unit == ONE_OVER:
            return f"1/{1 / number:.0f}" if number > 0 else "0"
        digits = f"{number:.0f}" if number == int(number) or abs(number) >= 1000 else f"{number:.3g}"
        return f"{digits} {self.unit}".strip()


def table(figures: Sequence[tuple[str, Figure]]) -> str:
    """Return all figures as text, each group below its command."""
    heads = ("figure", "value", "limit", "", "beside")
    rows = [
        (figure.what, figure.shown(figure.value), _bound(figure), figure.verdict, figure.beside)
        for _, figure in figures
    ]
    widths = [max(len(row[at]) for row in [heads, *rows]) for at in range(4)]
    lines = [_line(heads, widths), "-" * (sum(widths) + 20)]
    group = ""
    for (name, _), row in zip(figures, rows, strict=True):
        if name != group:
            group = name
            lines.append(f"$ python -m bench {name}")
        lines.append(_line(row, widths))
    return "\n".join(lines)


def _bound(figure: Figure) -> str:
    if figure.limit is None:
        return ""
    return f"≤ {figure.shown(figure.limit)}" if figure.limit else "0"


def _line(row: tuple[str, ...], widths: list[int]) -> str:
    cells = [row[0].ljust(widths[0]), row[1].rjust(widths[1]), row[2].ljust(widths[2]), row[3].ljust(widths[3])]
    return "  ".join([*cells, row[4]]).rstrip()
