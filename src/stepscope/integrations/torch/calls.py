"""Calls that are phases: backward passes, saving, collectives, clipping, log lines, and copies between devices."""

from __future__ import annotations

import builtins
import logging
from functools import partial
from threading import get_ident
from time import monotonic_ns
from typing import TYPE_CHECKING, Any

import torch
import torch.autograd
import torch.nn.utils

from stepscope.integrations.torch.timeline import compiling
from stepscope.recorder import automatic
from stepscope.recorder.automatic import BITS, CODES

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from stepscope.core.after_import import AfterImport
    from stepscope.integrations.torch.patches import Patches
    from stepscope.integrations.torch.root_modules import Roots
    from stepscope.integrations.torch.timeline import Timeline

BACKWARD = CODES["backward"]
COLLECTIVES = (
    *("all_reduce", "all_reduce_coalesced", "reduce", "broadcast", "gather", "scatter", "send", "recv"),
    *("all_gather", "all_gather_coalesced", "all_gather_into_tensor", "all_gather_single", "all_gather_object"),
    *("reduce_scatter", "reduce_scatter_tensor", "reduce_scatter_single", "all_to_all", "all_to_all_single"),
    *("barrier", "monitored_barrier", "broadcast_object_list", "gather_object", "scatter_object_list"),
)
SAVERS = {
    "torch.distributed.checkpoint": ("save", "async_save"),
    "torch.distributed.checkpoint.state_dict_saver": ("save", "async_save"),
    "safetensors.torch": ("save_file", "save_model"),
}
WRITERS = {
    "torch.utils.tensorboard.writer": (
        "SummaryWriter",
        ("add_scalar", "add_scalars", "add_histogram", "add_image", "add_images", "add_figure", "add_text", "flush"),
    ),
    "wandb.sdk.wandb_run": ("Run", ("log",)),
    "tqdm.std": ("tqdm", ("refresh",)),
}


def _instead(wrapper: Any, _original: Any) -> Any:
    return wrapper


