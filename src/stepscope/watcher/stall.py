"""Detects a training that hangs: a state machine over the ends of steps, stacks and counters.

Stalled: a step is expected, and none has ended for longer than this training ever takes. Hung: in addition, its stacks
do not change and it neither computes nor reads nor writes; or it has been stalled for minutes.
"""

from __future__ import annotations

import math
from collections import deque
from operator import sub
from typing import TYPE_CHECKING, Any, NamedTuple

from stepscope.watcher.proc import ProcessProgress, moved

if TYPE_CHECKING:
    from collections.abc import Sequence

IDLE, ARMED, STALLED, HUNG = "idle", "armed", "stalled", "hung"
FLOOR, HUNG_AFTER = 10.0, 300.0
"""Seconds without a step that are always normal, and seconds of a stall after which it always counts as a hang."""
MEDIANS, PAUSES = 5.0, 2.0
"""A stall is longer than this many median steps, and than this many times the longest pause so far."""
RECENT = 101
"""Recent steps in the median."""
HUNG_SAMPLES, HUNG_SPAN = 3, 5.0
"""Number of equal stacks, and the seconds that they must span."""
SAMPLE_EVERY, SAMPLE_SLOWLY, SLOWLY_AFTER = 2.5, 15.0, 30.0
"""Seconds between two samples of a stalled process, at first and later, and after how many seconds later begins."""
SAMPLE_PATIENCE = 4.0
"""Seconds that the first sample may take; without one, the stall is reported without stacks."""
UNSEEN = 5.0
"""More seconds than this between two calls mean that the watcher itself was held up: that time does not count."""
FIRST_ROWS, ROWS_APART = 3, 0.05
"""A run without steps is armed by this many rows that are this many seconds apart."""
_NS = 1e9


class StackSample(NamedTuple):
    """One sample of the process."""

    digest: str
    """Of all stacks: equal for two samples in which every thread was at the same place."""
    progress: ProcessProgress = ProcessProgress()
    """Before the process was asked for its stacks."""
    resumed: ProcessProgress | None = None
    """After it had answered, which also takes work; None if it was not asked."""
    at_prompt: bool = False
    """The main thread waits for a person."""


