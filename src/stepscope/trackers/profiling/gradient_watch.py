"""The norm of a model's gradients, right whenever it is asked for: taken when the optimizer steps.

Asked after `zero_grad` the gradients are gone or zero. A hook of the optimizer takes the norm before its step, as a
tensor that stays where it is: nothing waits for a device. Where the loop clips, the norm before that is the one that
the clipping itself has computed. torch is never imported by us.
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

GONE = "its gradients were not there: zero_grad came first; call log_training_step before it, or pass the optimizer"
SHARDED = "its parameters are sharded, and the norm of a shard is not that of the gradients; log grad_norm yourself"
UNTOLD = "the loop clips it twice, or by another norm: what it was before cannot be told; log grad_norm yourself"
MOST_CLIPS = 64
"""Clippings of one step that are remembered."""
MOST_LAYERS = 256
"""Layers whose norms are taken; further ones are left out."""


class Taken(NamedTuple):
    """The norms of one step, tensors on their device; None where there is none."""

    norm: Any = None
    """Of all gradients, before clipping."""
    clipped: Any = None
    """The same after clipping; None if the loop did not clip."""
    layers: Mapping[str, Any] = {}
    """Of each layer that is tracked, before clipping."""


class Heard:
    """The clippings since the last step: norms before them, and whose gradients they were."""

    def __init__(self) -> None:
        """Begin with none."""
        self.clips: list[tuple[Any, frozenset[int]]] = []

    def clipped(self, norm: Any, parameters: Any = None, *, limit: Any = None, euclidean: bool = True) -> None:  # noqa: ARG002 - as a listener is called
        """Take the norm of these parameters' gradients; None stands for one that cannot be told."""
        members = parameters if isinstance(parameters, (list, tuple)) else [parameters]
        if len(self.clips) < MOST_CLIPS:
            self.clips.append((norm if euclidean else None, frozenset(map(id, members))))


class GradientWatch:
    """Takes the norms of one training's model."""

    def __init__(
        self, notices: Complaints, modules: Mapping[str, Any] = sys.modules, layers: Sequence[str] = ()
    ) -> None:
        """Begin with no model.

        Args:
            notices: is told once why a norm is not available.
            layers: parts of the names of layers whose norms are taken one by one.
            modules: loaded modules by name; torch is taken from there.
        """
        self.unavailable = ""
        """Why the last norm asked for is not available; empty if it is."""
        self._notices, self._modules, self._parts = notices, modules, tuple(layers)
        self._model: weakref.ref[Any] | None = None
        self._optimizer: weakref.ref[Any] | None = None
        self._taken: Taken | None = None
        self._heard = Heard()
        self._listens = False
        self._listen()

    def take(self, model: Any, optimizer: Any = None) -> Taken:
        """Return the norms of the step that has just ended; empty if they are not available."""
        if model is None or not callable(getattr(model, "parameters", None)):
            return Taken()
        taken, self._taken, self.unavailable = self._taken, None, ""
        self._listen()
        self._follow(model, optimizer)
        found = self._norms(model) if taken is None else taken
        if taken is None and found.norm is not None and _is_zero_on_host(found.norm):
            found, self.unavailable = Taken(), GONE
        if found.norm is None:
            self._notices.say("grad_norm", f"cannot take the gradient norm of the model: {self.unavailable or GONE}")
            self.unavailable = self.unavailable or GONE
        return found

    def _listen(self) -> None:
        """Hear the program's clipping, as soon as torch is there."""
        torch = self._modules.get("torch")
        if self._listens or torch is None or not hasattr(torch, "nn"):
            return
        from stepscope.recorder.clipping import ClipWatch

        self._listens = True
        weakref.finalize(self, ClipWatch(self._heard, torch).close)

    def _norms(self, model: Any) -> Taken:
        """Return the norms of the gradients that are there."""
        clips, self._heard.clips = self._heard.clips, []
        try:
            own = {id(one): one for one in model.parameters()}
            clips = [clip for clip in clips if clip[1] & own.keys()]
            after = self._norm(own.values(), model)
            before = self._before(clips, own, model) if clips else after
            scale = before / after if clips and before is not None and after is not None else None
            return Taken(before, after if clips else None, self._by_layer(model, scale))
        except Exception as error:  # noqa: BLE001 - a model's own types may raise anything; training goes on, it is told
            self.unavailable = in_words(error, 200)
            return Taken()

    def _by_layer(self, model: Any, scale: Any) -> dict[str, Any]:
        """Return the norm of each layer that is tracked, times `scale`, which undoes what the clipping did."""
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
        """Return the norm before clipping, from those of the parts that were clipped and of the rest."""
        covered: frozenset[int] = frozenset().union(*(members for _, members in clips))
        norms = [norm for norm, _ in clips]
        if any(norm is None for norm in norms) or sum(len(members) for _, members in clips) > len(covered):
            self.unavailable = UNTOLD
            return None
        rest = [one for key, one in own.items() if key not in covered and one.grad is not None]
        if rest:
            norms.append(self._norm(rest, model))
        torch = self._modules["torch"]
        return norms[0] if len(norms) == 1 else _total(torch, [torch.as_tensor(norm) for norm in norms])

    def _follow(self, model: Any, optimizer: Any) -> None:
        """Have the norm taken before every further step of the optimizer."""
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
        """Take the norm, if this is the optimizer that was last given."""
        model = None if self._model is None else self._model()
        followed = self._optimizer is not None and self._optimizer() is optimizer
        if model is not None and followed:
            self._taken = self._norms(model)

    def _norm(self, parameters: Iterable[Any], model: Any) -> Any:
        """Return the norm of the gradients of a model's parameters; None, and the reason, if it cannot be told."""
        torch = self._modules.get("torch")
        if torch is None:
            return None
        gradients = [each.grad.detach() for each in parameters if each.grad is not None]
        if any(map(_is_sharded, gradients)) or "FullyShardedDataParallel" in type(model).__name__:
            self.unavailable = SHARDED
            return None
        return _total(torch, gradients) if gradients else None


def _total(torch: Any, gradients: list[Any]) -> Any:
    dense = [gradient.coalesce().values() if gradient.is_sparse else gradient for gradient in gradients]
    whole = getattr(torch.nn.utils, "get_total_norm", None)  # by the foreach path; from torch 2.6
    if whole is not None:
        return whole(dense)
    first = dense[0].device
    return torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(one).to(first) for one in dense]))


def _is_sharded(gradient: Any) -> bool:
    return hasattr(gradient, "full_tensor")  # a DTensor; to add it up would talk to the other ranks


def _is_zero_on_host(norm: Any) -> bool:
    """Say whether a norm is 0, without waiting for a device: there it is taken as it is."""
    return getattr(getattr(norm, "device", None), "type", "cpu") == "cpu" and float(norm) == 0.0
