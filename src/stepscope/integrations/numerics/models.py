"""The models that a part knows: a program that drops one must get its memory back, so none is kept alive."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator


class Models:
    """Models in the order in which they were added, as long as the program has them."""

    def __init__(self) -> None:
        """Know none yet."""
        self._references: list[weakref.ref[Any]] = []

    def add(self, model: Any) -> bool:
        """Know a model; say whether it is new."""
        if model in self:
            return False
        self._references = [each for each in self._references if each() is not None]
        self._references.append(weakref.ref(model))
        return True

    def __contains__(self, model: object) -> bool:
        """Say whether this very model is known."""
        return any(known is model for known in self)

    def __iter__(self) -> Iterator[Any]:
        """Go through those that are still there."""
        for reference in self._references:
            model = reference()
            if model is not None:
                yield model
