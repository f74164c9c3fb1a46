"""Stand-ins for a run, a clock and a tensor on a GPU."""

from __future__ import annotations

from types import SimpleNamespace


class Gpu:
    """Makes tensors and counts how often the host waited for one."""

    def __init__(self):
        self.waits = 0

    def tensor(self, value, shape=()):
        return FakeTensor(self, [value], shape)


class FakeTensor:
    """A tensor with one number on a GPU; `detach` shares its memory, `clone` does not."""

    def __init__(self, gpu, memory, shape=()):
        self.gpu, self.memory, self.shape = gpu, memory, shape
        self.device = SimpleNamespace(type="cuda")

    def detach(self):
        return FakeTensor(self.gpu, self.memory, self.shape)

    def clone(self):
        return FakeTensor(self.gpu, list(self.memory), self.shape)

    def fill_(self, value):
        self.memory[0] = value

    def item(self):
        self.gpu.waits += 1
        return self.memory[0]

    __float__ = item


class Stubborn:
    """Raises whatever it likes when it is converted."""

    def __float__(self):
        raise RuntimeError("no")
