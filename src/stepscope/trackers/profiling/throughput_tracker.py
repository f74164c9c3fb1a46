"""Samples and tokens that a training processes per second."""

from __future__ import annotations

import math
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from stepscope.integrations.throughput import Load, StepClock, Totals
from stepscope.recorder.complaints import Complaints
from stepscope.trackers.metrics.scalar import DeviceScalar, host_number, scalar_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager


class ThroughputTracker:
    """Measure samples and tokens per second between updates.

    The first update only starts the clock, unless `start()` did: the duration of its batch is unknown. All time
    between two updates counts, also evaluation, except between `pause()` and `resume()`. A rate that is unknown is
    NaN, never 0 or infinite. A count on a device is read when a rate is asked for.
    """

    def __init__(self, window_size: int = 100, *, clock: Callable[[], float] = time.perf_counter) -> None:
        """Take the current rate over the last `window_size` updates; `clock` in seconds, monotonic."""
        self.window_size = max(1, int(window_size))
        self._clock = StepClock(clock)
        self._window: deque[Load] = deque(maxlen=self.window_size)
        self._all = Totals()
        self._notices = Complaints()

    def start(self) -> None:
        """Start the clock now, so that the first update counts too."""
        self._clock.start()

    def update(self, num_samples: object = None, num_tokens: object = None) -> None:
        """Count what was processed since the previous update."""
        seconds = self._clock.step()
        samples, tokens = self._number(num_samples, "num_samples"), self._number(num_tokens, "num_tokens")
        if seconds is not None:
            load = Load(seconds, samples, tokens)
            self._window.append(load)
            self._all.add(load)

    def pause(self) -> None:
        """Leave out the time from here to `resume()`, such as an evaluation or a checkpoint."""
        self._clock.pause()

    def resume(self) -> None:
        """Count the time again."""
        self._clock.resume()

    def paused(self) -> AbstractContextManager[None]:
        """Leave out the time of a block."""
        return self._clock.paused()

    def get_current_throughput(self) -> dict[str, float]:
        """Return `samples_per_sec`, `tokens_per_sec` and `batches_per_sec` over the window; NaN where unknown."""
        return _rates(Totals(self._window))

    def get_average_throughput(self) -> dict[str, float]:
        """Return the same over all updates."""
        return _rates(self._all)

    def _number(self, value: object, name: str) -> Any:
        number = None if value is None else scalar_of(value)
        if isinstance(number, DeviceScalar):
            return number.tensor.reshape(())
        if value is not None and (number is None or not math.isfinite(number) or number < 0):
            self._notices.say(name, f"cannot use {name}={value!r:.40}: it is not a count; give a number, 0 or more")
            return None
        return number


def _rates(totals: Totals) -> dict[str, float]:
    rates = {f"{name}_per_sec": totals.rate(name) for name in ("samples", "tokens")}
    rates["batches_per_sec"] = totals.steps / totals.seconds if totals.seconds > 0 else None
    return {name: math.nan if rate is None else float(host_number(rate)) for name, rate in rates.items()}
