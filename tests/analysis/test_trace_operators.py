from __future__ import annotations

import pytest

from stepscope.analysis.trace.links import link
from stepscope.analysis.trace.operators import operator_table
from stepscope.analysis.trace.window import TraceWindow, window_of
from tests.analysis.trace_rig import Rig


def table(rig: Rig, window: TraceWindow | None = None) -> dict[str, dict]:
    trace = rig.trace()
    return {row["name"]: row for row in operator_table(trace, window or window_of(trace), link(trace))}


def nested() -> Rig:
    rig = Rig().annotation("ProfilerStep#3", 0, 100).operator("aten::linear", 0, 50, shapes="[[2,3]]")
    rig.operator("aten::addmm", 10, 40, shapes="[[3,3]]").launch("sgemm", (20, 25), (30, 130))
    return rig.operator("aten::relu", 60, 70).launch("relu", (62, 64), (130, 150))


def test_total_holds_what_is_inside_and_self_does_not():
    """Host time and device time, each with and without inner operators."""
    rows = table(nested())
    assert (rows["aten::linear"]["total_us"], rows["aten::linear"]["self_us"]) == (50, 20)
    assert (rows["aten::linear"]["device_us"], rows["aten::linear"]["device_total_us"]) == (0, 100)
    assert (rows["aten::addmm"]["self_us"], rows["aten::addmm"]["device_us"]) == (30, 100)
    assert rows["aten::addmm"]["gain_percent"] == pytest.approx(100 * 100 / 120)


def test_the_profilers_own_steps_are_no_operators():
    """ProfilerStep holds everything and does nothing."""
    assert set(table(nested())) == {"aten::linear", "aten::addmm", "aten::relu"}


def test_an_operator_inside_itself_counts_once_in_the_total():
    """Recursion does not double the time."""
    rows = table(Rig().operator("f", 0, 10).operator("f", 2, 8).launch("k", (3, 4), (5, 15)))
    assert (rows["f"]["calls"], rows["f"]["total_us"], rows["f"]["self_us"]) == (2, 10, 10)
    assert rows["f"]["device_total_us"] == 10


def test_shapes_are_named_with_their_time():
    """The shapes that cost most come first."""
    rows = table(nested())
    assert rows["aten::addmm"]["shapes"] == [{"shapes": "[[3,3]]", "calls": 1, "time_us": 100}]


def test_what_launched_the_window_belongs_to_it():
    """The host runs ahead: an operator before the window is listed if its kernel runs inside."""
    rig = Rig().operator("early", 0, 5).launch("k", (1, 2), (100, 200))
    assert list(table(rig)) == ["early"]


def test_kernels_without_a_call_are_joined_by_the_external_id():
    """Some profilers record the operator's number only."""
    rig = Rig().operator("aten::mm", 0, 5, external=9).add(8, "sgemm", 10, 30, ("gpu", 7), external=9)
    assert table(rig, TraceWindow("given", 0, 30_000))["aten::mm"]["device_us"] == 20


def test_without_a_device_the_gain_is_the_host_time():
    """A CPU-only trace still has a table."""
    rows = table(Rig().operator("aten::mm", 0, 80).operator("aten::add", 80, 100))
    assert rows["aten::mm"]["gain_percent"] == pytest.approx(80)


def test_an_empty_trace_has_no_operators():
    """Nothing in, nothing out."""
    assert table(Rig()) == {}
