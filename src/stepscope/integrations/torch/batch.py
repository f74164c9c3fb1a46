"""How much a batch holds: samples and tokens, without reading what lies on a device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

DEPTH = 4
"""Levels of lists and dictionaries that are looked through."""
MASK, TOKENS = "attention_mask", "input_ids"


def count_samples(batch: Any, depth: int = DEPTH) -> int | None:
    """Return how many samples a batch has: the length of its first tensor, or of its list of texts; None if unknown.

    The first is taken, as every framework does: a batch that is sorted otherwise needs a function of its own.
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
    """Return the number of a tensor with one element that lies on the host; any other as it is."""
    return value.item() if getattr(getattr(value, "device", None), "type", "") == "cpu" else value


def _first(parts: Sequence[Any], depth: int) -> int | None:
    found = (count_samples(part, depth - 1) for part in parts)
    return next((count for count in found if count is not None), None)


def count_tokens(batch: Any) -> Any:
    """Return the tokens of a batch without its padding, as a number or a tensor where they lie; None if it has none."""
    if not isinstance(batch, Mapping):
        return None
    mask = batch.get(MASK)
    if mask is not None and len(getattr(mask, "shape", ())) == 2:
        return mask.sum()
    tokens = batch.get(TOKENS)
    count = getattr(tokens, "numel", None)
    return count() if callable(count) else None
