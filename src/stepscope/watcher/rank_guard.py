"""Watches one rank: its process, its steps, its stacks, and how it ends."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from stepscope.core import ring
from stepscope.core.endings import INTERRUPTED, end_of_source
from stepscope.samplers.kernel import KernelFile, number
from stepscope.samplers.process_files import PAGE
from stepscope.watcher.asking import Asking
from stepscope.watcher.collectives import record_events
from stepscope.watcher.death import EndEvidence, RankEnd, Trainee, decide_end, scheduler, shutting_down
from stepscope.watcher.oom import KernelLog, OomWatch
from stepscope.watcher.proc import PROC, ProcessProgress, read_progress
from stepscope.watcher.stacks import StackAnswer, at_prompt
from stepscope.watcher.stall import ARMED, StackSample, StallDetector
from stepscope.watcher.steps import StepTimes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stepscope.store.states import RankState

DEATH_PATIENCE = 0.5
"""Seconds to wait for more evidence about an end: a lock is released shortly before its process ends."""
EXIT_PATIENCE = 600.0
"""Seconds that the exit of an interpreter may take: other libraries run functions there."""
WARNING_SECONDS, EARLIER_SECONDS = 120.0, 60.0
"""SIGTERM to the job, or the end of another rank, explains an end up to so many seconds later."""
TOGETHER_SECONDS = 1.0
"""Ranks that SIGTERM ends within this time were all ended from outside: none of them explains another."""
MEMORY_EVERY = 1.0
"""Seconds between two readings of the resident memory."""
STACK_KINDS, STACKS = ("stalled", "hung"), "stacks"
"""Kinds of events about a rank that stands still, and about one that another rank waits for; all hold stacks."""
EXPLAINING = {
    "failed": "failed",
    "killed": "was killed",
    "oom-killed": "ran out of memory",
    INTERRUPTED: f"was {INTERRUPTED}",
}
"""Ends of a rank that explain the ends of others, as text."""


@dataclass
class Job:
    """What all ranks on this node have in common."""

    scheduler: str = ""
    log: KernelLog | None = None
    warned_ns: int | None = None
    """When this watcher got SIGTERM (monotonic); None if it did not."""
    root: str = ""
    """Prefix of all system paths; for tests."""
    seeing: bool = True
    """Whether stacks may be requested: `watcher.stacks`."""
    born: int | None = None
    """Pid of the trainer that started this watcher; our standard input is its pidfd."""

    @classmethod
    def here(cls, *, seeing: bool = True) -> Job:
        """Return the job of this process; the kernel's log is read from now on, if that is permitted."""
        return cls(scheduler(os.environ), KernelLog(), seeing=seeing)

    def warn(self, now: int) -> None:
        """Record that this watcher got SIGTERM; `now` is monotonic, in ns."""
        self.warned_ns = now

    def warned(self, now: int) -> bool:
        """Return whether the whole job got SIGTERM shortly before `now` (monotonic, in ns)."""
        return self.warned_ns is not None and now - self.warned_ns < WARNING_SECONDS * 1e9


