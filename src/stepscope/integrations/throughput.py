"""Throughput of a training: samples, tokens, batches and steps per second.

Definitions, for one rank (the rate of a job is the sum over its ranks):

- a *step* is an optimizer step; all batches that were accumulated for it belong to it.
- its *time* lasts from the end of the previous step to its own end, without `paused` blocks (evaluation, saving).
- a rate is the sum of samples (or tokens …) of the last `window` steps divided by the sum of their times. It is never a
  mean of rates, so a short last batch counts by its size. Steps whose samples are unknown are left out of both sums.
- *tokens* exclude padding, where the caller knows it; `padding_ratio` is the rest.
- the first step of an attempt has no known start: it counts in the totals but in no rate. So start-up, compilation and
  the batches that a resumed job skips do not distort a rate.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

WINDOW = 20


class Load(NamedTuple):
    """What one step processed, and its duration."""

    seconds: float
    samples: Any = None
    tokens: Any = None
    """A number, or a tensor that may be on a device; None if unknown."""
    batches: int = 1


class Totals:
    """Sums over steps. Amounts may be tensors: they are added on their device, and never read here."""

    def __init__(self, loads: Iterable[Load] = ()) -> None:
        self.steps, self.batches, self.seconds = 0, 0, 0.0
        self._sums: dict[str, tuple[Any, float]] = {}
        for load in loads:
            self.add(load)

    def add(self, load: Load) -> None:
        """Add a step; amounts that are None are unknown."""
        self.steps += 1
        self.batches += load.batches
        self.seconds += load.seconds
        for name, amount in (("samples", load.samples), ("tokens", load.tokens)):
            if amount is not None:
                known, seconds = self._sums.get(name, (None, 0.0))
                self._sums[name] = amount if known is None else known + amount, seconds + load.seconds

    def rate(self, name: str) -> Any:
        """Return samples or tokens per second, over the steps whose amount is known; None if there is none."""
        amount, seconds = self._sums.get(name, (0, 0.0))
        return amount / seconds if seconds > 0 else None

    def rates(self) -> dict[str, Any]:
        """Return the rates that are known."""
        row: dict[str, Any] = {}
        if self.seconds > 0:
            row["steps_per_second"] = self.steps / self.seconds
            if self.batches > self.steps:
                row["microbatches_per_second"] = self.batches / self.seconds
        named = {f"{name}_per_second": self.rate(name) for name in ("samples", "tokens")}
        return row | {name: rate for name, rate in named.items() if rate is not None}


class StepClock:
    """The time from the end of one step to the end of the next, without pauses; `clock` in seconds, monotonic."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._end: float | None = None
        self._pause: float | None = None
        self._paused = 0.0

    @property
    def is_paused(self) -> bool:
        """Whether the clock is paused."""
        return self._pause is not None

    def start(self) -> None:
        """Begin a step now; the time before it does not count."""
        self._end, self._paused = self._clock(), 0.0

    def forget(self) -> None:
        """Forget when the last step ended: the duration of the next one is unknown."""
        self._end, self._paused = None, 0.0

    def pause(self) -> None:
        """Pause the clock: what follows is not training."""
        if self._pause is None:
            self._pause = self._clock()

    def resume(self) -> None:
        """Let the clock run again."""
        if self._pause is not None:
            self._paused += self._clock() - self._pause
            self._pause = None

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Pause the clock for a block; blocks may be nested."""
        outer = self.is_paused
        self.pause()
        try:
            yield
        finally:
            if not outer:
                self.resume()

    def step(self) -> float | None:
        """End a step; return its seconds, None if its start is unknown."""
        now, end = self._clock(), self._end
        if self._pause is not None:
            self._paused += now - self._pause
            self._pause = now
        seconds = None if end is None else max(0.0, now - end - self._paused)
        self._end, self._paused = now, 0.0
        return seconds


class Throughput:
    """Record the throughput of a run: `batch` for every batch, `step_end` for every optimizer step."""

    def __init__(
        self,
        run: Any,
        window: int = WINDOW,
        clock: Callable[[], float] = time.perf_counter,
        samples: float = 0,
        tokens: float = 0,
    ) -> None:
        """Record into `run` the rates over the last `window` steps; `clock` returns seconds.

        The totals continue from the `samples` and `tokens` of earlier attempts.
        """
        self._run, self._clock = run, StepClock(clock)
        self._loads: deque[Load] = deque(maxlen=max(1, window))
        self.samples_total, self.tokens_total = float(samples), float(tokens)
        self._samples: float | None = None
        self._tokens: Any = None
        self._places, self._batches = 0.0, 0

    def batch(self, samples: float | None = None, tokens: Any = None, places: float | None = None) -> None:
        """Count a batch of this step; None means unknown.

        `tokens` without padding are a number, or a tensor, which is not read here; `places` include padding.
        """
        if self._clock.is_paused:  # a batch of an evaluation
            return
        self._batches += 1
        if samples is not None:
            self._samples = (self._samples or 0.0) + samples
        if tokens is not None:
            self._tokens = tokens if self._tokens is None else self._tokens + tokens
        if places is not None:
            self._places += places

    def paused(self) -> contextlib.AbstractContextManager[None]:
        """Exclude a block: neither its time nor its batches count."""
        return self._clock.paused()

    def step_end(self) -> dict[str, Any]:
        """End a step: record its rates, and return them. Unknown rates are left out."""
        seconds = self._clock.step()
        row: dict[str, Any] = {}
        if self._tokens is not None:
            row["tokens"] = self._tokens
            if self._places:
                row["padding_ratio"] = 1 - self._tokens / self._places
        self.samples_total += self._samples or 0.0
        if isinstance(self._tokens, int | float):
            self.tokens_total += self._tokens
        if seconds is not None:
            self._loads.append(Load(seconds, self._samples, self._tokens, self._batches))
            row |= Totals(self._loads).rates()
        self._samples, self._tokens, self._places, self._batches = None, None, 0.0, 0
        if row and self._run.recording:
            self._run.log(row)
        return row

    def resumed(self) -> None:
        """Forget when the last step ended: the time until the next one is not training."""
        self._clock.forget()
        self._loads.clear()
