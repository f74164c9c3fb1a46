"""Every idle nanosecond has one cause, and planted causes are found."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.analysis.trace import idle as trace_idle
from stepscope.analysis.trace.breakdown import breakdown, busy_time
from stepscope.analysis.trace.breakdown import findings as breakdown_findings
from stepscope.analysis.trace.idle import findings as idle_findings
from stepscope.analysis.trace.idle import kernel_sizes, waiting_sites, why_idle
from stepscope.analysis.trace.links import link
from stepscope.analysis.trace.roles import roles
from stepscope.analysis.trace.window import TraceWindow, gaps, total, window_of
from stepscope.core.trace import KERNEL, PYTHON
from tests.analysis.trace_rig import Rig


def causes_of(rig) -> dict[str, float]:
    """Return the causes of the idle time in µs."""
    trace = rig.trace()
    found = why_idle(trace, window_of(trace), link(trace)).causes
    return {cause: time / 1000 for cause, time in found.items() if time}


def between(rig: Rig) -> Rig:
    """Add a kernel before and one after a gap from 20 to 100 µs; the second is launched at 90."""
    return rig.launch("gemm", (0, 5), (10, 20)).launch("gemm", (90, 95), (100, 110))


@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "data"),
        ("gloo:barrier", "peer"),
        ("torch._dynamo.convert_frame.compile", "compile"),
        ("aten::mm", "operators"),
    ],
)
def test_what_the_host_did_is_the_cause(name, cause):
    """What the launching thread did in a gap is its cause; from the launch on it is the launch; the rest is Python."""
    assert causes_of(between(Rig()).operator(name, 30, 80)) == {cause: 50, "launch": 10, "python": 20}


def test_allocation_is_a_cause():
    """Calls of the device's allocator are told from other calls of the runtime."""
    rig = between(Rig()).call("cudaMalloc", 30, 60).call("cudaMemGetInfo", 60, 70)
    assert causes_of(rig) == {"allocator": 30, "operators": 10, "launch": 10, "python": 30}


def test_a_wait_for_the_device_is_blamed_for_the_gap_after_it():
    """A gap that begins while the host waits is that wait's fault, up to the next launch."""
    rig = between(Rig()).operator("aten::item", 6, 22).call("cudaStreamSynchronize", 7, 21)
    assert causes_of(rig) == {"synchronisation": 70, "launch": 10}


def test_waits_are_listed_with_operator_and_stack():
    """Each place where the host waits is listed with its operator, its cost and its Python stack."""
    rig = between(Rig()).operator("aten::item", 6, 22).call("cudaStreamSynchronize", 7, 21)
    rig.add(PYTHON, "train.py(12): main", 0, 200).add(PYTHON, "train.py(40): log", 5, 30)
    trace = rig.trace()
    assert waiting_sites(trace, window_of(trace), link(trace)) == [
        {
            "call": "cudaStreamSynchronize",
            "operator": "aten::item",
            "calls": 1,
            "time_us": 14.0,
            "idle_after_us": 80.0,
            "stack": ["train.py(40): log", "train.py(12): main"],
        }
    ]


def test_a_wait_in_the_first_event_names_its_operator():
    """The first event of a trace is an operator like any other."""
    rig = Rig().operator("aten::item", 0, 9).call("cudaStreamSynchronize", 1, 8).launch("gemm", (10, 11), (12, 20))
    trace = rig.launch("gemm", (30, 31), (32, 40)).trace()
    (site,) = waiting_sites(trace, TraceWindow("given", 0, 40_000), link(trace))
    assert (site["call"], site["operator"]) == ("cudaStreamSynchronize", "aten::item")


def test_without_host_events_nobody_knows():
    """A trace of the device alone says so."""
    rig = Rig().add(KERNEL, "gemm", 0, 10, ("gpu", 7)).add(KERNEL, "gemm", 30, 40, ("gpu", 7))
    assert causes_of(rig) == {"unknown": 20}
    assert causes_of(Rig()) == {}


