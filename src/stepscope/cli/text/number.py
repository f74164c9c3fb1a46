"""Parse numbers of the command line, and check their bounds."""

from __future__ import annotations

import argparse
import contextlib
import math
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

Number = TypeVar("Number", int, float)
MOST_GPUS = 4096
MOST_PORT = 65535


def whole(low: int, high: float = math.inf) -> Callable[[str], int]:
    """Return a parser of whole numbers from `low` to `high`, inclusive."""
    return _bounded(int, "whole number", low, high)


def real(low: float, high: float = math.inf) -> Callable[[str], float]:
    """Return a parser of finite numbers from `low` to `high`, inclusive."""
    return _bounded(float, "number", low, high)


def _bounded(kind: Callable[[str], Number], noun: str, low: float, high: float) -> Callable[[str], Number]:
    bounds = f"of {low:g} or more" if high == math.inf else f"from {low:g} to {high:.12g}"

    def read(text: str) -> Number:
        with contextlib.suppress(ValueError):
            number = kind(text)
            if low <= number <= high and number < math.inf:
                return number
        raise argparse.ArgumentTypeError(f"{text!r} is not a {noun} {bounds}")

    return read


gpu_index = whole(0, MOST_GPUS - 1)
port = whole(0, MOST_PORT)
"""0: any free port."""
