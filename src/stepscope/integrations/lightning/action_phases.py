"""Phases of a Lightning trainer, from the actions that it reports to its profiler by name."""

from __future__ import annotations

from array import array
from collections import defaultdict
from time import monotonic_ns
from typing import TYPE_CHECKING, Any

from stepscope.recorder.complaints import Complaints

if TYPE_CHECKING:
    from collections.abc import Callable

ENDINGS = {
    ".train_dataloader_next": "data",
    ".on_before_batch_transfer": "transform",
    ".on_after_batch_transfer": "transform",
    ".batch_to_device": "copy",
    ".training_step": "forward",
    ".backward": "backward",
    ".optimizer_step": "optimizer",
    ".lr_scheduler_step": "optimizer",
}
NAMED = {"save_checkpoint": "checkpoint", "run_training_epoch": "framework"}
"""`run_training_epoch` contains all other actions: its own time is that of Lightning's loop."""
INSIDE = (".optimizer_zero_grad", ".transfer_batch_to_device", ".configure_gradient_clipping")
"""Actions nested inside others of the same phase."""
PAUSES = {"evaluation", "checkpoint"}
"""Phases that are not training and do not count in the throughput."""
TIMED = PAUSES | {"data", "transform"}
"""Phases whose durations are kept here too."""
HOOKS = {"hooks", "callbacks", "transform"}
"""Phases of hooks, most of which are the empty ones of Lightning's base classes."""
SILENT = "PassThroughProfiler"
"""Lightning's profiler that does nothing, which need not be called."""

MOST_DURATIONS = 1 << 15
"""Values kept; of more, every second one is dropped, and from then on only every second one is added."""


def phase_of(action: str) -> str | None:
    """Return the phase of an action of the trainer; None for an action without a phase of its own."""
    if action in NAMED:
        return NAMED[action]
    if action.startswith("[Callback]"):
        # Our callbacks open phases that outlive the hook, so they must not be inside a phase.
        return None if "MonitorCallback" in action or "ProfilerCallback" in action else "callbacks"
    if action.endswith(INSIDE):
        return None
    found = next((phase for ending, phase in ENDINGS.items() if action.endswith(ending)), None)
    return "hooks" if found is None and action.startswith(("[LightningModule]", "[LightningDataModule]")) else found


class Durations:
    """Durations in nanoseconds."""

    def __init__(self, kept: int = MOST_DURATIONS) -> None:
        self.count = 0
        self.total = 0
        """Sum in ns, of all of them."""
        self._kept, self._stride, self._values = kept, 1, array("q")

    def add(self, nanoseconds: int) -> None:
        """Add a duration."""
        if self.count % self._stride == 0:
            self._values.append(nanoseconds)
            if len(self._values) >= self._kept:
                self._values, self._stride = self._values[::2], self._stride * 2
        self.count += 1
        self.total += nanoseconds

    def milliseconds(self) -> dict[str, float]:
        """Return avg, p50, p95 and p99 in ms (percentiles of the kept values); empty without any."""
        if not self.count:
            return {}
        ordered = sorted(self._values)
        shares = {"p50": 0.50, "p95": 0.95, "p99": 0.99}
        places = {name: min(len(ordered) - 1, int(share * len(ordered))) for name, share in shares.items()}
        return {"avg": self.total / self.count / 1e6, **{name: ordered[at] / 1e6 for name, at in places.items()}}


class ActionSpan:
    """The context of one action, in its phase `name` (None: in none)."""

    __slots__ = ("_actions", "_name")

    def __init__(self, actions: ActionPhases, name: str | None) -> None:
        self._actions, self._name = actions, name

    def __enter__(self) -> None:
        if self._name is not None:
            self._actions.begin(self._name)

    def __exit__(self, *_: object) -> None:
        if self._name is not None:
            self._actions.leave(self._name)


