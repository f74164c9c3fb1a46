"""The clock of the hot path in C: the processor's counter, held to the system's clock."""

from __future__ import annotations

import time

import pytest

from stepscope.recorder import native

MS = 1_000_000
TOLERANCE = 50_000
"""Nanoseconds that the counter may be off within its window: a clock that is being set is slewed by 500 ppm at most."""


@pytest.fixture
def module():
    found = native.available()
    if found is None:
        pytest.skip("needs the hot path in C, which was not built here (no compiler, or another machine)")
    yield found
    found.trust_counter(native.keeps_time_by_counter())


@pytest.mark.parametrize("trusted", [False, True])
def test_agrees_with_the_clock(module, trusted):
    """What it reads lies between two readings of the system's clock, and never goes back."""
    if trusted and not native.keeps_time_by_counter():
        pytest.skip("this kernel keeps its time by something else than the counter")
    module.trust_counter(trusted)
    last = 0
    for _ in range(200_000):  # several of its windows
        before, read, after = time.monotonic_ns(), module.read_clock(), time.monotonic_ns()
        assert before - TOLERANCE <= read <= after + TOLERANCE
        assert read >= last
        last = read


def looks(rate, moments, start=(5_000, 7_000)):
    """Looks at a counter that runs at `rate` ns per tick, at these moments in ms."""
    return [(start[0] + round(at * MS / rate), start[1] + at * MS) for at in moments]


def test_rate_is_known_after_a_while(module):
    """A counter is believed at its true rate, once it has run beside the clock for long enough."""
    assert module.rate_after([]) == 0
    assert module.rate_after(looks(0.4, [0, 5])) == 0
    assert module.rate_after(looks(0.4, [0, 5, 25, 45])) == pytest.approx(0.4, rel=1e-6)


def test_rate_follows_the_clock(module):
    """A clock that is slewed has its new rate within two minutes."""
    slow = looks(0.4, range(0, 70_000, 20))
    ticks, ns = slow[-1]
    fast = looks(0.4 * 1.0004, range(20, 130_000, 20), (ticks, ns))
    assert module.rate_after([*slow, *fast]) == pytest.approx(0.4 * 1.0004, rel=1e-5)


@pytest.mark.parametrize("jump", [-300 * MS, 300 * MS, -(10**12)])
def test_disagreement_ends_the_trust(module, jump):
    """A counter that jumps, as after a move to another machine, is not believed until it has run evenly for a while."""
    good = looks(0.4, range(0, 400, 20))
    ticks, ns = good[-1]
    moved = (max(1, ticks + jump), ns + 20 * MS)
    assert module.rate_after([*good, moved]) == 0
    assert module.rate_after([*good, moved, *looks(0.4, [30, 60], moved)]) == pytest.approx(0.4, rel=1e-6)


@pytest.mark.parametrize(("text", "counts"), [("tsc\n", True), ("kvm-clock\n", False), ("hpet\n", False), ("", False)])
def test_only_where_the_kernel_does_so(tmp_path, text, counts):
    """The counter is read where the kernel itself keeps its time by it, and nowhere else."""
    source = tmp_path / "current_clocksource"
    source.write_text(text)
    assert native.keeps_time_by_counter(str(source)) is counts
    assert native.keeps_time_by_counter(str(tmp_path / "hidden")) is False


def test_contexts_stay_what_they_are(rig):
    """A phase or step is of its kind, one object for all its uses, and may be kept and entered later."""
    from stepscope.recorder.hotpath import Phase, Step

    run = rig.run
    with run.step(samples=4) as first, run.phase("forward"):
        kept = run.phase("backward")
    with run.step() as second, kept, run.phase("forward"):
        pass
    assert (first, second) == (0, 1)
    assert isinstance(kept, Phase)
    assert isinstance(run.step(), Step)
    assert run.phase("backward") is kept
    assert type(kept).__name__ == "Phase"
