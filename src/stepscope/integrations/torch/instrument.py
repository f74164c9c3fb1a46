"""Instrument a PyTorch program: where the time of every step goes, without a change to the script.

Hooks and wrappers do as little as possible: they open and close phases of the run. Nothing here waits for a device,
raises into the training, or is visible to a compiled region. docs/reference/torch.md describes what is measured and
how.
"""

from __future__ import annotations

import os
import re
import weakref
from typing import TYPE_CHECKING, Any

import torch

from stepscope.core.after_import import AfterImport
from stepscope.integrations.numerics.measurements import Numerics
from stepscope.integrations.torch.calls import Calls, supports_devices
from stepscope.integrations.torch.data import Loaders
from stepscope.integrations.torch.device import DeviceClock
from stepscope.integrations.torch.interruptions import Compilations, Garbage
from stepscope.integrations.torch.losses import Losses
from stepscope.integrations.torch.optimizers import Optimizers
from stepscope.integrations.torch.patches import Patches
from stepscope.integrations.torch.places import MeshPlaces
from stepscope.integrations.torch.reductions import Reductions
from stepscope.integrations.torch.root_modules import Roots
from stepscope.integrations.torch.timeline import Timeline
from stepscope.recorder.complaints import Complaints, tell

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepscope.session.run import Run

OLDEST = (2, 1)
"""The oldest torch version with these hooks."""


