"""Weak references to models: a program that drops a model must get its memory back."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from stepscope.core.parameters import plain_name

if TYPE_CHECKING:
    from collections.abc import Iterator


class Models:
    """Models in the order in which they were added, as long as the program keeps them."""

    def __init__(self) -> None:
        self._references: list[weakref.ref[Any]] = []

    def add(self, model: Any) -> None:
        """Add a model, unless it is known."""
        if model not in self:
            self._references = [weakref.ref(known) for known in (*self, model)]

    def __contains__(self, model: object) -> bool:
        return any(known is model for known in self)

    def __iter__(self) -> Iterator[Any]:
        return (model for reference in self._references if (model := reference()) is not None)


class ParameterNames:
    """Names of the parameters of some models; neither is kept alive."""

    def __init__(self) -> None:
        self._models = Models()
        self._names: dict[int, tuple[weakref.ref[Any], str]] = {}
        self._unnamed: set[int] = set()

    def add(self, model: Any) -> None:
        """Learn the names of a model's parameters; with several models, names start with the model's class."""
        self._models.add(model)
        self._learn()

    def of(self, parameters: list[Any]) -> list[str]:
        """Return the name of each parameter, or `parameter_<index>` if no model has it."""
        known = [self._known(each) for each in parameters]
        unnamed = {id(each) for each, name in zip(parameters, known, strict=True) if name is None}
        if unnamed - self._unnamed:  # a wrapper may have replaced the parameters since
            self._learn()
            known = [self._known(each) for each in parameters]
            self._unnamed = unnamed
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
