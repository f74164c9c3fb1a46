"""The course of a loss: its level in parts, and the spread inside of each."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from stepscope.analysis.diagnosis.evidence import Track
    from stepscope.core.arrays import Floats


PARTS = 20
"""Equal parts of the steps whose medians are its course."""


def course_of(track: Track, parts: int = PARTS) -> tuple[Floats, Floats]:
    """Return the medians of equal parts of a series, and the spread inside of each."""
    pieces = np.array_split(track.value, min(parts, max(1, len(track) // 2)))
    middle = np.array([np.median(piece) for piece in pieces])
    spread = np.array([np.median(np.abs(piece - np.median(piece))) * 1.4826 for piece in pieces])
    return middle, spread
