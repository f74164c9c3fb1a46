"""The batches of a step: samples, tokens and loss, without reading data on a device."""

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


class OpenStep:
    """Samples, tokens, loss and learning rate of a step so far. What lies on a device stays there, as a tensor."""

    def __init__(self) -> None:
        self.samples: int | None = None
        self.tokens: Any = None
        self.batches = 0
        self._loss: Any = None
        self._learning_rate: Any = None

    def add_batch(self, batch: Any) -> int | None:
        """Count a batch; return its samples, None if unknown."""
        self.batches += 1
        samples, tokens = count_samples(batch), on_host(count_tokens(batch))
        if samples is not None:
            self.samples = (self.samples or 0) + samples
        if tokens is not None:
            self.tokens = tokens if self.tokens is None else self.tokens + tokens
        return samples

    def add_loss(self, loss: Any) -> None:
        """Add the loss of a batch; anything but a tensor is ignored."""
        if hasattr(loss, "detach"):
            loss = on_host(loss.detach())
            self._loss = loss if self._loss is None else self._loss + loss

    def before_optimizer(self, optimizer: Any) -> None:
        """Read the learning rate of this step: schedulers change it before the step ends."""
        groups = getattr(optimizer, "param_groups", None)
        if groups and "lr" in groups[0]:
            self._learning_rate = groups[0]["lr"]

    def row(self, epoch: float | None, *, is_scaled: bool = False) -> dict[str, Any]:
        """Return the known values; the loss is the mean over the batches, or their sum if each `is_scaled` already."""
        loss = self._loss
        if loss is not None and self.batches > 1 and not is_scaled:
            loss = loss / self.batches
        values = {"learning_rate": self._learning_rate, "loss": loss, "tokens": self.tokens, "epoch": epoch}
        return {name: value for name, value in values.items() if value is not None}
