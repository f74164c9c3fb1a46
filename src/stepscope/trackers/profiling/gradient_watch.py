"""The norm of a model's gradients, measured right before the optimizer steps.

After `zero_grad` the gradients are gone or zero, so a hook of the optimizer takes the norm before its step, as a tensor
that stays on its device: nothing waits. If the loop clips, its clipping has computed the norm before clipping. We never
import torch.
"""

from __future__ import annotations

import sys
import weakref
from typing import TYPE_CHECKING, Any, NamedTuple

from stepscope.core.errors import in_words
from stepscope.core.parameters import layer_of, plain_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from stepscope.recorder.complaints import Complaints

GONE = "its gradients are gone: zero_grad came first; call log_training_step before it, or pass the optimizer"
SHARDED = "its parameters are sharded, and the norm of a shard is not that of the gradients; log grad_norm yourself"
CLIPPED = "the loop clips it twice, or by another norm: the norm before clipping is unknown; log grad_norm yourself"
MOST_CLIPS = 64
"""Clippings remembered in one step."""
MOST_LAYERS = 256
"""Layers whose norms are measured; further ones are left out."""


class GradientNorms(NamedTuple):
    """The norms of one step, tensors on their device; None where there is none."""

    norm: Any = None
    """Of all gradients, before clipping."""
    clipped: Any = None
    """The same after clipping; None if the loop did not clip."""
    layers: Mapping[str, Any] = {}
    """Of each layer that is tracked, before clipping."""


class ClipLog:
    """The clippings since the last step: the norm before each, and the parameters."""

    def __init__(self) -> None:
        """Start empty."""
        self.clips: list[tuple[Any, frozenset[int]]] = []

    def clipped(self, norm: Any, parameters: Any = None, *, limit: Any = None, euclidean: bool = True) -> None:  # noqa: ARG002 - as a listener is called
        """Remember the norm of these parameters' gradients; None if it is not the 2-norm."""
        members = parameters if isinstance(parameters, (list, tuple)) else [parameters]
        if len(self.clips) < MOST_CLIPS:
            self.clips.append((norm if euclidean else None, frozenset(map(id, members))))