class Instrument:
    """All torch hooks of one run."""

    def __init__(self, run: Run, overhead_budget: float = 0.01, *, copies: bool | None = None) -> None:
        """Prepare the hooks for `run`, to cost at most `overhead_budget` of a step.

        Copies between devices are watched if this torch supports a device other than the CPU, or as `copies` says.
        """
        self.run = run
        self._optimizers = Optimizers()
        self.timeline = Timeline(run, overhead_budget, self._optimizers.count)
        self.roots = Roots(self.timeline)
        self._calls = Calls(self.timeline, self.roots, copies=supports_devices() if copies is None else copies)
        self._loaders = Loaders(self.timeline)
        self._compilations = Compilations(self.timeline, self.roots)
        self._garbage = Garbage(self.timeline)
        self._reductions = Reductions(run, self.roots)
        self._places = MeshPlaces(run)
        self._patches, self._imports = Patches(), AfterImport()
        self._numerics: Numerics | None = None
        self._losses: Losses | None = None
        self._is_attached = False

    def attach(self) -> None:
        """Install all hooks."""
        if self._is_attached:
            return
        if tuple(int(part) for part in re.findall(r"\d+", torch.__version__)[:2]) < OLDEST:
            remedy = "update it, or use run.step and run.phase"
            tell(f"cannot watch torch {torch.__version__}: it is older than {'.'.join(map(str, OLDEST))}; {remedy}")
            return
        self._is_attached = True
        self._loaders.look = self._optimizers.made = self.roots.look
        self.timeline.silenced, self.timeline.notice = self._silence, self._optimizers.notice
        self.timeline.compiled = self._compiled
        self.timeline.listeners += [self.roots.step, self._device]
        self.timeline.looked += [self._reductions.step_end, self._places.step_end]
        _disarm_in_children(self)
        self.resume()

    def detach(self) -> None:
        """End the last step and remove all hooks; safe at any time."""
        if not self._is_attached:
            return
        self._is_attached = False
        self._loaders.detach()
        self.timeline.stop()
        if self._numerics is not None:
            self._numerics.close()
        if self._losses is not None:
            self._losses.training()
        self.suspend()
        self.roots.detach()

    def resume(self) -> None:
        """Install all hooks (again)."""
        self.roots.attach(self._patches)
        self._calls.attach(self._patches, self._imports)
        self._optimizers.attach(self.timeline, self._patches, lambda: self._calls.depth > 0)
        self._loaders.attach(self._patches)
        self._compilations.attach(self._imports)
        self._places.attach(self._patches, self._imports)
        self._garbage.attach()
        if self.timeline.quiet:
            self._silence(quiet=True)

    def suspend(self) -> None:
        """Remove all hooks, and leave torch as it was; `resume` continues."""
        self._imports.stop()
        self._garbage.detach()
        self._compilations.detach()
        self._optimizers.detach()
        self._patches.restore()
        self.roots.suspend()

    def watch(self, *objects: Any) -> None:
        """Hook models and optimizers that were created before; report what cannot be hooked."""
        for item in objects:
            if isinstance(item, torch.nn.Module):
                self.roots.add(item)
            elif isinstance(item, torch.optim.Optimizer):
                self._optimizers.add(item)
            elif not isinstance(item, torch.utils.data.DataLoader):  # all of them are watched anyway
                cause = "it is no torch module, optimizer or DataLoader"
                tell(f"cannot watch a {type(item).__name__}: {cause}; for any other loader iterate over run.data(it)")

    def measure(self, numerics: Numerics) -> None:
        """Also measure the numbers of the training."""
        self._numerics = numerics
        numerics.connect(self.timeline, self.roots)
        if numerics.gradients is not None:
            for measure in (numerics.learn, numerics.gradients.before_optimizer):
                self._optimizers.before.append(self._guarded(measure))
            self._optimizers.after.append(self._guarded(numerics.gradients.after_optimizer))

    def listen(self) -> None:
        """Also record losses, learning rates and padding, for an uninstrumented program."""
        if self._losses is not None or not self.run.recording:
            return
        self._losses = losses = Losses(self.run, self.timeline, self.roots)
        self._calls.listen(self._patches, losses.heard)
        self._optimizers.updating = losses.updating
        self.timeline.evaluations, self._loaders.inspect = losses.evaluating, losses.inspect
        for owner in {getattr(torch.amp, "GradScaler", None), torch.cuda.amp.GradScaler} - {None}:
            if "scale" in vars(owner):
                self._patches.wrap(owner, "scale", losses.scaled)

    def failed(self, error: BaseException) -> None:
        """Handle the error that ends the run, before `detach`."""
        if self._numerics is not None:
            self._numerics.failed(error)

    def _silence(self, quiet: bool) -> None:  # noqa: FBT001 - called by the timeline
        if self._numerics is not None:
            self._numerics.silence(quiet)
        if self.timeline.traced:
            return
        (self.roots.suspend if quiet else self.roots.hook)()
        self._optimizers.silence(quiet)
        if self.timeline.keeper.fed or not quiet:  # without a loader the backward pass starts a step
            self._calls.silence(quiet)

    def _compiled(self) -> None:
        """Prepare for the first compilation: from now on a compiler may trace whatever is called."""
        self._loaders.trace()
        self._optimizers.trace()
        if self._losses is not None:
            self._losses.training()

    def _device(self) -> None:
        """Start reading the device's clock once the program has initialized the device."""
        timeline = self.timeline
        if timeline.device is None and torch.cuda.is_initialized():
            timeline.device = DeviceClock(torch.cuda, self.run.log)

    def _guarded(self, function: Callable[..., None]) -> Callable[..., None]:
        shield = Complaints().shield("measuring", "go on measuring")

        def call(*args: Any) -> None:
            if not shield.failed:
                with shield:
                    function(*args)

        return call


def _disarm_in_children(instrument: Instrument) -> None:
    """Stop measuring in forked children; the registration is permanent, so it holds only a weak reference."""
    reference = weakref.ref(instrument)

    def disarm() -> None:
        found = reference()
        if found is not None:
            found.timeline.active = False

    os.register_at_fork(after_in_child=disarm)


def instrument(run: Run, overhead_budget: float = 0.01, **numbers: Any) -> Instrument:
    """Return the attached instrument of a run; `numbers` selects what is measured, see `Numerics`."""
    made = Instrument(run, overhead_budget)
    made.attach()
    made.measure(Numerics(run, overhead_budget, **numbers))
    return made
