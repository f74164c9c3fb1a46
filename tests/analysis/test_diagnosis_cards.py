"""What GPUs, quotas, swap and memory that ran out say, each with a twin on which nothing is wrong."""

from __future__ import annotations

import numpy as np
import pytest

from stepscope.analysis.diagnosis.verdict import findings, primary
from stepscope.core.remedies import remedy
from tests.analysis.diagnosis_rig import evidence, falling, steps, track

GIB = 2.0**30
HOST = {"data": 0.001, "forward": 0.002, "backward": 0.003, "optimizer": 0.001, "other": 0.03}
"""A step that launches its work and waits for the device at the end."""
BOOST, SLOW = 1.98e9, 1.2e9
N = 40


def card(number=0, use=0.95, clock=BOOST, **more):
    """Return the samples of a busy card; `more` by their names."""
    values = {"utilization_ratio": use, "sm_clock_hertz": clock, "temperature_celsius": 70.0, **more}
    return {f"gpu/{number}/{name}": _spread(value) for name, value in values.items()}


def _spread(value):
    return np.full(N, value) if isinstance(value, float) else np.asarray(value, float)


def part(share, low=0.0, high=1.0):
    """Return samples of which so many, in order, are high."""
    return np.where(np.arange(N) < share * N, high, low)


def found(series, *ranks, **given):
    """Return the findings of a run with these samples; that it computes is none that matters here."""
    told = findings(evidence(*(ranks or (steps(),)), series={"loss": falling(), **series}, **given))
    return [one for one in told if one.kind != "compute_bound"]


def kinds(series, *ranks, **given):
    """Return their kinds, without remarks."""
    return [one.kind for one in found(series, *ranks, **given) if one.severity != "info"]


def test_heat_costs_what_the_clock_loses():
    """Half of the samples at 60 % of the clock, on a card that is always busy, are a fifth of the time."""
    hot = card(clock=np.where(part(0.5) > 0, SLOW, BOOST), throttle_sw_thermal=part(0.5), use=1.0)
    (one,) = found(hot)
    assert (one.kind, one.severity) == ("gpu_throttled", "warning")
    assert one.gain_ratio == pytest.approx(0.5 * (1 - SLOW / BOOST), abs=0.01)
    assert "at its full clock" in one.expected_gain
    assert one.remedy == remedy("gpu_throttled", "heat")
    assert "lower its power limit" in one.remedy


def test_without_clocks_heat_is_told_and_no_gain_made_up():
    """Nobody knows what it costs."""
    (one,) = found({"gpu/0/utilization_ratio": [0.9] * N, "gpu/0/throttle_hw_thermal": [1.0] * N})
    assert (one.kind, one.gain_ratio, one.expected_gain) == ("gpu_throttled", None, "")


@pytest.mark.parametrize(
    "healthy",
    [
        card(),
        card(throttle_power_cap=1.0),
        card(throttle_sw_thermal=part(0.05), clock=np.where(part(0.05) > 0, SLOW, BOOST)),
        card(use=0.6, temperature_celsius=82.0),
        card(throttle_sync_boost=1.0),
    ],
    ids=["cool", "at its power limit, as designed", "a moment of heat", "warm and fairly busy", "in step with others"],
)
def test_cards_that_do_what_they_should(healthy):
    """A card at its power limit works as designed, and a moment of heat is none."""
    assert kinds(healthy) == []


def test_one_hot_card_of_many_nodes_is_found():
    """Its samples do not drown in those of fifteen others."""
    whole = {name: {-1 - node: track(value) for node in range(16)} for name, value in card().items()}
    hot = card(clock=np.where(part(0.6) > 0, SLOW, BOOST), throttle_hw_thermal=part(0.6))
    for name, value in hot.items():
        whole.setdefault(name, {})[-4] = track(value)
    (one,) = found(whole)
    assert one.kind == "gpu_throttled"
    assert "GPU 0 of node 3 " in one.text


