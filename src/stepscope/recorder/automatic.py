"""Phases and steps that hooks open and close. They yield wherever the user's own code opens its own.

Between two hooks a training step flushes all caches: every function and object a hook touches is cold, and a call costs
several microseconds. So a hook only appends a mark (the time, and what starts or ends) to one list; the marks are
interpreted once, at the end of the step. Where the user's code opens phases or steps, the hooks charge through the
recorder, which knows both.
"""

from __future__ import annotations

from threading import get_ident
from time import monotonic_ns
from typing import TYPE_CHECKING, Protocol

from stepscope.core.ring import LONG_PHASES, WORD_PHASE
from stepscope.recorder.hotpath import OTHER, Step

if TYPE_CHECKING:
    from stepscope.recorder.declarations import Layout
    from stepscope.recorder.hotpath import Recorder

DATA, COPY, FORWARD, BACKWARD, OPTIMIZER = "data", "copy", "forward", "backward", "optimizer"
COMMUNICATION, CHECKPOINT, EVALUATION, COMPILE = "communication", "checkpoint", "evaluation", "compile"
LOGGING, GARBAGE = "logging", "gc"
NAMES = (
    *(OTHER, DATA, COPY, FORWARD, BACKWARD, OPTIMIZER, COMMUNICATION),
    *(CHECKPOINT, EVALUATION, COMPILE, LOGGING, GARBAGE),
)
CODES = {name: code for code, name in enumerate(NAMES)}
"""The low bits of a mark: which phase starts; 0 means that the last one ends."""
AUTOMATIC = frozenset(NAMES)
"""Phases that hooks open. Inside any other phase, which is the user's own, they charge nothing."""
BITS = 5
MOST_MARKS = 4096
"""Maximum marks of one step; a longer step (hours of evaluation) is folded in between."""


class StepFollower(Protocol):
    """Notified when a step has ended; neither method may raise."""

    def step_ended(self) -> None:
        """Act on the end of a step; the training thread calls this after the step was recorded."""

    def run_ended(self) -> None:
        """Act on the end of the run; this is called before its last rows, and no more steps will come."""


class FollowedStep(Step):
    """A step with followers: a separate class, so that a step without followers costs nothing more."""

    __slots__ = ("_followers",)

    def __init__(self, recorder: Recorder, followers: tuple[StepFollower, ...]) -> None:
        super().__init__(recorder)
        self._followers = followers

    def __exit__(self, *_: object) -> None:
        """Record the step, then notify its followers; their time is charged to the next step."""
        super().__exit__()
        for follower in self._followers:
            follower.step_ended()


def make_step(recorder: Recorder, followers: tuple[StepFollower, ...]) -> Step:
    """Return the context of a recorder's steps; a claim, which asks its recorder for the followers, stays."""
    before = getattr(recorder, "_step", None)
    if isinstance(before, _Claim):
        return before
    return FollowedStep(recorder, followers) if followers else Step(recorder)


