from __future__ import annotations

import pytest

from stepscope.analysis.trace.links import link
from stepscope.analysis.trace.queue import FULL, findings, graphs, queue
from stepscope.analysis.trace.window import window_of
from tests.analysis.trace_rig import Rig


def facts(rig: Rig) -> dict:
    trace = rig.trace()
    found = queue(trace, window_of(trace), link(trace))
    assert found is not None
    return found


def test_delay_is_from_the_call_to_the_start():
    """Three launches back to back: the second and third wait for the stream."""
    found = facts(Rig().launch("a", (0, 2), (5, 105)).launch("b", (3, 5), (105, 205)).launch("c", (6, 8), (205, 305)))
    assert found["delay_median_us"] == pytest.approx(102)
    assert found["delay_max_us"] == pytest.approx(199)
    assert found["queue_max"] == 2
    assert found["starved_percent"] == pytest.approx(100 / 3)


def test_streams_are_told_apart():
    """Each stream has a queue of its own."""
    found = facts(
        Rig().launch("a", (0, 1), (5, 50)).launch("b", (2, 3), (50, 60)).launch("c", (4, 5), (9, 20), stream=9)
    )
    assert [(one["stream"], one["launches"], one["queue_max"]) for one in found["streams"]] == [(7, 2, 2), (9, 1, 1)]


def test_a_full_queue_is_found():
    """A host that is a thousand launches ahead is not the limit."""
    rig = Rig()
    for place in range(FULL + 5):
        rig.launch("k", (place, place + 0.5), (2000 + place, 2001 + place))
    assert [one.kind for one in findings(facts(rig))] == ["launch_queue_full"]


def test_kernels_that_start_before_their_call_are_reported():
    """Where the clocks of host and device disagree, delays are not to be trusted."""
    (found,) = findings(facts(Rig().launch("a", (10, 12), (5, 9)).launch("b", (20, 22), (25, 29))))
    assert found.kind == "clock_mismatch"


def test_no_launches_are_no_queue():
    """Without calls nothing is said."""
    trace = Rig().add(8, "k", 0, 10, ("gpu", 7)).trace()
    assert queue(trace, window_of(trace), link(trace)) is None
    assert graphs(trace, window_of(trace), link(trace)) is None
    assert findings(None) == []


def test_graphs_are_counted_by_launch():
    """One launch of a graph runs many kernels; it waits once."""
    rig = Rig().launch("a", (0, 1), (5, 10), by="cudaGraphLaunch")
    for place in range(3):
        rig.add(8, "b", 10 + place, 11 + place, ("gpu", 7), correlation=1, node=place + 1)
    rig.launch("c", (20, 21), (22, 27))
    trace = rig.trace()
    found = graphs(trace, window_of(trace), link(trace))
    assert (found["launches"], found["kernels"], found["kernels_percent"]) == (1, 4, 80)
    assert found["device_time_percent"] == pytest.approx(100 * 8 / 13)
    assert facts(rig)["launches"] == 2
