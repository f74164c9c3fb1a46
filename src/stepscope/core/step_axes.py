"""Metrics that are the step of others, as W&B's `define_metric` names them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


def axis_of(name: str, axes: Mapping[str, str]) -> str | None:
    """Return the metric that is the step of another: as defined for it, else for the longest matching `…*`."""
    if name in axes:
        return axes[name]
    globs = [glob for glob in axes if glob.endswith("*") and name.startswith(glob[:-1])]
    return axes[max(globs, key=len)] if globs else None


def whole_step(value: object) -> int | None:
    """Return a number as a step that fits 64 bits, or None; 31.0 is 31."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or math.isnan(value) or abs(value) >= 2**62:
        return None
    return int(value)
