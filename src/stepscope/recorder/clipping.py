"""Read the gradient norm from the program's own clipping: torch computes it anyway, so it costs nothing.

torch is passed in: this module does not import it.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

HUB = "_stepscope_clip_hub"
"""Attribute of our wrappers; `functools.wraps` copies it to those that other tools put around ours."""
Wrapper = tuple[Any, str, Any, Any]
"""Where a function was replaced: module, name, the original, ours."""


class Listener(Protocol):
    """Receives the norm."""

    def clipped(self, norm: Any, parameters: Any = None, *, limit: Any = None, euclidean: bool = True) -> None:
        """Receive the norm of these parameters' gradients just before they are scaled down."""
        ...


class ClipWatch:
    """Report the norm that torch's clipping computes to a listener, until `close`.

    All watches share one wrapper of torch's functions, so that any number of them, closed in any order, costs one call.
    """

    def __init__(self, listener: Listener, torch: Any) -> None:
        self._listener = listener
        clipping = torch.nn.utils.clip_grad
        hub = getattr(getattr(clipping, "_clip_grads_with_norm_", None) or clipping.clip_grad_norm_, HUB, None)
        self._hub: _ClipHub = _ClipHub(torch) if hub is None else hub
        self._hub.add(listener)

    def close(self) -> None:
        """Report no more. May be called again."""
        self._hub.remove(self._listener)


class _ClipHub:
    """Wraps torch's clipping functions while there are listeners.

    `clip_grad_norm_` looks up its two halves in its module at each call, so a program that imported it by name is
    covered too. Under torch.compile the originals run.
    """

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._compiling: Callable[[], bool] = (
            getattr(torch.compiler, "is_dynamo_compiling", None) or torch._dynamo.is_compiling  # noqa: SLF001 - older torch
        )
        self._listeners: tuple[Listener, ...] = ()
        self._odd: int | None = None
        self._wrappers: list[Wrapper] = []
        outer, inner = torch.nn.utils, torch.nn.utils.clip_grad
        if hasattr(inner, "_clip_grads_with_norm_") and hasattr(inner, "_get_total_norm"):
            self._replace([inner], "_get_total_norm", self._around_total)
            self._replace([outer], "get_total_norm", self._around_total)
            self._replace([inner], "_clip_grads_with_norm_", self._around_scaling)
            self._replace([outer], "clip_grads_with_norm_", self._around_scaling)
        else:  # torch before 2.6
            self._replace([inner, outer], "clip_grad_norm_", self._around_clip)

    def add(self, listener: Listener) -> None:
        """Report to this listener too."""
        self._listeners = (*self._listeners, listener)

    def remove(self, listener: Listener) -> None:
        """Report to this listener no more; after the last, restore the originals if nobody has wrapped ours since."""
        self._listeners = tuple(each for each in self._listeners if each is not listener)
        if not self._listeners and all(getattr(module, name, None) is ours for module, name, _, ours in self._wrappers):
            for module, name, original, _ in self._wrappers:
                setattr(module, name, original)

    def _replace(self, modules: list[Any], name: str, around: Callable[[Any], Any]) -> None:
        for module in modules:
            original = getattr(module, name, None)
            if original is not None:
                ours = functools.wraps(original)(around(original))
                setattr(ours, HUB, self)
                setattr(module, name, ours)
                self._wrappers.append((module, name, original, ours))

    def _around_total(self, original: Any) -> Any:
        """Remember which norm was not the 2-norm."""

        def total(tensors: Any, norm_type: Any = 2.0, *more: Any, **words: Any) -> Any:
            norm = original(tensors, norm_type, *more, **words)
            if not self._compiling():
                self._odd = None if norm_type in {2, "2"} else id(norm)
            return norm

        return total

    def _around_scaling(self, original: Any) -> Any:
        """Report the norm before the gradients are scaled."""

        def scale(parameters: Any, max_norm: Any, total_norm: Any, *more: Any, **words: Any) -> Any:
            if not self._compiling() and self._listeners:
                parameters = self._kept(parameters)
                for listener in self._listeners:
                    listener.clipped(total_norm, parameters, limit=max_norm, euclidean=self._odd != id(total_norm))
            return original(parameters, max_norm, total_norm, *more, **words)

        return scale

    def _around_clip(self, original: Any) -> Any:
        """Report the norm after the gradients were scaled: older versions compute it inside."""

        def clip(parameters: Any, max_norm: Any, norm_type: Any = 2.0, *more: Any, **words: Any) -> Any:
            parameters = self._kept(parameters)
            norm = original(parameters, max_norm, norm_type, *more, **words)
            if norm_type in {2, "2"} and not self._compiling():
                for listener in self._listeners:
                    listener.clipped(norm, parameters, limit=max_norm)
            return norm

        return clip

    def _kept(self, parameters: Any) -> Any:
        """Return parameters that can be iterated twice; an iterator cannot."""
        return parameters if isinstance(parameters, (self._torch.Tensor, list, tuple)) else list(parameters)
