"""The state that all torch hooks share: phases, the current step, and whether it is measured."""

from __future__ import annotations

import weakref
from threading import get_ident
from time import monotonic_ns
from typing import TYPE_CHECKING, Any

import torch

from stepscope.integrations.torch.budget import CALL_NS, GROUP, SAMPLE, Budget
from stepscope.integrations.torch.steps import StepKeeper
from stepscope.recorder import automatic

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepscope.integrations.torch.device import DeviceClock
    from stepscope.session.run import Run

# Dynamo knows this very function and folds it: inside a compiled region our hooks vanish.
compiling: Callable[[], bool] = getattr(torch.compiler, "is_dynamo_compiling", None) or torch._dynamo.is_compiling  # noqa: SLF001 - older torch
SETTLING = 8
"""Number of first steps after each of which the hooks check the program."""


class Timeline:
    """The training as the hooks see it, in the one thread that trains.

    While `fast` holds, a hook only makes its mark; while `hushed` holds, it only counts steps. Neither holds if
    anything else needs attention: a compiled region, an evaluation loop, a device's clock, hooks that time themselves.
    """

    __slots__ = (
        *("__weakref__", "_begun_at", "_skipped", "_span_steps", "_stage", "_steps", "active", "add", "backward"),
        *("backwards", "budget", "compiled", "copy", "data", "device", "evaluation", "evaluations", "fast", "forward"),
        *("fresh", "hushed", "keeper", "left", "listeners", "looked", "looking", "looks", "notice", "optimizer"),
        *("phase_ended", "quiet", "run", "silenced", "span", "spent", "steps", "thread", "timing", "traced"),
    )

    def __init__(self, run: Run, share: float, optimizers: Callable[[], int] = lambda: 1) -> None:
        """Charge the phases of `run`, with at most `share` of the training's time."""
        self.run = run
        self.active = True
        self.traced = False
        """Whether anything was compiled yet: only then may a hook be inside a compiled region."""
        self.quiet = False
        """Whether this step is left unmeasured."""
        self.timing = False
        """Whether the hooks time themselves in this step."""
        self.looking = True
        """Whether this step is examined: the first ones, and later those in which the hooks time themselves."""
        self.spent = 0
        """Time of the hooks in this step so far, in ns, if they do."""
        self.thread = get_ident()
        self.steps = automatic.AutomaticSteps(run)
        self.add = self.steps.add
        names = (automatic.DATA, automatic.COPY, automatic.FORWARD, automatic.BACKWARD, automatic.OPTIMIZER)
        self.data, self.copy, self.forward, self.backward, self.optimizer = map(self.charge, names)
        self.evaluation = self.charge(automatic.EVALUATION)
        self.budget = Budget(share, self._thinned)
        self.keeper = StepKeeper(self.steps, optimizers, self._serve)
        self.device: DeviceClock | None = None
        self.listeners: list[Callable[[], None]] = []
        """Called periodically at the end of a step: after each of the first ones, later every few."""
        self.looks: list[Callable[[int], None]] = []
        """Called before an examined step, with the number of steps since the last one."""
        self.looked: list[Callable[[int | None], None]] = []
        """Called after it, with its index (None: the current one)."""
        self.phase_ended: Callable[[str], None] = lambda _phase: None
        """Called at the end of a phase if a device's clock is read."""
        self.silenced: Callable[[bool], None] = lambda _quiet: None
        """Called when a span of unmeasured steps starts or ends."""
        self.notice: Callable[[], None] = lambda: None
        """Called before a batch and a backward pass, once anything was compiled, to check what a compiled region has
        done."""
        self.fresh: weakref.ref[Any] | None = None
        """The iterator of the last batch, while it is unknown whether it is for training."""
        self.backwards = 0
        """Backward passes so far."""
        self.left: Any = None
        """The hook whose phase is open; it is still set at the next batch if an interrupt ended it."""
        self.span: weakref.ref[Any] | None = None
        """The iterator of the current evaluation loop: everything in it is evaluation."""
        self.evaluations: Callable[[], None] = lambda: None
        """Called when an evaluation starts."""
        self.compiled: Callable[[], None] = lambda: None
        """Called before the first compilation: the compiled code must be torch's own."""
        self.fast = self.hushed = False
        self._begun_at = monotonic_ns()
        self._steps, self._stage = 0, -1
        self._span_steps = self._skipped = 0

    def charge(self, name: str) -> automatic.Charge:
        """Return a phase that hooks can open."""
        return automatic.charge(self.steps, name)

    def cost(self, elapsed: int) -> None:
        """Add what a hook took, in ns, to the cost of this step."""
        self.spent += elapsed + CALL_NS

    def settle(self) -> None:
        """Update whether hooks need attention."""
        busy = self.traced or self.timing or self.span or self.device or self.looking
        plain = bool(not busy and self.active and self.steps.marking)  # the hooks in C compare with True itself
        self.fast = plain and not self.quiet
        self.hushed = plain and self.quiet and not getattr(self.run, "followers", ())

    def evaluate(self, iterator: Any) -> None:
        """Handle an evaluation loop over `iterator`, until it is exhausted or gone, or training continues."""
        if self.span is None and self.pause() and self.evaluation.begin():
            self.span = weakref.ref(iterator, self._abandoned)
            self.fast = self.hushed = False
            self.evaluations()

    def pause(self) -> bool:
        """Start a long phase; return whether to charge it.

        Between two steps it belongs to the one that it delays, and that one is measured.
        """
        if get_ident() != self.thread or not self.active:
            return False
        keeper = self.keeper
        if keeper.stepped and self.left is None:
            keeper.close()
        if self.quiet and keeper.is_new:
            self._silence(quiet=False)
            self.settle()
            keeper.until, self._stage = 1, -1  # the hooks time themselves after it, however often that happens
        return not self.quiet

    def train(self) -> None:
        """Handle the return to training: an evaluation loop, if there was one, has ended."""
        if self.span is not None:
            self.span = None
            self.evaluation.end()
            self.settle()

    def _abandoned(self, reference: weakref.ref[Any]) -> None:
        if reference is self.span and get_ident() == self.thread:
            self.train()

    def recover(self) -> None:
        """Close what an interrupt left open."""
        if self.left is not None:
            self.left.forget()
            self.left = None
            self.steps.reset()

    def move(self) -> None:
        """Follow the training into this thread, which updates the weights."""
        self.thread = self.steps.thread = get_ident()

    def stop(self) -> None:
        """End the last step and stop charging."""
        if not self.active:
            return
        self.train()
        self.keeper.finish()
        self.active = False
        self.settle()
        self.steps.give_way()

    def _serve(self) -> int:
        """Do the periodic work between two steps; return after how many steps to call this again."""
        now = monotonic_ns()
        if self.timing:
            self.timing = False
            self.budget.weigh(self.spent, now - self._begun_at)
        self._begun_at = now
        if self.device is not None:
            self.device.seal(self.steps.last)
        if self.looking:
            for looked in self.looked:
                looked(None if self.steps.yielded else self.steps.last)
        else:
            self._skipped += self._span_steps
        for listener in self.listeners:
            listener()
        self._steps += 1
        self.looking = self._steps < SETTLING
        self._span_steps = 1 if self.looking else self._measure()
        self.looking = self.looking or self.timing
        if self.looking:
            for look in self.looks:
                look(self._skipped)
            self._skipped = 0
        self.settle()
        return self._span_steps

    def _measure(self) -> int:
        """Start a span of steps and return its length.

        First one in which the hooks time themselves, then more measured steps, then unmeasured ones.
        """
        # A step of the user's own is always written whole; where no optimizer is seen every backward pass must be.
        every = self.budget.every if self.keeper.known and not self.steps.yielded else 1
        self._stage = (self._stage + 1) % 3
        if self._stage == 2:
            if every > 1:
                self._silence(quiet=True)
                return GROUP * (every - 1)
            self._stage = 0
        if self.quiet:
            self._silence(quiet=False)
        self.timing, self.spent = self._stage == 0, 0
        if self.timing or self.device is not None:
            return 1
        return GROUP - 1 if every > 1 else SAMPLE

    def _silence(self, *, quiet: bool) -> None:
        self.quiet = self.keeper.bare = quiet
        self.silenced(quiet)

    def _thinned(self, every: int, share: float) -> None:
        details = {"every": every, "cost_ratio": share, "overhead_budget": self.budget.share}
        self.run.own_event("instrumentation", **details, text=f"phases are measured in one step of {every}")
