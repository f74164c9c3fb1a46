from __future__ import annotations

from stepscope.analysis.trace.links import link
from stepscope.analysis.trace.memory import BEFORE, UNKNOWN, findings, memory_timeline
from tests.analysis.trace_rig import Rig

GIB = 2**30


def test_the_peak_names_what_lived_then_and_who_allocated_it():
    """What was released before the peak, or allocated after it, is nobody's."""
    rig = Rig().operator("aten::empty", 0, 10).operator("aten::mm", 20, 30)
    rig.memory(5, 100, 1, 1100).memory(7, 50, 2, 1150).memory(12, -50, 2, 1100).memory(25, 300, 3, 1400)
    rig.memory(40, 20, 4, 1420).memory(50, -300, 3, 1120).memory(60, 200, 5, 1320)
    (entry,) = memory_timeline(rig.trace(), link(rig.trace()))
    assert (entry["peak_bytes"], entry["peak_us"], entry["start_bytes"]) == (1420, 40, 1000)
    assert {owner["name"]: owner["bytes"] for owner in entry["owners"]} == {
        BEFORE: 1000,
        "aten::mm": 300,
        "aten::empty": 100,
        UNKNOWN: 20,
    }
    assert sum(owner["bytes"] for owner in entry["owners"]) == entry["peak_bytes"]


def test_without_totals_the_reports_are_summed():
    """Releases of what was there before cannot take the sum below nothing."""
    rig = Rig().memory(0, -500, 9).memory(1, 300, 1).memory(2, 300, 2)
    (entry,) = memory_timeline(rig.trace(), link(rig.trace()))
    assert (entry["peak_bytes"], entry["start_bytes"], entry["end_bytes"]) == (600, 500, 600)


def test_a_drawn_timeline_keeps_every_peak():
    """Thinning takes the highest value of each stretch."""
    rig = Rig()
    for place in range(3000):
        rig.memory(place, 1, place, 5000 if place == 1777 else 10)
    (entry,) = memory_timeline(rig.trace(), link(rig.trace()), points=50)
    assert len(entry["timeline"]["time_us"]) == 50
    assert max(entry["timeline"]["used_bytes"]) == 5000


def test_the_finding_names_the_owner():
    """One sentence with the peak and its largest owner."""
    rig = Rig().operator("aten::mm", 0, 10).memory(5, 3 * GIB, 1, 4 * GIB)
    (found,) = findings(memory_timeline(rig.trace(), link(rig.trace())))
    assert found.text == "device 0 held 4 GiB at its peak, of which 3 GiB from aten::mm"


def test_no_reports_are_no_timeline():
    """A profiler that did not record memory leaves the list empty."""
    trace = Rig().operator("x", 0, 1).trace()
    assert memory_timeline(trace, link(trace)) == []
