"""How many samples and tokens a training takes in each second."""

from __future__ import annotations

import math
import time
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from stepscope.recorder.complaints import Complaints
from stepscope.trackers.metrics.scalar import DeviceScalar, host_number, take

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Number = float | int | DeviceScalar | None


class _Update(NamedTuple):
    seconds: float
    samples: Number
    tokens: Number


class ThroughputTracker:
    """Count what each update took in, over the time since the one before.

    The first update only starts the clock, unless `start()` did: how long its batch took nobody knows. Everything
    between two updates counts, evaluation too, except between `pause()` and `resume()`. A rate that is not known (yet)
    is NaN, never 0 or infinite. A count on a device is read when somebody asks.
    """

    def __init__(self, window_size: int = 100, *, clock: Callable[[], float] = time.perf_counter) -> None:
        """Take the current rate over the last `window_size` updates; `clock` in seconds, monotonic."""
        self.window_size = max(1, int(window_size))
        self._clock = clock
        self._window: deque[_Update] = deque(maxlen=self.window_size)
        self._mark: float | None = None
        self._paused: float | None = None
        self._away = 0.0
        self._notices = Complaints()
        self._elapsed = 0.0
        self._samples, self._tokens = _Total(), _Total()
        self.updates = 0
        """Updates whose time is known."""

    def start(self) -> None:
        """Start the clock now: then the first update counts too."""
        self._mark, self._away = self._clock(), 0.0

    def update(self, num_samples: object = None, num_tokens: object = None) -> None:
        """Say what was taken in since the update before."""
        now = self._clock()
        if self._paused is not None:
            self._away += now - self._paused
            self._paused = now
        mark, away = self._mark, self._away
        self._mark, self._away = now, 0.0
        samples, tokens = self._number(num_samples, "num_samples"), self._number(num_tokens, "num_tokens")
        if mark is None:
            return
        update = _Update(max(0.0, now - mark - away), samples, tokens)
        self._window.append(update)
        self._elapsed += update.seconds
        self._samples.add(update.seconds, samples)
        self._tokens.add(update.seconds, tokens)
        self.updates += 1

    def pause(self) -> None:
        """Leave out the time from here to `resume()`: an evaluation, a checkpoint."""
        if self._paused is None:
            self._paused = self._clock()

    def resume(self) -> None:
        """Count the time again."""
        if self._paused is not None:
            self._away += self._clock() - self._paused
            self._paused = None

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave out the time of a block."""
        self.pause()
        try:
            yield
        finally:
            self.resume()

    def get_current_throughput(self) -> dict[str, float]:
        """Return `samples_per_sec`, `tokens_per_sec` and `batches_per_sec` over the window; NaN where not known."""
        samples, tokens = _Total(), _Total()
        window = list(self._window)
        for update in window:
            samples.add(update.seconds, update.samples)
            tokens.add(update.seconds, update.tokens)
        return {
            "samples_per_sec": samples.rate(),
            "tokens_per_sec": tokens.rate(),
            "batches_per_sec": _ratio(len(window), sum(update.seconds for update in window)),
        }

    def get_average_throughput(self) -> dict[str, float]:
        """Return the same over all updates."""
        return {
            "samples_per_sec": self._samples.rate(),
            "tokens_per_sec": self._tokens.rate(),
            "batches_per_sec": _ratio(self.updates, self._elapsed),
        }

    def _number(self, value: object, name: str) -> Number:
        if value is None:
            return None
        number = take(value)
        if not isinstance(number, DeviceScalar) and (number is None or not math.isfinite(number) or number < 0):
            self._notices.say(name, f"cannot use {name}={value!r:.40}: it is no count; give a number, 0 or more")
            return None
        return number


class _Total:
    """A sum, and the time of the updates that had a count."""

    def __init__(self) -> None:
        self._seconds, self._sum = 0.0, 0.0
        self._waiting: list[DeviceScalar] = []
        self._known = False

    def add(self, seconds: float, number: Number) -> None:
        if number is None:
            return
        self._seconds += seconds
        self._known = True
        if isinstance(number, DeviceScalar):
            self._waiting.append(number)
            if len(self._waiting) >= 1024:  # joined where they lie: a number instead of a thousand
                self._waiting = _joined(self._waiting)
        else:
            self._sum += number

    def rate(self) -> float:
        waiting, self._waiting = self._waiting, []
        self._sum += sum(host_number(scalar.tensor) for scalar in waiting)
        return _ratio(self._sum, self._seconds) if self._known else math.nan


def _joined(scalars: list[DeviceScalar]) -> list[DeviceScalar]:
    whole = scalars[0].tensor.reshape(())
    for scalar in scalars[1:]:
        whole = whole + scalar.tensor.reshape(())
    return [DeviceScalar(whole)]


def _ratio(amount: float, seconds: float) -> float:
    """Return amount / seconds; NaN if no time has passed."""
    rate = amount / seconds if seconds > 0 else math.nan
    return rate if math.isfinite(rate) else math.nan