class AutomaticSteps:
    """Steps that hooks open and close, until the user's code opens one: from then on the user owns the steps."""

    __slots__ = (
        *("_before", "_is_open", "_layouts", "_recorder"),
        *("add", "count", "last", "marking", "marks", "thread", "yielded"),
    )

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._is_open = False
        self._before: tuple[int, bool] | None = (recorder._index, recorder._counting)
        self._layouts: dict[tuple[int, bool], Layout] = {}
        self.thread = get_ident()
        """The thread that trains."""
        self.marks: list[int] = []
        """What started and ended in this step, as `monotonic_ns() << BITS | code`."""
        self.add = self.marks.append
        self.marking = True
        """Whether hooks make marks; else they charge through the recorder."""
        self.yielded = False
        """Whether the user's own code counts the steps."""
        self.count = 0
        """Steps closed so far."""
        self.last = -1
        """Index of the last step that was written at once."""
        recorder._step = _Claim(recorder, self)

    def open(self) -> None:
        """Start a step unless one is open: rows logged from now on belong to it."""
        if self._is_open or self.yielded:
            return
        recorder = self._recorder
        index, counting = self._before = (recorder._index, recorder._counting)  # None after it: the previous step
        self._is_open = True
        recorder._thread = self.thread
        recorder._mark = recorder._mark or monotonic_ns()
        recorder._index, recorder._counting = 0 if counting else index + 1, False

    def start(self) -> None:
        """Start the first step now, unless it has started: time before the training belongs to no step."""
        if not self.count and not self._is_open:
            self.mark()
            self.open()

    def unopen(self) -> None:
        """Undo the start of a step that turned out not to be one."""
        if self._is_open:
            self._is_open = False
            recorder = self._recorder
            recorder._index, recorder._counting = self._before or (recorder._index - 1, False)

    def mark(self) -> None:
        """Start the first step now: time before the training belongs to no step."""
        recorder = self._recorder
        if self.count or self.yielded or recorder._stack or not self.marking:
            return
        recorder._spent.clear()
        self.marks.clear()
        recorder._mark = monotonic_ns()

    def close(self, samples: float | None, *, bare: bool = False, again: bool = False) -> None:
        """End the step if it is ours, and start the next one if `again`.

        A bare step is written without phases, because none were measured.
        """
        if self.yielded:
            return
        if not self._is_open:
            self.open()
        recorder, now = self._recorder, monotonic_ns()
        if not self.marking or recorder._spent or recorder._stack:  # the user's code has phases of its own
            if self.marking:
                self.marking = False
                self.marks.clear()
            recorder._end_step(samples)
        else:
            begun, recorder._mark = recorder._mark, now
            code = 0
            row: tuple[float, ...] = (now - begun,)
            if self.marks:
                code, row = self._settle(begun, now)
            elif not bare:
                code, row = 1, (now - begun, now - begun)
            if samples is not None:
                row = (*row, samples if type(samples) is int else recorder._intake.number(samples))
            recorder._write(self._layout(code, samples is not None), now, recorder._index, row)
        self.count += 1
        self.last = recorder._index
        if again:
            self._before = None
            recorder._index += 1
        else:
            self._is_open = False
        for follower in getattr(recorder, "followers", ()):
            follower.step_ended()

    def note(self, samples: float | None) -> bool:
        """End a bare step and start the next. Return False, with no effect, if the step needs more work."""
        recorder = self._recorder
        if self.yielded or not self._is_open or recorder._spent or recorder._stack or self.marks:
            return False
        now, index = monotonic_ns(), recorder._index
        elapsed = now - recorder._mark
        row = (elapsed,) if samples is None else (elapsed, samples)
        recorder._write(self._layout(0, samples is not None), now, index, row)
        recorder._mark, recorder._index = now, index + 1
        self._before = None
        self.count += 1
        return True

    def _settle(self, begun: int, now: int) -> tuple[int, tuple[int, ...]]:
        """Return which phases the marks of this step have, as bits, and the step's row: its duration, then theirs."""
        spent = [0] * len(NAMES)
        open_phases: list[int] = []
        current, last = 0, begun
        for mark in self.marks:
            at = mark >> BITS
            spent[current] += at - last
            last = at
            code = mark & 31
            if code:
                open_phases.append(current)
                current = code
            else:
                current = open_phases.pop() if open_phases else 0
        spent[current] += now - last
        self.marks.clear()
        for code in (*open_phases[1:], current) if open_phases else ():
            self.add(now << BITS | code)
        bits = 1
        for code, elapsed in enumerate(spent):
            if elapsed:
                bits |= 1 << code
        return bits, (now - begun, *(elapsed for code, elapsed in enumerate(spent) if elapsed or not code))

    def _layout(self, bits: int, sampled: bool) -> Layout:  # noqa: FBT001 - private
        known = self._layouts.get((bits, sampled))
        if known is not None:
            return known
        layout = self._recorder._intake.step_layout((*_names(bits), sampled))
        if layout[1]:  # not the stand-in of a run that has ended
            self._layouts[bits, sampled] = layout
        return layout

    def compress(self) -> None:
        """Merge redundant marks: the phases one after another, then the open ones."""
        recorder, now = self._recorder, monotonic_ns()
        begun = recorder._mark or self.marks[0] >> BITS
        bits, (_, *elapsed) = self._settle(begun, now)
        still_open, self.marks[:] = list(self.marks), []
        at = begun
        for code in (code for code in range(len(NAMES)) if bits >> code & 1):
            spent = elapsed.pop(0)
            if code:
                self.marks += [at << BITS | code, at + spent << BITS]
            at += spent
        self.marks += still_open

    def fold(self) -> None:
        """Charge the marks to the recorder, and stop making marks."""
        recorder, now = self._recorder, monotonic_ns()
        if not self.marking:
            return
        self.marking = False
        if recorder._spent or recorder._stack or not self.marks:
            self.marks.clear()
            return
        bits, (_, *elapsed) = self._settle(recorder._mark or self.marks[0] >> BITS, now)
        for name, spent in zip(_names(bits), elapsed, strict=True):
            recorder._spent[name] += spent
        recorder._mark = now
        for mark in self.marks:
            recorder._stack.append(recorder._current)
            recorder._current = NAMES[mark & 31]
        self.marks.clear()

    def reset(self) -> None:
        """Close what an interrupt left open."""
        recorder = self._recorder
        depth = sum(1 if mark & 31 else -1 for mark in self.marks)
        for _ in range(depth if self.marking else 0):
            self.add(monotonic_ns() << BITS)
        while not self.marking and recorder._stack and recorder._current in AUTOMATIC:
            now = monotonic_ns()
            recorder._spent[recorder._current] += now - recorder._mark
            recorder._mark, recorder._current = now, recorder._stack.pop()

    def give_way(self) -> None:
        """Leave the steps to the user's own code; an open one is discarded."""
        if self.yielded:
            return
        self.fold()
        self.yielded = True
        recorder = self._recorder
        if isinstance(recorder._step, _Claim):
            del recorder._step
            recorder._step = make_step(recorder, getattr(recorder, "followers", ()))
        self.unopen()


