"""The watch over one rank: what is asked when, and what its events hold."""

from __future__ import annotations

import signal

import pytest

from stepscope.core import ring
from stepscope.store.states import KILLED, RankState
from stepscope.watcher.death import RankEnd
from stepscope.watcher.rank_guard import DEATH_PATIENCE, EXIT_PATIENCE, Job, RankGuard, earlier
from stepscope.watcher.stacks import StackAnswer
from stepscope.watcher.steps import StepTimes

S = 10**9
NONE = StepTimes([], [])
FRAMES = [{"file": "train.py", "line": 3, "function": "wait_for_ever"}]


class FakeTrainee:
    """A process that dies when the test says so."""

    pid = 2**22 + 1

    def __init__(self):
        self.is_dead, self.code, self.closed = False, None, False

    def dead(self):
        return self.is_dead

    def status(self):
        return self.code

    def close(self):
        self.closed = True


class FakeAsking:
    """Answers two ticks after the question."""

    def __init__(self, answer):
        self.given, self.open, self.questions, self.ticks = answer, False, 0, 0

    def ask(self, now, *, record=False):
        self.open, self.ticks, self.questions = True, 0, self.questions + 1

    def answer(self, now):
        self.ticks += 1
        self.open = self.ticks < 3
        return None if self.open else self.given

    def close(self):
        self.open = False


@pytest.fixture
def rank(tmp_path):
    """A guard over a process that answers with one stack."""
    answer = StackAnswer("faulthandler", [{"thread": "0x1", "frames": FRAMES}], [])
    return RankGuard(FakeTrainee(), Job(root=str(tmp_path)), FakeAsking(answer))


def run(guard, start, seconds, **options):
    """Let a guard watch for some seconds without a step; return its events."""
    found = []
    for tick in range(round(seconds * 10)):
        now = start + (tick + 1) * S // 10
        found += guard.watch((now + 1000 * S, now), NONE, **options)
    return found


def test_a_rank_that_goes_on_is_never_asked(rank):
    """While steps end there is no signal and no look at its counters."""
    for second in range(60):
        rank.watch((0, second * S), StepTimes([second * S], [], 0))
        run(rank, second * S, 1)
    assert rank.asking.questions == 0


def test_events_of_a_stand_still_hold_the_stacks_and_the_time(rank):
    """Stalled and hung come with stacks, and `since` is a time since 1970."""
    rank.watch((1000 * S, 0), StepTimes([0], [], -S))
    found = run(rank, 0, 20)
    assert [event["kind"] for event in found] == ["stalled", "hung"]
    assert found[0]["since"] == 1000
    assert "since_ns" not in found[0]
    assert [event["stacks"][0]["frames"] for event in found] == [FRAMES, FRAMES]


def test_a_gpu_that_works_is_progress(rank):
    """While its GPUs compute, the same stack is no hang."""
    rank.watch((0, 0), StepTimes([0], [], -S))
    assert [event["kind"] for event in run(rank, 0, 60, gpu_busy=True)] == ["stalled"]


def test_another_rank_may_ask_for_the_stacks(rank):
    """They come as an event of their own, once."""
    rank.request("rank 1 is stalled")
    rank.request("rank 2 is stalled")
    found = run(rank, 0, 5)
    assert [(event["kind"], event["why"]) for event in found] == [("stacks", "rank 1 is stalled")]
    assert found[0]["stacks"][0]["frames"] == FRAMES


def test_a_declared_phase_disarms(rank):
    """An evaluation may take its time."""
    rank.watch((0, 0), StepTimes([0], [], -S))
    assert run(rank, 0, 600, phase="evaluation") == []
    assert rank.asking.questions == 0


