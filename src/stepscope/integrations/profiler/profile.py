"""Profile some steps of a training with torch's profiler: a Chrome trace under the run, and the slowest operations.

This module adds the schedule and the size limits to torch's profiler, and keeps its errors from the training: an error
is reported once and ends the profile. It never imports torch.
"""

from __future__ import annotations

import sys
import time
import warnings
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from threading import get_ident
from typing import TYPE_CHECKING, Any

from stepscope.core.errors import in_words
from stepscope.core.walls import wall
from stepscope.integrations.profiler.operations import Operation, read, summarise
from stepscope.integrations.profiler.trace_file import MAX_BYTES, TraceFile, expected_bytes, keep
from stepscope.recorder.complaints import Complaints, tell
from stepscope.session.requests import STARTED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from contextlib import AbstractContextManager

    from typing_extensions import Self

    from stepscope.session.run import Run

FOLDER = "profiles"
"""The folder for traces in a run."""
MAX_EVENTS = 400_000
"""Maximum events that are summarized, about 7 µs each; of more, only the first."""
MAX_LISTED = 100
"""Maximum operations in the event of a profile: an event holds 32 KiB."""
NO_TORCH = "torch is not loaded in this process; import it first"
KIND = PHASE = "profile"
"""Kind of the result's event, and the phase for the time of starting, stopping and writing."""


@dataclass(frozen=True)
class ProfileOptions:
    """What to profile. All are keyword arguments of `Profile`, `EpochProfiles` and `run.profile`."""

    steps: int = 20
    """Steps to record."""
    wait: int = 0
    """Steps to skip first."""
    warmup: int = 3
    """Steps after that whose results are discarded: the profiler's first steps are slow."""
    activities: tuple[str, ...] = ("cpu", "cuda")
    """Of "cpu", "cuda", "xpu" …; those that this machine or torch does not have are skipped."""
    record_shapes: bool = False
    with_stack: bool = False
    memory: bool = False
    """Record allocations."""
    top: int = 5
    """Operations to list."""
    export: bool = True
    """Write the Chrome trace."""
    max_bytes: int = MAX_BYTES
    """Size limit of the trace; a larger one is compressed, and left out if it is still too large."""
    seconds: float = 60.0
    """Recording ends with the step that exceeds this time: until then everything is kept in memory."""

    def checked(self) -> ProfileOptions:
        """Return the options with `activities` in lower case; wrong ones raise TypeError or ValueError."""
        if self.steps < 1 or min(self.wait, self.warmup, self.top) < 0:
            raise ValueError("steps must be 1 or more, wait, warmup and top 0 or more")
        given: Any = self.activities
        words = [given] if isinstance(given, str) else list(given)
        return replace(self, activities=tuple(str(word).lower() for word in words))


@dataclass(frozen=True)
class ProfileResult:
    """What a profile found."""

    name: str
    steps: int = 0
    """Recorded steps; fewer than requested if the profile ended early."""
    first_step: int | None = None
    last_step: int | None = None
    seconds: float = 0.0
    """Duration of these steps under the profiler, which slows them down."""
    clock: str = "host"
    """The clock that measured the operations: "device" if anything ran on one."""
    operation_seconds: float = 0.0
    """Own time of all operations together."""
    operations: tuple[Operation, ...] = ()
    """The slowest operations, by own time."""
    trace: str | None = None
    """The Chrome trace, for ui.perfetto.dev or chrome://tracing."""
    trace_bytes: int = 0
    notes: tuple[str, ...] = ()
    """What differs from the request, and why."""
    error: str = ""
    """Why there is no result; empty if there is one."""

    def lines(self) -> list[str]:
        """Return what the console shows: the slowest operations, and the notes."""
        if self.error:
            return [f"Profiler: {self.error}"]
        lines = [f"Profiler: Top {len(self.operations)} slowest operations:"] if self.operations else []
        lines += [operation.line(place) for place, operation in enumerate(self.operations, 1)]
        return lines + [f"Profiler: {note}" for note in self.notes]


