"""Log the metrics of steps to a run, at once or in batches."""

from __future__ import annotations

import atexit
import threading
import time
from collections import deque
from typing import TYPE_CHECKING

from stepscope.core.native_thread import start_without_signals
from stepscope.trackers.metrics.recent_values import held
from stepscope.trackers.monitor.training_metrics import CustomMetrics

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from typing_extensions import Self

    from stepscope.trackers.logged_run import LoggedRun
    from stepscope.trackers.monitor.training_metrics import TrainingMetrics

STOP_SECONDS = 0.2
"""How long `stop` waits for the flushing thread."""


class MetricsCollector:
    """Buffer the metrics of steps and write them to a run.

    A buffered step is lost if the process is killed, and its time in the run is that of the flush (each row therefore
    has a `timestamp`); `buffer_size=1` writes each step at once. Without a run the newest `buffer_size` steps are kept.
    Safe to use from several threads.
    """

    def __init__(
        self,
        run: LoggedRun | None = None,
        *,
        buffer_size: int = 1000,
        flush_interval: float = 10.0,
        custom_metrics: Mapping[str, Callable[..., object]] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Write to `run`, which may be set later, in batches of `buffer_size` steps.

        The buffer is written every `flush_interval` seconds at the latest; 0 or less means at every step. The functions
        in `custom_metrics` are called once per step.
        """
        self.run = run
        self.buffer_size = max(1, int(buffer_size))
        self.flush_interval = float(flush_interval)
        self.custom = CustomMetrics(custom_metrics)
        self.collected, self.flushed, self.dropped = 0, 0, 0
        """Steps taken in; written to the run; dropped because there is no run or another thread held the lock."""
        self._clock = clock
        self._last_flush = clock()
        self._buffer: deque[TrainingMetrics] = deque()
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def __len__(self) -> int:
        """Count the steps that wait in the buffer."""
        return len(self._buffer)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self.stop()

    def collect(self, metrics: TrainingMetrics) -> TrainingMetrics:
        """Add one step, with its custom metrics, and return it."""
        self.custom.add_to(metrics)
        with held(self._lock) as is_held:
            if not is_held:
                self.dropped += 1
                return metrics
            self.collected += 1
            self._buffer.append(metrics)
            if self._due():
                self._write()
            while len(self._buffer) > self.buffer_size:
                self._buffer.popleft()
                self.dropped += 1
        return metrics

    def flush(self) -> int:
        """Write the buffered steps; return how many there were."""
        with held(self._lock) as is_held:
            return self._write() if is_held else 0

    def flush_if_due(self) -> int:
        """Write the buffered steps if the interval has passed; return how many there were."""
        return self.flush() if self._buffer and self._due() else 0

    def start(self) -> None:
        """Start a thread that writes at every interval, so that the last steps of a stalled loop are written."""
        if self.buffer_size == 1 or self.flush_interval <= 0 or (self._thread is not None and self._thread.is_alive()):
            return
        self._stopping.clear()
        self._thread = threading.Thread(target=self._watch, name="stepscope-collector", daemon=True)
        start_without_signals(self._thread)
        atexit.register(self.stop)

    def stop(self) -> None:
        """Write the buffered steps and end the thread. It can be started again."""
        self._stopping.set()
        thread, self._thread = self._thread, None
        if thread is not None:
            atexit.unregister(self.stop)
            thread.join(STOP_SECONDS)
        self.flush()

    def _watch(self) -> None:
        while not self._stopping.wait(self.flush_interval):
            self.flush_if_due()

    def _due(self) -> bool:
        return len(self._buffer) >= self.buffer_size or self._clock() - self._last_flush >= self.flush_interval

    def _write(self) -> int:
        """Write the buffer; the caller holds the lock."""
        self._last_flush = self._clock()
        if self.run is None:
            return 0
        written = len(self._buffer)
        while self._buffer:
            metrics = self._buffer.popleft()
            values = metrics.to_run()
            if self.buffer_size > 1 and metrics.timestamp is not None:
                values["timestamp"] = metrics.timestamp
            self.run.log(values, step=metrics.step)
        self.flushed += written
        return written
