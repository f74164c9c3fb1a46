"""How far an optimizer step moves the weights, as a share of the weights."""

from __future__ import annotations

import math
from typing import Any

import torch

from stepscope.integrations.numerics.gradient_norm import local_part, norms_of, total_of

MOST_TENSORS = 32
MOST_ELEMENTS = 1 << 18
"""What is compared at most; of larger models an even choice of tensors, and of their rows."""


class UpdateRatio:
    """Keep a sample of the weights before a step, and compare it after.

    The ratio is the norm of the change divided by the norm of the weights before it, both over the sample.
    """

    def __init__(self) -> None:
        """Hold nothing yet."""
        self._views: list[Any] = []
        self._before: list[Any] = []

    @property
    def holds(self) -> bool:
        """Return whether there is a sample to compare with."""
        return bool(self._before)

    def before(self, parameters: list[Any]) -> None:
        """Copy the sample."""
        self._views = sample(parameters)
        with torch.no_grad():
            self._before = [each.clone() for each in self._views]

    def after(self) -> Any:
        """Return the ratio as a tensor, and let the sample go; there must be one."""
        views, before = self._views, self._before
        self._views, self._before = [], []
        with torch.no_grad():
            weights = total_of(norms_of(before)[0])
            changes = [now - then for now, then in zip(views, before, strict=True)]
            return total_of(norms_of(changes)[0]) / weights


def sample(parameters: list[Any]) -> list[Any]:
    """Return views of an even choice of the floating-point parameters and their rows: what this rank holds of them."""
    fit = [each for each in parameters if each.requires_grad and each.is_floating_point()]
    chosen = fit[:: math.ceil(len(fit) / MOST_TENSORS)] if fit else []
    views = []
    for each in chosen:
        local, _ = local_part(each.detach())
        if local is None or not local.numel():
            continue
        stride = math.ceil(local.numel() * len(chosen) / MOST_ELEMENTS)
        views.append(local[::stride] if stride > 1 and local.dim() else local)
    return views
