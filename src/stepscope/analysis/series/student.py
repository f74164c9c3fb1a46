"""Student's t distribution: how often chance alone gives a value this far from zero. Needs only `math`."""

from __future__ import annotations

import math

ROUNDS = 10_000
"""Maximum terms of the continued fraction; a million degrees of freedom need about 700."""
TINY = 1e-300


def two_sided(t: float, freedom: float) -> float:
    """Return the probability that |T| >= |t| with this many degrees of freedom; NaN if undefined."""
    if math.isnan(t) or not freedom > 0:
        return math.nan
    if math.isinf(t):
        return 0.0
    if math.isinf(freedom):
        return math.erfc(abs(t) / math.sqrt(2))
    return _beta(freedom / 2, 0.5, freedom, t * t)


def _beta(a: float, b: float, part: float, rest: float) -> float:
    """Return the regularised incomplete beta function at part / (part + rest), exact near both ends."""
    if rest <= 0:
        return 1.0
    x, other = part / (part + rest), rest / (part + rest)
    if x <= 0:
        return 0.0
    front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) - a * math.log1p(rest / part) + b * math.log(other)
    if x < (a + 1) / (a + b + 2):
        return min(1.0, math.exp(front) * _fraction(a, b, x) / a)
    return max(0.0, 1.0 - math.exp(front) * _fraction(b, a, other) / b)


def _fraction(a: float, b: float, x: float) -> float:
    """Return the continued fraction of the incomplete beta function (Lentz's method)."""
    upper, lower = 1.0, 1.0 / (_away(1.0 - (a + b) * x / (a + 1)))
    total = lower
    for turn in range(1, ROUNDS):
        twice = 2 * turn
        for term in (
            turn * (b - turn) * x / ((a + twice - 1) * (a + twice)),
            -(a + turn) * (a + b + turn) * x / ((a + twice) * (a + twice + 1)),
        ):
            lower = 1.0 / _away(1.0 + term * lower)
            upper = _away(1.0 + term / upper)
            total *= lower * upper
        if abs(lower * upper - 1.0) < 1e-15:
            break
    return total


def _away(value: float) -> float:
    """Return the value, or the smallest number that can be divided by."""
    return value if abs(value) > TINY else TINY
