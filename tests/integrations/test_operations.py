from __future__ import annotations

from types import SimpleNamespace

import pytest

from stepscope.integrations.profiler.operations import ProfilerEvent, own_costs, read, summarise


def raw(name, start, duration, **more):
    facts = {"thread": 1, "kind": 0, "correlation": 0, "linked": 0, "nbytes": 0, "annotation": False, **more}
    return SimpleNamespace(
        name=lambda: name,
        start_thread_id=lambda: facts["thread"],
        start_ns=lambda: start,
        duration_ns=lambda: duration,
        device_type=lambda: facts["kind"],
        correlation_id=lambda: facts["correlation"],
        linked_correlation_id=lambda: facts["linked"],
        nbytes=lambda: facts["nbytes"],
        is_user_annotation=lambda: facts["annotation"],
        is_python_function=lambda: False,
    )


def test_own_time_is_without_what_lies_inside():
    """An operation's own time is its duration without the operations inside it on the same thread."""
    events = [
        ProfilerEvent("outer", 1, 0, 100),
        ProfilerEvent("inner", 1, 10, 50),
        ProfilerEvent("innermost", 1, 20, 5),
        ProfilerEvent("inner", 1, 60, 20),
        ProfilerEvent("elsewhere", 2, 30, 40),
        ProfilerEvent("after", 1, 100, 7),
    ]
    expected = [("outer", 30), ("inner", 45), ("innermost", 5), ("inner", 20), ("after", 7), ("elsewhere", 40)]
    assert [(name, own) for name, own, _ in own_costs(events)] == expected


@pytest.mark.promise("S3-024")
def test_slowest_come_first_with_their_share():
    """Operations are listed by own time, the slowest first, with calls and the share of all own time."""
    found = summarise(
        [
            ProfilerEvent("aten::conv2d", 1, 0, 352),
            ProfilerEvent("aten::mm", 1, 400, 300),
            ProfilerEvent("aten::mm", 1, 700, 348),
        ]
    )
    assert [(item.name, item.calls, item.share) for item in found.operations] == [
        ("mm", 2, 0.648),
        ("conv2d", 1, 0.352),
    ]
    assert found.operations[1].line(1) == "1. conv2d (35.2% of time)"
    assert (found.clock, found.seconds) == ("host", 1e-6)


def test_time_on_a_device_belongs_to_the_operation_that_started_it():
    """If anything ran on a device its clock counts, and a kernel counts for the operation that it is linked to."""
    events = read(
        [
            raw("aten::conv2d", 0, 10, correlation=5),
            raw("aten::relu", 20, 500, correlation=6),
            raw("sgemm_128x64", 30, 900, kind=1, linked=5),
            raw("elementwise_kernel", 40, 60, kind=1, linked=6),
            raw("Memcpy HtoD", 50, 40, kind=1),
        ]
    )
    found = summarise(events)
    assert found.clock == "device"
    assert [(item.name, item.share) for item in found.operations] == [
        ("conv2d", 0.9),
        ("relu", 0.06),
        ("Memcpy HtoD", 0.04),
    ]


@pytest.mark.promise("S3-022")
def test_memory_belongs_to_the_innermost_operation():
    """Memory that is taken or given back counts for the operation it happens in, if memory was profiled."""
    events = read(
        [
            raw("aten::linear", 0, 100),
            raw("aten::empty", 10, 20),
            raw("[memory]", 15, 0, nbytes=4096),
            raw("[memory]", 60, 0, nbytes=-1024),
            raw("[memory]", 500, 0, nbytes=7),
        ]
    )
    found = {item.name: item.memory_bytes for item in summarise(events).operations}
    assert found == {"linear": -1024, "empty": 4096}
    assert summarise([ProfilerEvent("x", 1, 0, 1)]).operations[0].memory_bytes is None


def test_annotations_are_no_operations():
    """Steps, the user's own labels and functions of Python are no operations and hold no time of theirs."""
    events = [raw("ProfilerStep#3", 0, 1000), raw("mine", 0, 900, annotation=True), raw("aten::mm", 10, 100)]
    assert [event.name for event in read(events)] == ["aten::mm"]


def test_older_events_have_microseconds():
    """Events of torch before 2.4 tell microseconds, and come out in nanoseconds."""
    event = raw("aten::mm", 0, 0)
    del event.start_ns, event.duration_ns
    event.start_us, event.duration_us = (lambda: 2), (lambda: 3)
    assert read([event])[0][2:4] == (2000, 3000)


def test_nothing_is_no_error():
    """A profile without operations has an empty list."""
    assert summarise(read([])).operations == []
    assert summarise([ProfilerEvent("x", 1, 0, 0)]).operations == []
