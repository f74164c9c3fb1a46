from __future__ import annotations

import math
import threading

import pytest

from stepscope.profiling import TrainingTimer
from stepscope.trackers.profiling import training_timer
from tests.fakes import Clock
from tests.trackers.memory_sources import Gpu


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def timer(clock):
    return TrainingTimer(device=0, clock=clock, modules={})


@pytest.mark.promise("S4-007")
def test_stop_returns_the_seconds(timer, clock):
    """A timing lasts from start to stop, in seconds."""
    timer.start("forward")
    clock.now += 0.125
    assert timer.stop("forward") == 0.125


@pytest.mark.promise("S4-008")
def test_summary_has_the_figures_of_each_name(timer, clock):
    """The summary has mean, count, total, extremes, deviation and percentiles of each name."""
    for name, seconds in (("forward", 0.1), ("forward", 0.3), ("backward", 0.25)):
        with timer.time(name):
            clock.now += seconds
    summary = timer.get_summary()
    forward = summary["forward"]
    assert list(summary) == timer.names() == ["forward", "backward"]
    assert (forward["count"], forward["clock"]) == (2, "host")
    for figure, value in {"mean": 0.2, "total": 0.4, "min": 0.1, "max": 0.3, "std": 0.1, "p50": 0.2}.items():
        assert forward[f"{figure}_sec"] == pytest.approx(value)
    assert summary["backward"]["mean_sec"] == pytest.approx(0.25)


@pytest.mark.promise("S4-010")
def test_stop_without_start_is_nan(timer, capsys):
    """To stop what was not started returns NaN, counts nothing, and is told once."""
    assert math.isnan(timer.stop("x"))
    assert math.isnan(timer.stop("x"))
    assert timer.get_summary() == {}
    assert capsys.readouterr().err.count("it was not started") == 1


@pytest.mark.promise("S4-010")
def test_names_nest(timer, clock):
    """A name inside another is part of both; a name inside itself is ended from the inside."""
    timer.start("step")
    clock.now += 1
    timer.start("step")
    timer.start("forward")
    clock.now += 2
    assert timer.stop("forward") == 2
    assert timer.stop("step") == 2
    clock.now += 4
    assert timer.stop("step") == 7


@pytest.mark.promise("S4-010")
def test_threads_do_not_meet(timer, clock):
    """Each thread has its own timings: what one started another cannot stop."""
    timer.start("x")
    found = []
    thread = threading.Thread(target=lambda: found.append(timer.stop("x")))
    thread.start()
    thread.join()
    clock.now += 1
    assert math.isnan(found[0])
    assert timer.stop("x") == 1


def test_block_is_timed_when_it_raises(timer, clock):
    """A block that raises is timed, and its error goes on."""

    def fail():
        with timer.time("x"):
            clock.now += 3
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert timer.get_summary()["x"]["mean_sec"] == 3


@pytest.mark.promise("S4-009")
def test_gpu_time_is_taken_by_events_without_waiting(clock):
    """Work that the host only hands over is timed by the device's clock, and nobody waits for it while it trains."""
    gpu = Gpu()
    timer = TrainingTimer(device=0, clock=clock, modules=gpu.modules)
    for _ in range(10):
        with timer.time("forward"):
            clock.now += 0.001
            gpu.work(0.5)
    assert gpu.waits == 0
    forward = timer.get_summary()["forward"]
    assert (forward["clock"], forward["count"]) == ("device", 10)
    assert forward["mean_sec"] == pytest.approx(0.5)
    assert forward["host_mean_sec"] == pytest.approx(0.001)


@pytest.mark.promise("S4-009")
def test_sync_mode_waits_and_returns_the_whole_time(clock):
    """In the mode that waits, `stop` returns when the device is done."""
    gpu = Gpu()
    timer = TrainingTimer(0, "sync", clock=lambda: clock() + gpu.time, modules=gpu.modules)
    timer.start("x")
    gpu.work(0.5)
    assert timer.stop("x") == pytest.approx(0.5)
    assert gpu.waits == 2


def test_events_are_used_again(clock):
    """Events that were read are used for later timings, so that their number stays small."""
    gpu = Gpu()
    timer = TrainingTimer(0, clock=clock, modules=gpu.modules)
    for _ in range(500):
        with timer.time("x"):
            gpu.work(0.1)
        gpu.run()
    assert len(timer._spares) <= 4
    assert timer.get_summary()["x"]["count"] == 500


def test_events_that_nobody_reads_are_bounded(clock, monkeypatch):
    """Timings of a device that never gets there are dropped and counted; the host's stay."""
    monkeypatch.setattr(training_timer, "MAX_PENDING", 10)
    gpu = Gpu()
    timer = TrainingTimer(0, clock=clock, modules=gpu.modules)
    for _ in range(25):
        with timer.time("x"):
            gpu.work(0.1)
    assert timer.dropped == 15
    assert timer._host["x"].recorded == 25


@pytest.mark.parametrize("trouble", ["capturing", "broken"])
def test_gpu_that_cannot_be_timed_leaves_the_host(clock, trouble):
    """While a graph is captured, or when the device fails, the host's clock is what there is; nothing raises."""
    gpu = Gpu()
    setattr(gpu, trouble, True)
    timer = TrainingTimer(0, clock=clock, modules=gpu.modules)
    with timer.time("x"):
        clock.now += 1
    assert timer.get_summary()["x"]["clock"] == "host"


def test_the_device_is_named_once(clock):
    """Starting and stopping a timing formats no text: the name of the device is taken when the timer is made."""
    gpu, named = Gpu(), []

    class Device:
        def __str__(self):
            named.append(1)
            return "cuda:0"

    timer = TrainingTimer(Device(), clock=clock, modules=gpu.modules)
    before = len(named)
    for _ in range(3):
        with timer.time("x"):
            gpu.work(0.1)
    assert timer.get_summary()["x"]["clock"] == "device"
    assert len(named) == before


def test_unknown_mode_is_told(capsys):
    """A mode that there is not is told, and events are used."""
    assert TrainingTimer(0, "fast").mode == "events"
    assert "cannot time by 'fast'" in capsys.readouterr().err


def test_what_is_never_stopped_is_bounded(timer, capsys):
    """A name that is started again and again and never stopped does not grow without end."""
    for _ in range(1000):
        timer.start("x")
    assert len(timer._open[threading.get_ident(), "x"]) == training_timer.MAX_OPEN
    assert "never stopped" in capsys.readouterr().err
