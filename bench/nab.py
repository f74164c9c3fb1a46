"""The Numenta Anomaly Benchmark's rules, written anew from their description, and two detectors it publishes.

A detection inside a labelled window earns up to 1, the more the earlier, once per window; a window without one costs 1;
every detection elsewhere costs up to 0.11, less just after a window (the standard profile). The first 15 % of a file
(at most 750 points) are not scored. 0 is a detector that never speaks, 100 a perfect one.
"""

from __future__ import annotations

import csv
import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

FALSE = 0.11
"""What a detection outside costs, in the standard profile."""
PROBATION = 0.15
"""Share of a file that is not scored, of at most 5 000 points."""


@dataclass(frozen=True)
class Labelled:
    """One file: its values, and the first and last index of each labelled window."""

    name: str
    values: NDArray[np.float64]
    windows: tuple[tuple[int, int], ...]

    @property
    def scored_from(self) -> int:
        """Return the first index that is scored."""
        return math.ceil(PROBATION * min(len(self.values), 5000))


def read(folder: Path) -> list[Labelled]:
    """Return every file of a copy of the benchmark, in order of name."""
    labels = json.loads((folder / "labels" / "combined_windows.json").read_text(encoding="utf-8"))
    return [_labelled(folder / "data" / name, name, windows) for name, windows in sorted(labels.items())]


def _labelled(path: Path, name: str, windows: list[list[str]]) -> Labelled:
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    times = [row["timestamp"] for row in rows]
    places = tuple((times.index(first[:19]), times.index(last[:19])) for first, last in windows)
    return Labelled(name, np.array([float(row["value"]) for row in rows]), places)


def worth(position: float) -> float:
    """Return what a detection is worth at a position relative to a window's end, in window lengths."""
    return -1.0 if position >= 3 else 2 / (1 + math.exp(5 * position)) - 1


def raw_score(file: Labelled, detections: Sequence[int]) -> float:
    """Return a file's score before it is set beside those of silence and perfection."""
    best: dict[int, float] = {number: -1.0 for number, (_, last) in enumerate(file.windows) if last >= file.scored_from}
    false = 0.0
    for at in detections:
        if at < file.scored_from:
            continue
        number = next((n for n, (first, last) in enumerate(file.windows) if first <= at <= last), None)
        if number is None:
            false += FALSE * worth(_past(file, at))
        else:
            first, last = file.windows[number]
            best[number] = max(best[number], worth(-(last - at + 1) / (last - first + 1)) / worth(-1.0))
    return false + sum(best.values())


def _past(file: Labelled, at: int) -> float:
    """Return how far behind the last window a detection is, in that window's lengths."""
    before = [window for window in file.windows if window[1] < at]
    return (at - before[-1][1]) / max(1, before[-1][1] - before[-1][0]) if before else 3.0


def windows_of(file: Labelled) -> int:
    """Return how many windows of a file are scored."""
    return sum(last >= file.scored_from for _, last in file.windows)


def score(files: Sequence[Labelled], detections: Sequence[Sequence[int]]) -> float:
    """Return the score of a set of files, 0 for silence and 100 for perfection."""
    windows = sum(map(windows_of, files))
    total = sum(raw_score(file, found) for file, found in zip(files, detections, strict=True))
    return 100 * (total + windows) / (2 * windows) if windows else 0.0


def windowed_gaussian(values: NDArray[np.float64], window: int = 1000) -> NDArray[np.float64]:
    """Return each point's probability of being nearer, under a Gaussian of the 1 000 points before it."""
    sums, squares = (np.concatenate([[0.0], np.cumsum(part)]) for part in (values, values * values))
    at = np.arange(1, len(values))
    first = np.maximum(0, at - window)
    size = at - first
    mean = (sums[at] - sums[first]) / size
    deviation = np.sqrt(np.maximum((squares[at] - squares[first]) / size - mean * mean, 0.0))
    z = np.abs(values[1:] - mean) / np.where(deviation > 0, deviation, 1e-6)
    return np.concatenate([[0.0], [1 - 0.5 * math.erfc(each / math.sqrt(2)) for each in z]])


def relative_entropy(values: NDArray[np.float64], window: int = 52, bins: int = 5) -> NDArray[np.float64]:
    """Return 1 where the last 52 points' histogram is unlike every one seen before (Wang et al., 2011), else 0."""
    found = np.zeros(len(values))
    width = (values.max() - values.min()) / bins
    if width == 0:
        return found
    limit = 13.276704135987622  # chi-squared with 4 degrees of freedom, 1 %
    level = np.ceil((values - values.min()) / width).astype(int)
    known: list[NDArray[np.float64]] = []
    counts: list[int] = []
    for at in range(window - 1, len(values)):
        share = np.histogram(level[at - window + 1 : at + 1], bins=bins, range=(0, bins), density=True)[0]
        nearest, distance = -1, limit
        for number, other in enumerate(known):
            entropy = 2 * window * _entropy(share, other)
            if entropy < distance:
                nearest, distance = number, entropy
        if nearest >= 0:
            counts[nearest] += 1
        else:
            known.append(share)
            counts.append(1)
            found[at] = float(len(known) > 1)
    return found


def _entropy(share: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    present = share > 0
    if np.any(other[present] == 0):
        return math.inf
    return float(np.sum(share[present] * np.log(share[present] / other[present])))
