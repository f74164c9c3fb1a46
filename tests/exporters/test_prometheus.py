from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_open_metrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from stepscope.core.names import clean
from stepscope.core.vocabulary import ALIASES, GAUGE, METRICS, Metric
from stepscope.exporters.prometheus.board import FRESH_SECONDS, Board
from stepscope.exporters.prometheus.names import Names

SOURCE = Path(__file__).resolve().parents[2] / "src"
MACHINE = {
    **{
        f"gpu/1/{name}": value
        for name, value in {
            "utilization_ratio": 0.5,
            "memory_used_bytes": 2.0**30,
            "memory_total_bytes": 2.0**31,
            "temperature_celsius": 71.0,
            "power_watts": 300.0,
            "fan_ratio": 0.25,
        }.items()
    },
    "cpu/usage_ratio": 0.75,
}
TRAINER = {
    "loss": 0.5,
    "epoch": 1.5,
    "lr": 3e-4,
    "grad_norm": 2.0,
    "gpu/0/memory_allocated_bytes": 2.0**20,
    "gpu/0/memory_reserved_bytes": 2.0**21,
}


class Moment:
    """A clock that the test moves."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def samples(board, accept=""):
    """Return every sample of a board's page, as the reference parser reads it."""
    kind, body = board.page(accept)
    families = list((parse_open_metrics if "openmetrics" in kind else parse_text)(body.decode()))
    found = [sample for family in families for sample in family.samples]
    keys = [(sample.name, tuple(sorted(sample.labels.items()))) for sample in found]
    assert len(set(keys)) == len(keys), "a series stands twice on the page"
    assert len({family.name for family in families}) == len(families), "a family stands twice on the page"
    return found


def by_name(board):
    return {sample.name: sample for sample in samples(board)}


def filled(**more):
    board = Board(**more)
    board.update("run-1", -1, "mnist", MACHINE)
    board.update("run-1", 0, "mnist", TRAINER, 3, [0.02, 0.02, 7.0])
    return board


@pytest.mark.promise("S0-030", "S0-031", "S0-032", "S0-033", "S0-034", "X-09")
@pytest.mark.promise("S2-022", "S2-023", "S2-024", "S2-025", "S2-026", "S2-027", "S2-028", "S2-029", "S2-030")
@pytest.mark.promise("S2-031", "S2-032", "S2-033", "S2-034")
@pytest.mark.parametrize(
    ("name", "labels", "value"),
    [
        ("gpu_utilization_percent", {"rank": "node0", "gpu_id": "1"}, 50.0),
        ("gpu_memory_used_mb", {"rank": "node0", "gpu_id": "1"}, 1024.0),
        ("gpu_memory_mb", {"rank": "node0", "gpu_id": "1"}, 1024.0),
        ("gpu_memory_total_mb", {"rank": "node0", "gpu_id": "1"}, 2048.0),
        ("gpu_temperature_celsius", {"rank": "node0", "gpu_id": "1"}, 71.0),
        ("gpu_power_draw_watts", {"rank": "node0", "gpu_id": "1"}, 300.0),
        ("gpu_fan_speed_percent", {"rank": "node0", "gpu_id": "1"}, 25.0),
        ("cpu_usage_percent", {"rank": "node0"}, 75.0),
        ("training_loss", {"rank": "0"}, 0.5),
        ("training_epoch", {"rank": "0"}, 1.5),
        ("learning_rate", {"rank": "0"}, 3e-4),
        ("gradient_norm", {"rank": "0"}, 2.0),
        ("memory_allocation_mb", {"rank": "0", "gpu_id": "0", "kind": "reserved"}, 2.0),
        ("training_steps_total", {"rank": "0"}, 3.0),
        ("training_step_duration_seconds_count", {"rank": "0"}, 3.0),
        ("training_step_duration_seconds_sum", {"rank": "0"}, 7.04),
        ("training_step_duration_seconds_bucket", {"rank": "0", "le": "+Inf"}, 3.0),
    ],
)
def test_documented_names(name, labels, value):
    """Every name of the documents is there once, in its unit, with run, rank, project and its own labels."""
    found = by_name(filled())[name]
    assert found.labels == {"run": "run-1", "project": "mnist", **labels}
    assert found.value == pytest.approx(value)


