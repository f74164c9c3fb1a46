"""Gradients while a model trains: their norm, the tracked layers, what is wrong with them, and how far a step moves.

The norm comes from the program's own `clip_grad_norm_` where it clips: at every step, for nothing. Else it is taken by
torch's foreach path just before the optimizer steps, every N steps and within a share of the time. Nothing here waits
for a device or for another rank. Gradients that are not there are absent, never 0.
"""

from __future__ import annotations

import time
import weakref
from typing import TYPE_CHECKING, Any

import torch

from stepscope.integrations.numerics.cadence import Cadence
from stepscope.integrations.numerics.gradient_clips import Clip, Clips, Ids
from stepscope.integrations.numerics.gradient_norm import Held, as_tensor, expected_seconds, gradients_of, norm_of
from stepscope.integrations.numerics.gradient_verdicts import LOCAL, NORM, Verdicts
from stepscope.integrations.numerics.histograms import HistogramRequest
from stepscope.integrations.numerics.models import ParameterNames
from stepscope.integrations.numerics.updates import UpdateRatio
from stepscope.integrations.torch.timeline import compiling
from stepscope.integrations.walls import Failures
from stepscope.recorder.clipping import ClipWatch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from stepscope.integrations.numerics.gradient_verdicts import Measured
    from stepscope.integrations.numerics.readback import Readback

UPDATES_EVERY = 10
"""The update ratio is taken so many times less often than the norm."""
PATIENCE = 3
"""Steps without a gradient before a report."""
SHARDING = "FullyShardedDataParallel"
"""The wrapper of FSDP 1: its gradients are shards that look like plain tensors."""


