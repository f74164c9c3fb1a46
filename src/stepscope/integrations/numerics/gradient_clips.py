"""The calls that clip gradients in a step: the norm before each, its limit, and its parameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from stepscope.integrations.numerics.gradient_norm import gradients_of, local_part, norm_of

MOST_GROUPS = 64
Ids = frozenset[int]
"""Parameters by identity; empty means all."""


@dataclass
class Clip:
    """One call that clips gradients."""

    ids: Ids
    norm: Any
    """2-norm before the call, a tensor or a number; None if the program clips by another norm and ours was not due."""
    complete: bool
    """Whether that is the norm of the complete gradient rather than of this rank's shards."""
    own_norm: Any
    """The norm that the program clips by."""
    limit: float | None
    recorded: bool
    """Whether the norm of these parameters was recorded in this step."""

    @property
    def coefficient(self) -> Any:
        """Return the factor applied to the gradients, as a tensor; None if unknown."""
        if self.limit is None or not self.complete:
            return None
        return torch.clamp(self.limit / (self.own_norm.detach() + 1e-6), max=1.0)


class Clips:
    """The clipping calls of the current step."""

    def __init__(self) -> None:
        self._clips: dict[Ids, Clip] = {}
        self._groups: dict[tuple[int, ...], Ids] = {}

    def add(self, norm: Any, parameters: list[Any] | None, limit: Any, *, euclidean: bool, due: bool) -> None:
        """Add a call; if it does not use the 2-norm, that norm is computed here if `due`."""
        if parameters is None and not euclidean:
            return
        ids: Ids = frozenset() if parameters is None else self.ids(parameters)
        own_norm, complete = _plain_norm(norm)
        two = own_norm
        if not euclidean:
            found = gradients_of(parameters or []) if due else None
            two = norm_of(found.tensors) if found and found.tensors else None
            complete = complete and (found is None or found.complete)
        bound = float(limit) if isinstance(limit, int | float) else None
        recorded = ids in self._clips and self._clips[ids].recorded
        self._clips[ids] = Clip(ids, two, complete, own_norm, bound, recorded)

    def covering(self, ids: Ids) -> Clip | None:
        """Return the call that clipped all of these parameters, and possibly more."""
        return next((clip for key, clip in self._clips.items() if not key or key >= ids), None)

    def touching(self, ids: Ids) -> dict[Ids, Clip]:
        """Return the calls that clipped some of these parameters, by all parameters of each."""
        return {key: clip for key, clip in self._clips.items() if key & ids}

    def clear(self) -> None:
        """Forget the calls: the step has ended."""
        self._clips = {}

    def ids(self, parameters: list[Any] | tuple[Any, ...]) -> Ids:
        """Return the identity of these parameters; a known list is recognized by its length and three members."""
        if not parameters:
            return frozenset()
        count = len(parameters)
        key = (count, id(parameters[0]), id(parameters[count // 2]), id(parameters[-1]))
        found = self._groups.get(key)
        if found is None:
            if len(self._groups) > MOST_GROUPS:
                self._groups.clear()
            found = self._groups[key] = frozenset(map(id, parameters))
        return found


def _plain_norm(norm: Any) -> tuple[Any, bool]:
    """Return the norm from clipping as a plain tensor, and whether it is of the complete gradient."""
    if not isinstance(norm, torch.Tensor):
        return torch.tensor(float(norm)), True
    return local_part(norm.detach()) if hasattr(norm, "placements") else (norm, True)
