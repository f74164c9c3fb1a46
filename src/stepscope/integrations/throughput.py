"""How fast a training takes in data: samples, tokens, batches and steps by the time they took.

Definitions, for this rank (a job's rate is the sum over its ranks):

- a *step* is an optimizer step; the batches that were accumulated for it all belong to it.
- its *time* lasts from the end of the step before to its own end, without the time in `paused` (evaluation, saving).
- a rate is the sum of samples (or tokens …) of the last `window` steps divided by the sum of their times. It is never a
  mean of rates, so a short last batch counts by its size. Steps whose samples are unknown are left out of both sums.
- *tokens* are those that are no padding, where the caller knows; `padding_ratio` is the rest.
- the first step of an attempt has no beginning: it is counted in the totals and in no rate. So neither start-up,
  compilation nor the batches that a resumed job skips make a rate wrong.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

WINDOW = 20


class Load(NamedTuple):
    """What one step took in, and how long it took."""

    seconds: float
    samples: float | None
    tokens: Any
    """A number, or a tensor that may be on a device; None if unknown."""
    batches: int


class Throughput:
    """Count what each step takes in; `batch` for every batch, `step_end` for every optimizer step."""

    def __init__(
        self,
        run: Any,
        window: int = WINDOW,
        clock: Callable[[], float] = time.perf_counter,
        samples: float = 0,
        tokens: float = 0,
    ) -> None:
        """Record into `run`.

        Args:
            run: the run.
            window: steps that a rate is taken over.
            clock: seconds.
            samples: seen before, by an earlier attempt: the totals go on from there.
            tokens: seen before.
        """
        self._run, self._clock = run, clock
        self._loads: deque[Load] = deque(maxlen=max(1, window))
        self.samples_total, self.tokens_total = float(samples), float(tokens)
        self._samples: float | None = None
        self._tokens: Any = None
        self._places = 0.0
        self._batches = 0
        self._end: float | None = None
        self._pauses, self._paused, self._depth = 0.0, 0.0, 0

    def batch(self, samples: float | None = None, tokens: Any = None, places: float | None = None) -> None:
        """Count a batch that goes through the model in this step.

        Args:
            samples: in it; None if unknown.
            tokens: in it that are no padding: a number, or a tensor, which is not read here.
            places: for tokens, padding included.
        """
        if self._depth:  # a batch of an evaluation
            return
        self._batches += 1
        if samples is not None:
            self._samples = (self._samples or 0.0) + samples
        if tokens is not None:
            self._tokens = tokens if self._tokens is None else self._tokens + tokens
        if places is not None:
            self._places += places

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Leave out what happens inside: neither its time nor its batches are the training's."""
        if not self._depth:
            self._paused = self._clock()
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            if not self._depth:
                self._pauses += self._clock() - self._paused

    def step_end(self) -> dict[str, Any]:
        """End a step: record its rates, and return them. Rates that are not known are left out."""
        now = self._clock()
        row: dict[str, Any] = {}
        if self._tokens is not None:
            row["tokens"] = self._tokens
            if self._places:
                row["padding_ratio"] = 1 - self._tokens / self._places
        self.samples_total += self._samples or 0.0
        if isinstance(self._tokens, int | float):
            self.tokens_total += self._tokens
        if self._end is not None:
            seconds = max(0.0, now - self._end - self._pauses)
            self._loads.append(Load(seconds, self._samples, self._tokens, self._batches))
            row |= rates(list(self._loads))
        self._end, self._pauses, self._places, self._batches = now, 0.0, 0.0, 0
        self._samples = self._tokens = None
        if row and self._run.recording:
            self._run.log(row)
        return row

    def resumed(self) -> None:
        """Forget when the last step ended: the time until the next one is not the training's."""
        self._end, self._pauses = None, 0.0
        self._loads.clear()


def rates(loads: list[Load]) -> dict[str, Any]:
    """Return the rates over some steps; those of unknown amounts are left out."""
    row: dict[str, Any] = {}
    seconds = sum(load.seconds for load in loads)
    if seconds > 0:
        row["steps_per_second"] = len(loads) / seconds
        batches = sum(load.batches for load in loads)
        if batches > len(loads):
            row["microbatches_per_second"] = batches / seconds
    for name in ("samples", "tokens"):
        known = [load for load in loads if getattr(load, name) is not None]
        span = sum(load.seconds for load in known)
        if known and span > 0:
            row[f"{name}_per_second"] = sum(getattr(load, name) for load in known) / span
    return row
