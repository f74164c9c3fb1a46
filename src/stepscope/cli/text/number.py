"""Parse numbers of the command line, and check their bounds."""

from __future__ import annotations

import argparse
import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

MOST_GPUS = 4096
MOST_PORT = 65535


def whole(low: int, high: float = math.inf) -> Callable[[str], int]:
    """Return a parser of whole numbers from `low` to `high`, inclusive."""

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
    """Return a parser of finite numbers from `low` to `high`, inclusive."""

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
    return f"of {low:g} or more" if high == math.inf else f"from {low:g} to {high:.12g}"


gpu_index = whole(0, MOST_GPUS - 1)
port = whole(0, MOST_PORT)
"""0: any free port."""