def test_types_are_those_of_the_documents():
    """Steps are a counter, their duration a histogram, the rest gauges."""
    families = {family.name: family.type for family in parse_text(filled().page()[1].decode())}
    assert families.pop("training_step_duration_seconds") == "histogram"
    assert families.pop("training_steps") == "counter"
    assert families.pop("stepscope_exporter_dropped_series") == "counter"
    assert set(families.values()) == {"gauge"}


@pytest.mark.parametrize(
    ("recorded", "written", "labels"),
    [
        ("phase/data", "stepscope_phase_seconds", {"phase": "data"}),
        ("phase/my own/x", "stepscope_phase_seconds", {"phase": "my own/x"}),
        ("accuracy", "stepscope_accuracy_ratio", {}),
        ("samples_per_second", "stepscope_samples_per_second", {}),
        ("memory/used_bytes", "stepscope_memory_used_bytes", {}),
        ("disk/read_bytes_per_second", "stepscope_disk_read_bytes_per_second", {}),
        ("stepscope/watcher_cpu_ratio", "stepscope_watcher_cpu_ratio", {}),
        ("stepscope/rows_total", "stepscope_rows_total", {"rank": "0"}),
        ("stepscope/rows_total/rank3", "stepscope_rows_total", {"rank": "3"}),
        ("stepscope/sink/mlflow/behind_rows", "stepscope_sink_behind_rows", {"sink": "mlflow"}),
        ("stepscope/sink/my.w-b/behind_seconds", "stepscope_sink_behind_seconds", {"sink": "my.w-b"}),
        ("stepscope/sink/mlflow/sent_rows", "stepscope_sink_sent_rows_total", {"sink": "mlflow"}),
        ("stepscope/sink/2/refused_rows", "stepscope_sink_refused_rows_total", {"sink": "2"}),
        ("val/loss", "stepscope_val_loss", {"metric": "val/loss"}),
        ("batch_ms", "stepscope_batch_ms", {"metric": "batch_ms"}),
        ("7 of 9", "stepscope__7_of_9", {"metric": "7 of 9"}),
    ],
)
def test_other_names(recorded, written, labels):
    """Other metrics are stepscope_<name> with the unit at the end, and say in labels what is not in the name."""
    board = Board()
    board.update("r", -1, "p", {recorded: 1.0})
    found = by_name(board)[written]
    assert found.labels == {"run": "r", "rank": "node0", "project": "p", **labels}


@pytest.mark.parametrize(
    ("pattern", "recorded", "written", "labels"),
    [
        ("cpu/*/usage_ratio", "cpu/3/usage_ratio", "stepscope_cpu_core_usage_ratio", {"core": "3"}),
        ("disk/*/busy_ratio", "disk/nvme0n1/busy_ratio", "stepscope_disk_device_busy_ratio", {"device": "nvme0n1"}),
        ("process/*/memory_bytes", "process/5/memory_bytes", "stepscope_process_memory_bytes", {"rank": "5"}),
        ("gpu/*/clock", "gpu/2/clock", "stepscope_gpu_clock_hertz", {"gpu_id": "2"}),
        ("gpu/*/mig/*/clock", "gpu/2/mig/7/clock", "stepscope_gpu_mig_clock_hertz", {"gpu_id": "2", "mig": "7"}),
    ],
)
def test_instances_are_labels(pattern, recorded, written, labels):
    """The instance in a declared name becomes a label, and an aggregate of the same source keeps another name."""
    board = Board([Metric(pattern, "hertz" if pattern.endswith("clock") else "", GAUGE, "Help.")])
    board.update("r", -1, "p", {recorded: 1.0})
    assert by_name(board)[written].labels == {"run": "r", "project": "p", "rank": "node0", **labels}


def test_every_metric_of_the_vocabulary_has_a_place():
    """Every declared name and every alias maps to valid families that keep one type each."""
    names = Names()
    kinds = {}
    for name in [*(metric.name.replace("*", "0") for metric in METRICS), *(alias.name for alias in ALIASES)]:
        for target in names.targets(name):
            assert kinds.setdefault(target.family, target.kind) == target.kind
    assert len(kinds) > 40


