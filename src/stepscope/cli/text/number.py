"""Numbers on the command line: within bounds, or refused in one form."""

from __future__ import annotations

import argparse
import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

MOST_GPUS = 4096
MOST_PORT = 65535


def whole(low: int, high: float = math.inf) -> Callable[[str], int]:
    """Return how a whole number is read that lies between these, both included."""

    def read(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = None
        if number is None or not low <= number <= high:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number {_bounds(low, high)}")
        return number

    return read


def real(low: float, high: float = math.inf) -> Callable[[str], float]:
    """Return how a finite number is read that lies between these, both included."""

    def read(text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if not (low <= number <= high and math.isfinite(number)):
            raise argparse.ArgumentTypeError(f"{text!r} is not a number {_bounds(low, high)}")
        return number

    return read


def _bounds(low: float, high: float) -> str:
    return f"from {low:g} on" if high == math.inf else f"from {low:g} to {high:.12g}"


gpu_index = whole(0, MOST_GPUS - 1)
port = whole(0, MOST_PORT)
"""0 means any that is free."""
