"""Series whose changes are known, and how well somebody's changes meet them."""

from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    Marked = tuple[NDArray[np.float64], list[list[int]]]
    """The values, and what each annotator marked."""

MARGIN = 5
"""Points by which a change may be off, as in the Turing benchmark."""
COPY = 173
"""Length of the series that MongoDB's longer ones repeat."""
E_DIVISIVE = {
    "real_series": [],
    "robust_series": [25, 64, 68, 114],
    "medium": [25, 68, 114, 173, 198, 241, 287, 346, 371, 414, 460],
    "long_series": [205, 395, 594, 794],
}
"""What MongoDB's library finds in its own test series (E-divisive, p 0.01, 100 permutations), computed once with the
original algorithm in apache-otava 0.8.0: 40 s for the longer ones."""
TIGERBEETLE = [16, 71, 97]
"""The clear shifts by the word of the series' authors; a single drop at 10 is none."""


def marked(folder: Path) -> dict[str, Marked]:
    """Return the series of tcpd-subset and changepoint-series with their marks."""
    found: dict[str, Marked] = {}
    notes = _json(folder / "tcpd-subset" / "annotations.json")
    for name, marks in notes.items():
        series = _json(folder / "tcpd-subset" / f"{name}.json")["series"][0]["raw"]
        found[name] = (np.array(series, dtype=float), list(marks.values()))
    mongodb = folder / "changepoint-series" / "mongodb"
    for name, marks in E_DIVISIVE.items():
        series = _json(mongodb / f"{name}.json")
        found[name] = (np.array(series["series"] if isinstance(series, dict) else series, dtype=float), [marks])
    values = np.array(_json(mongodb / "huge.json")["series"], dtype=float)
    copies = [at + start for start in range(0, len(values), COPY) for at in (0, 25, 68, 114)][1:]
    found["huge"] = (values, [copies])
    tiger = _json(folder / "changepoint-series" / "otava" / "tigerbeetle_series.json")
    found["tigerbeetle"] = (np.array(tiger, dtype=float), [TIGERBEETLE])
    return found


def _json(path: Path) -> dict:
    return json.loads(path.read_text(encoding="utf-8"))


def planted(seed: int) -> Marked:
    """Return a series with up to five shifts of 1.5 to 5 standard deviations, and where they are.

    In turn the noise is Gaussian, heavy-tailed (Student's t with 3), correlated (0.2 to 0.6), or has 2 % outliers.
    """
    random = np.random.default_rng(seed)
    count, shifts = int(random.integers(80, 800)), int(random.integers(0, 6))
    places = np.array([], dtype=int)
    while len(places) < shifts or np.any(np.diff(places) < 12):
        places = np.sort(random.choice(np.arange(12, count - 12), shifts, replace=False))
    heights = random.uniform(1.5, 5, shifts) * random.choice([-1, 1], shifts)
    noise = random.standard_t(3, count) / 3**0.5 if seed % 4 == 1 else random.normal(0, 1, count)
    if seed % 4 == 2:
        share = random.uniform(0.2, 0.6)
        for at in range(1, count):
            noise[at] = share * noise[at - 1] + (1 - share**2) ** 0.5 * noise[at]
    if seed % 4 == 3:
        out = random.random(count) < 0.02
        noise[out] += random.choice([-1, 1], out.sum()) * random.uniform(6, 20, out.sum())
    level = np.concatenate([[0.0], np.cumsum(heights)])[np.searchsorted(places, np.arange(count), side="right")]
    return 1000 + 10 * (level + noise), [[int(at) for at in places]]


def restless(seed: int) -> Marked:
    """Return a series of up to two shifts in noise that is not independent, and where they are.

    In turn it has a season of 7, 12 or 24 points, one that grows with a trend, lasting noise (0.7 to 0.95), or wanders.
    """
    random = np.random.default_rng(seed)
    count, shifts, kind = int(random.integers(120, 400)), int(random.integers(0, 3)), seed % 4
    places = np.array([], dtype=int)
    while len(places) < shifts or np.any(np.diff(places) < 20):
        places = np.sort(random.choice(np.arange(20, count - 20), shifts, replace=False))
    place, noise = np.arange(count), random.normal(0, 1, count)
    if kind < 2:
        period = int(random.choice([7, 12, 24]))
        season = (
            np.sin(2 * np.pi * place / period + random.uniform(0, 6)) + random.normal(0, 0.5, period)[place % period]
        )
        noise = noise * 0.5 + 2 * season * (1 + 2 * kind * place / count) + 0.05 * kind * place
    else:
        share = random.uniform(0.7, 0.95) if kind == 2 else 1.0
        for at in range(1, count):
            noise[at] += share * noise[at - 1]
    heights = random.uniform(3, 8, shifts) * random.choice([-1, 1], shifts) * (1, 3, 3, 6)[kind]
    level = np.concatenate([[0.0], np.cumsum(heights)])[np.searchsorted(places, place, side="right")]
    return 1000 + level + noise, [[int(at) for at in places]]


def cover(marks: Sequence[Iterable[int]], found: Iterable[int], count: int) -> float:
    """Return how well segments cover those of the annotators, by the Turing benchmark's rule: 1 is all.

    Args:
        marks: the changes that each annotator marked.
        found: the changes that were found.
        count: points of the series.
    """
    ours = _segments(found, count)
    shares = []
    for each in marks:
        best = [
            (stop - start) * max(_overlap((start, stop), one) for one in ours) for start, stop in _segments(each, count)
        ]
        shares.append(sum(best) / count)
    return sum(shares) / len(shares)


def _segments(changes: Iterable[int], count: int) -> list[tuple[int, int]]:
    edges = [0, *sorted({at for at in changes if 0 < at < count}), count]
    return list(itertools.pairwise(edges))


def _overlap(one: tuple[int, int], other: tuple[int, int]) -> float:
    """Return what two segments share of what they span together."""
    shared = min(one[1], other[1]) - max(one[0], other[0])
    return max(0, shared) / (max(one[1], other[1]) - min(one[0], other[0]))


def f_score(marks: Sequence[Iterable[int]], found: Iterable[int]) -> float:
    """Return the F-score by the Turing benchmark's rule: precision over all marks, recall averaged over annotators."""
    told = {0, *found}
    known = [{0, *each} for each in marks]
    precision = _met(set().union(*known), told) / len(told)
    recall = sum(_met(each, told) / len(each) for each in known) / len(known)
    return 2 * precision * recall / (precision + recall)


def _met(marks: set[int], told: set[int]) -> int:
    """Return how many marks have a change of their own within the margin."""
    left = set(told)
    for mark in sorted(marks):
        near = min(left, key=lambda at: abs(at - mark), default=None)
        if near is not None and abs(near - mark) <= MARGIN:
            left.remove(near)
    return len(told) - len(left)
