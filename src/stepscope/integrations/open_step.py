"""The current optimizer step, as the hooks of a framework report it batch by batch."""

from __future__ import annotations

from typing import Any

from stepscope.integrations.torch.batch import count_samples, count_tokens, on_host


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