def test_an_end_waits_for_the_death_a_moment(rank):
    """The lock goes before its process: the end is told once the status is there, with no more asking."""
    assert rank.end(0, ring.STATE_RUNNING) is None
    rank.trainee.is_dead, rank.trainee.code = True, int(signal.SIGKILL)
    assert rank.end(S // 10, ring.STATE_RUNNING) == RankEnd("killed", "killed by SIGKILL")
    rank.close()
    assert rank.trainee.closed


def test_an_end_that_nobody_explains_is_told_in_time_and_refined(rank):
    """After half a second the cause is unknown; when more becomes known it is told better."""
    rank.trainee.is_dead = True
    assert rank.end(0, ring.STATE_RUNNING) is None
    now = round(DEATH_PATIENCE * S)
    assert rank.end(now, ring.STATE_RUNNING) == RankEnd("killed", KILLED, certain=False)
    assert rank.refine() is None
    rank.trainee.code = 3 << 8
    assert rank.refine() == RankEnd("failed", "exit code 3")
    assert rank.refine() is None


def test_the_exit_of_an_interpreter_is_waited_for(rank):
    """Exit functions of others may take minutes; the exit code comes after them."""
    assert rank.end(0, ring.STATE_EXITED) is None
    assert rank.end(60 * S, ring.STATE_EXITED) is None
    rank.trainee.is_dead, rank.trainee.code = True, 3 << 8
    assert rank.end(61 * S, ring.STATE_EXITED) == RankEnd("failed", "exit code 3")


def test_an_interpreter_that_never_comes_to_its_end_is_not_waited_for_for_ever(rank):
    """Its run is finished, with a doubt."""
    rank.end(0, ring.STATE_EXITED)
    assert rank.end(round(EXIT_PATIENCE * S), ring.STATE_EXITED) == RankEnd("finished", "", certain=False)


def test_a_run_that_said_its_last_word_is_not_waited_for(rank):
    """finish() and a reported exception are the end, whatever the process does then."""
    assert rank.end(0, ring.STATE_FINISHED) == RankEnd("finished", "")
    assert rank.end(0, ring.STATE_FAILED, "ValueError: no") == RankEnd("failed", "ValueError: no")


def test_a_process_that_cannot_be_seen_is_judged_by_its_ring():
    """In another pid namespace there are its last words and nothing else."""
    guard = RankGuard(None)
    assert guard.watch((0, 0), StepTimes([0], [], None)) == []
    assert guard.end(0, ring.STATE_RUNNING) == RankEnd("killed", KILLED, certain=False)
    assert guard.refine() is None
    guard.close()


def test_the_warning_of_a_whole_job_is_forgotten_after_a_while():
    """A job that survived it is not preempted an hour later."""
    job = Job(warned_ns=0)
    assert job.warned(S)
    assert not job.warned(3600 * S)
    assert not Job().warned(0)


def test_the_rank_that_failed_first_explains_the_others():
    """Only ends of other ranks, bad ones, and of the last minute count; the earliest is named."""
    states = {
        0: RankState("running"),
        1: RankState("failed", ended=100_000_000),
        2: RankState("killed", ended=90_000_000),
        3: RankState("finished", ended=80_000_000),
    }
    assert earlier(states, 0, 101_000_000) == "rank 2 was killed"
    assert earlier(states, 2, 101_000_000) == "rank 1 failed"
    assert earlier(states, 0, 300_000_000) == ""


def test_ranks_that_are_ended_together_do_not_explain_each_other():
    """A launcher ends all ranks with SIGTERM; a rank that somebody ended long before explains the others' ends."""
    states = {3: RankState("killed", "killed by SIGTERM", ended=100_000_000)}
    assert earlier(states, 0, 100_400_000) == ""
    assert earlier(states, 0, 105_000_000) == "rank 3 was killed"


def test_a_followed_run_is_judged_by_when_its_rows_arrive():
    """Rows of a source carry the writer's times, which may be old: a flush every minute is no stall."""
    guard = RankGuard.over_source(Job(), 10.0)
    now = 1000 * 10**9
    for tick in range(6000):
        now += 10**8
        arrived = [now - 59 * 10**9, now] if tick % 600 == 0 else []
        assert guard.watch((now, now), StepTimes([], arrived)) == []


def test_the_last_word_of_a_follower_is_the_end():
    """A followed run ended as its follower says; if that was killed, only the following is known to have ended."""
    guard = RankGuard.over_source(Job(), 10.0)
    event = {"state": "failed", "cause": "exit code 3", "certain": True}
    assert guard.end_of_source(event) == ("failed", "exit code 3", True)
    assert guard.end_of_source(None)[0] == "lost"
