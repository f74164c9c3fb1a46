"""Lasting rises of a loss: it is above what it had reached, by more than its own noise, and does not come back.

Alerts and the diagnosis ask this one function, so that both say the same of the same points. It looks at medians of
blocks of points. The noise is that of the series itself: the spread inside of blocks, their wander from one to the
next, and how far it rose before and came back, as losses of reinforcement learning and of cyclic learning rates do. A
loss that falls after its rise is none either: a harder stage of a curriculum is being learned.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from stepscope.core.numbers import MANY_TIMES, MOST_TIMES

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from stepscope.core.arrays import Floats


LOOK = 2600
"""Newest points that are looked at."""
FEWEST = 120
"""Minimum finite points among them for a verdict."""
BLOCKS, SMALLEST, LARGEST = 12, 10, 50
"""Blocks that a series has at least, and points of one."""
SMOOTH = 4
"""Blocks whose median is the level that a loss had reached: one lucky block is none."""
HIGH = 3
"""Blocks at the end that must be high; two, where the loss is far above all that it ever was."""
FAR = 2.0
"""Times its highest level before."""
NOISES = 6.0
"""Rise in noises of a block that chance does not bring about."""
WITHIN = 0.5
"""Noise of a block at least, as a share of the spread inside of it: neighbouring points have much in common."""
USUAL = 1.5
"""Times the highest rise that it came back from that a rise must reach."""
FALLS, SURE = 0.05, 2.0
"""Share of the rise, and noises of the two halves since its peak, by which the later one must be lower to fall."""
GRAVE, UNDONE = 0.5, 0.1
"""Rise relative to the level before, and share of all that was learned that is undone, which make a divergence."""
BEGINNING = 20
"""Points that the level at the beginning of a run is the median of."""


@dataclass(frozen=True)
class Rise:
    """A rise that lasts until the end of a series."""

    index: int
    """First point that is high, in the series as it was given."""
    before: float
    """Level that the loss had reached."""
    now: float
    """Level at the end."""
    noises: float
    """Its height in noises of the series."""

    @property
    def ratio(self) -> float:
        """Return the rise relative to the level before; infinite over a level of 0."""
        return (self.now - self.before) / abs(self.before) if self.before else math.inf

    def is_divergence(self, begun: float) -> bool:
        """Return whether what was learned is being lost, for a loss that began at this level."""
        height = self.now - self.before
        return self.ratio >= GRAVE and height >= UNDONE * abs(begun - self.before)

    def text(self, name: str, step: float) -> str:
        """Return it as a sentence about a metric, high since a step (NaN: it is unknown which)."""
        return rise_text(name, self.before, self.now, step)


def rise_text(name: str, before: float, now: float, step: float) -> str:
    """Return the sentence that a loss has risen for good, since a step (NaN: it is unknown which)."""
    since = f" since step {step:.0f}" if math.isfinite(step) else ""
    who = "the loss" if name == "loss" else name
    return f"{who} has risen from {before:.4g} to {now:.4g}{since}{growth(before, now)}, and stays there"


def growth(before: float, after: float) -> str:
    """Return by how much a value grew, to be added to its two numbers: ", by 34 %" or ", 60 times as high".

    Empty where a share means nothing: from zero, from below zero, or to what is no number.
    """
    if before <= 0 or not math.isfinite(after) or after <= before:
        return ""
    times = after / before
    if times < MANY_TIMES:
        return f", by {100 * (times - 1):.0f} %"
    return f", {times:.0f} times as high" if times < MOST_TIMES else ""


def begun_at(value: ArrayLike) -> float:
    """Return the level at which a loss began; NaN without a finite point."""
    first = np.asarray(value, dtype=np.float64).ravel()
    first = first[np.isfinite(first)][:BEGINNING]
    return _median(first) if len(first) else math.nan


def lasting_rise(value: ArrayLike, share: float = 0.1) -> Rise | None:
    """Return the rise that the end of a loss is in; None if it is in none, or too short to know.

    Args:
        value: the loss, in its order; points that are not finite are left out.
        share: rise relative to the level before that is worth telling.
    """
    given = np.asarray(value, dtype=np.float64).ravel()
    gone = max(0, len(given) - LOOK)
    place = gone + np.flatnonzero(np.isfinite(given[gone:]))
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
    """Return the first high block, the level before, that of now, and the height in noises."""
    level = _medians(blocks)
    now = min(float(level[-2:].min()), _median(blocks[-2:].ravel()))
    noise = _noise(blocks, level)
    if not now - float(level.min()) > NOISES * noise:  # as almost always
        return None
    early = [_median(level[:at]) for at in range(1, SMOOTH)]
    reached = np.concatenate([early, _medians(np.lib.stride_tricks.sliding_window_view(level, SMOOTH))])
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
    if USUAL * float(earlier.max(initial=0.0)) > height or comes_down(
        blocks[start - 1 :].ravel(), height, blocks.shape[1]
    ):
        return None
    return start, before, now, height / noise if noise > 0 else math.inf


def _medians(table: Floats) -> Floats:
    """Return the median of each row; numpy's own takes five times as long, and loads its masked arrays."""
    ordered, half = np.sort(table, axis=1), table.shape[1] // 2
    return ordered[:, half] if table.shape[1] % 2 else (ordered[:, half - 1] + ordered[:, half]) / 2


def _median(values: Floats) -> float:
    return float(_medians(values[None, :])[0])


def _noise(blocks: Floats, level: Floats) -> float:
    """Return by how much the level of a block differs from the next for no reason."""
    inside = 1.4826 * _median(_medians(np.abs(blocks - level[:, None])))
    steps = np.diff(level)
    wander = 1.4826 * _median(np.abs(steps - _median(steps))) / math.sqrt(2)
    return max(WITHIN * inside, wander)


def comes_down(since: Floats, height: float, size: int = SMALLEST) -> bool:
    """Return whether a loss comes down again from its peak.

    Args:
        since: its finite values since it rose.
        height: of the rise.
        size: points of a block; the later half of more than four is looked at.
    """
    part = max(SMALLEST // 2, size // 5)
    whole = len(since) // part * part
    peak = len(since) - whole + int(np.argmax(_medians(since[-whole:].reshape(-1, part)))) * part
    rest = since[peak:]
    rest = rest[len(rest) // 2 :] if len(rest) > 4 * size else rest
    if len(rest) < 2 * part:
        return False
    first, last = np.array_split(rest, 2)
    before, after = _median(first), _median(last)
    spread = 1.4826 * _median(np.abs(np.concatenate([first - before, last - after])))
    return before - after > max(FALLS * height, SURE * spread * 1.25 * math.sqrt(2 / len(first)))
