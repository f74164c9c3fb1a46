"""The size of a batch: samples and tokens, without reading data on a device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

DEPTH = 4
"""Maximum depth of nested lists and dictionaries."""
MASK, TOKENS = "attention_mask", "input_ids"


def count_samples(batch: Any, depth: int = DEPTH) -> int | None:
    """Return the samples in a batch: the length of its first tensor or list of texts; None if unknown.

    The first one counts, as in every framework: a batch in another order needs its own function.
    """
    shape = getattr(batch, "shape", None)
    if shape is not None:
        return int(shape[0]) if len(shape) else None
    if depth == 0 or isinstance(batch, (str, bytes)):
        return None
    if isinstance(batch, Mapping):
        return _first(list(batch.values()), depth)
    if isinstance(batch, Sequence):
        if batch and all(isinstance(item, (str, bytes, int, float)) for item in batch):
            return len(batch)
        return _first(batch, depth)
    inside = getattr(batch, "num_graphs", None) or getattr(batch, "batch_size", None)  # graphs; packed containers
    return inside if isinstance(inside, int) else None


def on_host(value: Any) -> Any:
    """Return the number in a one-element tensor on the host; anything else unchanged."""
    return value.item() if getattr(getattr(value, "device", None), "type", "") == "cpu" else value


def _first(parts: Sequence[Any], depth: int) -> int | None:
    found = (count_samples(part, depth - 1) for part in parts)
    return next((count for count in found if count is not None), None)


def count_tokens(batch: Any) -> Any:
    """Return the tokens of a batch without padding, as a number or as a tensor on its device; None if it has none."""
    if not isinstance(batch, Mapping):
        return None
    mask = batch.get(MASK)
    if mask is not None and len(getattr(mask, "shape", ())) == 2:
        return mask.sum()
    tokens = batch.get(TOKENS)
    count = getattr(tokens, "numel", None)
    return count() if callable(count) else None
