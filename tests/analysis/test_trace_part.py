from __future__ import annotations

from stepscope.analysis.trace import summary as trace_summary
from stepscope.analysis.trace.window import excerpt, window_of
from tests.analysis.trace_rig import Rig


def long_trace():
    rig = Rig()
    for place in range(200):
        at = 10.0 * place
        rig.operator("aten::mm", at, at + 5, shapes=f"[[{place}]]").launch("sgemm", (at + 1, at + 2), (at + 3, at + 9))
    return rig.trace()


def test_a_part_is_the_middle_with_its_own_shapes():
    """Rows, and what only some rows have, are cut alike; nothing is copied."""
    trace = long_trace()
    part, window = excerpt(trace, window_of(trace), 60)
    assert len(part) == 60
    assert part.start.base is trace.start or part.start.base is trace.start.base
    assert window_of(trace).start < window.start < window.end < window_of(trace).end
    shapes = part.text("Input Dims")
    place = next(row for row in range(60) if shapes[row] != -1)
    assert part.words[shapes[place]] == f"[[{part.start[place] // 10_000}]]"


def test_what_is_small_enough_stays_whole():
    """No part is made without need."""
    trace = long_trace()
    window = window_of(trace)
    assert excerpt(trace, window, 600)[0] is trace


def test_the_details_of_a_huge_trace_say_that_they_are_of_its_middle(monkeypatch):
    """Tables are of the whole window as long as that is possible, launches of its middle."""
    trace = long_trace()
    assert trace_summary.details(trace, window_of(trace))["notes"] == []
    monkeypatch.setattr(trace_summary, "DETAILED", 60)
    facts = trace_summary.details(trace, window_of(trace))
    assert "critical path, queue and picture are of" in facts["notes"][0]
    assert facts["kernels"][0]["calls"] == 200
    assert facts["queue"]["launches"] < 30
    monkeypatch.setattr(trace_summary, "TABLED", 60)
    facts = trace_summary.details(trace, window_of(trace))
    assert len(facts["notes"]) == 2
    assert facts["operators"][0]["calls"] < 30