def test_a_card_that_waits_for_data_is_told_after_its_cause():
    """The cause comes first; that the card waits follows from it."""
    waits = steps({"data": 0.06, "forward": 0.004, "backward": 0.008, "optimizer": 0.002, "other": 0.002})
    told = found(card(use=0.2), waits)
    assert [one.kind for one in told] == ["input_bound", "gpu_idle"]


def test_a_card_that_waits_is_the_verdict_where_nothing_else_is_known():
    """As of a run of another tool, which has samples of the machine and no steps."""
    told = findings(evidence(series={"loss": falling(), **card(use=0.15)}))
    assert [(one.kind, one.cost_seconds) for one in told] == [("gpu_idle", None)]


def test_a_model_that_was_left_on_the_processors_is_a_fault():
    """A GPU is there, and the model computes without it."""
    setup = {"kind": "torch_setup", "time": 1.7e9, "device": "cpu", "threads": 2}
    (one,) = [one for one in found(card(use=0.0), events=[setup]) if one.kind == "gpu_idle"]
    assert one.severity == "warning"
    assert "model.to('cuda')" in one.remedy


def test_cards_that_the_run_does_not_use_are_no_matter():
    """A training on one card of a machine with four."""
    assert found(card(0) | card(1, use=0.0) | card(2, use=0.0)) == []


def test_what_a_card_does_before_and_after_the_steps_does_not_count():
    """It idles while data is prepared, and while the last checkpoint is uploaded."""
    when = 1.7e9 + np.linspace(-20, 40, 600)
    going = (when >= 1.7e9) & (when <= 1.7e9 + steps().total)
    use = track(np.where(going, 0.97, 0.0))
    assert found({"gpu/0/utilization_ratio": type(use)(use.step, when, use.value)}) == []


def test_fragments_matter_where_memory_is_short():
    """Split blocks in a card that is nearly full are a finding, in one with room they are not."""
    split = {"memory_fragmentation_ratio": 0.4, "memory_reserved_bytes": 74 * GIB, "memory_total_bytes": 80 * GIB}
    assert kinds(card(**split)) == ["fragmentation"]
    assert kinds(card(**split | {"memory_reserved_bytes": 40 * GIB})) == []
    assert kinds(card(**split | {"memory_fragmentation_ratio": 0.1})) == []


def test_copies_that_the_device_waits_for():
    """By the host's clock, or by the device's where the host does not wait for them."""
    copies = steps({"data": 0.001, "copy": 0.02, "forward": 0.01, "backward": 0.02, "optimizer": 0.004, "other": 0.001})
    assert primary(found({}, copies)) == "copy_bound"
    times = {"copy": 0.014, "forward": 0.007, "backward": 0.012, "optimizer": 0.003}
    queued = {f"device/{name}_seconds": [value] * N for name, value in times.items()}
    assert primary(found(card() | queued, steps(HOST))) != "none"
    assert "copy_bound" in kinds(card() | queued, steps(HOST))


def test_copies_behind_the_computing_cost_nothing():
    """A stream of its own: copies and passes together take longer than the step."""
    times = {"copy": 0.014, "forward": 0.012, "backward": 0.02, "optimizer": 0.004}
    hidden = {f"device/{name}_seconds": [value] * N for name, value in times.items()}
    assert "copy_bound" not in kinds(card() | hidden, steps(HOST))


def throttled(held, running, ratio, limit=0.5, others=0.0):
    """Return the samples of a group whose quota holds its threads so long in every second."""
    return {
        "cgroup/throttled_ratio": [ratio] * N,
        "cgroup/cpu_limit": [limit] * N,
        "cgroup/throttled_seconds_total": np.arange(N) * held,
        "process/0/tree_cpu_ratio": [running] * N,
        "cpu/machine_usage_ratio": [(running + others) / 2] * N,
        "cpu/count": [2.0] * N,
    }