class Profile:
    """One profile: `start()`, then `step()` after each step; it ends by itself, or with `stop()`.

    Also a context manager. Every method must be called by the thread that trains; none raises.
    """

    def __init__(
        self,
        folder: str | Path,
        name: str = "chrome_trace",
        *,
        run: Run | None = None,
        show: Callable[[str], None] | None = tell,
        labels: Mapping[str, Any] | None = None,
        clock: Callable[[], float] = time.monotonic,
        modules: Mapping[str, Any] = sys.modules,
        **options: Any,
    ) -> None:
        """Prepare; nothing happens before `start`. Wrong options raise TypeError or ValueError.

        Args:
            folder: folder of the trace.
            name: name of the trace, without its suffix.
            run: receives the result as an event, and the time of profiling as a phase.
            show: receives the lines of the result; None for silence.
            labels: further fields of the event.
            clock: returns seconds, monotonic.
            modules: loaded modules by name, with torch.
            **options: see `ProfileOptions`.
        """
        self.options = ProfileOptions(**options).checked()
        self.result: ProfileResult | None = None
        """Set when the profile has ended."""
        self._folder, self._name, self._run = Path(folder), name, run
        self._show, self._labels, self._clock, self._modules = show, dict(labels or {}), clock, modules
        self._profiler: Any = None
        self._thread = self._passed = self._recorded = 0
        self._began = 0.0
        """Start of the first recorded step; seconds, monotonic."""
        self._first_step: int | None = None
        self._collected_seconds: float | None = None
        """Duration of the recorded steps, once they have ended."""
        self._notes: list[str] = []
        self.active = False
        """Whether the profile has started and not ended."""

    def start(self) -> bool:
        """Start; return whether that was possible. A profile that has ended does not start again."""
        if self.active or self.result is not None:
            return self.active
        self.active, self._thread = True, get_ident()
        if not self.options.wait:
            self._guard("start", self._begin)
        return self.active

    def step(self) -> None:
        """Count a step that has ended."""
        if self.active and get_ident() == self._thread:
            self._passed += 1
            self._guard("go on with", self._advance)

    def stop(self) -> ProfileResult | None:
        """End now with the steps so far; return the result, None if the profile never started."""
        if self.active:
            if get_ident() == self._thread:
                self._guard("stop", self._end)
            else:
                self._fail("it was stopped by another thread than the one that started it")
        return self.result

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _guard(self, verb: str, work: Callable[[], None]) -> None:
        """Do some work in our phase; any exception ends the profile and does not reach the training."""
        phase: AbstractContextManager[Any] = nullcontext() if self._run is None else self._run.phase(PHASE)
        with wall(lambda error: self._fail(f"cannot {verb} the profile: {in_words(error)}"[:500])), phase:
            work()

    def _begin(self) -> None:
        torch: Any = self._modules.get("torch")
        profiling = getattr(torch, "profiler", None)
        if profiling is None:
            self._fail(NO_TORCH)
            return
        is_recording = getattr(torch.autograd, "_profiler_enabled", None)  # on this thread
        if is_recording is not None and is_recording():
            self._fail("another profiler of torch is running; stop it first")
            return
        options = self.options
        supported = {str(item).rpartition(".")[2].lower(): item for item in profiling.supported_activities()}
        activities = [supported[word] for word in options.activities if word in supported]
        if not activities:
            self._fail(f"torch cannot profile {', '.join(options.activities)} here; try activities=['cpu']")
            return
        if "cpu" in options.activities and "cpu" not in supported:
            self._notes.append("torch cannot profile the processor here")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a missing warm-up was requested
            plan = profiling.schedule(wait=0, warmup=options.warmup, active=options.steps, repeat=1)
        self._profiler = profiling.profile(
            activities=activities,
            schedule=plan,
            record_shapes=options.record_shapes,
            profile_memory=options.memory,
            with_stack=options.with_stack,
        )
        self._profiler.start()
        self._began = self._clock()
        if not options.warmup:
            self._first_step = self._next_step()

    def _advance(self) -> None:
        options = self.options
        if self._passed <= options.wait:
            if self._passed == options.wait:
                self._begin()
            return
        now = self._clock()
        done = self._passed - options.wait - options.warmup
        if done >= options.steps:
            self._collect(now, options.steps)
        self._profiler.step()
        if done >= options.steps:
            self._end()
        elif done == 0:
            self._began, self._first_step = self._clock(), self._next_step()
        elif done > 0 and now - self._began > options.seconds:
            self._notes.append(f"ended after {options.seconds:g} s, its limit")
            self._end()

    def _collect(self, now: float, steps: int) -> None:
        if self._collected_seconds is None:
            self._collected_seconds, self._recorded = now - self._began, steps

    def _next_step(self) -> int | None:
        return None if self._run is None else self._run.step_index + 1

    def _end(self) -> None:
        options = self.options
        profiler, self._profiler = self._profiler, None
        self._collect(self._clock(), max(0, self._passed - options.wait - options.warmup))
        if profiler is None:
            self._fail("it ended before its first step")
            return
        profiler.stop()
        if not self._recorded:
            self._fail(f"it ended after {self._passed} steps, before the first recorded one; profile longer")
            return
        if self._recorded < options.steps:
            self._notes.append(f"it has {self._recorded} of {options.steps} steps")
        self._finish(self._collected(profiler))

    def _collected(self, profiler: Any) -> ProfileResult:
        raw = profiler.profiler.kineto_results.events()
        notes = list(self._notes)
        if len(raw) > MAX_EVENTS:
            notes.append(f"operations are those of the first {MAX_EVENTS} of {len(raw)} events")
        found = summarise(read(raw[:MAX_EVENTS]))
        trace = self._trace(profiler, len(raw))
        notes += [trace.note] if trace.note else []
        first = self._first_step
        return ProfileResult(
            name=self._name,
            steps=self._recorded,
            first_step=first,
            last_step=None if first is None else first + self._recorded - 1,
            seconds=self._collected_seconds or 0.0,
            clock=found.clock,
            operation_seconds=found.seconds,
            operations=tuple(found.operations[: self.options.top]),
            trace=None if trace.path is None else str(trace.path),
            trace_bytes=trace.size,
            notes=tuple(notes),
        )

    def _trace(self, profiler: Any, events: int) -> TraceFile:
        if not self.options.export:
            return TraceFile(None)
        expected = expected_bytes(events, shapes=self.options.record_shapes, stacks=self.options.with_stack)
        try:
            return keep(profiler.export_chrome_trace, self._path(), expected, self.options.max_bytes)
        except (OSError, RuntimeError) as error:  # the operations are still useful
            return TraceFile(None, 0, f"cannot write the trace: {error}; the operations are kept")

    def _path(self) -> Path:
        """Return the path of the trace, which replaces one of the same name."""
        return self._folder / f"{self._name}.json"

    def _fail(self, cause: str) -> None:
        profiler, self._profiler = self._profiler, None
        causes = [cause]
        if profiler is not None and get_ident() == self._thread:
            with wall(lambda error: causes.append(f"(and it did not stop: {type(error).__name__})")):
                profiler.stop()
        self._finish(ProfileResult(self._name, notes=tuple(self._notes), error=" ".join(causes)))

    def _finish(self, result: ProfileResult) -> None:
        self.active, self.result = False, result
        with Complaints().shield("report", "report a profile"):
            if self._run is not None:
                trace = result.trace
                if trace is not None and Path(trace).is_relative_to(self._run.path):  # the run's folder may be moved
                    trace = str(Path(trace).relative_to(self._run.path))
                recorded = replace(result, trace=trace, operations=result.operations[:MAX_LISTED])
                self._run.own_event(KIND, **asdict(recorded), **self._labels)
            if self._show is not None:
                for line in result.lines():
                    self._show(line)


