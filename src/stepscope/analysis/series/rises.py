"""Lasting rises of a loss: it is above the level it had reached, by more than its own noise, and does not come back.

Alerts and the diagnosis both call `lasting_rise`, so they say the same about the same points. It compares medians of
blocks of points. The noise is estimated from the series itself: the spread inside blocks, the drift from block to
block, and earlier rises from which the loss recovered, as in reinforcement learning or with cyclic learning rates. A
loss that falls after its rise does not count either: it is learning a harder stage of a curriculum.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from stepscope.analysis.series.robust import SIGMA, finite, median, medians, spread
from stepscope.core.numbers import MANY_TIMES, MOST_TIMES

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from stepscope.core.arrays import Floats


LOOK = 2600
"""Only this many of the newest points are used."""
FEWEST = 120
"""Minimum finite points among them."""
BLOCKS, SMALLEST, LARGEST = 12, 10, 50
"""Minimum number of blocks, and the minimum and maximum points per block."""
SMOOTH = 4
"""The level that a loss had reached is the median of this many blocks: one lucky block does not count."""
HIGH, FAR = 3, 2.0
"""Blocks at the end that must be high; two suffice if the loss is this many times its highest level before."""
NOISES = 6.0
"""Minimum rise, in standard deviations of a block's level."""
WITHIN = 0.5
"""Minimum noise of a block's level, as a share of the spread inside the block: neighbouring points are correlated."""
USUAL = 1.5
"""A rise must be this many times the largest earlier rise from which the loss recovered."""
FALLS, SURE = 0.05, 2.0
"""A loss comes down if the later half since its peak is lower by this share of the rise, and by this many standard
errors."""
GRAVE, UNDONE = 0.5, 0.1
"""A rise is a divergence from this rise relative to the level before, and this share of the learned progress undone."""
BEGINNING = 20
"""The level at the beginning of a run is the median of this many points."""


@dataclass(frozen=True)
class Rise:
    """A rise that lasts until the end of a series."""

    index: int
    """First high point, as an index into the given series."""
    before: float
    """Level that the loss had reached."""
    now: float
    """Level at the end."""
    noises: float
    """Height in standard deviations of a block's level."""

    @property
    def ratio(self) -> float:
        """Return the rise relative to the level before; infinite over a level of 0."""
        return (self.now - self.before) / abs(self.before) if self.before else math.inf

    def is_divergence(self, begun: float) -> bool:
        """Return whether the learned progress is being lost, for a loss that began at this level."""
        height = self.now - self.before
        return self.ratio >= GRAVE and height >= UNDONE * abs(begun - self.before)

    def text(self, name: str, step: float) -> str:
        """Return a sentence about the metric, which is high since a step (NaN if the step is unknown)."""
        return rise_text(name, self.before, self.now, step)


def rise_text(name: str, before: float, now: float, step: float) -> str:
    """Return the sentence that a loss rose and stays high since a step (NaN if the step is unknown)."""
    since = f" since step {step:.0f}" if math.isfinite(step) else ""
    who = "the loss" if name == "loss" else name
    return f"{who} has risen from {before:.4g} to {now:.4g}{since}{growth(before, now)}, and stays there"


def growth(before: float, after: float) -> str:
    """Return how much a value grew, to append to its two numbers: ", by 34 %" or ", 60 times as high".

    Empty if a ratio means nothing: from zero, from below zero, or to a value that is not finite.
    """
    if before <= 0 or not math.isfinite(after) or after <= before:
        return ""
    times = after / before
    if times < MANY_TIMES:
        return f", by {100 * (times - 1):.0f} %"
    return f", {times:.0f} times as high" if times < MOST_TIMES else ""


def begun_at(value: ArrayLike) -> float:
    """Return the level at which a loss began; NaN without a finite point."""
    given, places = finite(value)
    return median(given[places[:BEGINNING]]) if len(places) else math.nan


def lasting_rise(value: ArrayLike, share: float = 0.1) -> Rise | None:
    """Return the lasting rise at the end of a loss, by at least a share of its level; None if there is none."""
    given, place = finite(value)
    place = place[place >= len(given) - LOOK]
    values = given[place]
    if len(values) < FEWEST:
        return None
    size = min(LARGEST, max(SMALLEST, len(values) // BLOCKS))
    blocks = values[len(values) % size :].reshape(-1, size)
    with np.errstate(over="ignore", invalid="ignore"):
        found = _rise(blocks, share)
    if found is None:
        return None
    start, before, now, noises = found
    end = len(values) - (len(blocks) - start - 1) * size  # of the first high block
    low = np.flatnonzero(values[:end] <= (before + now) / 2)
    high = int(low[-1]) + 1 if len(low) else end - size
    return Rise(int(place[high]), before, now, noises)


def _rise(blocks: Floats, share: float) -> tuple[int, float, float, float] | None:
    """Return the index of the first high block, the level before, the level now, and the height in noises."""
    level = medians(blocks)
    now = min(float(level[-2:].min()), median(blocks[-2:].ravel()))
    steps = np.diff(level)
    wander = spread(steps - median(steps)) / math.sqrt(2)
    noise = max(WITHIN * SIGMA * median(medians(np.abs(blocks - level[:, None]))), wander)
    if not now - float(level.min()) > NOISES * noise:  # almost always
        return None
    early = [median(level[:at]) for at in range(1, SMOOTH)]
    reached = np.concatenate([early, medians(np.lib.stride_tricks.sliding_window_view(level, SMOOTH))])
    lowest = int(np.argmin(reached[:-2]))
    before = float(reached[lowest])
    height = now - before
    if not height > max(share * abs(before), NOISES * noise):
        return None
    start = lowest + int(np.flatnonzero(level[lowest:] <= before + height / 2)[-1]) + 1
    highest = float(level[:start].max())
    if len(level) - start < (2 if highest > 0 and now > FAR * highest else HIGH):
        return None
    earlier = level[SMOOTH - 1 : start] - np.minimum.accumulate(reached)[SMOOTH - 2 : start - 1]
    is_usual = USUAL * float(earlier.max(initial=0.0)) > height
    if is_usual or comes_down(blocks[start - 1 :].ravel(), height, blocks.shape[1]):
        return None
    return start, before, now, height / noise if noise > 0 else math.inf


def comes_down(since: Floats, height: float, size: int = SMALLEST) -> bool:
    """Return whether a loss comes down again from its peak: `since` are its finite values since it rose by `height`.

    `size` is the number of points per block; of more than four blocks only the later half is used.
    """
    part = max(SMALLEST // 2, size // 5)
    whole = len(since) // part * part
    peak = len(since) - whole + int(np.argmax(medians(since[-whole:].reshape(-1, part)))) * part
    rest = since[peak:]
    rest = rest[len(rest) // 2 :] if len(rest) > 4 * size else rest
    if len(rest) < 2 * part:
        return False
    first, last = np.array_split(rest, 2)
    before, after = median(first), median(last)
    noise = spread(np.concatenate([first - before, last - after]))
    return before - after > max(FALLS * height, SURE * noise * 1.25 * math.sqrt(2 / len(first)))
