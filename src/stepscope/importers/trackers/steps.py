"""Steps that are fractions, as some trackers allow: our steps are integers, so the true ones become a series."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from stepscope.core.ring import NO_STEP

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from stepscope.importers.run_builder import RunBuilder

SUFFIX = "/fractional_step"


def extend(
    run: RunBuilder, name: str, value: NDArray[np.float64], step: NDArray[np.float64], time: NDArray[np.float64]
) -> None:
    """Add points at the integer part of their step, rounded down.

    From its first fractional step on a metric has a series beside it, `<name>/fractional_step`, with the true step of
    each of its points, in the same order.
    """
    usable = np.abs(step) < 2**62
    whole = np.where(usable, np.floor(np.where(usable, step, 0)), NO_STEP).astype(np.int64)
    beside, before = name + SUFFIX, run.columns.get(name)
    if beside not in run.columns and bool((usable & (step != whole)).any()):
        run.note(f"fractional steps: points are at the integer part, and <metric>{SUFFIX} has the true step of each")
        known = np.array(() if before is None else before.step, np.int64)
        times = np.array(() if before is None else before.time, np.float64)
        run.extend(beside, known.astype(np.float64), known, times)
    run.extend(name, value, whole, time)
    if beside in run.columns:
        run.extend(beside, step, whole, time)