class EpochProfiles:
    """Profiles of some epochs, one trace each: `chrome_trace_epoch_<n>`."""

    def __init__(self, folder: str | Path, epochs: Iterable[int], **options: Any) -> None:
        """Profile the epochs of these numbers; wrong `options` of `Profile` raise TypeError or ValueError."""
        self.epochs = frozenset(epochs)
        self.results: dict[int, ProfileResult] = {}
        """The results by epoch."""
        self._make: Callable[[str], Profile] = lambda name: Profile(folder, name, **options)
        self._make("")  # wrong options are reported now, not in the middle of a training
        self._current: tuple[int, Profile] | None = None

    def begin(self, epoch: int) -> None:
        """Begin an epoch."""
        self.end()
        if epoch in self.epochs:
            self._current = epoch, self._make(f"chrome_trace_epoch_{epoch}")
            self._current[1].start()

    def step(self) -> None:
        """Count a step that has ended."""
        if self._current is not None:
            self._current[1].step()

    def end(self) -> ProfileResult | None:
        """End the epoch; return its result."""
        if self._current is None:
            return None
        epoch, profile = self._current
        self._current = None
        result = profile.stop()
        if result is not None:
            self.results[epoch] = result
        return result


class RunProfile(Profile):
    """A profile that follows the steps of a run: it starts when the current step has ended."""

    def __init__(self, run: Run, **options: Any) -> None:
        super().__init__(run.path / FOLDER, "", run=run, **options)
        self._followed = run

    @classmethod
    def refused(cls, run: Run, cause: str, **options: Any) -> RunProfile:
        """Return a profile that has ended already, for this reason."""
        profile = cls(run, **options)
        profile._fail(cause)
        return profile

    def step_ended(self) -> None:
        """Start, or count a step; the run calls this after each step."""
        if self.result is None and not self.active:
            first = self._followed.step_index + 1 + self.options.wait + self.options.warmup
            self._name = f"rank{self._followed.rank}-attempt{self._followed.attempt}-step{first}"
            if self._labels:  # a command waits for the start
                self._followed.own_event(STARTED, **self._labels)
            self.start()
        else:
            self.step()

    def run_ended(self) -> None:
        """End with the steps so far; the run calls this before it ends."""
        if self.result is None and not self.active:
            self._fail("the run ended before a step did")
        self.stop()

    def __enter__(self) -> Self:
        """Return the profile, which starts by itself."""
        return self

    def __exit__(self, *_: object) -> None:
        self.run_ended()

    def _finish(self, result: ProfileResult) -> None:
        self._followed.unfollow(self)
        super()._finish(result)

    def _path(self) -> Path:
        """Return a new path: a run keeps all of its traces."""
        path, number = super()._path(), 1
        while path.exists() or path.with_name(f"{path.name}.gz").exists():
            number += 1
            path = self._folder / f"{self._name}-{number}.json"
        return path


def profile_run(run: Run, steps: int = 20, /, **options: Any) -> RunProfile:
    """Profile the next `steps` steps of a run; `options` are those of `ProfileOptions` and `Profile`. Never raises.

    The result is recorded as an event, shown on stderr and kept in `result`. In a run that records nothing, nothing
    is profiled.
    """
    labelled = {name: options[name] for name in ("labels", "show") if name in options}
    if not isinstance(labelled.get("labels"), dict):
        labelled.pop("labels", None)
    try:
        profile = RunProfile(run, steps=steps, **options)
    except (TypeError, ValueError) as error:
        return RunProfile.refused(run, f"cannot profile: {error}; see docs/reference/profiling.md", **labelled)
    if not run.recording:
        return profile
    if "torch" not in sys.modules:
        return RunProfile.refused(run, NO_TORCH, **labelled)
    if any(isinstance(other, RunProfile) for other in run.followers):
        return RunProfile.refused(run, "the profile before is still under way; wait for its end", **labelled)
    run.follow(profile)
    return profile
