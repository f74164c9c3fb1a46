"""Find where one training step ends and the next begins, from batches, backward passes and optimizers alone.

With a DataLoader a step ends at the fetch that follows at least one optimizer step: accumulation, several optimizers
and a skipped GradScaler update are all one step. Without one it ends with the last optimizer of the cycle. If no
optimizer is ever seen, as in a program that updates its weights itself, each backward pass is a step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepscope.recorder.automatic import AutomaticSteps

REPEATS = 64
"""Updates by one optimizer without a fetch after which the loader no longer counts as the source of steps."""

BLIND = 32
"""Backward passes without any optimizer after which the program counts as updating its weights itself."""


class StepKeeper:
    """Decide when a step ends; pure except for the steps it closes."""

    __slots__ = (
        *("_backward", "_blind", "_deferred", "_last", "_optimizers", "_service", "bare"),
        *("batches", "before", "closed", "cycle", "fed", "known", "samples", "stepped", "steps", "until"),
    )

    def __init__(
        self,
        steps: AutomaticSteps,
        optimizers: Callable[[], int] = lambda: 1,
        service: Callable[[], int] = lambda: 1 << 30,
    ) -> None:
        """Close `steps`; `optimizers` counts the existing ones.

        `service` is called when `until` steps have ended, and returns when to call it again.
        """
        self.steps = steps
        self._optimizers, self._service = optimizers, service
        self.until = 1
        self.bare = False
        """Whether the phases of this step are not measured."""
        self.stepped = False
        """Whether an optimizer has stepped since the step started."""
        self.fed = False
        """Whether batches of a loader drive the steps."""
        self.known = False
        """Whether any optimizer ever stepped."""
        self.batches = 0
        """Batches of the step so far."""
        self.samples: float | None = None
        """Samples of the step so far."""
        self.before: float | None = None
        """The same before the last batch."""
        self.closed: float | None = None
        """Samples of the previous step."""
        self._backward = False
        self._blind = 0
        self._deferred = False
        self.cycle: list[int] = []
        """Optimizers, by their ids, that have stepped since the step started."""
        self._last = 0

    @property
    def is_new(self) -> bool:
        """Whether nothing of the step has happened yet."""
        return not (self.batches or self._backward or self.stepped)

    def fetching(self) -> None:
        """Handle a request for a training batch."""
        if self.stepped:
            self.close(again=True)
        self.fed = True

    def fetched(self, samples: float | None) -> None:
        """Handle its arrival."""
        self.batches += 1
        self.before = self.samples
        if samples is not None:
            self.samples = (self.samples or 0) + samples
        self.steps.open()

    def unfetch(self) -> None:
        """Handle a last batch that was not for training after all."""
        self.batches -= 1
        self.samples = self.before
        self.fed = False
        if not self.batches:
            self.steps.unopen()

    def starved(self) -> None:
        """Handle a loader without more batches, or an abandoned iteration."""
        self.fed = False
        if self.stepped and not self._deferred:
            self.close()
        elif not self.batches:
            self.steps.unopen()

    def backward(self) -> None:
        """Handle the start of a backward pass."""
        if not self._backward:
            self._backward = True
            self.steps.open()

    def backward_done(self) -> None:
        """Handle its end: an optimizer that steps inside it could not end the step."""
        if self._deferred:
            self._deferred = False
            self.close()
        elif not self.known and self.fed:
            self._blind += 1
            self.stepped = self._blind > BLIND

    def updating(self, optimizer: int) -> None:
        """Handle an optimizer (by its id) that is about to step."""
        if not self.stepped:
            self.steps.open()
            return
        if optimizer not in self.cycle or not self._backward:
            return
        if self.fed and self.cycle.count(optimizer) < REPEATS:
            return
        self.fed = False
        self._last = self.cycle[-1]
        self.close()
        self.steps.open()

    def updated(self, optimizer: int, *, inside_backward: bool = False) -> None:
        """Handle its step, or the step it would have made with finite gradients."""
        self.stepped = self.known = True
        if len(self.cycle) < REPEATS * 2:
            self.cycle.append(optimizer)
        if self.fed:
            return
        if self._last != optimizer and (self._last or self._optimizers() > 1):
            return
        if inside_backward:
            self._deferred = True
        else:
            self.close()

    def close(self, *, again: bool = False) -> None:
        """End the step now, and start the next if `again`."""
        self.steps.close(self.samples, bare=self.bare, again=again)
        self.closed, self.samples = self.samples, None
        self.stepped = self._backward = self._deferred = False
        self.batches = 0
        self.cycle.clear()
        self.until -= 1
        if self.until <= 0:
            self.until = self._service()

    def finish(self) -> None:
        """End the last step, if an optimizer has stepped in it."""
        if self.stepped:
            self.close()
