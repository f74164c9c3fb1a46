"""The meaning of foreign names and numbers: one name per quantity, values and times as plain floats."""

from __future__ import annotations

import math
import re
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Collection

MOST_NAME = 256
"""Maximum characters of a name."""

SPELLINGS: dict[str, tuple[str, ...]] = {
    "loss": (
        *("train/loss", "lm_loss", "train_loss", "training_loss", "reduced_train_loss", "loss/train", "training/loss"),
        *("train/train_loss", "train_loss_step", "train/loss_step", "loss_step", "total_loss", "trl"),
    ),
    "learning_rate": ("lr", "train/learning_rate", "train/lr", "lr/train", "optimizer/lr", "lr_abs"),
    "grad_norm": (
        *("train/grad_norm", "gradient_norm", "train/gradient_norm", "global_grad_norm", "norm", "total_gradient_norm"),
    ),
    "step_seconds": (
        *("iteration_time", "elapsed_time_per_iteration", "train_step_time", "step_time", "iter_time", "batch_time"),
        *("train_step_timing_in_s", "train_step_timing", "time_per_iteration", "time/step", "step_duration", "dt"),
    ),
    "samples_per_second": ("samples_per_sec", "train_samples_per_second", "train/samples_per_second", "samples/sec"),
    "tokens_per_second": (
        *("tokens_per_sec", "train/tokens_per_second", "tok/sec", "tok/s", "tokens/sec", "tokens/s", "tps"),
        "train/tokens_per_sec",
    ),
    "epoch": ("train/epoch", "epochs"),
    "batch_size": ("global_batch_size",),
    "gpu/0/memory_peak_bytes": ("mem_max_allocated_bytes", "max_memory_allocated_bytes", "peak_memory_allocated"),
    "gpu/0/memory_allocated_bytes": ("mem_allocated_bytes",),
}
"""Canonical names (docs/reference/metrics.md) and their spellings in other tools with the same unit, likeliest first,
normalized by `plain`."""

GROUPED = re.compile(r"\s*[-+]?\d{1,3}(?:,\d{3})+(?:\.\d*)?\s*")
NOT_FINITE = {"nan": math.nan, "inf": math.inf, "infinity": math.inf, "-inf": -math.inf, "-infinity": -math.inf}


def plain(name: str) -> str:
    """Return a name in lower case, with `_` for blanks and dashes: `LM loss` and `lm-loss` are the same."""
    return re.sub(r"[\s-]+", "_", name.strip().lower())


def clean(name: str) -> str:
    """Return a name without control characters and directional marks, short enough to show."""
    return "".join(sign if sign.isprintable() else "?" for sign in name[:MOST_NAME]).strip() or "?"


def canonical_names(names: Collection[str]) -> dict[str, str]:
    """Return for each name the one that Stepscope uses, or the name itself.

    Two names never become one: a canonical name that the source itself uses is kept, and of several spellings the
    likeliest gets the canonical name.
    """
    by_plain: dict[str, str] = {}
    for name in names:
        by_plain.setdefault(plain(name), name)
    result = {name: name for name in names}
    for canonical, spellings in SPELLINGS.items():
        found = next((by_plain[word] for word in (plain(canonical), *spellings) if word in by_plain), None)
        if found is not None and canonical not in result:
            result[found] = canonical
    return result


_CANONICAL = {word: ours for ours, words in reversed(SPELLINGS.items()) for word in (plain(ours), *words)}


def canonical_name(name: str, taken: Collection[str]) -> str:
    """Return the name that Stepscope uses for a further metric of a live source, or the name itself.

    What the metrics before it are called is `taken`: a name that was given once stays.
    """
    ours = _CANONICAL.get(plain(name), name)
    return name if ours in taken else ours


def number(value: Any) -> float | None:
    """Return a value as a float, also "NaN" and "Infinity" as text; None for anything else (true and false too)."""
    if isinstance(value, float):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            return None
    return NOT_FINITE.get(value.strip().lower()) if isinstance(value, str) else None


def parsed(text: str) -> float | None:
    """Return the number in a text, or None; digits may be grouped by commas, as in `1,024`."""
    if "," in text and GROUPED.fullmatch(text) is not None:
        text = text.replace(",", "")
    try:
        return float(text)
    except ValueError:
        return None


def scaled(value: float, factor: float) -> float:
    """Return a value in another unit; a factor below 1 divides, which is exact for 79 ms where times 0.001 is not."""
    return value * factor if factor >= 1 else value / round(1 / factor)


def whole(value: Any) -> int | None:
    """Return a step as an integer that fits 64 bits, or None; 31.0 is 31."""
    found = value if isinstance(value, int) and not isinstance(value, bool) else number(value)
    if found is None or abs(found) >= 2**62 or math.isnan(found):
        return None
    return int(found)


def index(value: Any) -> int:
    """Return a rank or attempt; 0 for an invalid value."""
    found = whole(value)
    return found if found is not None and 0 <= found < 2**31 else 0


def moment(value: Any) -> float:
    """Return a time in seconds since 1970: of a number by its size (s, ms, µs or ns), of a text as ISO 8601; else NaN.

    A text without a zone is taken as UTC.
    """
    figure = parsed(value) if isinstance(value, str) else number(value)
    if figure is not None:
        for limit, unit in ((1e11, 1.0), (1e14, 1e3), (1e17, 1e6)):
            if abs(figure) < limit:
                return figure / unit
        return figure / 1e9
    try:
        found = datetime.fromisoformat(value.strip().replace("/", "-").replace("Z", "+00:00"))
    except (AttributeError, ValueError):
        return math.nan
    return (found if found.tzinfo else found.replace(tzinfo=timezone.utc)).timestamp()