class StallDetector:
    """Watches the steps of one rank. Times are monotonic, in ns; events are plain dicts with their `kind`."""

    def __init__(self, floor: float = FLOOR, hung_after: float = HUNG_AFTER, *, is_source: bool = False) -> None:
        """Begin disarmed, because anything before the first step may take any time; arguments are in seconds.

        `is_source`: the rows come from a file that another program writes. It may be silent, but not seen to hang.
        """
        self._floor, self._hung_after = floor, math.inf if is_source else hung_after
        self._is_source = is_source
        self.state = IDLE
        self._over = False
        self._steps = False
        self._rows = 0
        self._row: int | None = None
        self._idle_since: int | None = None
        self._last: int | None = None
        """The end of the previous step, or the time that counts as one."""
        self._excused = 0
        """Nanoseconds since then that do not count, such as a long phase."""
        self._durations: deque[float] = deque(maxlen=RECENT)
        self._longest = 0.0
        self._looked: int | None = None
        self._long = False
        self._told = 0
        """When the stall was reported."""
        self._suspected: int | None = None
        self._sampled = 0
        self._same: list[tuple[int, StackSample]] = []

    def threshold(self) -> float:
        """Return after how many seconds without a step this training is stalled."""
        return max(self._floor, MEDIANS * self.usual(), PAUSES * self._longest)

    def usual(self) -> float:
        """Return the recent median step in seconds; the module `statistics` would load four others."""
        ordered = sorted(self._durations)
        return ordered[len(ordered) // 2] if ordered else 0.0

    def ended(self, times: Sequence[int], began: int | None = None) -> list[dict[str, Any]]:
        """Add the times at which steps ended, in order; return events.

        `began` is the start of the first of them; it is needed if no earlier step is known.
        """
        if not times or self._over:
            return []
        if not self._steps:
            self._steps, self._last, self._longest = True, None, 0.0
            self._durations.clear()
        if self._last is None and self._idle_since is None:
            self._last = began
        return self._count(times)

    def logged(self, times: Sequence[int]) -> list[dict[str, Any]]:
        """Add the times of rows of numbers, which count as steps in a run without steps."""
        if not times or self._over or self._steps:
            return []
        if self._rows < FIRST_ROWS:
            gaps = map(sub, times, (times[0] if self._row is None else self._row, *times))
            self._rows += (self._row is None) + sum(gap >= ROWS_APART * _NS for gap in gaps)
        self._row = times[-1]
        events = self._count(times)
        if self._rows < FIRST_ROWS:  # a few rows at the start are no training yet
            self.state = IDLE
        return events

    def _count(self, times: Sequence[int]) -> list[dict[str, Any]]:
        events = self._recover(times[0], "a step ended") if self.state in (STALLED, HUNG) else []
        if self._last is not None and times[0] > self._last:
            self._pause(max(0, times[0] - self._last - self._excused) / _NS)
        gaps = list(map(sub, times[1:], times))  # of a burst there may be a million
        for gap in gaps[-RECENT:]:
            if gap > 0:
                self._pause(gap / _NS)
        self._longest = max(self._longest, max(gaps, default=0) / _NS)
        self._last, self._excused = times[-1], 0
        self.state, self._suspected, self._same, self._idle_since = ARMED, None, [], None
        return events

    def _pause(self, seconds: float) -> None:
        self._durations.append(seconds)
        self._longest = max(self._longest, seconds)

    def look(self, now: int, *, long_phase: bool = False) -> list[dict[str, Any]]:
        """Let time pass until `now`; return events. `long_phase`: it evaluates, compiles or writes a checkpoint."""
        before, self._looked = self._looked, now
        passed = now - before if before is not None else 0
        was_long, self._long = self._long, long_phase
        if self.state == IDLE or self._last is None:
            return []
        if long_phase or was_long or passed > UNSEEN * _NS:
            self._excused += passed
            self._suspected, self._same = None, []
            return self._recover(now, "a long phase began") if long_phase and self.state != ARMED else []
        if self.state == ARMED:
            return self._suspect(now)
        if self.state == STALLED and now - self._told >= self._hung_after * _NS:
            return [self._hang(now, f"stalled for {self._hung_after:g} s")]
        return []

    def _suspect(self, now: int) -> list[dict[str, Any]]:
        quiet = self.quiet(now)
        if quiet < self._floor or quiet < self.threshold():  # the first check is cheap, and almost always true
            return []
        if self._suspected is None:
            self._suspected, self._sampled = now, 0
        if now - self._suspected < SAMPLE_PATIENCE * _NS:
            return []
        return [self._stall(now)]

    def wants_sample(self, now: int) -> bool:
        """Return whether stacks and counters should be sampled now."""
        if self.state == ARMED:
            return self._suspected is not None and not self._sampled
        if self.state == IDLE or self._long:
            return False
        slowly = self.state == HUNG or now - self._told > SLOWLY_AFTER * _NS
        return now - self._sampled >= (SAMPLE_SLOWLY if slowly else SAMPLE_EVERY) * _NS

    def sample(self, now: int, sample: StackSample) -> list[dict[str, Any]]:
        """Add a sample of the process at `now`; return events."""
        self._sampled = now
        if self.state == IDLE or self._last is None or (self.state == ARMED and self._suspected is None):
            return []  # a step has ended since it was requested
        if sample.at_prompt:
            events = self._recover(now, "the prompt is idle") if self.state != ARMED else []
            self.state, self._last, self._suspected, self._same = IDLE, None, None, []
            self._idle_since = now
            return events
        events = [self._stall(now)] if self.state == ARMED else []
        if self._same and self._stands_still(now, sample):
            self._same.append((now, sample))
        else:
            self._same = [(now, sample)]
        span = (now - self._same[0][0]) / _NS
        if self.state == STALLED and len(self._same) >= HUNG_SAMPLES and span >= HUNG_SPAN:
            why = f"{len(self._same)} stacks over {span:.0f} s are the same, and nothing is computed, read or written"
            events.append(self._hang(now, why))
        return events

    def _stands_still(self, now: int, sample: StackSample) -> bool:
        then, before = self._same[-1]
        same = bool(sample.digest) and sample.digest == before.digest
        return same and not moved(before.resumed or before.progress, sample.progress, (now - then) / _NS)

    def stop(self) -> None:
        """Stop watching, because the run has ended."""
        self.state, self._over = IDLE, True

    def quiet(self, now: int) -> float:
        """Return the unexplained seconds since the last step."""
        return 0.0 if self._last is None else max(0, now - self._last - self._excused) / _NS

    def _stall(self, now: int) -> dict[str, Any]:
        self.state, self._told = STALLED, now
        what = "step" if self._steps else "row"
        usual = f"the recent median {what} is {self.usual():.3g} s, " if self._durations else ""
        if self._is_source:
            what, usual = "new row", "its writer may buffer them, stand still or have ended; "
        why = f"no {what} {'came' if self._is_source else 'ended'} for {self.quiet(now):.1f} s; {usual}"
        why += f"the longest pause so far {self._longest:.3g} s"
        return self._event("stalled", now, why)

    def _hang(self, now: int, why: str) -> dict[str, Any]:
        self.state = HUNG
        return self._event("hung", now, why)

    def _recover(self, now: int, why: str) -> list[dict[str, Any]]:
        event = {**self._event("recovered", now, why), "was": self.state}
        self.state, self._suspected, self._same = ARMED, None, []
        return [event]

    def _event(self, kind: str, now: int, why: str) -> dict[str, Any]:
        """Return an event; `since_ns` is the time of the last step, monotonic."""
        return {
            "kind": kind,
            "monotonic_ns": now,
            "since_ns": self._last,
            "seconds": round(self.quiet(now), 3),
            "usual_seconds": round(self.usual(), 6),
            "threshold_seconds": round(self.threshold(), 3),
            "why": why,
        }