def test_where_host_events_were_left_out_nobody_knows():
    """In a trace without its short host events, what is not covered is not blamed on Python."""
    trace = replace(between(Rig()).trace(), thinned=True)
    assert why_idle(trace, window_of(trace), link(trace)).causes["unknown"] == 70_000


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(
            ["aten::mm", "cudaMalloc", "cudaDeviceSynchronize", "gloo:x", "enumerate(DataLoader)", "nvrtc"]
        ),
        st.integers(0, 80),
        st.integers(0, 30),
    ),
    max_size=8,
)
LAUNCHES = st.lists(st.tuples(st.integers(0, 80), st.integers(0, 20), st.integers(0, 20)), max_size=6)


@given(EVENTS, LAUNCHES)
def test_causes_sum_to_the_idle_time(events, launches):
    """Whatever host and device did, the causes sum to the idle time exactly."""
    rig = Rig()
    for name, start, length in events:
        rig.call(name, start, start + length) if name.startswith("cuda") else rig.operator(name, start, start + length)
    for at, delay, length in launches:
        rig.launch("gemm", (at, at + 1), (at + delay, at + delay + length))
    trace = rig.trace()
    window = window_of(trace)
    found = why_idle(trace, window, link(trace))
    assert sum(found.causes.values()) == total(gaps(busy_time(trace), window))
    assert min(found.causes.values()) >= 0


def test_kernel_sizes():
    """Kernels are counted by size; the share of short ones is told."""
    rig = Rig()
    for number, length in enumerate((0.5, 3, 3, 40, 2000)):
        rig.add(KERNEL, "k", 3000 * number, 3000 * number + length, ("gpu", 7))
    found = kernel_sizes(rig.trace(), window_of(rig.trace()))
    assert [row["kernels"] for row in found["histogram"]] == [1, 2, 0, 1, 0, 0, 0, 1]
    assert (found["kernels"], found["median_us"], found["short_ratio"]) == (5, 3.0, 0.6)
    assert kernel_sizes(Rig().trace(), window_of(Rig().trace()))["kernels"] == 0


def launch_bound() -> Rig:
    """Return many short kernels, each launched late by a busy host."""
    rig = Rig()
    for number in range(50):
        at = 30 * number
        rig.operator("aten::add", at, at + 29).launch("add", (at + 20, at + 26), (at + 27, at + 31))
    return rig


@pytest.mark.promise("S3-025")
def test_launch_bound_is_found():
    """A device that waits for the host between short kernels is called launch-bound, with its evidence."""
    trace = launch_bound().trace()
    window = window_of(trace)
    links = link(trace)
    found = idle_findings(why_idle(trace, window, links), kernel_sizes(trace, window), [])
    kinds = {finding.kind: finding for finding in found}
    assert {"launch_bound", "host_bound"} <= set(kinds)
    assert kinds["launch_bound"].evidence["short_ratio"] == 1.0
    assert "CUDA graphs" in kinds["launch_bound"].remedy


def test_exposed_communication_and_copies_are_found():
    """Communication and copies that nothing hides are worth a word, hidden ones are not."""
    rig = Rig().add(KERNEL, "gemm", 0, 50, ("gpu", 7)).add(KERNEL, "ncclX", 50, 90, ("gpu", 20))
    rig.copy((0, 1), (90, 100))
    trace = rig.trace()
    parts = breakdown(trace, window_of(trace), roles(trace))
    communication, copies = breakdown_findings(parts)
    assert (communication.kind, copies.kind) == ("exposed_communication", "exposed_copies")
    assert copies.gain_ratio == pytest.approx(0.1)
    hidden = Rig().add(KERNEL, "gemm", 0, 50, ("gpu", 7)).add(KERNEL, "ncclX", 0, 50, ("gpu", 20)).trace()
    assert breakdown_findings(breakdown(hidden, window_of(hidden), roles(hidden))) == []


def test_every_cause_is_explained():
    """Each cause says what it means."""
    trace = launch_bound().trace()
    facts = why_idle(trace, window_of(trace), link(trace)).facts()
    assert all(fact["means"] == trace_idle.CAUSES[fact["cause"]] for fact in facts)
    assert facts == sorted(facts, key=lambda fact: -fact["time_us"])
