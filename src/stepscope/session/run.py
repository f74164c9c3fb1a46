"""The run object that a training script holds."""

from __future__ import annotations

import os
import sys
import time
import traceback  # at the top: an import at exit would change the exit code of a Ctrl-C
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.core import ring
from stepscope.core.coordinates import BY_HAND, PLACED, dimension_of
from stepscope.core.endings import end_of
from stepscope.core.errors import in_words
from stepscope.core.events import USER, WRITTEN_BY
from stepscope.core.places import HELD
from stepscope.core.provided import provided
from stepscope.core.spawn import SpawnError
from stepscope.recorder.automatic import make_step
from stepscope.recorder.complaints import Complaints, tell
from stepscope.recorder.hotpath import Recorder
from stepscope.recorder.intake import Intake
from stepscope.recorder.mapping import Mapping
from stepscope.session import card
from stepscope.session.console import capture
from stepscope.session.histogram import describe_array

if TYPE_CHECKING:
    from typing_extensions import Self

    from stepscope.recorder.automatic import StepFollower
    from stepscope.recorder.declarations import Declarations, Layout
    from stepscope.session.answering import Answering
    from stepscope.session.console import ConsoleCapture
    from stepscope.session.stacks import Stacks
    from stepscope.session.watching import Watch

SETTLE_SECONDS = 0.2
"""Maximum wait at the end of a run for values that are still on a device."""
RETIRE_SECONDS = 0.05
"""Maximum wait at the end of a run for another thread's row."""
END_SECONDS = 0.4
"""Maximum wait at the end of a run for the watcher to drain the last row."""
OVERHEAD_BUDGET = 0.01
"""Default share of a step that the instrumentation may cost."""


