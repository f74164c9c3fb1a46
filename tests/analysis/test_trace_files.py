"""The real files of ../shared/data: what is known about them comes out."""

from __future__ import annotations

import csv
import json
import os
import tarfile
from functools import lru_cache
from pathlib import Path

import pytest

from stepscope.analysis.trace import summary as trace_summary
from stepscope.analysis.trace.collectives import extract
from stepscope.analysis.trace.compare import compare_traces
from stepscope.analysis.trace.links import link
from stepscope.analysis.trace.ranks import compare_ranks
from stepscope.analysis.trace.window import union, window_of
from stepscope.importers.traces.chrome_trace import read_trace

DATA = Path(__file__).parents[3] / "shared" / "data"
pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason="../shared/data is not there: real traces are kept apart")

FILES = (
    "hta-traces/a100_world2_rank0_nccl.json.gz",
    "hta-traces/amd_mi250.json.gz",
    "hta-traces/cpu_only_rank34.json.gz",
    "hta-traces/rank_non_gpu.json.gz",
    "hta-traces/sampled_world128/rank-0.json.gz",
    "hta-traces/v100_ns_resolution_rank0.json.gz",
    "hta-traces/critical_path/alexnet.json.gz",
    "hta-traces/critical_path/cuda_event_sync.json.gz",
    "hta-traces/critical_path/cuda_event_sync_multi_stream.json.gz",
    "hta-traces/critical_path/simple_add.json.gz",
    "tracelens-h100/Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz",
    "tracelens-h100/gaunernst_bert-small-uncased__1016001.json.gz",
)


@lru_cache(maxsize=2)
def trace_of(name: str):
    return read_trace(str(DATA / name))


@pytest.mark.parametrize("name", FILES)
def test_every_file_gives_every_table(name):
    """Facts are plain values; families and path sum to what they divide."""
    trace = trace_of(name)
    window = window_of(trace)
    facts = trace_summary.details(trace, window, top=None)
    json.dumps(facts, allow_nan=False)
    assert all(one.text for one in trace_summary.findings(facts))
    spent = (trace.end - trace.start)[trace.on_device].sum() / 1000
    assert sum(row["total_us"] for row in facts["families"]) == pytest.approx(spent)
    assert sum(row["total_us"] for row in facts["kernels"]) == pytest.approx(spent)
    path = facts["critical_path"]
    if path is not None:
        assert sum(part["total_us"] for part in path["parts"]) == pytest.approx(path["length_us"])
        assert all((part["gain_percent"] or 0) <= part["percent"] + 1e-6 for part in path["parts"])
    busy = union(trace.start[trace.on_device], trace.end[trace.on_device])
    assert (
        sum(row["gain_percent"] for row in facts["kernels"]) * window.length / 100 <= (busy.end - busy.start).sum() + 1
    )


@pytest.mark.parametrize("name", ["gaunernst_bert-small-uncased__1016001", "Falconsai_nsfw_image_detection__1016002"])
def test_times_equal_those_of_an_independent_tool(name):
    """TraceLens gives each kernel the same time, and each operator the same kernels; only we count its fills too."""
    trace = trace_of(f"tracelens-h100/{name}.json.gz")
    facts = trace_summary.details(trace, window_of(trace), top=None)
    with (DATA / "tracelens-h100" / f"{name}_expected" / "kernel_summary.csv").open() as file:
        expected = list(csv.DictReader(file))
    kernels, operators = ("Kernel name", "kernels", "total_us", 1e-6), ("Parent cpu_op", "operators", "device_us", 0.04)
    for column, table, cost, within in (kernels, operators):
        sums: dict[str, float] = {}
        for line in expected:
            sums[line[column]] = sums.get(line[column], 0.0) + float(line["Kernel duration (µs)_sum"])
        ours = {row["name"]: row[cost] for row in facts[table]}
        assert {key: ours[key] for key in sums} == pytest.approx(sums, rel=within)


def test_without_the_data_loader_the_step_is_a_third_shorter():
    """Replay says what the DataLoader of the input-bound run costs on the critical path."""
    folder = DATA / "kineto-resnet50"
    trace = read_trace(str(next((folder / "num_workers_0").iterdir())))
    path = trace_summary.details(trace, window_of(trace))["critical_path"]
    first = path["outer"][0]
    assert "DataLoader" in first["name"]
    assert 25 < first["gain_percent"] < 45


def test_the_runs_with_0_and_4_workers_differ_by_the_data_loader():
    """The mean step falls from 174.8 to 139.7 ms; the parts sum to that, and the largest is waiting for data."""
    folder = DATA / "kineto-resnet50"
    before, after = (read_trace(str(next((folder / f"num_workers_{count}").iterdir()))) for count in (0, 4))
    facts = compare_traces(before, after)
    assert facts["before_us"] == pytest.approx(174_800, rel=0.002)
    assert facts["after_us"] == pytest.approx(139_700, rel=0.002)
    assert sum(part["difference_us"] for part in facts["parts"]) == pytest.approx(facts["difference_us"], abs=0.001)
    assert (facts["parts"][0]["kind"], "DataLoader" in facts["parts"][0]["name"]) == ("idle", True)


@pytest.fixture(scope="module")
def dlrm(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dlrm")
    with tarfile.open(DATA / "param-dlrm-8rank" / "dlrm_kineto.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    return sorted(os.path.join(where, name) for where, _, names in os.walk(folder) for name in names)


def test_the_ranks_of_one_machine_share_a_clock_and_name_their_straggler(dlrm):
    """Eight ranks leave their collectives within microseconds; 2 and 7 come late, as HTA says too."""
    report = compare_ranks([extract(read_trace(path)) for path in dlrm])
    assert report["matched"] == 8
    assert max(abs(offset) for offset in report["offset_us"]) < 10
    late = [entry["rank"] for entry in report["stragglers"]]
    assert late[0] == 7
    assert {2, 7} <= set(late)


def test_the_peak_of_memory_is_what_the_allocator_reported():
    """Owners sum to the peak, and most of it was there before."""
    trace = trace_of("hta-traces/v100_world2_rank1.json.gz")
    entry = next(one for one in trace_summary.trace_memory.memory_timeline(trace, link(trace)) if one["device"] == 1)
    assert entry["peak_bytes"] == trace.memory.allocated[trace.memory.device == 1].max()
    assert sum(owner["bytes"] for owner in entry["owners"]) == entry["peak_bytes"]
