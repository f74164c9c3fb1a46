"""The clippings of a step: norms before them, limits, and parameters."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from stepscope.integrations.numerics.gradient_norm import gradients_of, local_part, norm_of

MOST_GROUPS = 64
Ids = frozenset[int]
"""The parameters by identity; empty stands for all."""


class Clip(NamedTuple):
    """One clipping call."""

    norm: Any
    """2-norm before it, a tensor or a number; None if the program clips by another norm and ours was not due."""
    whole: bool
    """Whether that is the norm of the whole gradient, and not of this rank's shards."""
    used: Any
    """The norm type that the program clips by."""
    limit: float | None

    @property
    def coefficient(self) -> Any:
        """Return the factor applied to the gradients, as a tensor; None if unknown."""
        if self.limit is None or not self.whole:
            return None
        return torch.clamp(self.limit / (self.used.detach() + 1e-6), max=1.0)


class Clips:
    """The clippings of the current step, by their parameters."""

    def __init__(self) -> None:
        """Begin with none."""
        self._clips: dict[Ids, Clip] = {}
        self._groups: dict[tuple[int, ...], Ids] = {}
        self._used: set[Ids] = set()

    def add(self, norm: Any, parameters: list[Any] | None, limit: Any, *, euclidean: bool, due: bool) -> None:
        """Add a clipping; if it does not use the 2-norm, that is computed here if `due`."""
        bound = float(limit) if isinstance(limit, int | float) else None
        plain, whole = _plain_norm(norm)
        if not euclidean:
            if parameters is None:
                return
            found = gradients_of(parameters) if due else None
            two = norm_of(found.tensors) if found and found.tensors else None
            self._clips[self.ids(parameters)] = Clip(two, whole and (found is None or found.whole), plain, bound)
            return
        self._clips[frozenset() if parameters is None else self.ids(parameters)] = Clip(plain, whole, plain, bound)

    def covering(self, ids: Ids) -> Clip | None:
        """Return the clipping of all of these parameters, and maybe more."""
        key = self._covering(ids)
        return None if key is None else self._clips[key]

    def size(self, ids: Ids) -> int:
        """Return how many parameters the clipping of these covers."""
        return len(self._covering(ids) or ())

    def use(self, ids: Ids) -> bool:
        """Mark the clipping of these parameters as used; return whether it was new."""
        key = self._covering(ids)
        if key is None or key in self._used:
            return False
        self._used.add(key)
        return True

    def touching(self, ids: Ids) -> dict[Ids, Clip]:
        """Return the clippings of some of these parameters."""
        return {key: clip for key, clip in self._clips.items() if key & ids}

    def clear(self) -> None:
        """Clear them: the step has ended."""
        self._clips, self._used = {}, set()

    def ids(self, parameters: list[Any] | tuple[Any, ...]) -> Ids:
        """Return the identity of these parameters; a known list is recognized by its length and three of them."""
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

    def _covering(self, ids: Ids) -> Ids | None:
        return next((key for key in self._clips if not key or key >= ids), None)


def _plain_norm(norm: Any) -> tuple[Any, bool]:
    """Return the norm from clipping as a plain tensor, and whether it is of the whole gradient."""
    if not isinstance(norm, torch.Tensor):
        return torch.tensor(float(norm)), True
    return local_part(norm.detach()) if hasattr(norm, "placements") else (norm, True)