@given(
    names=st.lists(
        st.text(max_size=12) | st.sampled_from(["a/b", "a_b", "a b", "rows_total", "rows", "x_info"]), max_size=12
    )
)
@pytest.mark.parametrize("accept", ["", "application/openmetrics-text"])
def test_hostile_names_are_parsed_and_kept_apart(accept, names):
    """Whatever names are recorded, the reference parsers read the page, and no two names become one."""
    recorded = {name: float(index) for index, name in enumerate(filter(None, (clean(name)[0] for name in names)))}
    board = Board()
    board.update("r\n\\", 0, 'p"', recorded)
    board.update("r\n\\", -1, 'p"', {"stepscope/rows_total": 5.0})
    found = {sample.labels["metric"]: sample.value for sample in samples(board, accept) if "metric" in sample.labels}
    undeclared = [name for name in recorded if "metric" in dict(sum((t.labels for t in Names().targets(name)), ()))]
    assert found == {name: recorded[name] for name in undeclared}


def test_two_spellings_do_not_share_a_series():
    """Of two spellings of one metric the first has the documents' name, the other one of its own."""
    board = Board()
    board.update("r", 0, "p", {"loss": 1.0, "train_loss": 2.0})
    board.update("r", 0, "p", {"train_loss": 3.0})
    found = by_name(board)
    assert (found["training_loss"].value, found["stepscope_train_loss"].value) == (1.0, 3.0)


def test_series_are_capped():
    """Beyond the limit series are left out and counted; the documents' names still have room."""
    board = Board()
    for start in range(0, 5000, 500):
        board.update("r", 0, "p", {f"layer/{index}/norm": 1.0 for index in range(start, start + 500)})
    board.update("r", 0, "p", {"loss": 1.0, "layer/0/norm": 2.0})
    board.update("r", -1, "p", MACHINE)
    found = by_name(board)
    assert len(samples(board)) <= 2002
    assert (found["training_loss"].value, found["stepscope_layer_0_norm"].value) == (1.0, 2.0)
    kept = sum(sample.name.startswith("stepscope_layer_") for sample in samples(board))
    assert found["stepscope_exporter_dropped_series_total"].value == 5000 - kept
    assert found["stepscope_exporter_series"].value == len(samples(board)) - 2


def test_many_ranks_are_capped_too():
    """Ranks that the page has no room for are counted as well."""
    board = Board(limit=50)
    for rank in range(5):
        board.update("r", rank, "p", {}, 1, [0.1])
    assert sum(sample.name == "training_steps_total" for sample in samples(board)) == 2
    assert board.dropped == 6


def test_lost_source_becomes_absent():
    """A value of the machine that is no longer sampled goes after a while; a training's last value stays."""
    clock = Moment()
    board = filled(clock=clock)
    clock.now = FRESH_SECONDS + 1
    board.update("run-1", -1, "mnist", {"cpu/usage_ratio": 0.1})
    found = by_name(board)
    assert "gpu_temperature_celsius" not in found
    assert {"cpu_usage_percent", "training_loss"} <= found.keys()


def test_ended_rank_leaves_the_page():
    """A rank that ended leaves no series behind, and room for others."""
    board = filled()
    board.update("run-1", 1, "mnist", TRAINER, 1, [0.1])
    before = board.series
    board.forget("run-1", 1)
    board.forget("run-1", 7)
    assert {sample.labels.get("rank") for sample in samples(board)} == {"node0", "0", None}
    assert board.series < before
    board.forget("run-1", 0)
    board.forget("run-1", -1)
    assert (board.series, len(samples(board))) == (0, 2)


def test_durations_that_are_none_are_left_out():
    """A duration that is NaN, infinite or negative is in no bucket; a rank that times no step has no histogram."""
    board = Board()
    board.update("r", 0, "p", {}, 1)
    assert not any(name.startswith("training_step_duration") for name in by_name(board))
    board.update("r", 0, "p", {"loss": math.nan}, 3, [math.nan, math.inf, -1.0, 0.001])
    found = by_name(board)
    assert found["training_step_duration_seconds_count"].value == 1
    assert math.isnan(found["training_loss"].value)


def test_boards_are_independent():
    """Two boards in one process share nothing."""
    filled()
    assert len(samples(Board())) == 2


def test_watcher_does_not_load_the_client_library():
    """Board and endpoint load neither prometheus_client nor http.server, which would double a watcher's memory."""
    code = (
        "import sys; from stepscope.exporters.prometheus import board, feed, server; "
        "heavy = ('prometheus_client', 'http.server', 'http.client', 'numpy', 'email', 'hashlib'); "
        "print([name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": str(SOURCE)}, capture_output=True, check=True
    )
    assert done.stdout.strip() == b"[]"
