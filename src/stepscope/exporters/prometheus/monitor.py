"""Prometheus metrics from inside a program, under compatible names, as objects of `prometheus_client`."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import choose_encoder

from stepscope.core.errors import StepscopeError
from stepscope.core.gpu_memory import by_gpu, index_of
from stepscope.core.native_thread import start_without_signals
from stepscope.core.vocabulary import MIB
from stepscope.exporters.prometheus.names import BUCKETS, DOCUMENTED, DURATION, STEPS
from stepscope.exporters.prometheus.server import Endpoint
from stepscope.recorder.complaints import Complaints, tell

if TYPE_CHECKING:
    from collections.abc import Iterable

    from prometheus_client.metrics_core import Metric
    from typing_extensions import Self

WAKE_SECONDS = 0.2
"""Time between two checks whether the endpoint was closed."""
FAMILIES = {target.family: target for targets in DOCUMENTED.values() for target in targets}
"""Every gauge with a compatible name."""


class SetGauge(Gauge):
    """A gauge that is absent until it is set: 0 would be wrong."""

    is_set = False

    def set(self, value: float) -> None:
        """Set the value."""
        self.is_set = True
        super().set(value)

    def inc(self, amount: float = 1) -> None:
        """Add to the value, which starts at 0."""
        self.is_set = True
        super().inc(amount)

    def dec(self, amount: float = 1) -> None:
        """Subtract from the value, which starts at 0."""
        self.is_set = True
        super().dec(amount)

    def set_function(self, f: Any) -> None:
        """Ask a function for the value at every scrape."""
        self.is_set = True
        super().set_function(f)

    def collect(self) -> Iterable[Metric]:
        """Return the gauge, or nothing if it is not set; a gauge with labels has a child for each label in use."""
        families = list(super().collect())
        return families if self.is_set or any(sample.labels for one in families for sample in one.samples) else []


class PrometheusMonitor:
    """Serve metrics for Prometheus on a port. Each monitor has its own registry, so several can coexist.

    The attributes are metrics of `prometheus_client`, to be set, increased and observed directly. A port that is taken
    is no error: the next free one is used, and `port` says which. If none can be had, the metrics still count.
    """

    def __init__(self, port: int = 8000, host: str = "127.0.0.1", *, token: str | None = None) -> None:
        """Make the metrics and serve them, on the first free port from `port` on; 0 is any.

        An address that is not loopback requires a token, which Prometheus sends as its credentials.
        """
        self.registry = CollectorRegistry()
        self.gauges: dict[str, Gauge] = {
            name: SetGauge(name, target.help, [label for label, _ in target.labels], registry=self.registry)
            for name, target in FAMILIES.items()
        }
        """The gauges by name, as in `gauges["learning_rate"].set(3e-4)`."""
        self.training_loss, self.gpu_memory = self.gauges["training_loss"], self.gauges["gpu_memory_mb"]
        self.cpu_usage = self.gauges["cpu_usage_percent"]
        self.training_steps = Counter(STEPS.family, STEPS.help, registry=self.registry)
        self.training_time = Histogram(DURATION.family, DURATION.help, buckets=BUCKETS, registry=self.registry)
        self._notices = Complaints()
        # Built once: `update_metrics` runs in every step.
        self._taking = self._notices.shield("value", "take a value for Prometheus", "it is left out")
        self.refused = 0
        """Values that are not numbers, and were left out."""
        self.problem = ""
        """Why nothing is served, if so."""
        self._endpoint: Endpoint | None = None
        self._serve(host, port, token)

    @property
    def port(self) -> int | None:
        """The port in use; None if no port was free, and after `close`."""
        return None if self._endpoint is None else self._endpoint.port

    @property
    def url(self) -> str | None:
        """Where the page is; None if it is not served."""
        return None if self._endpoint is None else f"http://{self._endpoint.target}/metrics"

    def update_metrics(self, loss: Any, gpu_metrics: Any, cpu_percent: Any, step_duration: Any) -> None:
        """Add one step, with its duration in seconds. A value that is not a number is left out and counted.

        `gpu_metrics` has `memory_allocated` of each GPU in MiB, as in `monitor_resources()["gpu_metrics"]` (its key is
        the label), or memory in any other accepted shape (the index is the label).
        """
        self.training_steps.inc()
        self._take(self.training_loss.set, loss)
        self._take(self.cpu_usage.set, cpu_percent)
        self._take(self.training_time.observe, step_duration)
        for gpu, mebibytes in _memory_of(gpu_metrics).items():
            self._take(self.gpu_memory.labels(gpu_id=gpu).set, mebibytes)

    def close(self) -> None:
        """Stop serving. May be called again."""
        endpoint, self._endpoint = self._endpoint, None
        if endpoint is not None:
            self._stop.set()
            self._thread.join(5.0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        """Stop serving."""
        self.close()

    def _take(self, put: Any, value: Any) -> None:
        if value is not None:
            self.refused += 1
            with self._taking:
                put(float(value))
                self.refused -= 1

    def _page(self, accept: str) -> tuple[str, bytes]:
        encode, kind = choose_encoder(accept)
        return kind, encode(self.registry)

    def _serve(self, host: str, port: int, token: str | None) -> None:
        try:
            endpoint = Endpoint(self._page, host=host, port=port, token=token)
        except StepscopeError as error:
            self.problem = str(error)
            tell(self.problem)
            return
        if port not in {0, endpoint.port}:
            tell(f"port {port} is taken; metrics are on http://{endpoint.target}/metrics")
        self._endpoint, self._stop = endpoint, threading.Event()
        self._thread = threading.Thread(target=_keep_serving, args=(endpoint, self._stop), daemon=True)
        self._thread.name = "stepscope-prometheus"
        start_without_signals(self._thread)
        os.register_at_fork(after_in_child=partial(_leave, weakref.ref(endpoint)))


def _memory_of(gpu_metrics: Any) -> dict[str, float]:
    """Return MiB by label: what the allocator has given out, else what is in use."""
    keys = {index_of(key): str(key) for key in gpu_metrics} if isinstance(gpu_metrics, Mapping) else {}
    found = {}
    for index, memory in by_gpu(gpu_metrics).items():
        size = memory.in_use if memory.allocated is None else memory.allocated
        if size is not None:
            found[keys.get(index, str(index))] = size / MIB
    return found


def _keep_serving(endpoint: Endpoint, stop: threading.Event) -> None:
    while not stop.is_set():
        endpoint.poll(WAKE_SECONDS)
    endpoint.close()


def _leave(ours: weakref.ref[Endpoint]) -> None:
    """Close the port in a forked child, which would keep it in use after its parent has ended."""
    endpoint = ours()
    if endpoint is not None:
        endpoint.close()