@dataclass
class RankGuard:
    """Watches one rank from the time its ring was found."""

    trainee: Trainee | None
    """None if the process is invisible: in another pid namespace, or on another system than Linux."""
    job: Job = field(default_factory=Job)
    asking: Asking | None = None
    stalls: StallDetector = field(default_factory=StallDetector)
    rss: int | None = None
    """Resident bytes of the process at the last reading."""
    at_prompt: bool = False
    """Whether it is a notebook's kernel or another interactive session."""
    is_followed: bool = False
    """Whether the training is another process, whose files the trainee reads: then only the rows tell of it."""

    def __post_init__(self) -> None:
        """Read what is only available while the process lives."""
        self.proc = self.job.root + PROC
        self.oom = OomWatch(self.trainee.pid, self.job.log, self.job.root) if self.trainee else None
        self._memory_due = 0
        self._statm = KernelFile(f"{self.proc}/{self.trainee.pid}/statm") if self.trainee else None
        self._leaving: int | None = None
        self._before: ProcessProgress = ProcessProgress()
        self._requested = ""
        self.seen: float | None = None
        """When its stacks were last read (monotonic seconds); None if they never were."""
        self.end_evidence: EndEvidence | None = None
        self._end: RankEnd | None = None

    @classmethod
    def over(
        cls, descriptor: int, stacks_path: str, job: Job, stalls: StallDetector | None = None, pid: int | None = None
    ) -> RankGuard:
        """Watch the process that holds the writer's lock of the ring open at `descriptor`.

        If it has already ended, its `pid` identifies it, provided that it started us. It writes its stacks to the file
        at `stacks_path`, if it has created one.
        """
        trainee = Trainee.find(descriptor)
        if trainee is None and pid is not None and pid == job.born:
            trainee = Trainee.of(0, pid)
        if trainee is None:
            return cls(None, job, stalls=stalls or StallDetector())
        asking = Asking(trainee, stacks_path) if job.seeing else Asking(trainee, "", spy="")
        return cls(trainee, job, asking, stalls or StallDetector())

    @classmethod
    def over_source(cls, job: Job, stall_after: float) -> RankGuard:
        """Watch a run that another tool records; the process that writes our ring only follows it."""
        return cls(None, job, stalls=StallDetector(stall_after, is_source=True), is_followed=True)

    def watch(
        self, pair: tuple[int, int], ended: StepTimes, phase: str = "", *, gpu_busy: bool = False
    ) -> list[dict[str, Any]]:
        """Do what is due; return events, with stacks if they matter. Takes microseconds while all is well.

        Args:
            pair: wall and monotonic time, in ns.
            ended: when steps ended and rows were logged since the last call.
            phase: the long phase that the run is in; "" if none.
            gpu_busy: whether a GPU has worked since the last sample.
        """
        now = pair[1]
        if self.is_followed:  # the times in its rows are those of the writer, which may flush minutes later
            ended = StepTimes([], [now] if ended.steps or ended.rows else [])
        events = self.stalls.ended(ended.steps, ended.began) + self.stalls.logged(ended.rows)
        events += self.stalls.look(now, long_phase=bool(phase))
        if now >= self._memory_due and self.trainee is not None:
            self._memory_due = now + round(MEMORY_EVERY * 1e9)
            self.rss = self._resident() or self.rss
        found, answer = self._see(now, gpu_busy=gpu_busy)
        return [self._complete(event, answer, pair) for event in events + found]

    def _resident(self) -> int | None:
        """Return the resident memory in bytes; None once the process has no memory."""
        if self._statm is None:
            return None
        try:
            return number(self._statm.read_same().split()[1]) * PAGE
        except (OSError, IndexError, ValueError):
            return None

    def request(self, why: str) -> None:
        """Request the stacks of this rank as an event, because another rank hangs: `why` names it."""
        self._requested = self._requested or why

    def is_asking(self) -> bool:
        """Return whether an answer of the process may come at any time."""
        return self.asking is not None and self.asking.open

    def _see(self, now: int, *, gpu_busy: bool) -> tuple[list[dict[str, Any]], StackAnswer | None]:
        """Request stacks, or read the answer."""
        if self.trainee is None or self.asking is None:
            return [], None
        if not self.asking.open:
            if not self.stalls.wants_sample(now) and not self._requested:
                return [], None
            self._before = read_progress(self.trainee.pid, self.proc, gpu_busy=gpu_busy)
            self.asking.ask(now, record=bool(self._requested) or self.stalls.state == ARMED)
        answer = self.asking.answer(now)
        if answer is None:
            return [], None
        before = self._before._replace(gpu_busy=self._before.gpu_busy or gpu_busy)
        after = read_progress(self.trainee.pid, self.proc)
        events = self.stalls.sample(now, StackSample(answer.digest, before, after, at_prompt(answer.stacks)))
        if self._requested and not any(event["kind"] in STACK_KINDS for event in events):
            quiet, usual = round(self.stalls.quiet(now), 3), round(self.stalls.usual(), 6)
            events.append({"kind": STACKS, "monotonic_ns": now, "why": self._requested, "seconds": quiet})
            events[-1] |= {"usual_seconds": usual} if usual else {}
        if answer.record:
            events += record_events(answer.record, now)
        self.seen = now / 1e9 if answer.stacks else self.seen
        self._requested = ""
        return events, answer

    def _complete(self, event: dict[str, Any], answer: StackAnswer | None, pair: tuple[int, int]) -> dict[str, Any]:
        """Return an event in the form that is written: with times since 1970, and with its stacks."""
        since = event.pop("since_ns", None)
        if since is not None:
            event["since"] = round((pair[0] + since - pair[1]) / 1e9, 6)
        if answer is not None and event["kind"] in (*STACK_KINDS, STACKS):
            event |= {"stacks": answer.stacks, "threads": answer.waits, "stacks_by": answer.source}
            event |= {"no_stacks": answer.why} if answer.why else {}
        return event

    def end(self, now: int, state: int, error: str = "", after: str = "", *, finally_: bool = False) -> RankEnd | None:
        """Return how the rank ended; None while more evidence may come soon: then call again.

        Args:
            now: monotonic time in ns.
            state: the state in the ring.
            error: the exception that the run reported last.
            after: an earlier end that explains this one; see `earlier`.
            finally_: decide by the evidence so far.
        """
        self.stalls.stop()
        self._leaving = now if self._leaving is None else self._leaving
        status, dead = None, True
        if self.trainee is not None and state in (ring.STATE_RUNNING, ring.STATE_EXITED):
            status, dead = self.trainee.status(), self.trainee.dead()
            patience = EXIT_PATIENCE if state == ring.STATE_EXITED and not dead else DEATH_PATIENCE
            if status is None and not finally_ and (now - self._leaving) / 1e9 < patience:
                return None
        self.end_evidence = EndEvidence(
            status=status,
            state=state,
            error=error,
            oom=self.oom.evidence(self.rss) if self.oom and state != ring.STATE_FINISHED else None,
            scheduler=self.job.scheduler,
            warned=self.job.warned(now),
            shutting_down=shutting_down(self.job.root),
            after=after,
            alive=not dead,
            at_prompt=self.at_prompt,
        )
        self._end = decide_end(self.end_evidence)
        return self._end

    def end_of_source(self, event: Mapping[str, Any] | None) -> RankEnd:
        """Return how a followed run ended; `event` is the last word of its follower, None if there was none."""
        self.stalls.stop()
        self.end_evidence = EndEvidence()
        self._end = RankEnd(*end_of_source(event))
        return self._end

    def is_leaving(self) -> bool:
        """Return whether the end of this rank has begun."""
        return self._leaving is not None

    def refine(self) -> RankEnd | None:
        """Return a better verdict if new evidence has come, otherwise None."""
        if self._end is None or self._end.certain or self.trainee is None or self.end_evidence is None:
            return None
        status = self.trainee.status()
        if status is None:
            return None
        self.end_evidence = self.end_evidence._replace(status=status, alive=False)
        self._end = decide_end(self.end_evidence)
        return self._end

    def close(self) -> None:
        """Release the process."""
        if self.asking is not None:
            self.asking.close()
        if self.trainee is not None:
            self.trainee.close()
        if self._statm is not None:
            self._statm.close()


def earlier(ranks: Mapping[int, RankState], rank: int, now_us: int) -> str:
    """Return which other rank failed shortly before `now_us` (microseconds since 1970), as in "rank 3 failed"."""
    found = [
        (state.ended, other, state.state)
        for other, state in ranks.items()
        if other != rank
        and state.ended is not None
        and state.state in EXPLAINING
        and 0 <= now_us - state.ended < EARLIER_SECONDS * 1e6
        and not ("SIGTERM" in state.cause and now_us - state.ended < TOGETHER_SECONDS * 1e6)
    ]
    if not found:
        return ""
    _, other, state = min(found)
    return f"rank {other} {EXPLAINING[state]}"
