from __future__ import annotations

import json

import pytest

from stepscope.analysis.trace.compare import NOTHING, compare_traces, split
from tests.analysis.trace_rig import Rig


def steps(count: int, kernels: dict[str, float], data: float = 0.0) -> Rig:
    """Return steps that fetch data while the device idles, then run kernels one after the other."""
    rig, at = Rig(), 0.0
    for number in range(count):
        begin = at
        rig.annotation("enumerate(DataLoader)#next", at, at + data).operator("aten::stack", at + 1, at + data / 2)
        at += data + 10
        for name, length in kernels.items():
            rig.operator(f"aten::{name}", at - 5, at - 1).launch(name, (at - 4, at - 2), (at, at + length))
            at += length
        rig.annotation(f"ProfilerStep#{number}", begin, at)
    return rig


def test_the_parts_sum_to_the_difference_of_the_step():
    """Nothing is lost between the lines, whatever they are grouped by."""
    before = steps(4, {"sgemm": 100, "relu": 30, "old": 20}, data=200).trace()
    after = steps(6, {"sgemm": 120, "relu": 10, "new": 5}, data=20).trace()
    for by in ("kernel", "operator"):
        facts = compare_traces(before, after, by)
        assert facts["before_us"] == pytest.approx(360)
        assert facts["after_us"] == pytest.approx(165)
        assert sum(part["difference_us"] for part in facts["parts"]) == pytest.approx(facts["difference_us"], abs=1e-9)
        assert sum(facts["changes"].values()) == pytest.approx(facts["difference_us"], abs=1e-9)


def test_each_part_says_what_became_of_it():
    """Added, removed, slower, faster or the same."""
    before = steps(4, {"sgemm": 100, "relu": 30, "old": 20, "norm": 50}, data=200).trace()
    after = steps(4, {"sgemm": 120, "relu": 10, "new": 5, "norm": 50.5}, data=20).trace()
    changes = {part["name"]: part["change"] for part in compare_traces(before, after)["parts"]}
    assert changes | {"sgemm": "slower", "relu": "faster", "old": "removed", "new": "added", "norm": "same"} == changes


def test_idle_time_is_named_by_what_the_host_did():
    """A DataLoader is one part, with all that it does inside; Python between operators is nothing recorded."""
    parts = split(steps(3, {"sgemm": 100}, data=200).trace()).parts
    assert parts["idle", "enumerate(DataLoader)#next"] == 200_000
    assert parts["gemm", "sgemm"] == 100_000
    assert parts["idle", NOTHING] == pytest.approx(6_000)
    assert ("idle", "aten::stack") not in parts


def test_kernels_side_by_side_share_the_time():
    """Two streams at once are counted once."""
    trace = Rig().launch("a", (0, 1), (0, 100)).launch("b", (1, 2), (50, 150), stream=9).trace()
    parts = split(trace).parts
    assert parts == {("other", "a"): 75_000, ("other", "b"): 75_000}


def test_without_steps_the_windows_are_compared():
    """Whole windows, and the report says so."""
    facts = compare_traces(Rig().launch("a", (0, 1), (0, 100)).trace(), Rig().launch("a", (0, 1), (0, 130)).trace())
    assert (facts["per"], facts["difference_us"]) == ("window", 30)
    assert facts["findings"][0].severity == "warning"
    assert "130" in facts["findings"][0].text or "0.1 ms" in facts["findings"][0].text


def test_a_trace_against_itself_differs_by_nothing():
    """No part changes, and the facts are plain values."""
    trace = steps(3, {"sgemm": 100, "relu": 30}, data=50).trace()
    facts = compare_traces(trace, trace)
    assert {part["change"] for part in facts["parts"]} == {"same"}
    assert facts["difference_us"] == 0
    facts.pop("findings")
    json.dumps(facts)


def test_empty_traces_are_compared_without_complaint():
    """Nothing against nothing is no difference."""
    facts = compare_traces(Rig().trace(), Rig().trace())
    assert (facts["difference_us"], facts["parts"], facts["findings"]) == (0, [], [])
