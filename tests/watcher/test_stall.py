"""Stalled and hung: the state machine, with all its time handed in, and real step times replayed."""

from __future__ import annotations

import json
import re
from itertools import accumulate, pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.watcher.proc import ProcessProgress
from stepscope.watcher.stall import ARMED, HUNG, IDLE, STALLED, StackSample, StallDetector

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
S = 10**9


class Watch:
    """A detector over a process whose doings the test sets; a tick is a tenth of a second, or what the test says."""

    def __init__(self, tick=0.1):
        self.stalls, self.now, self.tick = StallDetector(), 1000 * S, round(tick * S)
        self.events, self.cpu, self.busy = [], 0.0, 0.0
        self.stack, self.prompt, self.phase, self.answers = "same", False, False, True

    def take(self, events):
        self.events += [{**event, "at": (event["monotonic_ns"] - 1000 * S) / S} for event in events]

    def step(self, seconds):
        """Let one step take its time."""
        end = self.now + round(seconds * S)
        self.stand(end, before_end=True)
        self.now = end
        self.take(self.stalls.ended([end]))

    def steps(self, count, seconds=1.0):
        for _ in range(count):
            self.step(seconds)

    def stand(self, until, *, before_end=False):
        """Let time pass without a step until a moment in ns."""
        while self.now + self.tick <= until - (self.tick if before_end else 0):
            self.now += self.tick
            self.cpu += self.busy * self.tick / S
            self.take(self.stalls.look(self.now, long_phase=self.phase))
            if self.answers and self.stalls.wants_sample(self.now):
                seen = StackSample(self.stack, ProcessProgress(self.cpu), at_prompt=self.prompt)
                self.take(self.stalls.sample(self.now, seen))

    def wait(self, seconds):
        self.stand(self.now + round(seconds * S))

    def first(self, kind):
        """Return how long after the start an event came."""
        return next((event["at"] for event in self.events if event["kind"] == kind), None)

    def kinds(self):
        return [event["kind"] for event in self.events]


@pytest.fixture
def watch():
    """Ten steps of one second."""
    made = Watch()
    made.steps(11)
    made.events.clear()
    return made


def test_a_deadlock_after_steps_of_a_second_is_stalled_then_hung(watch):
    """Stalled ten seconds after the last step, hung when three stacks over five seconds are the same."""
    watch.wait(30)
    assert watch.kinds() == ["stalled", "hung"]
    assert watch.first("stalled") - 11 == pytest.approx(10, abs=0.3)
    assert watch.first("hung") - 11 == pytest.approx(15, abs=1)
    stalled = watch.events[0]
    assert stalled["since_ns"] == 1011 * S
    assert (stalled["threshold_seconds"], stalled["seconds"]) == (10.0, pytest.approx(10, abs=0.3))
    assert "no step ended for 10" in stalled["why"]


def test_a_silent_source_is_stalled_and_never_hung(watch):
    """Of a file that another program writes only its silence is known: it is called that, however long it lasts."""
    watch.stalls = StallDetector(is_source=True)
    for _ in range(20):
        watch.now += S
        watch.take(watch.stalls.logged([watch.now]))
    for _ in range(10_000):
        watch.now += S // 10
        watch.take(watch.stalls.look(watch.now))
    assert [event["kind"] for event in watch.events] == ["stalled"]
    assert watch.events[0]["why"].startswith("no new row came for")


def test_a_process_that_computes_is_stalled_but_not_hung(watch):
    """An evaluation of a minute that nobody announced: processor time grows, so it is no hang, and its end is noted."""
    watch.busy = 0.9
    watch.step(60)
    assert watch.kinds() == ["stalled", "recovered"]
    assert watch.events[1]["seconds"] == pytest.approx(60)
    assert watch.events[1]["was"] == "stalled"
    watch.busy = 0.0
    watch.step(60)
    assert watch.kinds() == ["stalled", "recovered"]


def test_stacks_that_change_are_no_hang(watch):
    """A process that is elsewhere at every look goes on, however little it computes."""
    for number in range(100):
        watch.stack = f"stack {number}"
        watch.wait(2)
    assert watch.kinds() == ["stalled"]


def test_five_minutes_of_stall_are_a_hang_whatever_moves(watch):
    """A live loop that never ends a step is told after five minutes."""
    watch.busy = 1.0
    watch.wait(309)
    assert watch.kinds() == ["stalled"]
    watch.wait(3)
    assert watch.kinds() == ["stalled", "hung"]


