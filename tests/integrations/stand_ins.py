"""Stand-ins: a run that keeps what it is told, a clock that the test moves, and a device that counts waits for it."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch.utils._pytree import tree_map


class Gpu(torch.Tensor):
    """A tensor that says it is on a GPU; whatever would wait for that GPU is counted in `waits`."""

    waits: ClassVar[list[str]] = []
    WAITING = ("_local_scalar_dense", "item", "nonzero", "is_nonzero", "equal", "masked_select", "_unique")

    @staticmethod
    def __new__(cls, tensor):
        made = torch.Tensor._make_wrapper_subclass(cls, tensor.shape, dtype=tensor.dtype, device="cuda")
        made.host = tensor
        return made

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        words = dict(kwargs or {})
        name = function.overloadpacket.__name__
        device = words.get("device")
        leaves = device is not None and torch.device(device).type == "cpu"
        copies_out = name == "copy_" and not isinstance(args[0], cls)
        if (
            name in cls.WAITING
            or (leaves and not words.get("non_blocking"))
            or (copies_out and not (len(args) > 2 and args[2]) and not words.get("non_blocking"))
        ):
            cls.waits.append(name)
        if device is not None:
            words["device"] = "cpu"

        def inside(value):
            return value.host if isinstance(value, cls) else value

        out = function(*tree_map(inside, args), **tree_map(inside, words))
        if leaves or copies_out:
            return out
        return tree_map(lambda value: cls(value) if isinstance(value, torch.Tensor) else value, out)


class Events:
    """A device for `Readback` whose work is done when the test says so."""

    def __init__(self):
        self.done = False

    def pinned(self, like):
        return torch.empty(like.shape, dtype=like.dtype)

    def event(self):
        return self

    def record(self):
        self.done = False

    def query(self):
        return self.done
