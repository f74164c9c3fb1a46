"""Entropy and maximum of attention, from the weights that a module returns or the queries and keys that it uses."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode

if TYPE_CHECKING:
    from stepscope.integrations.walls import Failures

MOST_QUERIES = 64
"""Queries sampled per head, evenly spaced."""
MOST_SAMPLES = 4
"""Samples used of a batch."""


def attention_row(name: str, weights: Any) -> dict[str, Any]:
    """Return the mean entropy of the attention in nats, and the mean over queries of the largest weight.

    The last dimension of `weights` are the keys, which sum to 1. An entropy near 0 means attention to a single key;
    uniform attention has the logarithm of the number of keys.
    """
    values = weights.detach().float()
    entropy = torch.special.entr(values).sum(-1)
    return {f"attention_entropy/{name}": entropy.mean(), f"attention_max/{name}": values.amax(-1).mean()}


def weights_in(kind: str, output: Any) -> Any:
    """Return the attention weights in the output of a module of class `kind`; None if it has none."""
    if "softmax" in kind.lower():
        return output if isinstance(output, torch.Tensor) and output.is_floating_point() else None
    if not isinstance(output, tuple) or "att" not in kind.lower():
        return None
    first, *rest = output
    fit = [each for each in rest if isinstance(each, torch.Tensor) and each.is_floating_point() and each.dim() >= 2]
    # Weights are (… queries, keys), with as many queries as the output has positions.
    lengths = set(getattr(first, "shape", ())[:-1])
    return next((each for each in fit if each.shape[-2] in lengths and each.shape != first.shape), None)


class AttentionView(TorchFunctionMode):  # type: ignore[misc]
    """Compute the weights of the first attention call inside a module, for a sample of its queries."""

    def __init__(self, failures: Failures) -> None:
        super().__init__()
        self._failures = failures
        self._inside = self._seen = False
        self._weights: Any = None
        self.seconds = 0.0
        """Host time spent here."""

    def enter(self) -> None:
        """Start to watch calls. May be called again."""
        if not self._inside and not self._seen:
            self._inside = True
            self.__enter__()

    def leave(self) -> None:
        """Stop watching. May be called again."""
        if self._inside:
            self._inside = False
            self.__exit__(None, None, None)

    def row(self, name: str) -> dict[str, Any]:
        """Return the statistics of the weights; empty if none were seen."""
        return {} if self._weights is None else attention_row(name, self._weights)

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run every call unchanged, and compute the weights from the arguments of the first attention call."""
        words = kwargs or {}
        if not self._seen and function in WEIGHTS_OF:
            start = time.perf_counter()
            with self._failures, torch.no_grad(), torch._C.DisableTorchFunction():  # noqa: SLF001 - as torch's own modes
                self._seen = True
                self._weights = WEIGHTS_OF[function](*args, **words)
                self._seen = self._weights is not None
            self.seconds += time.perf_counter() - start
        return function(*args, **words)


def weights_of(
    query: Any,
    key: Any,
    value: Any = None,  # noqa: ARG001 - the arguments of scaled_dot_product_attention
    attn_mask: Any = None,
    dropout_p: float = 0.0,  # noqa: ARG001
    is_causal: bool = False,  # noqa: FBT001, FBT002
    scale: float | None = None,
    enable_gqa: bool = False,  # noqa: FBT001, FBT002
) -> Any:
    """Return the weights of scaled_dot_product_attention for a sample of queries; None for unsupported shapes."""
    if query.dim() < 3 or getattr(query, "is_nested", False):
        return None
    rows = torch.arange(0, query.shape[-2], -(-query.shape[-2] // MOST_QUERIES), device=query.device)
    some = slice(None, MOST_SAMPLES)
    if enable_gqa:
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
    asked, keys = query[some].index_select(-2, rows).float(), key[some].float()
    scores = asked @ keys.transpose(-2, -1) * (query.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        places = torch.arange(key.shape[-2], device=query.device)
        scores = scores.masked_fill(places > rows[:, None], float("-inf"))
    if attn_mask is not None:
        mask = attn_mask[some] if attn_mask.dim() == query.dim() and attn_mask.shape[0] > 1 else attn_mask
        mask = mask.index_select(-2, rows) if mask.shape[-2] == query.shape[-2] else mask
        scores = scores.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else scores + mask
    return torch.softmax(scores, -1)


def _multihead_weights(*args: Any, **words: Any) -> Any:
    """Return the weights of torch's multi-head attention, which can return them; no random number is drawn."""
    if "need_weights" not in words:
        return None
    asked = {"need_weights": True, "average_attn_weights": False, "training": False}
    return torch.nn.functional.multi_head_attention_forward(*args, **{**words, **asked})[1]


WEIGHTS_OF = {
    torch.nn.functional.scaled_dot_product_attention: weights_of,
    torch.nn.functional.multi_head_attention_forward: _multihead_weights,
}
