"""The breakdown of the device's time equals the plain interval union."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.traces import plain_shares
from stepscope.analysis.trace.breakdown import breakdown
from stepscope.analysis.trace.roles import roles
from stepscope.analysis.trace.summary import choose_window, summary
from stepscope.analysis.trace.window import TraceWindow, window_of
from stepscope.core.trace import KERNEL, MEMCPY
from stepscope.importers.traces.chrome_trace import read_traces
from tests.analysis.trace_rig import Rig

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
FILES = [
    path
    for name in ("hta-traces", "param-dlrm-8rank", "tracelens-h100")
    for path in sorted((DATA / name).rglob("*.gz"))
    if path.stat().st_size < 500_000
]


def facts_of(trace, window=None) -> dict:
    """Return the shares of a trace."""
    return breakdown(trace, window or window_of(trace), roles(trace)).facts()


def test_classes_overlap_and_are_exposed():
    """Each class is the union of its events, exposed what nothing else covers, overlap a share of communication."""
    rig = Rig().add(KERNEL, "gemm", 0, 40, ("gpu", 7)).add(KERNEL, "gemm", 10, 50, ("gpu", 8))
    rig.add(KERNEL, "ncclAllReduce", 30, 70, ("gpu", 20)).add(MEMCPY, "Memcpy", 60, 80, ("gpu", 9)).add(
        KERNEL, "gemm", 99, 100, ("gpu", 7)
    )
    assert facts_of(rig.trace()) == pytest.approx(
        {
            "idle_percent": 19,
            "compute_percent": 51,
            "communication_percent": 40,
            "exposed_communication_percent": 20,
            "memcpy_percent": 20,
            "exposed_memcpy_percent": 10,
            "overlap_percent": 50,
        }
    )


def test_events_are_cut_at_the_window():
    """Only what lies inside the window counts."""
    trace = Rig().add(KERNEL, "gemm", 0, 40, ("gpu", 7)).trace()
    assert facts_of(trace, TraceWindow("given", 30_000, 50_000))["compute_percent"] == 50
    assert facts_of(trace, TraceWindow("given", 50_000, 50_000))["idle_percent"] is None


def test_nothing_is_said_without_a_device():
    """Without a device event there is no share, not a share of 0."""
    assert facts_of(Rig().operator("aten::mm", 0, 5).trace())["idle_percent"] is None
    assert facts_of(Rig().trace())["compute_percent"] is None


@pytest.mark.skipif(not FILES, reason="the traces of ../shared/data are not here")
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_real_traces_equal_the_plain_union(path):
    """On real traces all shares are those of the plain interval union, within 0.01 points."""
    expected = dict(plain_shares(path))
    for trace in read_traces(path):
        found = facts_of(trace)
        assert {key: found[key] for key in expected[trace.file]} == pytest.approx(expected[trace.file], abs=0.01)


@pytest.mark.promise("S3-025")
def test_summary_has_every_key_in_the_promised_order():
    """A rank's facts begin with the keys that other programs rely on."""
    rig = Rig(rank=2).operator("aten::mm", 0, 50).launch("gemm", (5, 6), (10, 20))
    found = summary(rig.trace(), choose_window(rig.trace(), "0:100"))
    keys = "file rank window idle_percent compute_percent communication_percent exposed_communication_percent"
    assert [key for key in found if key in keys.split()] == keys.split()
    assert {"memcpy_percent", "overlap_percent", "dataloader_percent", "findings", "kernels", "operators"} <= set(found)
    assert found["window"] == {"kind": "given", "start_us": 0.0, "end_us": 100.0}
    assert found["idle_percent"] == 90


@pytest.mark.parametrize("wanted", ["", "12", "a:b", "now"])
def test_a_window_that_is_none(wanted):
    """A window that nobody can mean is refused."""
    with pytest.raises(ValueError, match=r"could not convert|^(|12|now)$"):
        choose_window(Rig().trace(), wanted)


def test_nothing_overlaps_where_nothing_is_communicated():
    """There is no share of nothing: absent, not 0, which would say that all communication is exposed."""
    facts = facts_of(Rig().add(KERNEL, "gemm", 0, 40, ("gpu", 7)).trace())
    assert (facts["communication_percent"], facts["overlap_percent"]) == (0, None)
