"""The DataLoader's share of a step, and the verdict."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepscope.analysis.trace.data import LOADING, findings, loading
from stepscope.analysis.trace.summary import summary
from stepscope.analysis.trace.window import window_of
from stepscope.importers.traces.chrome_trace import read_trace
from tests.analysis.trace_rig import Rig

DATA = Path(__file__).resolve().parents[3] / "shared" / "data" / "kineto-resnet50"
LOADER = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"


@pytest.mark.skipif(not DATA.exists(), reason="the traces of ../shared/data are not here")
@pytest.mark.parametrize(("workers", "percent", "kind"), [(0, 39.6, "input_bound"), (4, 1.0, "not_input_bound")])
@pytest.mark.promise("S3-030")
def test_known_shares(workers, percent, kind):
    """The share of the DataLoader is the known one, and the verdict follows."""
    found = summary(read_trace(next((DATA / f"num_workers_{workers}").glob("*.gz"))))
    assert found["dataloader_percent"] == pytest.approx(percent, abs=0.1)
    assert kind in {finding["kind"] for finding in found["findings"]}


def test_share_of_the_steps():
    """The share is of the time of the steps; waiting outside of them does not count, nested waiting counts once."""
    rig = Rig().annotation("ProfilerStep#1", 0, 100).annotation("ProfilerStep#2", 100, 200)
    rig.operator(LOADER, 10, 40).operator("enumerate(DataLoader)#inner", 15, 30).operator(LOADER, 190, 260)
    found = loading(rig.trace())
    assert (found.percent, found.over) == (20.0, "profiler_steps")


def test_without_steps_it_is_of_the_hosts_time():
    """Without steps the share is of the host's time, and that is said."""
    found = loading(Rig().operator("aten::mm", 0, 75).operator(LOADER, 75, 100).trace())
    assert (found.percent, found.over) == (25.0, "host_events")


def test_nobody_knows_without_host_events():
    """A trace without host events tells nothing about data: absent, not 0."""
    trace = Rig().trace()
    assert loading(trace).percent is None
    assert findings(loading(trace), None, None) == []
    assert loading(Rig().operator("aten::mm", 0, 75).trace()).percent == 0.0


def test_hidden_waiting_is_no_bottleneck():
    """Waiting for data while the device works off its queue holds nothing back."""
    rig = Rig().annotation("ProfilerStep#1", 0, 100).operator(LOADER, 10, 60).launch("gemm", (0, 5), (6, 99))
    trace = rig.trace()
    found = findings(loading(trace), 0.0, 0.0)
    assert [finding.kind for finding in found] == ["data_wait_hidden"]
    assert window_of(trace).length == 93_000


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (LOADER, True),
        ("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", True),
        ("[pl][profile][_TrainingEpochLoop].train_dataloader_next", True),
        ("torch/utils/data/dataloader.py(628): __next__", True),
        ("## data_loading ##", True),
        ("aten::mm", False),
        ("torch/utils/data/dataloader.py(628): __init__", False),
        ("load_state_dict", False),
    ],
)
def test_names_of_loading(name, expected):
    """Ranges in which a batch is waited for are known by name."""
    assert (LOADING.search(name) is not None) == expected


def test_what_is_no_waiting_for_data_need_not_be_computing():
    """A device that is idle nearly always computes next to nothing, whatever the loader does."""
    quick = loading(Rig().annotation("ProfilerStep#1", 0, 100).operator(LOADER, 10, 11).trace())
    for idle, said in ((0.99, "the device is idle 99 % of the time for other reasons"), (0.01, "of the step")):
        (found,) = findings(quick, idle, 0.0)
        assert found.text.endswith(said)
        assert "computation" not in found.text


@pytest.mark.parametrize(
    ("name", "said"), [("_MultiProcessing", "workers cannot keep up"), ("_SingleProcess", "its own batches")]
)
def test_advice_on_loading_knows_who_loads(name, said):
    """Nobody who has workers is told to have some."""
    loader = f"enumerate(DataLoader)#{name}DataLoaderIter.__next__"
    slow = loading(Rig().annotation("ProfilerStep#1", 0, 100).operator(loader, 10, 60).trace())
    (found,) = findings(slow, 0.6, 0.5)
    assert said in found.remedy
