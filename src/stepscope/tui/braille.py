"""Draw curves in braille: two by four dots per character, so that a spike of one step is one dot."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from stepscope.tui.frame import Line
    from stepscope.views.terminal_history import History, HistoryColumns

LEFT = np.array([0x01, 0x02, 0x04, 0x40], np.int64)
"""Bits of the four dots of a character's left column, from the top."""
RIGHT = np.array([0x08, 0x10, 0x20, 0x80], np.int64)
BLANK = 0x2800
LOG_FROM = 20.0
"""A curve of positive values whose highest is so many times its lowest is drawn on a logarithmic scale by default."""
FLAT = 0.02
"""A curve that varies by less than this share of its level is drawn as flat as it is."""
OUTLIER = 8.0
"""A column so many times as far from the median as nine of ten are is left out of the scale, drawn at its edge."""
NOISE = 3.0
"""An extreme of a column stands out where it is so many times as far from the mean as is usual."""
RARE = 0.05
"""Share of the columns that outliers may be; more are the course of the curve."""
ENOUGH = 30
"""Columns from which on some may be outliers."""


class Scale:
    """Values to rows of dots."""

    def __init__(self, low: float, high: float, *, log: bool) -> None:
        """Span from `low` to `high`."""
        self.log = log
        if not log and high - low <= FLAT * max(abs(low), abs(high)):
            middle, half = (low + high) / 2, max(FLAT * max(abs(low), abs(high)), 1e-12)
            low, high = middle - half, middle + half
        self.low, self.high = low, high

    def rows(self, value: NDArray[np.float64], rows: int) -> NDArray[np.int64]:
        """Return the row of dots of each value, 0 at the bottom; -1 where it is NaN."""
        with np.errstate(invalid="ignore", divide="ignore"):
            if self.log:
                bottom, top = math.log(self.low), math.log(self.high)
                share = (np.log(np.maximum(value, self.low)) - bottom) / max(top - bottom, 1e-12)
            else:
                share = (value - self.low) / (self.high - self.low)
        known = np.isfinite(share)
        return np.where(known, np.clip(np.rint(np.where(known, share, 0) * (rows - 1)), 0, rows - 1), -1).astype(
            np.int64
        )


def drawn(shape: HistoryColumns) -> HistoryColumns:
    """Return the values to draw for each column: its mean, and extremes beyond the usual noise.

    Empty columns between two known columns, as for a metric that is logged rarely, are filled in.
    """
    below, above = shape.mean - shape.low, shape.high - shape.mean
    known = np.isfinite(shape.mean)
    if not known.any():
        return shape
    low = np.where(below > NOISE * np.median(below[known]), shape.low, shape.mean)
    high = np.where(above > NOISE * np.median(above[known]), shape.high, shape.mean)
    place = np.arange(len(known))
    inside = ~known & ~shape.bad & (place > place[known][0]) & (place < place[known][-1])
    if inside.any():
        between = np.interp(place[inside], place[known], shape.mean[known])
        low[inside] = high[inside] = between
    return shape._replace(low=low, high=high)


def scale_of(shape: HistoryColumns, *, log: bool | None = None) -> Scale | None:
    """Return the scale of a curve; rare outliers lie beyond it. None if nothing is finite."""
    low, high = shape.low[np.isfinite(shape.low)], shape.high[np.isfinite(shape.high)]
    if not len(low):
        return None
    bottom, top = float(low.min()), float(high.max())
    if len(high) >= ENOUGH and log is not True:
        middle, near = float(np.median(high)), float(np.quantile(high, 0.9))
        far = middle + OUTLIER * max(near - middle, FLAT * abs(middle), 1e-12)
        if top > far and np.mean(high > far) <= RARE:
            top = max(float(high[high <= far].max()), bottom)
    use_log = bottom > 0 and (top / bottom >= LOG_FROM if log is None else log)
    return Scale(bottom, top, log=use_log)


class Picture(NamedTuple):
    """A drawn curve."""

    lines: list[Line]
    top: float | None
    """Value at the upper edge; None where nothing is finite."""
    bottom: float | None
    log: bool


def picture(history: History, width: int, height: int, style: str, *, log: bool | None = None) -> Picture:
    """Return a curve on so many columns and rows; columns with a point that is not finite end in a red mark."""
    whole = history.columns(width * 2)
    if whole is None:
        return Picture([[(" " * width, "")] for _ in range(height)], None, None, log=False)
    shape = drawn(whole)
    found = scale_of(shape, log=log)
    cells = np.full((height, width), BLANK, np.int64)
    bad, over = np.zeros(width * 2, bool), np.zeros(width * 2, bool)
    bad[: len(shape.bad)] = shape.bad
    if found is not None:
        low, high = found.rows(shape.low, height * 4), found.rows(shape.high, height * 4)
        over[: len(shape.high)] = shape.high > found.high * (1 + 1e-9) + 1e-12
        _connect(low, high)
        _dots(cells, low, high)
    lines = _lines(cells, bad[::2] | bad[1::2], over[::2] | over[1::2], style)
    return Picture(lines, None, None, log=False) if found is None else Picture(lines, found.high, found.low, found.log)


def _connect(low: NDArray[np.int64], high: NDArray[np.int64]) -> None:
    there = (low[1:] >= 0) & (low[:-1] >= 0)
    above = there & (low[1:] > high[:-1] + 1)
    below = there & (high[1:] < low[:-1] - 1)
    bottoms, tops = high[:-1] + 1, low[:-1] - 1
    low[1:][above] = bottoms[above]
    high[1:][below] = tops[below]


def _dots(cells: NDArray[np.int64], low: NDArray[np.int64], high: NDArray[np.int64]) -> None:
    height, width = cells.shape
    rows = np.arange(height * 4 - 1, -1, -1)[:, None]
    filled = np.zeros((height * 4, width * 2), bool)
    filled[:, : len(low)] = (rows >= low) & (rows <= high) & (low >= 0)
    blocks = filled.reshape(height, 4, width, 2)
    cells += np.einsum("hdw,d->hw", blocks[..., 0], LEFT) + np.einsum("hdw,d->hw", blocks[..., 1], RIGHT)


def _lines(cells: NDArray[np.int64], bad: NDArray[np.bool_], over: NDArray[np.bool_], style: str) -> list[Line]:
    """Return the rows; the first row marks values that are not finite or beyond the scale."""
    texts = [row.astype("<u2").tobytes().decode("utf-16-le").replace(chr(BLANK), " ") for row in cells]
    lines: list[Line] = [[(text, style)] for text in texts]
    if texts and (bad.any() or over.any()):
        marks = np.where(bad, "!", np.where(over, "▲", ""))
        lines[0] = _marked(texts[0], marks.tolist(), style)
    return lines


def _marked(text: str, marks: list[str], style: str) -> Line:
    line: Line = []
    for own, mark in zip(text, marks, strict=True):
        shown, how = (mark, "bad") if mark else (own, style)
        if line and line[-1][1] == how:
            line[-1] = (line[-1][0] + shown, how)
        else:
            line.append((shown, how))
    return line
