"""JSON that every reader takes: it has no NaN and no infinity."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


def strict(value: Any, instead: Callable[[float], Any]) -> Any:
    """Return plain data with `instead(number)` for numbers that are not finite, text as keys, and valid UTF-8 text."""
    if isinstance(value, float):
        return value if math.isfinite(value) else instead(value)
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {strict(str(key), instead): strict(item, instead) for key, item in value.items()}
    return [strict(item, instead) for item in value] if isinstance(value, (list, tuple)) else value


def word(number: float) -> str:
    """Return the word that JavaScript has for a number that is not finite."""
    return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"


def null(_: float) -> None:
    """Return what JSON has for a number that is not known."""