class Gradients:
    """Measure gradients; the instrumentation calls `before_optimizer`, `after_optimizer` and `step_end`."""

    def __init__(
        self,
        run: Any,
        every: int = 10,
        layers: Sequence[str] = (),
        clock: Callable[[], float] = time.perf_counter,
        budget: float | None = 0.003,
        readback: Readback[Measured] | None = None,
    ) -> None:
        """Record into `run`.

        Args:
            run: the run.
            every: steps between two norms at least, where the program does not clip.
            layers: parts of the names of the layers to track; without any none is tracked, with "" all are.
            clock: seconds.
            budget: share of the training's time to spend at most; None for no limit.
            readback: how values come from a device.
        """
        self._run = run
        self._cadence = Cadence(every, budget, clock)
        self._updates_cadence = Cadence(every * UPDATES_EVERY, budget, clock)
        self._parts, self._names = tuple(layers), ParameterNames()
        self._verdicts = Verdicts(run, self._names, self._parts, readback)
        self._updates, self._histograms, self._clips = UpdateRatio(), HistogramRequest(run), Clips()
        self._optimizers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._due: bool | None = None
        self._row: dict[str, Any] = {}
        self._interval = self._absent = 0
        self._since: int | None = None
        self._told: dict[int, str] = {}
        self.listening = True
        """Whether the norm is taken from the program's clipping in steps that are not looked at."""
        self.looking = True
        """Whether this step may be measured."""
        self._copying = 0.0
        self._sharded = False
        self._watch: ClipWatch | None = None
        self.failures = Failures(run, "gradients")

    def attach(self, *models: Any) -> None:
        """Learn the parameters' names from models, and listen to the program's clipping."""
        for model in models:
            self._names.add(model)
            self._sharded = self._sharded or any(type(part).__name__ == SHARDING for part in model.modules())
        if self._watch is None:
            self._watch = ClipWatch(self, torch)

    def request_histograms(self, *, parameters: bool = True, gradients: bool = True) -> None:
        """Ask for histograms of the tracked layers (of all, if none is tracked) at the next optimizer step."""
        self._histograms.ask(parameters=parameters, gradients=gradients)

    def clipped(self, norm: Any, parameters: Any = None, *, limit: Any = None, euclidean: bool = True) -> None:
        """Take the norm that the program's clipping has computed.

        Args:
            norm: of the gradients, before they were scaled.
            parameters: whose gradients they are; None for all, which is passed over where `attach` listens itself.
            limit: what they are scaled down to.
            euclidean: whether it is the 2-norm; if not, the gradients must not have been scaled yet.
        """
        if self._is_off() or (parameters is None and self._watch is not None):
            return
        try:  # not a context manager, which costs 0.2 µs: this runs in every step
            members = [parameters] if isinstance(parameters, torch.Tensor) else parameters
            if not self.looking:
                metric = self._told.get(len(members or ())) if self.listening and euclidean else None
                if metric:
                    self._run.log({metric: _on_host(norm)})
                return
            due = not euclidean and self._is_due(members or [])
            self._clips.add(norm, members, limit, euclidean=euclidean, due=due)
        except Exception as error:  # noqa: BLE001 - any tensor subclass may raise anything; it is reported
            self.failures.add(error)

    def before_optimizer(self, optimizer: Any) -> None:
        """Measure: the gradients are there, and as the optimizer will see them."""
        if self._is_off() or not self.looking:
            return
        with self.failures:
            groups = [group["params"] for group in optimizer.param_groups]
            parameters = groups[0] if len(groups) == 1 else [each for group in groups for each in group]
            if parameters:
                self._before(optimizer, parameters)

    def after_optimizer(self, optimizer: Any = None) -> None:  # noqa: ARG002 - the shape of before_optimizer
        """Compare the weights with what they were, if this step is measured."""
        if self.failures.over or not self._updates.holds:
            return
        with self.failures:
            start = self._updates_cadence.start()
            self._row["update_ratio"] = self._updates.after()
            self._updates_cadence.stop(start, self._copying)

    def skip(self, count: int) -> None:
        """Count steps that were skipped."""
        self._cadence.step(count)
        self._updates_cadence.step(count)
        self._since = None if self._since is None else self._since + count

    def step_end(self, step: int | None = None) -> None:
        """Record what was measured; `step` is the index of the step, None for the one that the run is in."""
        if self.failures.over:
            return
        self.after_optimizer()
        with self.failures:
            if self._row:
                self._run.log({name: _on_host(value) for name, value in self._row.items()}, step=step)
            self._verdicts.step_end(step)
            self._histograms.record()
        self._cadence.step()
        self._updates_cadence.step()
        self._since = None if self._since is None else self._since + 1
        self._clips.clear()
        self._row, self._due = {}, None

    def close(self) -> None:
        """Stop listening, and record what is still on its way if it comes soon."""
        if self._watch is not None:
            self._watch.close()
            self._watch = None
        with self.failures:
            self._verdicts.close()

    def _is_off(self) -> bool:
        """Return whether nothing may be measured now: given up, not recording, or a graph is being made."""
        return (
            self.failures.over
            or not self._run.recording
            or compiling()
            or (torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing())
        )

    def _is_due(self, parameters: Sequence[Any]) -> bool:
        """Return whether this step is measured; it is decided once."""
        if self._due is None:
            self._due = self._cadence.due(0.0 if self._cadence.is_priced else expected_seconds(parameters))
        return self._due

    def _before(self, optimizer: Any, parameters: list[Any]) -> None:
        name = self._name(optimizer)
        ids = self._clips.ids(parameters)
        clip = self._clips.covering(ids)
        if clip is not None:
            if clip.norm is not None and self._clips.use(ids):
                self._from_clip(clip, parameters, name)
                self._remember(self._metric(name, whole=clip.whole), self._clips.size(ids))
        elif self._is_due(parameters):
            self._measure(parameters, name, getattr(optimizer, "grad_scale", None), self._clips.touching(ids))
        if self._is_due(parameters) and self._updates_cadence.due():
            start = self._updates_cadence.start()
            self._updates.before(parameters)
            self._copying = self._updates_cadence.start() - start
        if self._histograms.asked:
            self._histograms.take(parameters, self._names.of(parameters), self._parts)

    def _remember(self, metric: str, size: int) -> None:
        """Know a clipping again by the number of its parameters, if no other one has as many."""
        self._told[size] = metric if self._told.get(size, metric) == metric else ""

    def _from_clip(self, clip: Clip, parameters: list[Any], name: str) -> None:
        """Take the norm from the program's clipping; the layers, which it does not tell, are measured if due."""
        metric = self._metric(name, whole=clip.whole)
        norm = self._row[metric] = _on_host(clip.norm)
        self._say_interval(1)
        if self._is_due(parameters):
            start = self._cadence.start()
            found = gradients_of(parameters) if self._parts else Held([], [], whole=True)
            self._verdicts.send(norm, metric, found, parameters, clip.coefficient)
            self._cadence.stop(start, found.seconds_elsewhere)

    def _measure(self, parameters: list[Any], name: str, scale: Any, clips: dict[Ids, Clip]) -> None:
        """Take the norm ourselves; the program has told that of what it has clipped, and those are scaled by now."""
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
            self._say_absent()
            return
        self._absent = 0
        total = _on_host(norms[0] if len(norms) == 1 else norm_of([as_tensor(norm) for norm in norms]))
        metric = self._metric(name, whole=found.whole and all(clip.whole for clip in clips.values()))
        self._row[metric] = total
        self._verdicts.send(total, metric, found, parameters, scale)
        self._cadence.stop(start, found.seconds_elsewhere)
        if self._since:
            self._say_interval(self._since)
        self._since = 0

    def _name(self, optimizer: Any) -> str:
        """Return what the norm of an optimizer's gradients is called: the first one's has the plain name."""
        number = self._optimizers.setdefault(optimizer, len(self._optimizers))
        return f"{NORM}/optimizer_{number}" if number else NORM

    def _metric(self, name: str, *, whole: bool) -> str:
        return name if whole and not self._sharded else name.replace(NORM, LOCAL, 1)

    def _say_interval(self, interval: int) -> None:
        """Record how often the norm is taken, when that changes."""
        if interval != self._interval:
            self._interval = interval
            self._row["grad_norm_interval"] = interval

    def _say_absent(self) -> None:
        self._absent += 1
        if self._absent == PATIENCE:
            self._run.own_event(
                "gradient_unavailable",
                cause="no parameter of the optimizer has a gradient at its step: they were cleared, or never computed",
                remedy="call optimizer.step() after backward() and before zero_grad(set_to_none=True)",
            )


def _on_host(value: Any) -> Any:
    """Return a number for a tensor on the host, which the recorder takes faster; one on a device stays as it is."""
    return value.item() if isinstance(value, torch.Tensor) and value.device.type == "cpu" else value