class ActionPhases:
    """Charge a trainer's actions to the phases of a run, through any profiler."""

    def __init__(
        self,
        phase: Callable[[str], Any],
        clock: Callable[[], int] = monotonic_ns,
        is_empty: Callable[[str], bool] = lambda _action: False,
    ) -> None:
        """Open phases with `phase`; `clock` is monotonic, in ns.

        `is_empty` returns whether an action only calls an empty hook; it is called once per action.
        """
        self._phase, self._clock, self._is_empty = phase, clock, is_empty
        self._notices = Complaints()
        self._contexts: dict[str, Any] = {}
        self._spans: dict[str, ActionSpan] = {}
        self._begun: list[tuple[str, int, bool]] = []
        self._pauses = 0
        self._paused_at = 0
        self.paused_ns = 0
        """Time outside training in ns, since the start."""
        self.waits: defaultdict[str, Durations] = defaultdict(Durations)
        """Durations of the phases "data" and "transform" since `forget`."""
        self.starting_ns = 0
        """Time in which loaders started their workers in ns, since `forget`."""
        self.transform_ns = 0
        """Time in the phase "transform" in ns, since the start."""
        self._profiler: Any = None
        self.active = False
        """Whether training has begun; earlier phases belong to no step."""

    def attach(self, profiler: Any) -> None:
        """Listen to a profiler, which keeps working."""
        begin, end = self.begin_action, self.end_action
        inner_start, inner_stop = profiler.start, profiler.stop

        def start(action_name: str) -> None:
            inner_start(action_name)
            begin(action_name)

        def stop(action_name: str) -> None:
            end(action_name)
            inner_stop(action_name)

        self._profiler = profiler
        if type(profiler).__name__ == SILENT:
            profiler.start, profiler.stop, profiler.profile = begin, end, self.span
        else:
            profiler.start, profiler.stop = start, stop

    def detach(self) -> None:
        """Restore the profiler's methods. May be called again."""
        profiler, self._profiler, self.active = self._profiler, None, False
        if profiler is not None:
            for name in ("start", "stop", "profile"):
                vars(profiler).pop(name, None)
        while self._begun:
            self.leave(self._begun[-1][0])

    def span(self, action: str) -> ActionSpan:
        """Return the context of an action."""
        span = self._spans.get(action)
        if span is None:
            name = phase_of(action)
            span = self._spans[action] = ActionSpan(self, None if name in HOOKS and self._skips(action) else name)
        return span

    def _skips(self, action: str) -> bool:
        with self._notices.shield("hooks", "inspect the program's hooks"):
            return self._is_empty(action)
        return False

    def begin_action(self, action: str) -> None:
        """Open the phase of an action."""
        self.span(action).__enter__()

    def end_action(self, action: str) -> None:
        """Close the phase of an action."""
        self.span(action).__exit__()

    def charged(self, name: str, function: Callable[..., Any], *, waits: bool = True) -> Callable[..., Any]:
        """Return a function whose time is charged to phase `name`, except during an evaluation.

        In the phase "data", `waits` says whether a call is the wait for one batch.
        """

        def call(*args: Any, **kwargs: Any) -> Any:
            if self._pauses or not self.active:
                return function(*args, **kwargs)
            self.enter(name, waits=waits)
            try:
                return function(*args, **kwargs)
            finally:
                self.leave(name)

        return call

    def begin(self, name: str) -> None:
        """Open the phase of an action; not before the training, and in a pause only another pause."""
        if self.active and (not self._pauses or name in PAUSES):
            self.enter(name)

    def enter(self, name: str, *, waits: bool = True) -> None:
        """Open a phase; `waits` as in `charged`."""
        context = self._contexts.get(name)
        if context is None:
            context = self._contexts[name] = self._phase(name)
        context.__enter__()
        if name not in TIMED:
            self._begun.append((name, 0, waits))
            return
        now = self._clock()
        self._begun.append((name, now, waits))
        if name in PAUSES:
            self._pauses += 1
            if self._pauses == 1:
                self._paused_at = now

    def leave(self, name: str) -> None:
        """Close a phase if it is the innermost open one."""
        if not self._begun or self._begun[-1][0] != name:
            return
        self._contexts[name].__exit__(None, None, None)
        _, begun, waits = self._begun.pop()
        if name in TIMED:
            self._count(name, begun, self._clock(), waits=waits)

    def _count(self, name: str, begun: int, now: int, *, waits: bool) -> None:
        if name == "data" and waits:
            self.waits[name].add(now - begun)
        elif name == "data":
            self.starting_ns += now - begun
        elif name == "transform":
            self.transform_ns += now - begun
        else:
            self._pauses -= 1
            if self._pauses == 0:
                self.paused_ns += now - self._paused_at

    def forget(self) -> None:
        """Reset the durations for a new epoch."""
        self.waits.clear()
        self.starting_ns = 0

    @property
    def waited_seconds(self) -> float:
        """Seconds spent waiting for data since `forget`, including the start of workers."""
        return (self.waits["data"].total + self.starting_ns) / 1e9
