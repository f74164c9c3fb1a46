"""Windows, steps and sets of intervals of a trace."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stepscope.analysis.trace.window import (
    Intervals,
    TraceWindow,
    clip,
    common,
    excerpt,
    gaps,
    step_window,
    steps,
    total,
    union,
    window_of,
)
from stepscope.core.trace import RANGE
from tests.analysis.trace_rig import Rig

SPANS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=12)


def arrays(spans) -> tuple:
    """Return pairs as two columns."""
    table = np.array(spans, np.int64).reshape(-1, 2)
    return table[:, 0], table[:, 1]


def moments(spans) -> set[int]:
    """Return every whole moment that some spans cover."""
    return {moment for start, end in spans for moment in range(start, end)}


def covered(intervals: Intervals) -> set[int]:
    """Return every whole moment that intervals cover, which must be apart and in order."""
    assert (intervals.end > intervals.start).all()
    assert (intervals.start[1:] > intervals.end[:-1]).all()
    return moments(zip(intervals.start.tolist(), intervals.end.tolist(), strict=True))


@given(SPANS, SPANS)
def test_sets_of_intervals_are_sets_of_moments(one, other):
    """Union, intersection, clipping, gaps and length are those of the moments covered."""
    first, second, window = union(*arrays(one)), union(*arrays(other)), TraceWindow("given", 5, 20)
    assert covered(first) == moments(one)
    assert covered(common(first, second)) == moments(one) & moments(other)
    assert covered(clip(first, window)) == moments(one) & set(range(5, 20))
    assert covered(gaps(first, window)) == set(range(5, 20)) - moments(one)
    assert total(first) == len(moments(one))


def test_windows():
    """The window is that of the device's events, of the host's without a device, or as given; empty is defined."""
    rig = Rig(origin=1_000_000).operator("aten::mm", 0, 50)
    assert window_of(rig.trace()) == TraceWindow("host_events", 0, 50_000)
    trace = rig.launch("gemm", (5, 6), (10, 20)).trace()
    assert window_of(trace) == TraceWindow("gpu_events", 10_000, 20_000)
    assert window_of(trace, 1012) == TraceWindow("given", 12_000, 20_000)
    assert window_of(trace).facts(trace.origin) == {"kind": "gpu_events", "start_us": 1010.0, "end_us": 1020.0}
    assert window_of(Rig().trace()).length == 0


def test_steps_are_found_on_host_and_device():
    """Steps come in order with their number; where they are drawn on the device, the window of steps is theirs."""
    rig = Rig().annotation("ProfilerStep#3", 0, 10).annotation("ProfilerStep#4", 10, 25).annotation("Step", 1, 2)
    assert [tuple(step) for step in steps(rig.trace())] == [(3, 0, 10_000), (4, 10_000, 25_000)]
    assert step_window(rig.trace()) == TraceWindow("profiler_steps", 0, 25_000)
    rig.add(RANGE, "ProfilerStep#3", 2, 30, ("gpu", 7))
    assert step_window(rig.trace()) == TraceWindow("profiler_steps", 2000, 30_000)
    assert step_window(Rig().trace()) is None


def test_an_excerpt_is_a_stretch_from_the_middle():
    """A trace with too many events gives a stretch of it, rare columns included; a small one is returned as it is."""
    rig = Rig()
    for number in range(100):
        rig.operator("aten::mm", 10 * number, 10 * number + 5, shapes=f"[{number}]")
    trace = rig.trace()
    window = window_of(trace)
    part, stretch = excerpt(trace, window, 10)
    assert excerpt(trace, window, 100) == (trace, window)
    assert part.start.tolist() == list(range(450_000, 550_000, 10_000))
    assert (stretch.start, stretch.end) == (450_000, 540_000)
    assert [part.words[code] for code in part.text("Input Dims")] == [f"[{number}]" for number in range(45, 55)]
    rig.annotation("ProfilerStep#5", 460, 600)
    stepped = excerpt(rig.trace(), window, 10)[0]
    assert stepped.named(stepped.name[0]) == "ProfilerStep#5"
