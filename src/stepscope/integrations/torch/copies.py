"""Copies between devices with `Tensor.to`, `.cuda` and `.cpu`, outside of a model's passes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from stepscope.integrations.torch.timeline import compiling

if TYPE_CHECKING:
    from stepscope.integrations.torch.patches import Patches
    from stepscope.integrations.torch.timeline import Timeline


def is_worth_it() -> bool:
    """Return whether this torch supports a device other than the CPU; checking for one would initialize it."""
    backends = (torch.version.cuda, getattr(torch.version, "hip", None), getattr(torch.version, "xpu", None))
    return any(backends) or torch.backends.mps.is_built()


class Copies:
    """The wrappers around copies, which charge them to `timeline`."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline

    def attach(self, patches: Patches) -> None:
        """Install the wrappers."""
        patches.wrap(torch.Tensor, "to", self._moving)
        patches.wrap(torch.Tensor, "cuda", self._to("cuda"))
        patches.wrap(torch.Tensor, "cpu", self._to("cpu"))

    def _moving(self, original: Any) -> Any:
        timeline = self._timeline

        def to(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            if (timeline.traced and compiling()) or timeline.quiet or timeline.left is not None or not timeline.active:
                return original(tensor, *args, **kwargs)
            if not _is_elsewhere(tensor, args[0] if args else kwargs.get("device")):
                return original(tensor, *args, **kwargs)
            return self._copy(original, tensor, args, kwargs)

        return to

    def _to(self, kind: str) -> Any:
        """Return a factory of wrappers for a method that copies to one kind of device."""
        timeline = self._timeline

        def make(original: Any) -> Any:
            def copy(tensor: Any, *args: Any, **kwargs: Any) -> Any:
                is_compiled = timeline.traced and compiling()
                if is_compiled or timeline.quiet or tensor.device.type == kind or not timeline.active:
                    return original(tensor, *args, **kwargs)
                return self._copy(original, tensor, args, kwargs)

            return copy

        return make

    def _copy(self, original: Any, tensor: Any, args: Any, kwargs: Any) -> Any:
        timeline = self._timeline
        if timeline.span is not None or not timeline.copy.begin():
            return original(tensor, *args, **kwargs)
        try:
            if timeline.device is not None:
                timeline.device.mark("copy")
            return original(tensor, *args, **kwargs)
        finally:
            timeline.copy.end()
            if timeline.device is not None:
                timeline.device.mark()


def _is_elsewhere(tensor: Any, target: Any) -> bool:
    """Return whether `target`, the first argument of `Tensor.to`, names a device other than the tensor's."""
    kind = type(target)
    if target is None or kind is torch.dtype:
        return False
    if kind is str:
        return bool(target.partition(":")[0] != tensor.device.type or (":" in target and target != str(tensor.device)))
    if kind is int:
        return bool(tensor.device.index != target)
    if kind is not torch.device:
        target = getattr(target, "device", tensor.device)  # like another tensor
    return bool(target.type != tensor.device.type or (target.index is not None and target != tensor.device))
