"""Which samples are drawn together."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stepscope.core.vocabulary import Metric
from stepscope.store.machine import MachineDescription
from stepscope.store.reader import Past
from stepscope.views.buckets import buckets_of
from stepscope.views.machine_view import MOST_NAMES, charts, machine_view
from tests.exporters.recorded import WRITER, make_run, points_of, seal_points, without_steps


def titles(names, last=None):
    return {chart["title"]: chart["names"] for chart in charts(names, last or {})}


def test_samples_of_one_kind_share_a_chart():
    """GPUs, cores and processes are drawn together; the tree of a process stands for the process."""
    found = titles(
        [
            *(f"gpu/{index}/utilization_ratio" for index in range(2)),
            *(f"cpu/{index}/usage_ratio" for index in range(3)),
            "cpu/usage_ratio",
            "process/0/memory_bytes",
            "process/0/tree_memory_bytes",
            "memory/used_bytes",
            "memory/total_bytes",
            "something/else",
        ]
    )
    assert found["GPU use"] == ["gpu/0/utilization_ratio", "gpu/1/utilization_ratio"]
    assert found["CPU use"] == ["cpu/usage_ratio"]
    assert len(found["CPU per core"]) == 3
    assert found["Memory of the processes"] == ["process/0/tree_memory_bytes"]
    assert "memory/total_bytes" not in str(found)
    assert found["something/else"] == ["something/else"]


@given(
    st.lists(
        st.text(min_size=1, max_size=30) | st.builds("gpu/{}/utilization_ratio".format, st.text(max_size=9)),
        unique=True,
    )
)
def test_any_names_make_charts(names):
    """Hostile names break nothing; each is on at most one chart, and no chart asks for more than one question may."""
    drawn = [name for chart in charts(names, {}) for name in chart["names"]]
    assert len(drawn) == len(set(drawn))
    assert set(drawn) <= set(names)
    assert all(len(chart["names"]) <= MOST_NAMES for chart in charts(names, {}))


def test_swap_is_shown_when_it_is_used(tmp_path):
    """Swap that is always empty is not worth a chart."""
    folder = make_run(tmp_path)
    seal_points(folder, without_steps(points_of({"swap/used_bytes": [0.0, 0.0], "b": [1.0, 2.0]}, rank=-1)))
    past = Past(folder)
    empty, full = buckets_of(past.series("swap/used_bytes")), buckets_of(past.series("b"))
    assert "Swap" not in titles(["swap/used_bytes"], {"swap/used_bytes": empty})
    assert "Swap" in titles(["swap/used_bytes"], {"swap/used_bytes": full})


def test_devices_have_their_last_values(tmp_path):
    """Each GPU has its name and the last value of every sample; a process has its rank's state."""
    folder = make_run(tmp_path)
    metrics = (Metric("gpu/*/utilization_ratio", "ratio", "gauge", ""), Metric("process/*/threads", "", "gauge", ""))
    MachineDescription(WRITER.node, 0, metrics, {}, {"gpu/0": "H100", "gpu/1": "H100"}).save(folder)
    samples = {f"gpu/{index}/utilization_ratio": [0.5, 0.25 * (index + 1)] for index in range(2)}
    seal_points(folder, without_steps(points_of({**samples, "process/0/threads": [4.0, np.nan]}, rank=-1)))
    found = machine_view(Past(folder))
    assert [(gpu["index"], gpu["name"], gpu["metrics"]) for gpu in found["gpus"]] == [
        (0, "H100", {"utilization_ratio": 0.25}),
        (1, "H100", {"utilization_ratio": 0.5}),
    ]
    assert found["processes"][0]["metrics"] == {"threads": None}
    assert found["processes"][0]["state"] == "finished"