class GradientWatch:
    """Measures the gradient norms of one model."""

    def __init__(
        self, notices: Complaints, modules: Mapping[str, Any] = sys.modules, layers: Sequence[str] = ()
    ) -> None:
        """Start without a model; `layers` are parts of the names of layers whose norms are measured too."""
        self.unavailable = ""
        """Why the last norm is unavailable; empty if it is available."""
        self._notices, self._modules, self._parts = notices, modules, tuple(layers)
        self._model: weakref.ref[Any] | None = None
        self._optimizer: weakref.ref[Any] | None = None
        self._taken: GradientNorms | None = None
        self._clip_log = ClipLog()
        self._listens = False
        self._listen()

    def take(self, model: Any, optimizer: Any = None) -> GradientNorms:
        """Return the norms of the step that has just ended; empty if they are unavailable."""
        if model is None or not callable(getattr(model, "parameters", None)):
            return GradientNorms()
        taken, self._taken, self.unavailable = self._taken, None, ""
        self._listen()
        self._follow(model, optimizer)
        found = self._norms(model) if taken is None else taken
        is_on_host = getattr(getattr(found.norm, "device", None), "type", "cpu") == "cpu"  # a device is not waited for
        if taken is None and found.norm is not None and is_on_host and float(found.norm) == 0.0:
            found, self.unavailable = GradientNorms(), GONE
        if found.norm is None:
            self._notices.say("grad_norm", f"cannot take the gradient norm of the model: {self.unavailable or GONE}")
            self.unavailable = self.unavailable or GONE
        return found

    def _listen(self) -> None:
        """Listen to the program's clipping, once torch is loaded."""
        torch = self._modules.get("torch")
        if self._listens or torch is None or not hasattr(torch, "nn"):
            return
        from stepscope.recorder.clipping import ClipWatch

        self._listens = True
        weakref.finalize(self, ClipWatch(self._clip_log, torch).close)

    def _norms(self, model: Any) -> GradientNorms:
        """Return the norms of the current gradients."""
        clips, self._clip_log.clips = self._clip_log.clips, []
        try:
            own = {id(one): one for one in model.parameters()}
            clips = [clip for clip in clips if clip[1] & own.keys()]
            after = self._norm(own.values(), model)
            before = self._before(clips, own, model) if clips else after
            scale = before / after if clips and before is not None and after is not None else None
            return GradientNorms(before, after if clips else None, self._by_layer(model, scale))
        except Exception as error:  # noqa: BLE001 - a model's own types may raise anything; the reason is reported
            self.unavailable = in_words(error, 200)
            return GradientNorms()

    def _by_layer(self, model: Any, scale: Any) -> dict[str, Any]:
        """Return the norm of each tracked layer times `scale`, which undoes the clipping."""
        groups: dict[str, list[Any]] = {}
        for given, parameter in model.named_parameters() if self._parts else ():
            name = plain_name(given)
            layer = layer_of(name)
            wanted = parameter.grad is not None and any(part in name for part in self._parts)
            if wanted and (layer in groups or len(groups) < MOST_LAYERS):
                groups.setdefault(layer, []).append(parameter)
        norms = {layer: self._norm(members, model) for layer, members in groups.items()}
        return {name: norm if scale is None else norm * scale for name, norm in norms.items() if norm is not None}

    def _before(self, clips: list[tuple[Any, frozenset[int]]], own: Mapping[int, Any], model: Any) -> Any:
        """Return the norm before clipping, from the norms of the clipped parts and of the rest."""
        covered: frozenset[int] = frozenset().union(*(members for _, members in clips))
        norms = [norm for norm, _ in clips]
        if any(norm is None for norm in norms) or sum(len(members) for _, members in clips) > len(covered):
            self.unavailable = CLIPPED
            return None
        rest = [one for key, one in own.items() if key not in covered and one.grad is not None]
        if rest:
            norms.append(self._norm(rest, model))
        if len(norms) == 1:
            return norms[0]
        from stepscope.integrations.numerics.gradient_norm import as_tensor, norms_of, total_of

        return total_of(norms_of([as_tensor(norm) for norm in norms])[0])

    def _follow(self, model: Any, optimizer: Any) -> None:
        """Measure the norm before every further step of the optimizer."""
        if self._model is None or self._model() is not model:
            self._model = weakref.ref(model)
        register = getattr(optimizer, "register_step_pre_hook", None)
        if register is None or (self._optimizer is not None and self._optimizer() is optimizer):
            return
        self._optimizer = weakref.ref(optimizer)
        ours = weakref.ref(self)

        def before_step(stepping: Any, *_: Any) -> None:
            watch = ours()
            if watch is not None:
                watch.before_step(stepping)

        register(before_step)

    def before_step(self, optimizer: Any) -> None:
        """Measure the norm, if this is the followed optimizer."""
        model = None if self._model is None else self._model()
        if model is not None and self._optimizer is not None and self._optimizer() is optimizer:
            self._taken = self._norms(model)

    def _norm(self, parameters: Iterable[Any], model: Any) -> Any:
        """Return the norm of the gradients of a model's parameters; None, with the reason, if it is unavailable."""
        if self._modules.get("torch") is None:
            return None
        from stepscope.integrations.numerics.gradient_norm import gradients_of, norms_of, total_of

        members = list(parameters)
        is_sharded = any(hasattr(each.grad, "full_tensor") for each in members)  # a DTensor: its norm needs all ranks
        if is_sharded or "FullyShardedDataParallel" in type(model).__name__:
            self.unavailable = SHARDED
            return None
        tensors = [tensor.detach() for tensor in gradients_of(members).tensors]
        return total_of(norms_of(tensors)[0]) if tensors else None
