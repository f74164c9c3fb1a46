"""Where the time of a step goes."""

from __future__ import annotations

import copy
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.core.ring import PHASE_NAMES, WORD_PHASE
from stepscope.recorder.intake import MAX_PHASES
from tests.recorder.rig import Rig


def spent(rig):
    """Return what each step took, by the names of its row."""
    return [row for _, row in rig.rows() if "step_seconds" in row]


def test_phases_sum_to_the_step(rig, ticks):
    """The phases of a step, with the rest in phase/other, sum to step_seconds to the nanosecond."""
    with rig.run.step():
        ticks[0] += 3
        with rig.run.phase("forward"):
            ticks[0] += 5
        ticks[0] += 1
        with rig.run.phase("backward"):
            ticks[0] += 7
    assert spent(rig) == [{"step_seconds": 16, "phase/other": 4, "phase/forward": 5, "phase/backward": 7}]


def test_nested_phases_are_charged_their_own_time(rig, ticks):
    """The time of a phase inside another is charged to the inner one alone."""
    with rig.run.step(), rig.run.phase("forward"):
        ticks[0] += 2
        with rig.run.phase("communication"):
            ticks[0] += 10
            with rig.run.phase("forward"):
                ticks[0] += 100
        ticks[0] += 1000
    assert spent(rig) == [{"step_seconds": 1112, "phase/other": 0, "phase/forward": 1102, "phase/communication": 10}]


def test_between_two_steps(rig, ticks):
    """What happens between two steps, evaluation or not, belongs to the step that it delays."""
    with rig.run.step():
        ticks[0] += 5
    ticks[0] += 20
    with rig.run.phase("evaluation"):
        ticks[0] += 300
    with rig.run.step():
        ticks[0] += 5
    assert spent(rig)[1] == {"step_seconds": 325, "phase/other": 25, "phase/evaluation": 300}


def test_first_step_starts_with_the_wait_for_its_data(rig, ticks):
    """The first step lasts from the wait for its data; without one, from its start."""
    ticks[0] += 99
    for _ in rig.run.data([1]):
        with rig.run.step():
            ticks[0] += 5
    assert spent(rig)[0]["step_seconds"] == 5

    def slow():
        ticks[0] += 40
        yield 1

    other = Rig(rig.path.parent)
    for _ in other.run.data(slow()):
        with other.run.step():
            ticks[0] += 5
    assert spent(other) == [{"step_seconds": 45, "phase/other": 5, "phase/data": 40}]


def test_samples(rig, ticks):
    """samples= is recorded with its step; omitted, it is absent."""
    with rig.run.step(samples=32):
        ticks[0] += 1
    with rig.run.step():
        ticks[0] += 1
    with rig.run.step(samples=0):
        ticks[0] += 1
    assert [row.get("samples") for row in spent(rig)] == [32.0, None, 0.0]


class Angry:
    def __float__(self):
        raise RuntimeError("never")


@pytest.mark.parametrize("samples", ["many", [1, 2], Angry(), 10**400])
def test_samples_that_are_no_number(rig, samples):
    """samples= that is no number is told once, and the step is recorded all the same."""
    for _ in range(2):
        with rig.run.step(samples=samples):
            pass
    assert len(spent(rig)) == 2
    assert all(row["samples"] != row["samples"] for row in spent(rig))
    assert rig.said.getvalue().count("samples=") == 1


def test_exception_ends_step_and_phase(rig, ticks):
    """An exception passes through step and phase unchanged, and the time up to it is recorded."""

    def fail():
        with rig.run.step(), rig.run.phase("forward"):
            ticks[0] += 5
            raise KeyError("x")

    with pytest.raises(KeyError, match="x"):
        fail()
    with rig.run.step():
        ticks[0] += 1
    assert spent(rig) == [
        {"step_seconds": 5, "phase/other": 0, "phase/forward": 5},
        {"step_seconds": 1, "phase/other": 1},
    ]


def elsewhere(work):
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def test_other_threads_are_not_charged(rig, ticks):
    """The phases of a thread that runs beside the training, a prefetcher's say, charge nothing to the step."""

    def prefetch():
        with rig.run.phase("data"), rig.run.phase("copy"):
            ticks[0] += 50

    with rig.run.step(), rig.run.phase("forward"):
        elsewhere(prefetch)
    assert spent(rig) == [{"step_seconds": 50, "phase/other": 0, "phase/forward": 50}]


def test_same_phase_in_two_threads(rig, ticks):
    """A phase that two threads are in at once is charged to the training thread's time alone."""
    inside, go_on = threading.Event(), threading.Event()

    def beside():
        with rig.run.phase("forward"):
            inside.set()
            go_on.wait(60)

    with rig.run.step():
        with rig.run.phase("forward"):
            thread = threading.Thread(target=beside)
            thread.start()
            inside.wait(60)
            ticks[0] += 5
        ticks[0] += 2
        go_on.set()
        thread.join()
    assert spent(rig) == [{"step_seconds": 7, "phase/other": 2, "phase/forward": 5}]


