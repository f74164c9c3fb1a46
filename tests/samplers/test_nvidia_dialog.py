from __future__ import annotations

import itertools

import pytest

from stepscope.core.spawn import SpawnError
from stepscope.samplers.nvidia_dialog import BACK_OFF, MOST_STUCK, START_SECONDS, Dialog
from tests.nvml.lines import FakeLine, answer, card

SECOND = 10**9


class Lines:
    """Start one line after the other, and remember them."""

    def __init__(self, *lines):
        self.waiting, self.started = list(lines), []

    def __call__(self):
        self.started.append(self.waiting.pop(0))
        return self.started[-1]


def dialog(*lines):
    """Return a dialog over these helpers, and the list of those that were started."""
    start = Lines(*lines)
    return Dialog(2.0, 0.01, start), start.started


def kinds(talk):
    """Return the kinds of the events so far."""
    return [event["kind"] for event in talk.events]


def test_one_request_one_answer():
    """Each call asks once and returns the answer."""
    talk, lines = dialog(FakeLine(answer(card(0)), answer(card(0))))
    assert len(talk.exchange(0)) == 1
    assert len(talk.exchange(SECOND)) == 1
    assert len(lines[0].requests) == 2


def test_slow_values_are_asked_for_rarely():
    """What hardly changes is asked for every 10 s, the list of GPUs every minute."""
    talk, lines = dialog(FakeLine(*[answer(card(0))] * 70))
    for second in range(61):
        talk.exchange(second * SECOND)
    assert [at for at, each in enumerate(lines[0].requests) if "slow" in each] == [0, 10, 20, 30, 40, 50, 60]
    assert [at for at, each in enumerate(lines[0].requests) if "devices" in each] == [0, 60]


def test_late_answer_is_taken_by_the_next_call():
    """An answer that comes after the patience is over is returned by the next call, which asks again."""
    talk, lines = dialog(FakeLine(None))
    assert talk.exchange(0) == []
    lines[0].answers = [answer(card(0))]
    assert len(talk.exchange(SECOND)) == 1
    assert len(lines[0].requests) == 2


@pytest.mark.promise("S2-021")
def test_silent_driver_is_given_up_without_waiting():
    """Two seconds of silence end a helper that worked, with one event; no call waits longer than the patience."""
    talk, lines = dialog(FakeLine(answer(card(0)), None))
    for second in range(5):
        talk.exchange(second * SECOND)
    assert kinds(talk) == ["gpu_driver_hung"]
    assert talk.events[0]["waited_seconds"] == 2.0
    assert lines[0].abandoned
    assert "did not answer" in talk.reason
    assert max(lines[0].waited) == 0.01
    assert sum(wait > 0 for wait in lines[0].waited) == len(lines[0].requests)


def test_first_answer_may_take_longer():
    """A driver that wakes its GPUs has 8 s for the first answer, less than the 10 s in which a hang must be told."""
    talk, _ = dialog(FakeLine(None))
    for second in range(8):
        talk.exchange(second * SECOND)
    assert talk.events == []
    talk.exchange(int(START_SECONDS) * SECOND)
    assert kinds(talk) == ["gpu_driver_hung"]


def test_stopped_watcher_blames_nobody():
    """After a long stop of this process the helper has one more call to answer in."""
    talk, lines = dialog(FakeLine(answer(card(0)), None))
    talk.exchange(0)
    talk.exchange(SECOND)
    talk.exchange(100 * SECOND)
    assert talk.events == []
    lines[0].answers = [answer(card(0))]
    assert len(talk.exchange(101 * SECOND)) == 1


def test_driver_that_comes_back():
    """After a hang another helper is tried 30 s later; its answer ends the hang with an event."""
    talk, lines = dialog(FakeLine(answer(card(0)), None), FakeLine(answer(card(0))))
    for second in range(4):
        talk.exchange(second * SECOND)
    assert len(lines) == 1
    assert talk.exchange((3 + int(BACK_OFF[0]) - 1) * SECOND) == []
    assert len(talk.exchange((3 + int(BACK_OFF[0])) * SECOND)) == 1
    assert kinds(talk) == ["gpu_driver_hung", "gpu_driver_back"]
    assert talk.reason == ""


def test_back_off_grows():
    """Attempts get rarer while the driver hangs, and the hang is told once."""
    talk, lines = dialog(*[FakeLine(None) for _ in range(9)])
    starts = []
    for second in range(2800):
        before = len(lines)
        talk.exchange(second * SECOND)
        starts += [second] * (len(lines) - before)
    pauses = [later - earlier - START_SECONDS for earlier, later in itertools.pairwise(starts)]
    assert pauses[:7] == [*BACK_OFF, BACK_OFF[-1]]
    assert kinds(talk) == ["gpu_driver_hung"]


def test_processes_that_cannot_be_killed_do_not_pile_up():
    """While two helpers sit in the driver no third one is started."""
    talk, lines = dialog(*[FakeLine(None, dies=False) for _ in range(9)])
    for second in range(0, 4000, 2):
        talk.exchange(second * SECOND)
    assert len(lines) == MOST_STUCK


def test_helper_that_dies_is_replaced():
    """A helper that crashes is told with its end and replaced after the back-off."""
    talk, lines = dialog(FakeLine(answer(card(0)), "end"), FakeLine(answer(card(0))))
    talk.exchange(0)
    talk.exchange(SECOND)
    assert talk.events == [{"kind": "gpu_reader_ended", "reason": "killed by SIGSEGV"}]
    assert len(talk.exchange(40 * SECOND)) == 1
    assert len(lines) == 2


@pytest.mark.promise("S1-078", "S2-058")
@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("binding", "pip install nvidia-ml-py"),
        (4, "root is not needed"),
        (9, "NVIDIA driver not loaded; check with nvidia-smi"),
        (12, "libnvidia-ml.so.1"),
        (18, "different versions"),
        (999, "Unknown Error; check with nvidia-smi"),
    ],
)
def test_no_driver_is_said_once_and_left_alone(code, words):
    """A machine without usable driver gives the reason and the remedy; the helper ends and none is started again."""
    talk, lines = dialog(FakeLine({"error": code, "reason": "Unknown Error"}))
    for second in range(0, 2000, 10):
        assert talk.exchange(second * SECOND) == []
    assert words in talk.reason
    assert talk.events == []
    assert lines[0].abandoned


def test_refused_start_is_tried_again():
    """A system that starts no process now may do so later."""

    def refuse():
        raise SpawnError("no more processes")

    talk = Dialog(2.0, 0.0, refuse)
    assert talk.exchange(0) == []
    assert "no more processes" in talk.reason
    talk._start = lambda: FakeLine(answer(card(0)))
    assert len(talk.exchange(31 * SECOND)) == 1


def test_close_ends_the_helper():
    """Closing lets go of the helper."""
    talk, lines = dialog(FakeLine(answer(card(0))))
    talk.exchange(0)
    talk.close()
    assert lines[0].abandoned
