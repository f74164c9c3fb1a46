"""The models that a part knows: a program that drops one must get its memory back, so none is kept alive."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from stepscope.core.parameters import plain_name

if TYPE_CHECKING:
    from collections.abc import Iterator


class Models:
    """Models in the order in which they were added, as long as the program has them."""

    def __init__(self) -> None:
        """Know none yet."""
        self._references: list[weakref.ref[Any]] = []

    def add(self, model: Any) -> bool:
        """Know a model; return whether it is new."""
        if model in self:
            return False
        self._references = [each for each in self._references if each() is not None]
        self._references.append(weakref.ref(model))
        return True

    def __contains__(self, model: object) -> bool:
        """Return whether this very model is known."""
        return any(known is model for known in self)

    def __iter__(self) -> Iterator[Any]:
        """Go through those that are still there."""
        for reference in self._references:
            model = reference()
            if model is not None:
                yield model


class ParameterNames:
    """Names of the parameters of some models; neither is kept alive."""

    def __init__(self) -> None:
        """Know no model yet."""
        self._models = Models()
        self._names: dict[int, tuple[weakref.ref[Any], str]] = {}
        self._strangers: set[int] = set()

    def add(self, model: Any) -> None:
        """Learn the names of a model's parameters; several models need names of their own, by their class."""
        self._models.add(model)
        self._learn()

    def of(self, parameters: list[Any]) -> list[str]:
        """Return the name of each; one of no known model is called by its place."""
        known = [self._known(each) for each in parameters]
        strangers = {id(each) for each, name in zip(parameters, known, strict=True) if name is None}
        if strangers - self._strangers:  # a wrapper may have replaced them since
            self._learn()
            known = [self._known(each) for each in parameters]
            self._strangers = strangers
        return [f"parameter_{at}" if name is None else name for at, name in enumerate(known)]

    def _known(self, parameter: Any) -> str | None:
        found = self._names.get(id(parameter))
        return found[1] if found is not None and found[0]() is parameter else None

    def _learn(self) -> None:
        models = list(self._models)
        self._names = {}
        for model in models:
            prefix = f"{type(model).__name__}." if len(models) > 1 else ""
            for name, parameter in model.named_parameters():
                self._names[id(parameter)] = (weakref.ref(parameter), prefix + plain_name(name))