def _names(bits: int) -> list[str]:
    return [name for code, name in enumerate(NAMES) if bits >> code & 1]


class Charge:
    """One phase as hooks charge it: `begin` returns whether it is open, and only then `end` must follow."""

    __slots__ = ("_code", "_name", "_recorder", "_steps")

    def __init__(self, steps: AutomaticSteps, name: str) -> None:
        self._steps, self._recorder = steps, steps._recorder
        self._name, self._code = name, CODES[name]

    def begin(self) -> bool:
        """Open the phase, unless the user's own is open or this is not the training thread."""
        steps = self._steps
        if get_ident() != steps.thread:
            return False
        if steps.marking:
            if len(steps.marks) > MOST_MARKS:
                steps.compress()
            steps.add(monotonic_ns() << BITS | self._code)
            return True
        recorder = self._recorder
        current = recorder._current
        if current not in AUTOMATIC or current == self._name:
            return False
        now = monotonic_ns()
        recorder._spent[current] += now - (recorder._mark or now)
        recorder._mark, recorder._current = now, self._name
        recorder._stack.append(current)
        return True

    def end(self) -> None:
        """Close the phase."""
        steps = self._steps
        if steps.marking:
            steps.add(monotonic_ns() << BITS)
            return
        recorder, now = self._recorder, monotonic_ns()
        recorder._spent[self._name] += now - recorder._mark
        recorder._mark, recorder._current = now, recorder._stack.pop() if recorder._stack else OTHER


class LongCharge(Charge):
    """A phase that may last: the ring's header shows it meanwhile."""

    __slots__ = ("_outer",)

    def __init__(self, steps: AutomaticSteps, name: str) -> None:
        super().__init__(steps, name)
        self._outer: list[int] = []

    def begin(self) -> bool:
        """Open the phase under the same conditions."""
        if not super().begin():
            return False
        words = self._recorder._words
        self._outer.append(words[WORD_PHASE])
        words[WORD_PHASE] = LONG_PHASES[self._name]
        return True

    def end(self) -> None:
        """Close the phase."""
        self._recorder._words[WORD_PHASE] = self._outer.pop() if self._outer else 0
        super().end()


def charge(steps: AutomaticSteps, name: str) -> Charge:
    """Return a phase of this name for hooks."""
    return (LongCharge if name in LONG_PHASES else Charge)(steps, name)


class _Claim(Step):
    """The result of `run.step()` while hooks count the steps: its first use takes over the steps."""

    __slots__ = ("_steps",)

    def __init__(self, recorder: Recorder, steps: AutomaticSteps) -> None:
        super().__init__(recorder)
        self._steps = steps

    def __enter__(self) -> int:
        self._steps.give_way()
        return super().__enter__()

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        for follower in getattr(self._recorder, "followers", ()):
            follower.step_ended()
