"""How far an optimizer step moves the weights, as a share of the weights."""

from __future__ import annotations

import math
from typing import Any

import torch

from stepscope.integrations.numerics.gradient_norm import local_part, norms_of, sampled, total_of

MOST_TENSORS = 32
MOST_ELEMENTS = 1 << 18
"""Size of the sample. In a larger model it consists of evenly spaced tensors, and evenly spaced rows of each."""


class UpdateRatio:
    """Keep a sample of the weights before a step, and compare it after.

    The ratio is the norm of the change divided by the norm of the weights before it, both over the sample.
    """

    def __init__(self) -> None:
        self._views: list[Any] = []
        self._before: list[Any] = []

    @property
    def has_sample(self) -> bool:
        """Return whether there is a sample to compare with."""
        return bool(self._before)

    def before(self, parameters: list[Any]) -> None:
        """Copy the sample: this rank's part of floating-point parameters."""
        trained = [each for each in parameters if each.requires_grad and each.is_floating_point()]
        chosen = trained[:: max(1, math.ceil(len(trained) / MOST_TENSORS))]
        parts = [local_part(each.detach())[0] for each in chosen]
        self._views = [
            sampled(part, MOST_ELEMENTS // len(chosen)) for part in parts if part is not None and part.numel()
        ]
        with torch.no_grad():
            self._before = [each.clone() for each in self._views]

    def after(self) -> Any:
        """Return the ratio as a tensor, and release the sample; there must be one."""
        views, before = self._views, self._before
        self._views, self._before = [], []
        with torch.no_grad():
            weights = total_of(norms_of(before)[0])
            changes = [now - then for now, then in zip(views, before, strict=True)]
            return total_of(norms_of(changes)[0]) / weights
