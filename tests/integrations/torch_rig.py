"""A run with every hook of torch on, a clock that the test moves, and trainings whose parts take as long as it says."""

from __future__ import annotations

import contextlib
import importlib
import math

import torch

from stepscope.integrations.torch.instrument import Instrument
from stepscope.recorder import native
from tests.recorder.rig import Rig

MODULES = (
    "stepscope.recorder.automatic",
    "stepscope.recorder.hotpath",
    *(
        f"stepscope.integrations.torch.{name}"
        for name in ("calls", "interruptions", "data", "optimizers", "root_modules", "timeline")
    ),
)
MILLISECOND = 1_000_000
RING_BYTES = 4 << 20


class Clock:
    """Nanoseconds that pass only when the test says so."""

    def __init__(self):
        self.now = 10**12

    def __call__(self):
        return self.now

    def pass_ms(self, amount):
        self.now += int(amount * MILLISECOND)


def install(monkeypatch):
    """Return a clock that the recorder and all hooks go by."""
    clock = Clock()
    for owner, methods in zip(native.CLASSES, native.PYTHON, strict=True):  # the twin in C has a clock of its own
        for name, method in methods.items():
            monkeypatch.setattr(owner, name, method)
    for name in MODULES:
        monkeypatch.setattr(importlib.import_module(name), "monotonic_ns", clock)
    return clock


@contextlib.contextmanager
def instrumented(folder, budget=math.inf, **options):
    """Give a rig whose run has all hooks on, unthinned by default; they are off again at the end."""
    rig = Rig(folder, RING_BYTES)
    instrument = Instrument(rig.run, budget, **options)
    instrument.attach()
    rig.run.instrument = instrument
    try:
        yield rig
    finally:
        instrument.detach()
        rig.run.instrument = None


def steps_of(rig):
    """Return the phases of every step, in ms, without those that took none; `step` is all of it."""
    found = []
    for _, values in rig.rows():
        if "step_seconds" in values:
            phases = {name.removeprefix("phase/"): value / MILLISECOND for name, value in values.items()}
            phases["step"] = phases.pop("step_seconds")
            phases["samples"] = values.get("samples")
            found.append({name: value for name, value in phases.items() if value})
    return found


def events_of(rig, kind):
    return [fields for _, fields in rig.events() if fields["kind"] == kind]


class Slow:
    """A dataset, also of pairs, whose items take time to load."""

    def __init__(self, clock, milliseconds=0.0, length=12, width=4):
        self.clock, self.milliseconds = clock, milliseconds
        self.items = torch.randn(length, width)

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        self.clock.pass_ms(self.milliseconds)
        return self.items[index], index % 2


class Net(torch.nn.Module):
    """A network whose forward and backward pass take time."""

    def __init__(self, clock, forward=0.0, backward=0.0, width=4):
        super().__init__()
        self.linear = torch.nn.Linear(width, 2)
        self.clock, self.milliseconds, self.backward_ms = clock, forward, backward

    def forward(self, x):
        self.clock.pass_ms(self.milliseconds)
        return Pass.apply(self.linear(x), self.clock, self.backward_ms)


class Pass(torch.autograd.Function):
    """What it gets, and time in the backward pass."""

    @staticmethod
    def forward(ctx, x, clock, milliseconds):
        ctx.spend = lambda: clock.pass_ms(milliseconds)
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        ctx.spend()
        return gradient, None, None


class SlowSGD(torch.optim.SGD):
    """An optimizer whose steps take time."""

    def __init__(self, parameters, clock, milliseconds=0.0):
        super().__init__(parameters, lr=0.01)
        self.clock, self.milliseconds = clock, milliseconds

    def step(self, closure=None):
        self.clock.pass_ms(self.milliseconds)
        return super().step(closure)


def loader(dataset, batch_size=4, **options):
    return torch.utils.data.DataLoader(dataset, batch_size=batch_size, **options)


def loss_of(output, target):
    return torch.nn.functional.cross_entropy(output, target)
