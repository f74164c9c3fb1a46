"""Exploding, vanishing, dead and non-finite gradients, judged from the norms of a model or a layer."""

from __future__ import annotations

import math
from collections import deque
from statistics import median
from typing import NamedTuple

from stepscope.core.remedies import remedy

WINDOW = 100
"""Number of norms that a new one is compared with."""
ENOUGH = 10
"""Minimum norms before one is compared."""
EXPLODED = 10.0
"""A norm this many times the median of the window counts as exploding."""
VANISHED = 1e-4
"""A norm below this share of the largest median so far counts as vanishing."""
VANISHED_SHARE = 1e-5
"""A layer whose gradient per parameter is below this share of the model's counts as vanishing."""
TINY = 1e-8
"""A norm below this counts as vanishing whatever came before."""
PATIENCE = 3
"""Consecutive dead or vanishing measurements before a report."""

EXPLODING, VANISHING, DEAD, NONFINITE = (
    "exploding_gradient",
    "vanishing_gradient",
    "dead_gradient",
    "nonfinite_gradient",
)
CAUSES = {
    EXPLODING: "the norm is {times:.3g} times its median over the last {count} measurements",
    VANISHING: "the norm is {times:.2g} of what it was compared with, {patience} measurements in a row",
    DEAD: "the gradient is exactly zero or absent, {patience} measurements in a row",
    NONFINITE: "the norm is {value}: a gradient holds NaN or an infinity",
}
REMEDIES = {
    EXPLODING: remedy("exploding_gradients"),
    VANISHING: remedy("vanishing_gradients"),
    DEAD: remedy("dead_gradients"),
    NONFINITE: remedy("non_finite", "gradient"),
}


class Finding(NamedTuple):
    """Something that is wrong with a gradient."""

    kind: str
    value: float | None
    """The norm; None if there was no gradient."""
    compared: float | None
    """What it was compared with."""
    cause: str
    remedy: str


class Trend:
    """Judge the norms of one gradient as they come; each episode is reported once, when it starts."""

    def __init__(self) -> None:
        """Begin with no history."""
        self._norms: deque[float] = deque(maxlen=WINDOW)
        self._highest = 0.0
        self._state, self._candidate, self._streak = "", "", 0

    def add(self, norm: float | None, share: float | None = None) -> Finding | None:
        """Take the next norm (None: no gradient); return what is wrong if that is new.

        Args:
            norm: 2-norm of the gradient.
            share: for a layer, its root mean square as a share of the model's.
        """
        middle = median(self._norms) if len(self._norms) >= ENOUGH else None
        kind, compared = self._kind(norm, share, middle)
        if norm is not None and math.isfinite(norm) and norm > 0 and kind != EXPLODING:
            self._norms.append(norm)
            if middle is not None:
                self._highest = max(self._highest, middle)
        if kind in {DEAD, VANISHING}:
            self._streak = self._streak + 1 if kind == self._candidate else 1
            self._candidate = kind
            if self._streak < PATIENCE:
                return None
        else:
            self._streak, self._candidate = 0, ""
        if kind == EXPLODING and middle is not None and norm is not None:
            self._norms.append(min(norm, EXPLODED * middle))  # so that a new level becomes the usual one in time
        if kind == self._state:
            return None
        self._state = kind
        return self._finding(kind, norm, compared) if kind else None

    def _kind(self, norm: float | None, share: float | None, middle: float | None) -> tuple[str, float | None]:
        """Return what is wrong with a norm, and what it was compared with."""
        if norm is None or norm == 0:
            return DEAD, None
        if not math.isfinite(norm):
            return NONFINITE, None
        if middle is not None and norm > EXPLODED * middle:
            return EXPLODING, middle
        if share is not None and share < VANISHED_SHARE:
            return VANISHING, norm / share if share else None
        if norm < TINY:
            return VANISHING, 1.0
        if norm < VANISHED * self._highest:
            return VANISHING, self._highest
        return "", None

    def _finding(self, kind: str, norm: float | None, compared: float | None) -> Finding:
        times = norm / compared if norm is not None and compared else math.nan
        words = {"times": times, "count": len(self._norms), "patience": PATIENCE, "value": norm}
        return Finding(kind, norm, compared, CAUSES[kind].format(**words), REMEDIES[kind])