def test_no_answer_at_all_still_stalls(watch):
    """If nobody can look at the process the stall is told without stacks, within fifteen seconds."""
    watch.answers = False
    watch.wait(20)
    assert watch.kinds() == ["stalled"]
    assert watch.first("stalled") - 11 < 15


@pytest.mark.parametrize(("seconds", "threshold"), [(0.1, 10.0), (1.0, 10.0), (4.0, 20.0), (30.0, 150.0)])
def test_the_threshold_follows_the_median_step(seconds, threshold):
    """Five median steps, but never less than ten seconds."""
    watch = Watch(1.0)
    watch.steps(20, seconds)
    assert watch.stalls.threshold() == pytest.approx(threshold)


def test_the_threshold_follows_the_longest_pause(watch):
    """A pause once seen is no news at less than twice its length."""
    watch.step(9.5)
    watch.steps(200)
    assert watch.stalls.threshold() == pytest.approx(19)


def test_before_the_first_step_nothing_is_stalled():
    """Loading and compiling take any time."""
    watch = Watch(1.0)
    watch.wait(3600)
    assert (watch.events, watch.stalls.state) == ([], IDLE)


def test_a_first_step_that_compiled_counts_as_a_pause():
    """The second may take as long: its beginning is known."""
    watch = Watch()
    end = watch.now + 60 * S
    watch.stalls.ended([end], began=watch.now)
    watch.now = end
    watch.wait(200)
    assert watch.events == []
    assert watch.stalls.threshold() == 300


def test_after_the_end_nothing_is_stalled(watch):
    """finish() disarms for good."""
    watch.stalls.stop()
    watch.wait(1000)
    watch.take(watch.stalls.ended([watch.now]))
    assert (watch.events, watch.stalls.state) == ([], IDLE)


def test_a_long_phase_is_not_counted(watch):
    """In a declared evaluation nothing is stalled; afterwards the wait begins anew, and the pause sets no threshold."""
    watch.phase = True
    watch.wait(900)
    watch.phase = False
    watch.wait(8)
    assert watch.events == []
    watch.steps(2)
    assert watch.stalls.threshold() == pytest.approx(18, abs=1)


def test_a_long_phase_that_begins_late_ends_the_stall(watch):
    """Whoever says that it writes a checkpoint has come on."""
    watch.wait(12)
    watch.phase = True
    watch.wait(600)
    assert watch.kinds() == ["stalled", "recovered"]
    assert watch.events[1]["why"] == "a long phase began"


def test_ten_minutes_at_the_prompt_of_a_notebook_are_no_stall(watch):
    """A person thinks: no event, and the pause is not held to be a step."""
    watch.prompt = True
    watch.wait(600)
    assert (watch.events, watch.stalls.state) == ([], IDLE)
    watch.prompt = False
    watch.steps(3)
    assert watch.stalls.state == ARMED
    assert watch.stalls.threshold() == 10
    watch.wait(20)
    assert watch.kinds() == ["stalled", "hung"]


def test_an_interrupted_cell_recovers_at_the_prompt(watch):
    """Ctrl-C in a hung cell leads back to the prompt, which ends the alarm."""
    watch.wait(30)
    watch.prompt = True
    watch.wait(30)
    assert watch.kinds() == ["stalled", "hung", "recovered"]
    assert watch.events[2]["was"] == "hung"


def test_recovery_from_a_hang_is_noted_with_its_length(watch):
    """The step that came after all says how long it took, and the next stall needs twice that."""
    watch.step(40)
    assert watch.kinds() == ["stalled", "hung", "recovered"]
    assert (watch.events[2]["was"], watch.events[2]["seconds"]) == ("hung", pytest.approx(40))
    assert watch.stalls.threshold() == pytest.approx(80)


def test_a_watcher_that_was_held_up_itself_accuses_nobody(watch):
    """Time in which nobody looked, as while a virtual machine is paused, proves nothing."""
    watch.now += 600 * S
    watch.take(watch.stalls.look(watch.now))
    watch.wait(8)
    assert watch.events == []


def test_a_sample_that_comes_after_the_step_is_ignored(watch):
    """The process was asked while it stood still, and answered when it had gone on."""
    watch.answers = False
    watch.wait(10.5)
    watch.step(0.1)
    watch.take(watch.stalls.sample(watch.now, StackSample("x")))
    assert (watch.events, watch.stalls.state) == ([], ARMED)


