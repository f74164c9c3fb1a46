"""Is one group of runs different from another? A ratio, its interval, and a verdict that accounts for noise.

The unit of evidence is the run, not the step: equal runs differ by more than their steps predict. Repeats measure that
difference. With few repeats it is combined with prior knowledge that counts as a few runs (the moderated t of empirical
Bayes): the noise of the kind, and a multiple of the error within the steps. So one run against one gives an interval,
too, a wide one, and ten against ten rely mostly on themselves. Runs that took turns, A B A B, are compared in pairs, so
that slow and fast hours of the machine affect both runs of a pair.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from stepscope.analysis.series.student import two_sided
from stepscope.core.numbers import format_change

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.analysis.compare.level import Level
    from stepscope.analysis.compare.quantity import QuantityKind
    from stepscope.core.arrays import Floats


CONFIDENCE = 0.95
"""Share of intervals that contain the true difference; in the rest, equal groups are called different."""
SAME = "no difference"
NOT_COMPARABLE = "not comparable"
TOO_LARGE = "its values are too large to be compared"
STEPS_FREEDOM = 4.0
"""Degrees of freedom of the deviation of equal runs that is estimated from their steps."""
ROUNDING = 1e-9
"""Relative difference of two variances that is only rounding: both groups are equally noisy."""
BIG = 700.0
"""Largest logarithm that is still a float."""


@dataclass(frozen=True)
class Difference:
    """How B differs from A in one quantity. Ratios are B / A - 1; None if undefined."""

    verdict: str
    """faster, slower, better, worse, lower, higher, no difference or not comparable."""
    why: str
    a: float | None = None
    b: float | None = None
    """Means over the runs of each group (geometric for positive values)."""
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    """Interval of the ratio."""
    noise: float | None = None
    """Assumed standard deviation of equal runs, as a ratio."""
    runs: tuple[int, int] = (0, 0)
    confidence: float = CONFIDENCE

    @property
    def difference(self) -> float | None:
        """B - A."""
        return None if self.a is None or self.b is None else self.b - self.a


def difference(
    first: Sequence[Level],
    second: Sequence[Level],
    kind: QuantityKind,
    confidence: float = CONFIDENCE,
    pairs: Sequence[tuple[int, int]] = (),
) -> Difference:
    """Compare two groups of runs, by the level of each run of A and of B.

    `kind` says which direction is better, and the prior noise. `pairs` are the indices of runs of A and B that followed
    each other, if all took turns.
    """
    values = [np.array([level.value for level in group]) for group in (first, second)]
    if not all(len(group) and np.isfinite(group).all() for group in values):
        return Difference(NOT_COMPARABLE, "a run has no finite value", confidence=confidence)
    if float(values[0].mean()) == 0.0:
        why = "A is zero, so there is no ratio" if any(group.any() for group in values) else "both are zero"
        return Difference(NOT_COMPARABLE, why, confidence=confidence)
    scale = _Scale.of(values)
    a, b = (scale.inside(group) for group in values)
    errors = [scale.error(level) for level in (*first, *second)]
    noise, error, freedom = _paired(a, b, errors, kind, pairs) if pairs else _unpaired(a, b, errors, kind)
    reach = t_quantile(confidence, freedom) * error
    gap = float(b.mean() - a.mean())
    ratio, low, high = (scale.ratio(gap + part) for part in (0.0, -reach, reach))
    means = [scale.outside(float(group.mean())) for group in (a, b)]
    if not all(map(math.isfinite, (ratio, low, high, *means))):
        return Difference(NOT_COMPARABLE, TOO_LARGE, confidence=confidence)
    verdict, runs = _verdict(low, high, kind), (len(a), len(b))
    why = _why(verdict, runs, noise, reach)
    return Difference(verdict, why, means[0], means[1], ratio, low, high, noise, runs, confidence)


def _verdict(low: float, high: float, kind: QuantityKind) -> str:
    if low <= 0.0 <= high:
        return SAME
    return kind.better if (high < 0) == (kind.lower_is_better is not False) else kind.worse


@dataclass(frozen=True)
class _Scale:
    """The scale on which differences are ratios: logarithms, or shares of the mean of A if values may be negative."""

    unit: float | None
    """The size of A; None for logarithms."""

    @classmethod
    def of(cls, values: Sequence[Floats]) -> _Scale:
        return cls(None if all((group > 0).all() for group in values) else abs(float(values[0].mean())))

    def inside(self, values: Floats) -> Floats:
        return np.log(values) if self.unit is None else values / self.unit

    def outside(self, value: float) -> float:
        return math.exp(min(value, BIG)) if self.unit is None else value * self.unit

    def ratio(self, gap: float) -> float:
        return math.expm1(min(gap, BIG)) if self.unit is None else gap

    def error(self, level: Level) -> float:
        return level.error / (level.value if self.unit is None else self.unit)


def _unpaired(a: Floats, b: Floats, errors: Sequence[float], kind: QuantityKind) -> tuple[float, float, float]:
    """Return the deviation of equal runs, the standard error of the difference of means, and its degrees of freedom."""
    sums = [float(np.sum((group - group.mean()) ** 2)) for group in (a, b)]
    noise, freedom, prior = _pooled(_prior(errors, kind), kind, sum(sums), len(a) + len(b) - 2)
    variance = noise * (1 / len(a) + 1 / len(b))
    own = [
        (prior * noise + total) / (prior + len(group) - 1) / len(group)
        for group, total in zip((a, b), sums, strict=True)
        if prior + len(group) > 1
    ]
    if len(own) == 2 and sum(own) > (1 + ROUNDING) * variance:  # the smaller group is the noisier one: Welch
        total = sum(own)
        shares = [(part / total) ** 2 / (prior + len(group) - 1) for part, group in zip(own, (a, b), strict=True)]
        return math.sqrt(noise), math.sqrt(total), 1 / sum(shares)
    return math.sqrt(noise), math.sqrt(variance), freedom


def _pooled(known: tuple[float, float], kind: QuantityKind, squares: float, repeats: int) -> tuple[float, float, float]:
    """Return the variance of equal runs, its degrees of freedom, and how many of these are prior knowledge.

    `known` is the prior variance and its degrees of freedom, `squares` the sum of squared distances of the repeats from
    the mean of their group. If the noise depends on the program, repeats with a larger spread override the prior.
    """
    variance, before = known
    if kind.varies and repeats > 0 and squares > variance * repeats:
        return squares / repeats, float(repeats), 0.0
    freedom = before + repeats
    return (before * variance + squares) / freedom, freedom, before


def _paired(
    a: Floats, b: Floats, errors: Sequence[float], kind: QuantityKind, pairs: Sequence[tuple[int, int]]
) -> tuple[float, float, float]:
    """Return the same as `_unpaired` for runs that took turns, from the spread of the differences of the pairs."""
    gaps = np.array([b[there] - a[here] for here, there in pairs])
    # The difference of a pair has the noise of two runs.
    squares = float(np.sum((gaps - gaps.mean()) ** 2)) / 2
    noise, freedom, _ = _pooled(_prior(errors, kind), kind, squares, len(gaps) - 1)
    return math.sqrt(noise), math.sqrt(2 * noise / len(gaps)), freedom


def _prior(errors: Sequence[float], kind: QuantityKind, scale: float = 1.0) -> tuple[float, float]:
    """Return the prior variance of equal runs, and its degrees of freedom.

    Without repeats the noise of a program is a guess; the estimate from its steps is better.
    """
    squares = np.square([error for error in errors if math.isfinite(error)] or [0.0])
    guess, of_steps = (kind.noise * scale) ** 2, kind.run_over_steps**2 * float(np.mean(squares))
    total = guess + of_steps
    if not kind.varies or total == 0:
        return total, kind.freedom
    # Relative to their sum, so that no square overflows.
    return total, 1 / ((guess / total) ** 2 / kind.freedom + (of_steps / total) ** 2 / STEPS_FREEDOM)


def one_more_run(levels: Sequence[Level], kind: QuantityKind) -> tuple[float, float, float]:
    """Return the mean of some equal runs, the deviation of one run from it, and its degrees of freedom."""
    values, errors = np.array([level.value for level in levels]), np.array([level.error for level in levels])
    scale = float(np.abs(values).max()) or 1.0
    values, errors = values / scale, errors / scale
    mean = float(values.mean())
    prior = _prior(errors.tolist(), kind, mean)
    variance, freedom, _ = _pooled(prior, kind, float(np.sum((values - mean) ** 2)), len(values) - 1)
    return mean * scale, math.sqrt(variance) * scale, freedom


@functools.lru_cache(maxsize=256)
def t_quantile(confidence: float, freedom: float) -> float:
    """Return how many standard errors an interval of Student's t extends to each side."""
    low, high = 0.0, 1.0
    while two_sided(high, freedom) > 1 - confidence and high < 1e6:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if two_sided(middle, freedom) > 1 - confidence else (low, middle)
    return high


def runs_needed(found: Difference, ratio: float) -> int | None:
    """Return how many runs of each group would show a difference of this ratio in nine of ten cases; None if unknown.

    The noise of every run is assumed to be that of the comparison.
    """
    if not found.noise or not ratio > 0:
        return None
    reach = t_quantile(found.confidence, 60.0) + 1.282
    return max(2, math.ceil(2 * (reach * found.noise / ratio) ** 2))


def _why(verdict: str, runs: tuple[int, int], noise: float, reach: float) -> str:
    counted, deviation = f"{runs[0]} {'run' if runs[0] == 1 else 'runs'}", format_change(noise, signed=False)
    known = f"equal runs differ by {deviation} (standard deviation)"
    if sum(runs) == 2:
        known = f"equal runs are taken to differ by {deviation}, as nothing is repeated"
    if verdict == SAME:
        known += f", so a change below {format_change(reach, signed=False)} cannot be detected"
    return f"{counted} against {runs[1]}; {known}"
