"""Measure gradients while a model trains: their norm, tracked layers, problems, and how far a step moves the weights.

If the program clips, the norm comes from its own `clip_grad_norm_`: at every step, at no cost. Otherwise it is computed
just before the optimizer steps, every N steps and within a share of the time. Nothing here waits for a device or for
another rank. A missing gradient is recorded as absent, never as 0.
"""

from __future__ import annotations

import time
import weakref
from typing import TYPE_CHECKING, Any

import torch

from stepscope.integrations.numerics.cadence import Cadence
from stepscope.integrations.numerics.gradient_checks import LOCAL, NORM, GradientChecks
from stepscope.integrations.numerics.gradient_clips import Clip, Clips, Ids
from stepscope.integrations.numerics.gradient_norm import (
    LocalGradients,
    UpdateRatio,
    as_tensor,
    expected_seconds,
    gradients_of,
    local_part,
    norm_of,
    sampled,
)
from stepscope.integrations.numerics.models import ParameterNames
from stepscope.integrations.numerics.readback import Readback
from stepscope.integrations.torch.batch import on_host
from stepscope.integrations.torch.timeline import compiling
from stepscope.integrations.walls import Failures
from stepscope.recorder.clipping import ClipWatch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from stepscope.integrations.numerics.gradient_checks import SentNorms

UPDATES_EVERY = 10
"""The update ratio is measured this many times less often than the norm."""
HISTOGRAM_ELEMENTS, HISTOGRAM_TENSORS = 1 << 16, 512
"""Elements sampled from one tensor for its histogram, evenly spaced by rows, and maximum tensors of one request."""
PATIENCE = 3
"""Steps without a gradient before a report."""
SHARDING = "FullyShardedDataParallel"
"""The wrapper of FSDP 1: its gradients are shards that look like plain tensors."""


class HistogramRequest:
    """Sample the requested tensors at one optimizer step, and record them when they have arrived on the host."""

    def __init__(self, run: Any) -> None:
        self._run = run
        self.asked = False
        """Whether the next step is sampled."""
        self._flights: list[tuple[Readback[str], int | None]] = []

    def take(self, parameters: Sequence[Any], names: Sequence[str], parts: Sequence[str]) -> None:
        """Start the copies, named `parameters/<name>` and `gradients/<name>`; missing gradients are left out."""
        self.asked = False
        chosen = [
            (name, each)
            for name, each in zip(names, parameters, strict=True)
            if not parts or any(part in name for part in parts)
        ]
        for name, each in chosen[:HISTOGRAM_TENSORS]:
            self._send(f"parameters/{name}", each)
            if each.grad is not None:
                self._send(f"gradients/{name}", each.grad)

    def _send(self, name: str, tensor: Any) -> None:
        local, _ = local_part(tensor.detach())
        if local is None or not local.numel():
            return
        flight: Readback[str] = Readback()  # one each: more are on their way at once than a readback sends
        flight.send(sampled(local, HISTOGRAM_ELEMENTS), name)
        self._flights.append((flight, None))

    def record(self) -> None:
        """Record those that have arrived; called at the end of each step."""
        flights, self._flights = self._flights, []
        for flight, step in flights:
            at = self._run.step_index if step is None else step
            for host, name in flight.arrived():
                self._run.histogram(name, host, step=at)
            if len(flight):
                self._flights.append((flight, at))