class Calls:
    """The wrappers around calls."""

    def __init__(self, timeline: Timeline, roots: Roots, *, copies: bool) -> None:
        """Charge to `timeline`, with `copies` between devices; the hooks of `roots` are not saved with a model."""
        self._timeline, self._roots, self._copies = timeline, roots, copies
        self.depth = 0
        """Backward passes that are running, one inside another."""
        self._passes: list[tuple[str, Any, Any]] = []
        self.heard: Callable[[Any], None] | None = None
        """Called with the root of a backward pass, in measured steps."""

    def attach(self, patches: Patches, imports: AfterImport) -> None:
        """Install the wrappers; those of modules that are not loaded yet follow when they are."""
        self._passes = []
        for name in ("backward", "grad"):
            original = getattr(torch.autograd, name)
            patches.wrap(torch.autograd, name, self._backward)
            self._passes.append((name, original, getattr(torch.autograd, name)))
        patches.wrap(torch, "save", self._saving)
        for owner in (torch.nn.utils, torch.nn.utils.clip_grad):
            patches.wrap(owner, "clip_grad_norm_", self._plain(automatic.OPTIMIZER))
        patches.wrap(logging.Logger, "callHandlers", self._plain(automatic.LOGGING))
        if torch.distributed.is_available():
            communicate = self._plain(automatic.COMMUNICATION)
            patches.wrap(torch.distributed.Work, "wait", communicate)
            for name in COLLECTIVES:
                inner = torch.distributed.distributed_c10d
                if getattr(inner, name, None) is not None and patches.wrap(inner, name, communicate):
                    patches.wrap(torch.distributed, name, partial(_instead, getattr(inner, name)))
        if self._copies:
            patches.wrap(torch.Tensor, "to", self._copying_to)
            for kind in ("cuda", "cpu"):
                patches.wrap(torch.Tensor, kind, partial(self._copying, kind))
        for module, savers in SAVERS.items():
            imports.call(module, self._wrapping(patches, savers, automatic.CHECKPOINT))
        for module, (owner, names) in WRITERS.items():
            imports.call(module, self._wrapping(patches, names, automatic.LOGGING, owner))

    def listen(self, patches: Patches, heard: Callable[[Any], None]) -> None:
        """Pass the roots of backward passes to `heard`, and charge printing too: the script is not instrumented."""
        self.heard = heard
        logging_of = self._plain(automatic.LOGGING)
        patches.wrap(builtins, "print", logging_of)
        patches.wrap(torch._tensor_str, "_str", logging_of)  # noqa: SLF001 - the text of a tensor, in an f-string too

    def silence(self, quiet: bool) -> None:  # noqa: FBT001 - called by the timeline
        """Ignore backward passes while steps are not measured."""
        for name, original, wrapper in self._passes:
            here, there = (wrapper, original) if quiet else (original, wrapper)
            if getattr(torch.autograd, name) is here:
                setattr(torch.autograd, name, there)

    def _wrapping(self, patches: Patches, names: tuple[str, ...], phase: str, owner: str = "") -> Any:
        def wrap(module: ModuleType) -> None:
            target = getattr(module, owner, None) if owner else module
            for name in names:
                if target is not None:
                    patches.wrap(target, name, self._plain(phase))

        return wrap

    def _plain(self, phase: str) -> Any:
        """Return a factory of wrappers that charge calls to a phase."""
        timeline, charge = self._timeline, self._timeline.charge(phase)
        is_long = phase == automatic.CHECKPOINT

        def make(original: Any) -> Any:
            def call(*args: Any, **kwargs: Any) -> Any:
                if (timeline.traced and compiling()) or not timeline.active:
                    return original(*args, **kwargs)
                wanted = timeline.pause() if is_long else not timeline.quiet
                if not wanted or not charge.begin():
                    return original(*args, **kwargs)
                try:
                    return original(*args, **kwargs)
                finally:
                    charge.end()

            return call

        return make

    def _copying_to(self, original: Any) -> Any:
        timeline = self._timeline

        def to(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            if (timeline.traced and compiling()) or timeline.quiet or timeline.left is not None or not timeline.active:
                return original(tensor, *args, **kwargs)
            if not _is_elsewhere(tensor, args[0] if args else kwargs.get("device")):
                return original(tensor, *args, **kwargs)
            return self._copy(original, tensor, args, kwargs)

        return to

    def _copying(self, kind: str, original: Any) -> Any:
        """Return the wrapper of a method that copies to one kind of device."""
        timeline = self._timeline

        def copy(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            is_compiled = timeline.traced and compiling()
            if is_compiled or timeline.quiet or tensor.device.type == kind or not timeline.active:
                return original(tensor, *args, **kwargs)
            return self._copy(original, tensor, args, kwargs)

        return copy

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

    def _saving(self, original: Any) -> Any:
        charged = self._plain(automatic.CHECKPOINT)(original)
        timeline, roots = self._timeline, self._roots

        def save(*args: Any, **kwargs: Any) -> Any:
            if not timeline.active:
                return original(*args, **kwargs)
            with roots.hidden():
                return charged(*args, **kwargs)

        return save

    def _backward(self, original: Any) -> Any:
        timeline, keeper, add = self._timeline, self._timeline.keeper, self._timeline.add
        is_pass = original.__name__ == "backward"

        def backward(*args: Any, **kwargs: Any) -> Any:
            if not (timeline.fast and keeper.fed and keeper.known) or get_ident() != timeline.thread:
                return self._other_backward(original, args, kwargs)
            timeline.fresh = None
            timeline.backwards += 1
            self.depth += 1
            add(monotonic_ns() << BITS | BACKWARD)
            if is_pass:
                self._hear(args)
            try:
                return original(*args, **kwargs)
            finally:
                add(monotonic_ns() << BITS)
                self.depth -= 1

        return backward

    def _hear(self, args: Any) -> None:
        if self.heard is not None and args and self.depth == 1:
            self.heard(args[0])

    @staticmethod
    def _begin_backward(timeline: Timeline) -> bool:
        """Open the phase if steps are measured; return whether it is open."""
        begun = bool(not timeline.quiet and timeline.backward.begin())
        if begun and timeline.device is not None:
            timeline.device.mark("backward")
        return begun

    def _other_backward(self, original: Any, args: Any, kwargs: Any) -> Any:
        timeline = self._timeline
        if (timeline.traced and compiling()) or not timeline.active or get_ident() != timeline.thread:
            return original(*args, **kwargs)
        start = monotonic_ns() if timeline.timing else 0
        timeline.notice()
        if timeline.span is not None:
            timeline.train()
        timeline.fresh = None
        timeline.backwards += 1
        timeline.keeper.backward()
        begun = self._begin_backward(timeline)
        self.depth += 1
        if begun and original.__name__ == "backward":
            self._hear(args)
        hook = monotonic_ns() if start else 0
        try:
            return original(*args, **kwargs)
        finally:
            back = monotonic_ns() if start else 0
            self.depth -= 1
            if begun:
                timeline.backward.end()
                if timeline.device is not None:
                    timeline.device.mark()
                    timeline.phase_ended("backward")
            if not self.depth:
                timeline.keeper.backward_done()
            if start:
                timeline.cost(hook - start + monotonic_ns() - back)


def supports_devices() -> bool:
    """Return whether this torch supports a device other than the CPU; checking for one would initialize it."""
    backends = (torch.version.cuda, getattr(torch.version, "hip", None), getattr(torch.version, "xpu", None))
    return any(backends) or torch.backends.mps.is_built()


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
