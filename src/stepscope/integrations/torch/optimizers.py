"""Optimizer steps, through torch's global hooks, and the scalers that may skip one."""

from __future__ import annotations

import sys
import weakref
from dataclasses import dataclass
from threading import get_ident
from time import monotonic_ns
from typing import TYPE_CHECKING, Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from stepscope.integrations.torch.timeline import compiling
from stepscope.recorder import native
from stepscope.recorder.automatic import BITS, CODES

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from stepscope.integrations.torch.patches import Patches
    from stepscope.integrations.torch.timeline import Timeline

OPTIMIZER = CODES["optimizer"]
MOST_ANEW = 100
"""Maximum optimizers created after the first update that are recorded, each as an event that training starts again."""


@dataclass
class Flag:
    """A flag that a compiled region may set: it is only ever written there, so no guard depends on it."""

    raised: bool = False


class Optimizers:
    """The hooks on every optimizer."""

    def __init__(self) -> None:
        self._timeline: Timeline
        self._patches: Patches | None = None
        self._counting: Any = None
        self._in_backward: Callable[[], bool] = lambda: False
        self._known: weakref.WeakSet[Any] = weakref.WeakSet()
        self._handles: list[Any] = []
        self._begun = False
        self._inside = self._depth = 0
        self._nests = False
        self._outer: Any = None
        self._updates = self._anew = 0
        self.compiled = Flag()
        """Set by a compiled region in which an optimizer steps."""
        self.made: Callable[[], object] = lambda: None
        """Called when an optimizer is created, when its model exists."""
        self.before: list[Callable[[Any], None]] = []
        """Called with an optimizer about to step, in examined steps, while its gradients exist."""
        self.after: list[Callable[[Any], None]] = []
        """Called with an optimizer that has stepped, in the same steps."""
        self.updating: Callable[[Any], None] | None = None
        """Called with an optimizer about to step, in measured steps."""

    def count(self) -> int:
        """Return how many optimizers are known."""
        return len(self._known) or 1

    def add(self, optimizer: Any) -> None:
        """Add an optimizer that the user passes."""
        self._known.add(optimizer)

    def attach(self, timeline: Timeline, patches: Patches, in_backward: Callable[[], bool]) -> None:
        """Install the hooks."""
        self._timeline, self._in_backward = timeline, in_backward
        hot = native.in_place()
        self._counting = self._after_unmeasured if hot is None else hot.stepped(timeline, self._after_unmeasured)
        self._register()
        patches.wrap(torch.optim.Optimizer, "__init__", self._remembering)
        patches.wrap(torch.optim.Optimizer, "zero_grad", self._clearing)
        self._patches = patches
        for owner in {getattr(torch.amp, "GradScaler", None), torch.cuda.amp.GradScaler} - {None}:
            if "step" in vars(owner):
                patches.wrap(owner, "step", self._scaling)

    def silence(self, quiet: bool) -> None:  # noqa: FBT001 - called by the timeline
        """Only count the steps while they are not measured."""
        if not self._handles or self._nests:
            return
        self.detach()
        if quiet:
            self._handles = [register_optimizer_step_post_hook(self._counting)]
        else:
            self._register()

    def _register(self) -> None:
        self._handles = [
            register_optimizer_step_pre_hook(self._before),
            register_optimizer_step_post_hook(self._after),
        ]

    def detach(self) -> None:
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _remembering(self, original: Any) -> Any:
        known = self._known

        def make(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            original(optimizer, *args, **kwargs)
            known.add(optimizer)
            self.made()
            if self._updates and self._anew < MOST_ANEW:  # another fold, another stage, the next model of a search
                self._anew += 1
                self._timeline.run.own_event("optimizer_made", optimizer=type(optimizer).__name__)

        return make

    def trace(self) -> None:
        """Remove functions in C that a compiler may meet."""
        if self._patches is not None:
            self._patches.exchange(torch.optim.Optimizer, "zero_grad", self._clearing_in_python)

    def _clearing(self, original: Any) -> Any:
        twin = self._clearing_in_python(original)
        hot = None if self._timeline.traced else native.in_place()
        return twin if hot is None else hot.passing(self._timeline, original, twin)

    def _clearing_in_python(self, original: Any) -> Any:
        timeline, add = self._timeline, self._timeline.add

        def zero_grad(*args: Any, **kwargs: Any) -> Any:
            if not timeline.fast or get_ident() != timeline.thread:
                return original(*args, **kwargs)
            add(monotonic_ns() << BITS | OPTIMIZER)
            try:
                return original(*args, **kwargs)
            finally:
                add(monotonic_ns() << BITS)

        return zero_grad

    def _before(self, optimizer: Any, args: Any, kwargs: Any) -> None:  # noqa: ARG002 - the signature of the hook
        timeline = self._timeline
        keeper = timeline.keeper
        if timeline.fast and keeper.fed and not (keeper.stepped or self._inside) and get_ident() == timeline.thread:
            self._inside = id(optimizer)
            self._updates += 1
            self._begun, self._outer, timeline.left = True, timeline.left, self
            timeline.add(monotonic_ns() << BITS | OPTIMIZER)
            if self.updating is not None:
                self.updating(optimizer)
        else:
            self._other_before(timeline, optimizer)

    def _after(self, optimizer: Any, args: Any, kwargs: Any) -> None:  # noqa: ARG002 - the signature of the hook
        timeline = self._timeline
        keeper = timeline.keeper
        if timeline.fast and keeper.fed and not keeper.stepped and self._begun and not self._depth:
            timeline.add(monotonic_ns() << BITS)
            self._begun, self._inside, timeline.left = False, 0, self._outer
            keeper.stepped = True
            keeper.cycle.append(id(optimizer))
        else:
            self._other_after(timeline, optimizer)

    def _after_unmeasured(self, optimizer: Any, args: Any, kwargs: Any) -> None:  # noqa: ARG002 - the hook's signature
        timeline = self._timeline
        keeper = timeline.keeper
        if timeline.hushed and keeper.fed:
            keeper.stepped = True
        else:
            self._other_before(timeline, optimizer)
            self._other_after(timeline, optimizer)

    def _other_before(self, timeline: Timeline, optimizer: Any) -> None:
        if (timeline.traced and compiling()) or not timeline.active:
            return
        if self._inside == id(optimizer) and _is_nested(sys._getframe(1)):  # noqa: SLF001 - the only way to the caller
            self._depth += 1
            self._nests = True
            return
        self._inside, self._depth = id(optimizer), 0
        start = monotonic_ns() if timeline.timing else 0
        if timeline.thread != get_ident():
            timeline.move()
        if timeline.span is not None:
            timeline.train()
        self._updates += 1
        timeline.keeper.updating(id(optimizer))
        if timeline.looking:
            start += _elapsed(self.before, optimizer)
        if not timeline.quiet:
            self._begun = timeline.optimizer.begin()
            if self.updating is not None:
                self.updating(optimizer)
            if self._begun:
                self._outer, timeline.left = timeline.left, self
            if timeline.device is not None:
                timeline.device.mark("optimizer")
        if timeline.timing:
            timeline.cost(monotonic_ns() - start)

    def _other_after(self, timeline: Timeline, optimizer: Any) -> None:
        if timeline.traced and compiling():
            self.compiled.raised = True
            return
        if not timeline.active:
            return
        if self._depth:
            self._depth -= 1
            return
        self._inside = 0
        start = monotonic_ns() if timeline.timing else 0
        if self._begun:
            self._begun, timeline.left = False, self._outer
            timeline.optimizer.end()
            if timeline.device is not None:
                timeline.device.mark()
                timeline.phase_ended("optimizer")
        if timeline.looking:
            start += _elapsed(self.after, optimizer)
        if timeline.timing:
            timeline.cost(monotonic_ns() - start)
        timeline.keeper.updated(id(optimizer), inside_backward=self._in_backward())

    def notice(self) -> None:
        """Handle an optimizer that stepped in a compiled region, between two calls that are not compiled."""
        if self.compiled.raised:
            self.compiled.raised = False
            self._updates += 1
            self._timeline.keeper.updating(id(self.compiled))
            self._timeline.keeper.updated(id(self.compiled))

    def forget(self) -> None:
        """Handle an error that ended an optimizer's step without its hook."""
        self._begun = False
        self._inside = self._depth = 0

    def _scaling(self, original: Any) -> Any:
        def step(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            timeline = self._timeline
            if (timeline.traced and compiling()) or not timeline.active:
                return original(scaler, optimizer, *args, **kwargs)
            before = self._updates
            begun = not timeline.quiet and timeline.optimizer.begin()
            try:
                done = original(scaler, optimizer, *args, **kwargs)
            finally:
                if begun:
                    timeline.optimizer.end()
            if self._updates == before:  # the gradients were not finite: a step without an update
                timeline.run.own_event("update_skipped", optimizer=type(optimizer).__name__)
                timeline.keeper.updating(id(optimizer))
                timeline.keeper.updated(id(optimizer))
            return done

        return step


def _elapsed(functions: list[Callable[[Any], None]], optimizer: Any) -> int:
    """Call these functions, which have their own budgets; return how long they took, in ns."""
    start = monotonic_ns()
    for function in functions:
        function(optimizer)
    return monotonic_ns() - start


def _is_nested(hook: FrameType | None) -> bool:
    """Return whether torch calls the hooks of a step inside another: a subclass calls the `step` that it overrides.

    Torch hooks every class whose `step` was ever used, so both have hooks once the plain optimizer was used too. An
    error that ended the outer step without its hook looks the same; only the stack differs.
    """
    while hook is not None and hook.f_code.co_filename == __file__:
        hook = hook.f_back
    caller = hook and hook.f_back
    while caller is not None:
        if hook is not None and caller.f_code is hook.f_code:
            return True
        caller = caller.f_back
    return False