class Gradients:
    """Measure gradients; the instrumentation calls `before_optimizer`, `after_optimizer` and `step_end`."""

    def __init__(
        self,
        run: Any,
        every: int = 10,
        layers: Sequence[str] = (),
        clock: Callable[[], float] = time.perf_counter,
        budget: float | None = 0.003,
        readback: Readback[SentNorms] | None = None,
    ) -> None:
        """Record into `run`: if the program does not clip, at most every `every` steps and for `budget` of the time.

        Layers whose names contain one of `layers` are tracked; "" tracks all. A `budget` of None is no limit; `clock`
        returns seconds; `readback` copies values from a device.
        """
        self._run = run
        self._cadence = Cadence(every, budget, clock)
        self._updates_cadence = Cadence(every * UPDATES_EVERY, budget, clock)
        self._parts, self._names = tuple(layers), ParameterNames()
        self._checks = GradientChecks(run, self._names, self._parts, readback)
        self._updates, self._histograms, self._clips = UpdateRatio(), HistogramRequest(run), Clips()
        self._optimizers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._due: bool | None = None
        self._row: dict[str, Any] = {}
        self._interval = self._absent = 0
        self._since: int | None = None
        self._metrics: dict[int, str] = {}
        """Metric of each clipping call by the number of its parameters; empty if several have as many."""
        self.listening = True
        """Whether unexamined steps record the norm of the program's clipping."""
        self.looking = True
        """Whether this step is examined."""
        self._copying = 0.0
        self._sharded = False
        self._watch: ClipWatch | None = None
        self.failures = Failures(run, "gradients")

    def attach(self, *models: Any) -> None:
        """Learn the names of the models' parameters, and watch the program's clipping."""
        for model in models:
            self._names.add(model)
            self._sharded = self._sharded or any(type(part).__name__ == SHARDING for part in model.modules())
        if self._watch is None:
            self._watch = ClipWatch(self, torch)

    def request_histograms(self) -> None:
        """Request histograms of the tracked layers (of all layers, if none is tracked) at the next optimizer step."""
        self._histograms.asked = True

    def clipped(self, norm: Any, parameters: Any = None, *, limit: Any = None, euclidean: bool = True) -> None:
        """Receive the norm of gradients that the program scales down to `limit`.

        No `parameters` means all, which is ignored once `attach` watches the clipping. If `norm` is not the 2-norm
        (`euclidean`), the gradients must not have been scaled yet.
        """
        if self._is_off() or (parameters is None and self._watch is not None):
            return
        try:  # not a context manager, which costs 0.2 µs: this runs in every step
            members = [parameters] if isinstance(parameters, torch.Tensor) else parameters
            if not self.looking:
                metric = self._metrics.get(len(members or ())) if self.listening and euclidean else None
                if metric:
                    self._run.log({metric: on_host(norm)})
                return
            due = not euclidean and self._is_due(members or [])
            self._clips.add(norm, members, limit, euclidean=euclidean, due=due)
        except Exception as error:  # noqa: BLE001 - any tensor subclass may raise anything; it is reported
            self.failures.add(error)

    def before_optimizer(self, optimizer: Any) -> None:
        """Measure the gradients as the optimizer is about to use them."""
        if self._is_off() or not self.looking:
            return
        with self.failures:
            groups = [group["params"] for group in optimizer.param_groups]
            parameters = groups[0] if len(groups) == 1 else [each for group in groups for each in group]
            if parameters:
                self._before(optimizer, parameters)

    def after_optimizer(self, optimizer: Any = None) -> None:  # noqa: ARG002 - the signature of the hook
        """Compare the weights with the sample from before the step, if there is one."""
        if self.failures.over or not self._updates.has_sample:
            return
        with self.failures:
            start = self._updates_cadence.start()
            self._row["update_ratio"] = self._updates.after()
            self._updates_cadence.stop(start, self._copying)

    def skip(self, count: int) -> None:
        """Count steps that have ended."""
        self._cadence.step(count)
        self._updates_cadence.step(count)
        self._since = None if self._since is None else self._since + count

    def step_end(self, step: int | None = None) -> None:
        """Record what was measured; `step` is the index of the step, None for the current one."""
        if self.failures.over:
            return
        self.after_optimizer()
        with self.failures:
            if self._row:
                self._run.log({name: on_host(value) for name, value in self._row.items()}, step=step)
            self._checks.step_end(step)
            self._histograms.record()
        self.skip(1)
        self._clips.clear()
        self._row, self._due = {}, None

    def close(self) -> None:
        """Stop watching the clipping, and check what arrives soon."""
        if self._watch is not None:
            self._watch.close()
            self._watch = None
        with self.failures:
            self._checks.close()

    def _is_off(self) -> bool:
        """Return whether nothing may be measured now: given up, not recording, compiling or capturing a graph."""
        return (
            self.failures.over
            or not self._run.recording
            or compiling()
            or (torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing())
        )

    def _is_due(self, parameters: Sequence[Any]) -> bool:
        """Return whether this step is measured; decided once per step."""
        if self._due is None:
            self._due = self._cadence.due(0.0 if self._cadence.is_priced else expected_seconds(parameters))
        return self._due

    def _before(self, optimizer: Any, parameters: list[Any]) -> None:
        number = self._optimizers.setdefault(optimizer, len(self._optimizers))
        name = f"{NORM}/optimizer_{number}" if number else NORM
        ids = self._clips.ids(parameters)
        clip = self._clips.covering(ids)
        if clip is not None:
            if clip.norm is not None and not clip.recorded:
                self._from_clip(clip, parameters, name)
        elif self._is_due(parameters):
            self._measure(parameters, name, getattr(optimizer, "grad_scale", None), self._clips.touching(ids))
        if self._is_due(parameters) and self._updates_cadence.due():
            start = self._updates_cadence.start()
            self._updates.before(parameters)
            self._copying = self._updates_cadence.start() - start
        if self._histograms.asked:
            self._histograms.take(parameters, self._names.of(parameters), self._parts)

    def _from_clip(self, clip: Clip, parameters: list[Any], name: str) -> None:
        """Record the norm of the program's clipping; the tracked layers are measured if due."""
        clip.recorded = True
        metric, size = self._metric(name, complete=clip.complete), len(clip.ids)
        norm = self._row[metric] = on_host(clip.norm)
        self._metrics[size] = metric if self._metrics.get(size, metric) == metric else ""
        self._record_interval(1)
        if self._is_due(parameters):
            start = self._cadence.start()
            found = gradients_of(parameters) if self._parts else LocalGradients([], [], complete=True)
            self._checks.send(norm, metric, found, parameters, clip.coefficient)
            self._cadence.stop(start, found.device_seconds)

    def _measure(self, parameters: list[Any], name: str, scale: Any, clips: dict[Ids, Clip]) -> None:
        """Compute the norm; clipped parameters contribute the norm from before they were scaled."""
        start = self._cadence.start()
        clipped: Ids = frozenset().union(*clips)
        norms = [clip.norm for clip in clips.values()]
        if any(norm is None for norm in norms) or sum(map(len, clips)) > len(clipped):
            return  # clipped by another norm, or twice: their original values are unknown
        found = gradients_of([each for each in parameters if id(each) not in clipped] if clipped else parameters)
        if found.tensors:
            own = norm_of(found.tensors)
            norms.append(own if scale is None else own / scale)
        if not norms:
            self._report_absent()
            return
        self._absent = 0
        total = on_host(norms[0] if len(norms) == 1 else norm_of([as_tensor(norm) for norm in norms]))
        metric = self._metric(name, complete=found.complete and all(clip.complete for clip in clips.values()))
        self._row[metric] = total
        self._checks.send(total, metric, found, parameters, scale)
        self._cadence.stop(start, found.device_seconds)
        if self._since:
            self._record_interval(self._since)
        self._since = 0

    def _metric(self, name: str, *, complete: bool) -> str:
        return name if complete and not self._sharded else name.replace(NORM, LOCAL, 1)

    def _record_interval(self, interval: int) -> None:
        """Record the steps between two norms if that has changed."""
        if interval != self._interval:
            self._interval = interval
            self._row["grad_norm_interval"] = interval

    def _report_absent(self) -> None:
        self._absent += 1
        if self._absent == PATIENCE:
            self._run.own_event(
                "gradient_unavailable",
                cause="no parameter of the optimizer has a gradient at its step: they were cleared, or never computed",
                remedy="call optimizer.step() after backward() and before zero_grad(set_to_none=True)",
            )