class Run(Recorder):
    """A run being recorded; also a context manager. Every call is safe at any time, in any state."""

    _intake: Intake

    def __init__(
        self,
        mapping: Mapping,
        intake: Intake,
        *,
        run_id: str = "",
        path: Path | None = None,
        name: str = "",
        project: str = "",
        rank: int = 0,
        attempt: int = 0,
        watch: Watch | None = None,
    ) -> None:
        """Wrap a ring; use `stepscope.init`, which creates one."""
        super().__init__(mapping, intake)
        self.id, self.name, self.project = run_id, name, project
        self.path = path or Path()
        self.rank, self.attempt = rank, attempt
        self._mapping, self._watch = mapping, watch
        self.declarations: Declarations | None = None
        """The names in its ring."""
        self.stacks: Stacks | None = None
        """The handler that dumps this process's stacks for the watcher, if there is one."""
        self.answering: Answering | None = None
        """The thread that does so where that is safer."""
        self.instrument: Any = None
        """The framework hooks of this run, with `watch(*objects)` and `detach()`."""
        self.overhead_budget = OVERHEAD_BUDGET
        self.watched: dict[str, Any] = {}
        """Which numbers `watch` measures; see `integrations.numerics`."""
        self.may_catch = True
        """Whether `catch` may record what the script hands to other trackers."""
        self.catching: Any = None
        """What does so, with `detach()`."""
        self.console: ConsoleCapture | None = None
        """What keeps the lines that this process prints."""
        self.console_bytes = 0
        """Maximum bytes of these lines in the run; 0 if none are to be kept."""
        self.is_launched = False
        """Whether `stepscope run` started it."""
        self._pid = os.getpid()
        self._ends = [True]
        self.followers: tuple[StepFollower, ...] = ()
        """Notified when a step has ended; see `follow`."""

    @classmethod
    def off(cls, reason: str = "") -> Run:
        """Return a run that records nothing; `reason` is printed once on stderr."""
        if reason:
            tell(reason)
        return cls(Mapping.scratch(), Intake(None, Complaints()))

    def event(self, kind: str, **fields: Any) -> None:
        """Record an event: a kind and any fields that JSON can hold; `step=` assigns it to a step.

        An event with the name of one of Stepscope's own stays yours: it is listed, and no conclusion is drawn from it.
        """
        own = {f"{key}_" if key == WRITTEN_BY else key: value for key, value in fields.items()}
        self.own_event(kind, **own, **{WRITTEN_BY: USER})

    def own_event(self, kind: str, **fields: Any) -> None:
        """Record what Stepscope itself observed; like `event`, for our own integrations."""
        step = self._intake.step(self, fields.pop("step", None))
        at = self.step_index if step is None else step
        self._intake.event(self, {"kind": kind, **fields}, at, time.monotonic_ns())

    def place(self, **coordinates: int) -> None:
        """Say where this rank is in its job, such as `run.place(data=3, tensor=1)`, where Stepscope cannot know.

        Views of ranks group by these names. With torch's device mesh or Megatron it is recorded by itself.
        """
        given: dict[str, Any] = coordinates
        known = {dimension_of(name): at for name, at in given.items() if isinstance(at, int)}
        if len(known) < len(coordinates):
            self._intake.count(self, "place", "cannot place this rank: a coordinate is no whole number; pass integers")
        self.own_event(PLACED, coordinates=known, source=BY_HAND)

    def histogram(self, name: str, values: Any, step: int | None = None, bins: int = 64) -> None:
        """Record the distribution of the values of an array (or tensor).

        The array is read during the call: for an array on a device, that waits for the device.
        """
        if not self.recording:
            return
        try:
            fields = describe_array(values, bins)
        except Exception as error:  # noqa: BLE001 - an array type may raise anything on conversion; it is counted
            cause = in_words(error, 200)
            self._intake.count(self, "histogram", f"cannot take the histogram of {name!r}: {cause}; pass an array")
            return
        self.own_event("histogram", step=step, name=name, **fields)

    def watch(self, *objects: Any) -> None:
        """Instrument torch: record every step and its phases from now on. Pass models and optimizers made before.

        See docs/reference/torch.md for what is measured. `stepscope run script.py` needs no change to the script.
        """
        self.catch()
        if not self.recording:
            return
        if "torch" not in sys.modules:
            tell("cannot watch: torch is not imported; import it first, or use run.step and run.phase")
            return
        try:
            if self.instrument is None:
                self.instrument = provided("instrument")(self, self.overhead_budget, **self.watched)
            self.instrument.watch(*objects)
        except Exception as error:  # noqa: BLE001 - an unusual torch must not stop the training; it is reported
            cause = in_words(error, 300)
            tell(f"cannot watch: {cause}; use run.step and run.phase, or another version of torch")

    def catch(self) -> None:
        """Also record what the script hands to other trackers, from now on, unless `recorder.catch` is false."""
        if not (self.recording and self.may_catch) or self.catching is not None:
            return
        try:
            self.catching = provided("catch")(self)
        except Exception as error:  # noqa: BLE001 - a tracker of any version must not stop the training; it is reported
            tell(f"cannot catch what other trackers are handed: {in_words(error, 300)}; set recorder.catch to false")

    def keep_console(self) -> None:
        """Also keep what this process prints, from now on, unless `recorder.console` is false. Never raises."""
        if not self.recording or not self.console_bytes or self.console is not None:
            return
        try:
            self.console = capture(str(self.path), self.rank, self.attempt, self.console_bytes)
        except (OSError, SpawnError) as error:  # the program prints as it did, and the run says why it has no lines
            self.own_event("console_off", cause=str(error))

    def _unwatch(self, error: object) -> None:
        parts = (self.catching, self.instrument)
        instrument, self.catching, self.instrument = self.instrument, None, None
        try:
            if instrument is not None and isinstance(error, BaseException):
                instrument.failed(error)
            for part in parts:
                if part is not None:
                    part.detach()
        except Exception as second:  # noqa: BLE001 - the end of a run must not stop the program; it is reported
            tell(f"cannot end the instrumentation: {in_words(second)}; the run ends without it")

    def profile(self, /, steps: int = 20, **options: Any) -> Any:
        """Profile the next `steps` steps with torch's profiler: a trace in the run's folder, the slowest operations.

        Starts after the current step, and stops by itself; never raises. Returns a `Profile` (see
        docs/reference/profiling.md for its options), also a context manager, whose `result` is set when it has ended.
        """
        return provided("profile")(self, steps, **options)

    def follow(self, follower: StepFollower) -> None:
        """Call `follower.step_ended()` after each step, from the next one on, until `unfollow`."""
        self.followers = (*self.followers, follower)
        self._step = make_step(self, self.followers)

    def unfollow(self, follower: StepFollower) -> None:
        """Stop calling `follower`; an unknown one is ignored."""
        self.followers = tuple(other for other in self.followers if other is not follower)
        self._step = make_step(self, self.followers)

    def check_watcher(self) -> None:
        """Print the watcher's messages, and start a new one if it is gone; for a program that writes by `write_at`."""
        self._intake.look(self._words, time.monotonic_ns())

    def layout(self, names: tuple[str, ...]) -> Layout:
        """Return how `write_at` writes rows of floats under these names; raises like `Declarations.layout`."""
        assert self.declarations is not None  # noqa: S101 - a run that records has them
        return self.declarations.layout(names, "d" * len(names)) or self.declarations.pairs(names)

    def finish(self, error: BaseException | None = None) -> None:
        """End the run, as failed if an error is given; returns within about half a second in any case."""
        if not self.recording or self._pid != os.getpid():
            return
        if self.stop(error, ring.STATE_FINISHED):
            self.let_go(time.monotonic() + END_SECONDS)
            self.say_farewell(end_of(error))
        else:
            deadline = time.monotonic() + SETTLE_SECONDS + RETIRE_SECONDS
            while time.monotonic() < deadline and self.recording:  # until the thread that ends the run has done so
                time.sleep(0.002)

    def stop(self, error: object, state: int) -> bool:
        """Write the last rows and stop recording; `state`, from core.ring, is the end if there was no error.

        Returns False if another thread is doing so already.
        """
        try:
            self._ends.pop()
        except IndexError:
            return False
        try:
            self._wind_up(error, state)
        except BaseException:
            self._ends.append(True)  # an interrupt: the exit of the process ends the run
            raise
        return True

    def _wind_up(self, error: object, state: int) -> None:
        self._unwatch(error)
        if self.console is not None and not self.is_launched:
            self.console.release()
        for follower in self.followers:
            follower.run_ended()
        if isinstance(error, BaseException):
            state = ring.STATE_FAILED
            trace = "".join(traceback.format_exception(type(error), error, error.__traceback__))
            self.own_event("exception", error=in_words(error, 2000), traceback=trace[-16000:])
        deadline = time.monotonic() + SETTLE_SECONDS
        while self._intake.settle(self) and time.monotonic() < deadline:
            time.sleep(0.002)
        self._intake.close(self)
        self._retire(state)

    def let_go(self, deadline: float) -> None:
        """Wait until the watcher has drained the last row or `deadline` (monotonic seconds); then release the ring."""
        while not self._mapping.words[ring.WORD_ENDED] and time.monotonic() < deadline:
            time.sleep(0.002)
        self._intake.hear(self._mapping.words)
        self._tell_losses()
        is_read = self._watch is not None and not self._watch.stop()
        if self._mapping.path is not None and not is_read:  # opening it again would release the reader's lock
            HELD.discard(self._mapping.path)
        if self.stacks is not None:
            self.stacks.unregister()
        if self.answering is not None:
            self.answering.stop()
        self._mapping.close()

    def _tell_losses(self) -> None:
        overflow, self.overflow = self.overflow, None
        if overflow is None or self._mapping.path is None:
            return
        lost = overflow.lost()
        if lost:
            tell(overflow.loss(lost))
        overflow.close()

    def _retire(self, state: int) -> None:
        """Stop recording: a thread that is writing completes its row, later calls do nothing."""
        if self.overflow is not None:
            self.overflow.is_closing = True
        deadline = time.monotonic() + RETIRE_SECONDS
        while not self._tokens and time.monotonic() < deadline:
            time.sleep(0.0002)
        self.recording, self._tokens = False, []
        self._mapping.words[ring.WORD_STATE] = state
        self._leave()

    def say_farewell(self, end: str) -> None:
        """Print the summary of the run, on a terminal; `end` says how it ended, empty if unknown."""
        name, steps = self.name or self.id, self.step_index + 1
        card.show(self.path, name, steps, end, rank=self.rank, launched=self.is_launched)

    def disarm(self) -> None:
        """Stop recording in this process, and touch nothing that a parent shares with us (after a fork)."""
        self.recording, self._tokens = False, []
        self.followers, self._step = (), make_step(self, ())
        self._intake.disarm()
        overflow, self.overflow = self.overflow, None
        if overflow is not None:
            overflow.close()
        if self.stacks is not None:
            self.stacks.forget()
        if self.answering is not None:
            self.answering.forget()
        self._leave()

    def _leave(self) -> None:
        """From now on, write to memory that nothing reads."""
        scratch = Mapping.scratch()
        self._hold(None)
        self._buffer, self._words = scratch.buffer, scratch.words
        self._head, self._limit, self._shift, self._base = 0, 0, 0, 0

    @property
    def should_stop(self) -> bool:
        """Whether an alert rule asks the training to stop (its action `stop`); costs one memory read.

        Ranks may see it one step apart: agree on it before a rank leaves a loop in which others wait.
        """
        return bool(self._words[ring.WORD_STOP])

    @property
    def step_index(self) -> int:
        """The step of an event that is recorded now."""
        return self._index - 1 if self._counting and self._index else self._index

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        """End the run: failed if an exception is propagating (it continues unchanged), else finished."""
        self.finish(None if isinstance(error, SystemExit) and error.code in {None, 0} else error)

    def __repr__(self) -> str:
        return f"<stepscope run {self.id or '(off)'} rank {self.rank} in {self.path}>"
