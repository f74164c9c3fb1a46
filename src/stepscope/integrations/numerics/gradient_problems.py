"""Detect exploding, vanishing, dead and non-finite gradients from the norms of a model or a layer."""

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

EXPLODING, VANISHING = "exploding_gradient", "vanishing_gradient"
DEAD, NONFINITE = "dead_gradient", "nonfinite_gradient"
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


class GradientProblem(NamedTuple):
    """Something that is wrong with a gradient."""

    kind: str
    value: float | None
    """The norm; None if there was no gradient."""
    compared: float | None
    """What it was compared with."""
    cause: str
    remedy: str


class NormHistory:
    """The recent norms of one gradient. Each problem is reported once, when it starts."""

    def __init__(self) -> None:
        self._norms: deque[float] = deque(maxlen=WINDOW)
        self._highest = 0.0
        self._state, self._candidate, self._streak = "", "", 0

    def add(self, norm: float | None, share: float | None = None) -> GradientProblem | None:
        """Add a 2-norm (None: no gradient), and return the problem if one starts here.

        For a layer, `share` is the root mean square of its gradient as a share of the model's.
        """
        middle = median(self._norms) if len(self._norms) >= ENOUGH else None
        kind, compared = self._compare(norm, share, middle)
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
            self._norms.append(min(norm, EXPLODED * middle))  # a norm that stays high becomes normal in time
        if kind == self._state:
            return None
        self._state = kind
        return self._problem(kind, norm, compared) if kind else None

    def _problem(self, kind: str, norm: float | None, compared: float | None) -> GradientProblem:
        times = norm / compared if norm is not None and compared else math.nan
        cause = CAUSES[kind].format(times=times, count=len(self._norms), patience=PATIENCE, value=norm)
        return GradientProblem(kind, norm, compared, cause, REMEDIES[kind])

    def _compare(self, norm: float | None, share: float | None, middle: float | None) -> tuple[str, float | None]:
        """Return the kind of problem (empty: none), and what the norm was compared with."""
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
