"""Plain data as strict JSON, which has no NaN and no infinity."""

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
    """Return JavaScript's word for a number that is not finite."""
    return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"


def null(_: float) -> None:
    """Return None, which is null in JSON."""


def flagged(value: Any) -> tuple[Any, list[dict[str, str]]]:
    """Return plain data with None for numbers that are not finite, and where these were.

    Each flag has `at`, an RFC 6901 pointer, and `value`, the number as text.
    """
    flags: list[dict[str, str]] = []
    return _flagged(value, "", flags), flags


def _flagged(value: Any, at: str, flags: list[dict[str, str]]) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        flags.append({"at": at, "value": repr(value)})
        return None
    if isinstance(value, dict):
        keys = {key: str(key).replace("~", "~0").replace("/", "~1") for key in value}
        return {key: _flagged(item, f"{at}/{keys[key]}", flags) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_flagged(item, f"{at}/{number}", flags) for number, item in enumerate(value)]
    return value