def test_step_in_another_thread(rig, ticks):
    """The thread that is inside the last step is the one whose time is charged."""
    with rig.run.phase("forward"):
        ticks[0] += 1

    def train():
        with rig.run.step(), rig.run.phase("forward"):
            ticks[0] += 5

    elsewhere(train)
    assert spent(rig)[0]["phase/forward"] == 6


def test_odd_phase_names(rig, ticks):
    """A phase under a name that cannot be used is charged to phase/other, told once and never raised."""
    with rig.run.step():
        for name in ("a\0b", "", None, 3, ["x"], {}, "x" * 500):
            with rig.run.phase(name):
                ticks[0] += 1
    assert spent(rig) == [{"step_seconds": 7, "phase/other": 7}]
    assert rig.said.getvalue().count("\n") == 1


def test_too_many_phases(rig, ticks):
    """Past the limit new phases go to phase/other; known ones stay what they are."""
    first = rig.run.phase("p0")
    for number in range(MAX_PHASES + 5):
        rig.run.phase(f"p{number}")
    assert rig.run.phase("p0") is first
    with rig.run.step(), rig.run.phase("p9999"):
        ticks[0] += 1
    assert spent(rig) == [{"step_seconds": 1, "phase/other": 1}]
    assert rig.complaints() == {"phase": 6}


def test_more_phases_than_a_record_holds(rig, ticks):
    """A step with more phases than fit into one record is refused and counted; the ring stays whole."""
    with rig.run.step():
        for number in range(200):
            with rig.run.phase(f"p{number}"):
                ticks[0] += 1
    with rig.run.step():
        ticks[0] += 1
    assert spent(rig) == [{"step_seconds": 1, "phase/other": 1}]
    assert rig.refused == 1


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 50), st.booleans()), max_size=30))
def test_any_nesting_sums_up(tmp_path_factory, moves):
    """Whatever the order and depth of phases, they sum to step_seconds."""
    rig = Rig(tmp_path_factory.mktemp("ring"))
    with rig.run.step():
        opened = []
        for name, _, enter in moves:
            if enter or not opened:
                opened.append(rig.run.phase(name))
                opened[-1].__enter__()
            else:
                opened.pop().__exit__()
        while opened:
            opened.pop().__exit__()
    [row] = spent(rig)
    assert sum(value for name, value in row.items() if name.startswith("phase/")) == row["step_seconds"]
    rig.close()


class Loader:
    batch_size = 4

    def __len__(self):
        return 3

    def __iter__(self):
        yield from "abc"


def test_data_keeps_length_and_attributes(rig):
    """data() has the length and the attributes of what it wraps, and can be gone through again."""
    wrapped = rig.run.data(Loader())
    assert (len(wrapped), wrapped.batch_size) == (3, 4)
    assert list(wrapped) == list(wrapped) == ["a", "b", "c"]
    with pytest.raises(AttributeError, match="colour"):
        _ = wrapped.colour


def test_data_without_a_length(rig):
    """What has no length has none when wrapped, and can still be listed."""
    with pytest.raises(TypeError):
        len(rig.run.data(iter("ab")))
    assert list(rig.run.data(iter("ab"))) == ["a", "b"]


def test_data_can_be_copied(rig):
    """A wrapped loader can be copied like the loader itself."""
    assert copy.copy(rig.run.data(Loader())).batch_size == 4


def test_data_passes_exceptions(rig, ticks):
    """What a loader raises arrives unchanged, and the wait up to it is charged to phase/data."""

    def broken():
        yield 1
        ticks[0] += 6
        raise OSError("disk")

    def train():
        for _ in rig.run.data(broken()):
            with rig.run.step():
                ticks[0] += 1

    with pytest.raises(OSError, match="disk"):
        train()
    with rig.run.step():
        pass
    assert spent(rig)[1]["phase/data"] == 6


def test_data_waits_are_charged(rig, ticks):
    """Each wait for a batch is charged to phase/data of the step that takes it, the time outside is not."""

    def slow():
        for batch in range(3):
            ticks[0] += 10 * (batch + 1)
            yield batch

    for _ in rig.run.data(slow()):
        ticks[0] += 1
        with rig.run.step():
            ticks[0] += 2
    assert [(row["phase/data"], row["phase/other"]) for row in spent(rig)] == [(10, 3), (20, 3), (30, 3)]


def open_phase(rig):
    return PHASE_NAMES[rig.reader.words()[WORD_PHASE]]


def test_long_phases_are_published(rig):
    """While a phase that may last is open the header names it; the inner one of two, then the outer again."""
    seen = [open_phase(rig)]
    with rig.run.phase("validation"):
        seen.append(open_phase(rig))
        with rig.run.phase("forward"), rig.run.phase("checkpoint"):
            with rig.run.phase("checkpoint"):
                pass
            seen.append(open_phase(rig))
        seen.append(open_phase(rig))
    seen.append(open_phase(rig))
    assert seen == ["", "evaluation", "checkpoint", "evaluation", ""]


def test_a_long_phase_that_fails(rig):
    """An exception that leaves a long phase closes it."""
    with pytest.raises(ValueError, match="full"), rig.run.phase("checkpoint"):
        raise ValueError("full")
    assert open_phase(rig) == ""