def test_rows_of_a_run_without_steps_stand_for_steps():
    """Three rows apart from each other arm; facts logged at once at the start do not."""
    watch = Watch()
    watch.stalls.logged([watch.now, watch.now + 1, watch.now + 2, watch.now + 3])
    watch.wait(60)
    assert watch.events == []
    for _ in range(5):
        watch.wait(1)
        watch.take(watch.stalls.logged([watch.now]))
    assert watch.stalls.state == ARMED


def test_rows_do_not_hide_a_step_that_hangs(watch):
    """In a run with steps a background thread that logs is no progress."""
    for _ in range(300):
        watch.wait(0.1)
        watch.stalls.logged([watch.now])
    assert watch.kinds() == ["stalled", "hung"]


CALLS = {
    "end": lambda stalls, now: stalls.ended([now]),
    "row": lambda stalls, now: stalls.logged([now]),
    "look": lambda stalls, now: stalls.look(now),
    "long": lambda stalls, now: stalls.look(now, long_phase=True),
    "sample": lambda stalls, now: stalls.sample(now, StackSample("x")),
    "prompt": lambda stalls, now: stalls.sample(now, StackSample("x", at_prompt=True)),
}


@given(st.lists(st.tuples(st.sampled_from(sorted(CALLS)), st.integers(0, 20 * S))))
def test_any_order_of_calls_keeps_the_rules(calls):
    """Hung comes only after stalled, recovered only after either, and time never runs backwards in an event."""
    stalls, now, state = StallDetector(), 0, ARMED
    for call, passed in calls:
        now += passed
        events = CALLS[call](stalls, now)
        for event in events:
            allowed = {"stalled": (ARMED,), "hung": (STALLED,), "recovered": (STALLED, HUNG)}[event["kind"]]
            assert state in allowed
            assert event["seconds"] >= 0
            state = {"stalled": STALLED, "hung": HUNG, "recovered": ARMED}[event["kind"]]


def nanogpt(path):
    """Return the seconds between the lines of one log; its clock is set back once, after the compilation."""
    times = [int(found) / 1000 for found in re.findall(r"train_time:(\d+)ms", path.read_text())]
    return [max(0.0, after - before) for before, after in pairwise(times)]


def mlperf(path):
    """Return the seconds between the reports of one log, with evaluations and whatever else lay between them."""
    lines = [json.loads(line[9:]) for line in path.read_text().splitlines() if line.startswith(":::MLLOG ")]
    keys = ("train_step_time", "reduced_train_loss", "train_loss", "throughput")
    reports = [line for line in lines if line["key"] == "tracked_stats" and any(key in line["value"] for key in keys)]
    times = sorted(line["time_ms"] / 1000 for line in reports)
    return [after - before for before, after in pairwise(times)]


def megatron(path):
    """Return the seconds of each iteration."""
    return [value for value in json.loads(path.read_text())["iteration-time"]["values"].values() if value != "nan"]


def recorded():
    """Return every real series of step times that there is: its name and how to read it."""
    sources = [
        ("modded-nanogpt-runs", "**/*.txt", nanogpt),
        ("mlperf-v5.1-runs", "*/result_*.txt", mlperf),
        ("megatron-golden", "*/golden_*.json", megatron),
    ]
    return [
        (f"{name}/{path.parent.name}/{path.name}", path, read)
        for name, pattern, read in sources
        for path in sorted((DATA / name).glob(pattern))
        if path.name != "SOURCE.txt"
    ]


@pytest.mark.skipif(not DATA.is_dir(), reason=f"the recorded runs are not at {DATA}")
def test_real_step_times_never_look_like_a_hang():
    """Replays of recorded trainings give no hang, even if nobody could see them compute."""
    series = [(name, read(path)) for name, path, read in recorded()]
    series = [(name, seconds) for name, seconds in series if len(seconds) > 2]
    assert len(series) > 30
    for name, seconds in series:
        watch = Watch(1.0)
        start = watch.now
        watch.stalls.ended([start + round(seconds[0] * S)], began=start)
        watch.now = start + round(seconds[0] * S)
        for moment in list(accumulate(seconds))[1:]:
            end = start + round(moment * S)
            watch.stand(end, before_end=True)
            watch.now = end
            watch.take(watch.stalls.ended([end]))
        assert "hung" not in watch.kinds(), name
