"""How the gradient thins out from layer to layer: a look at all weights, a few times in a training.

The norm of all gradients hides a network whose first layers get next to nothing. To look at every layer at every step
would cost too much; a handful of looks, at longer and longer intervals, costs nothing and is enough to tell.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stepscope.integrations.numerics.gradient_norm import gradients_of, norms_of

if TYPE_CHECKING:
    from collections.abc import Iterable

FIRST, FACTOR = 6, 2
"""The update at which the first look is taken, and by how much the next one is later."""
MOST_LAYERS = 2000


class LayerLooks:
    """Decide when to look, and say what is seen."""

    def __init__(self) -> None:
        """Begin before the first update."""
        self._updates, self._next = 0, FIRST

    def is_due(self) -> bool:
        """Count an update, and say whether to look at its gradients."""
        self._updates += 1
        if self._updates < self._next:
            return False
        self._next = self._updates * FACTOR
        return True


def layer_facts(optimizer: Any, models: Iterable[Any]) -> dict[str, Any] | None:
    """Return the weakest and strongest gradient per element among an optimizer's weights on the host; None if none.

    Weights are parameters of two dimensions or more: biases and norms say little.
    """
    parameters = [each for group in optimizer.param_groups for each in group["params"] if each.ndim > 1][:MOST_LAYERS]
    found = gradients_of(parameters)
    if not found.tensors or not found.whole or any(each.device.type != "cpu" for each in found.tensors):
        return None
    each, order = _strengths(found.tensors)
    alive = [(value, at) for value, at in zip(each, order, strict=True) if value > 0]
    names = {id(value): name for model in models for name, value in model.named_parameters()}
    facts: dict[str, Any] = {"weights": len(each), "zero": sum(value == 0 for value in each)}
    if alive:
        (weakest, place), (strongest, _) = min(alive), max(alive)
        facts |= {"weakest": weakest, "strongest": strongest, "ratio": weakest / strongest if strongest else None}
        facts["layer"] = names.get(id(parameters[found.positions[place]]), "")
    return facts


def _strengths(tensors: list[Any]) -> tuple[list[float], list[int]]:
    """Return the root mean square of each tensor, and which tensor each is of."""
    norms, order = norms_of(tensors)
    sizes = [max(tensors[at].numel(), 1) for at in order]
    return [norm / size**0.5 for norm, size in zip(norms.tolist(), sizes, strict=True)], order