@pytest.mark.parametrize(
    ("samples", "share"),
    [
        (throttled(0.8, 0.2, 0.95, 0.2), 0.8),  # one thread with a fifth of a processor
        (throttled(1.0, 1.0, 0.95, 1.0), 0.5),  # two threads with one processor
        (throttled(0.53, 0.18, 0.91, 0.2, others=1.8), 0.75),  # the first one, and others want processors, too
        (throttled(0.25, 0.25, 0.5, 0.25), 0.25),  # one thread that waits for something else half of the time
    ],
)
def test_a_quota_costs_the_time_in_which_it_holds_threads(samples, share):
    """What it takes is what a thread waits for the next period, not the number of periods."""
    one = next(one for one in found(samples, processors=samples["cgroup/cpu_limit"][0]) if one.kind == "cpu_throttled")
    assert one.gain_ratio == pytest.approx(share, abs=0.01)
    assert "with all the CPUs it needs" in one.expected_gain


def test_a_quota_that_runs_out_for_a_moment_is_none():
    """In many periods, but each time for a millisecond; or in few."""
    assert kinds(throttled(0.02, 0.9, 0.4, 1.0)) == []
    assert kinds(throttled(0.02, 0.9, 0.1, 1.0)) == []


def swap(grown, waiting=None, begun=0.0):
    """Return the samples of memory that goes to swap."""
    known = {} if waiting is None else {"pressure/memory_some_stalled_ratio": [waiting] * N}
    return {"swap/used_bytes": begun + np.linspace(0, grown, N), "memory/total_bytes": [64 * GIB] * N, **known}


def test_swap_costs_the_time_in_which_memory_was_waited_for():
    """Also where it was full before the run began."""
    for samples in (swap(4 * GIB, 0.3), swap(0.0, 0.3, begun=4 * GIB)):
        (one,) = found(samples)
        assert one.kind == "swapping"
        assert one.gain_ratio == pytest.approx(0.3)
        assert one.cost_seconds == pytest.approx(0.3 * steps().total)


@pytest.mark.parametrize("samples", [swap(GIB, 0.001), swap(0.0, 0.3), swap(GIB), swap(0.0, 0.01, begun=8 * GIB)])
def test_what_nobody_misses_may_lie_in_swap(samples):
    """The kernel writes out what is not used; that holds up nobody."""
    assert kinds(samples) == []


def ran_out(at, text="CUDA out of memory. Tried to allocate 2.00 GiB", **more):
    """Return the event of memory that ran out so many seconds after the start."""
    return {"kind": "out_of_memory", "time": 1.7e9 + at, "cause": f"OutOfMemoryError: {text}", "rank": 0, **more}


def test_memory_that_ran_out_on_a_card_has_the_remedy_of_a_card():
    """Also where only the last words of the program are known."""
    cause = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
    for given in ({"events": [ran_out(3.0)]}, {}):
        one = next(iter(found({}, state="failed", cause=cause, **given)))
        assert (one.kind, one.severity, one.remedy) == ("oom", "critical", remedy("oom"))
    one = next(iter(found({}, state="oom-killed", cause="killed by the kernel for memory")))
    assert (one.kind, one.remedy) == ("oom", remedy("oom", "host"))


@pytest.mark.parametrize(
    ("begins", "said", "sure"),
    [
        ("out of memory", "the process was killed", 0.98),
        ("out of memory, probably", "the process was probably killed", 0.7),
    ],
)
def test_a_killed_process_says_once_that_memory_ran_out(begins, said, sure):
    """The cause begins with the same words: the sentence has them once, as sure as they were, then the limit."""
    one = next(iter(found({}, state="oom-killed", cause=f"{begins}: limit 128 GiB, last seen with 127 GiB")))
    assert one.text == f"{said} because memory ran out: limit 128 GiB, last seen with 127 GiB"
    assert one.confidence == sure


def test_a_search_for_the_largest_batch_ends_well():
    """Memory ran out, the program took a smaller batch, and all went well: a remark, and no fault."""
    told = found({}, events=[ran_out(0.05), ran_out(0.1)])
    assert [(one.kind, one.severity) for one in told] == [("oom", "info")]
    told = found({}, events=[ran_out(0.5 * number) for number in range(10)])
    assert [(one.kind, one.severity) for one in told] == [("oom", "warning")]
