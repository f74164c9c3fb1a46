"""The charts of a report as PNG files, drawn by matplotlib (the extra `png`) without a browser."""

from __future__ import annotations

import importlib.util
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stepscope.core.errors import UsageError
from stepscope.core.names import REPLACEMENT, UNSAFE
from stepscope.core.numbers import format_share, format_value

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from stepscope.reports.report_drawing import DrawnLine

COLOURS = ("#0a6cc4", "#cf5306", "#00866a", "#ac4a92", "#a67600", "#2596c4", "#5a5fa8", "#7a4b2a")
PHASES = {
    "data": "#d8680f",
    "copy": "#56b4e9",
    "forward": "#0a6cc4",
    "backward": "#8f5aa8",
    "optimizer": "#009e73",
    "communication": "#e6b800",
    "checkpoint": "#7a4b2a",
    "evaluation": "#5a5fa8",
    "compile": "#cc79a7",
    "logging": "#5d8a3c",
    "gc": "#3f4c5a",
    "other": "#b9c1cc",
}
TEXT, SOFT, GRID, BAD = "#171d26", "#566171", "#e3e7ec", "#b93a10"
WIDTH, ROW = 12.0, 2.6
"""Width of a picture, and height of a row of charts, in inches."""
DPI = 110


@dataclass(frozen=True)
class PngChart:
    """One chart."""

    title: str
    unit: str
    axis: str
    lines: Sequence[DrawnLine]


def check(library: str = "matplotlib") -> None:
    """Raise UsageError if pictures cannot be drawn here."""
    if importlib.util.find_spec(library) is None:
        raise UsageError("draw PNG files", "matplotlib is not installed", "pip install 'stepscope[png]'")


def charts(path: Path, title: str, pictures: Sequence[PngChart]) -> None:
    """Write charts into one file, two per row."""
    rows = -(-len(pictures) // 2)
    figure = _figure(title, max(1, rows))
    for place, picture in enumerate(pictures):
        _draw(figure.add_subplot(rows, min(2, len(pictures)), place + 1), picture)
    _save(figure, path)


def step(path: Path, title: str, time: Mapping[str, Any]) -> None:
    """Write the phases of a step into a file."""
    figure = _figure(title, 1)
    axes = figure.add_subplot(1, 1, 1)
    done = 0.0
    for phase in time["phases"]:
        share = phase["share"] or 0.0
        label = f"{phase['phase']}  {format_share(share)}, {format_value(phase['mean'], 'seconds')}"
        axes.barh([0], [share], left=[done], color=PHASES.get(phase["phase"], "#38838a"), label=_plain(label))
        done += share
    axes.set_xlim(0, 1)
    axes.set_ylim(-0.9, 0.5)
    axes.axis("off")
    axes.legend(loc="lower center", ncols=4, frameon=False, fontsize=9)
    _save(figure, path)


def _save(figure: Any, path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a glyph that the font lacks is drawn as a box
        figure.savefig(path, dpi=DPI, format="png")


def _figure(title: str, rows: int) -> Any:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, ROW * rows + 0.7), layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    figure.suptitle(_plain(title), fontsize=13, fontweight="bold", color=TEXT, x=0.01, ha="left")
    return figure


def _draw(axes: Any, picture: PngChart) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    for place, line in enumerate(picture.lines):
        colour = COLOURS[place % len(COLOURS)]
        if (line.high > line.low).any():
            axes.fill_between(line.x, line.low, line.high, color=colour, alpha=0.18, linewidth=0)
        label = _plain(line.label) if len(picture.lines) > 1 else None
        axes.plot(line.x, line.mean, color=colour, linewidth=1.1, label=label)
        if len(line.bad):
            top = [1.0] * len(line.bad)
            axes.plot(line.bad, top, "|", color=BAD, markersize=7, transform=axes.get_xaxis_transform(), clip_on=False)
    axes.set_title(_plain(picture.title), fontsize=10, loc="left", color=TEXT)
    axes.grid(color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left", "bottom"):
        axes.spines[side].set_visible(False)
    axes.tick_params(colors=SOFT, labelsize=8, length=0)
    axes.xaxis.set_major_locator(MaxNLocator(6))
    axes.yaxis.set_major_locator(MaxNLocator(5))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: format_value(value, picture.unit)))
    if picture.axis == "time":
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: format_value(value, "seconds")))
    if len(picture.lines) > 1:
        axes.legend(fontsize=7, frameon=False, loc="best")


def _plain(text: str) -> str:
    """Return text that matplotlib does not interpret: a dollar sign would start a formula."""
    return UNSAFE.sub(REPLACEMENT, text.replace("\t", " ")[:120]).replace("$", r"\$")
