"""Describe an array by a histogram and its moments."""

from __future__ import annotations

from typing import Any

_LARGEST = 8e307
"""Beyond this, a difference or a bin edge may overflow."""
MOST_BINS = 512
"""Beyond this, the text of a histogram would be truncated."""


def describe_array(values: Any, bins: int = 64) -> dict[str, Any]:
    """Return bin edges and counts over the finite values, and count, non-finite, min, max, mean, std (population).

    numpy is used if the training has it loaded or installed; nothing else is imported here.
    """
    import numpy as np

    if hasattr(values, "detach"):
        values = values.detach().cpu()
        if str(getattr(values, "dtype", "")) == "torch.bfloat16":
            values = values.float()  # numpy has no such type
    if values is None or np.asarray(values).dtype.kind == "c":
        raise TypeError("it holds no real numbers")
    flat = np.asarray(values, dtype=np.float64).ravel()
    finite = flat[np.isfinite(flat)]
    fields: dict[str, Any] = {"count": int(flat.size), "nonfinite": int(flat.size - finite.size)}
    if finite.size:
        low, high = float(finite.min()), float(finite.max())
        counts, edges = np.histogram(finite, bins=max(1, min(int(bins), MOST_BINS)), range=_span(low, high))
        fields |= {"edges": edges.tolist(), "counts": counts.tolist()}
        with np.errstate(over="ignore", invalid="ignore"):  # squares may overflow
            fields |= {"min": low, "max": high, "mean": float(finite.mean()), "std": float(finite.std())}
    return fields


def _span(low: float, high: float) -> tuple[float, float]:
    """Return a range that numpy can divide: close values need more room, values near the float limits less."""
    low, high = (min(max(end, -_LARGEST), _LARGEST) for end in (low, high))
    if high - low > max(abs(low), abs(high), 1e-290) * 1e-9:
        return low, high
    room = max(abs(low) * 1e-6, 1e-12)
    return low - room, high + room
