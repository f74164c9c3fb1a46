from __future__ import annotations

import shutil
import subprocess
import threading

import pytest
import yaml

from stepscope.exporters import PrometheusMonitor
from stepscope.exporters.prometheus.board import Board
from stepscope.exporters.prometheus.feed import TargetsFile
from stepscope.exporters.prometheus.grafana import dashboard
from stepscope.exporters.prometheus.server import Endpoint
from tests.exporters.dashboards import expressions
from tests.integration.processes import until
from tests.integration.prometheus_server import EXAMPLES, NEEDED, Prometheus, needs_prometheus, plain

RUN = "20260101-000000-abcd"
GPU = {
    "utilization_ratio": 0.5,
    "memory_used_bytes": 2.0**30,
    "memory_total_bytes": 2.0**31,
    "temperature_celsius": 71.0,
    "power_watts": 300.0,
    "fan_ratio": 0.25,
}
HOST = {
    "cpu/usage_ratio": 0.75,
    "memory/used_ratio": 0.5,
    "disk/read_bytes_per_second": 1e6,
    "disk/write_bytes_per_second": 1e6,
    "network/received_bytes_per_second": 1e6,
    "network/sent_bytes_per_second": 1e6,
    "stepscope/watcher_cpu_ratio": 0.001,
    "stepscope/drops_total": 0.0,
}
TRAINER = {
    "loss": 0.125,
    "epoch": 1.5,
    "learning_rate": 3e-4,
    "grad_norm": 2.0,
    "phase/forward": 0.01,
    "phase/data": 0.002,
    "gpu/0/memory_allocated_bytes": 2.0**20,
    "nan": float("nan"),
    "a/b": 1.0,
    "a_b": 2.0,
    'odd "name"\\ and ünïcode': 3.0,
    "rows_total": 4.0,
    "x_bucket": 5.0,
}


class LiveEndpoint:
    """A board that two ranks and a machine with two GPUs feed, served by one thread as in a watcher."""

    def __init__(self):
        self.board, self.stopped = Board(), threading.Event()
        self.endpoint = Endpoint(self.board.page, port=0)
        self.thread = threading.Thread(target=self.work)
        self.thread.start()

    def work(self):
        while not self.stopped.is_set():
            gpus = {f"gpu/{index}/{name}": value for index in (0, 1) for name, value in GPU.items()}
            self.board.update(RUN, -1, "mnist", {**HOST, **gpus})
            for rank in (0, 1):
                self.board.update(RUN, rank, "mnist", TRAINER, 2, [0.02, 0.04])
            self.endpoint.poll(0.1)

    def close(self):
        self.stopped.set()
        self.thread.join()
        self.endpoint.close()


@pytest.fixture(scope="module")
def scraped(tmp_path_factory):
    """A real Prometheus that has found a live endpoint by its file."""
    folder = tmp_path_factory.mktemp("prometheus")
    live = LiveEndpoint()
    file = TargetsFile(folder / "targets" / f"{RUN}.json", live.endpoint.target, {"run": RUN})
    prometheus = Prometheus(folder, folder / "targets")
    try:
        prometheus.wait_for("count_over_time(training_steps_total[30s]) >= 3")
        yield prometheus
    finally:
        prometheus.close()
        file.remove()
        live.close()


@needs_prometheus
@pytest.mark.slow
@pytest.mark.promise("S2-005", "S2-035", "S2-043")
def test_every_query_of_the_dashboard_has_data(scraped):
    """Every query of the Grafana dashboard answers with data from a real Prometheus that scrapes a live endpoint."""
    asked = [plain(expression) for expression in expressions(dashboard())]
    assert [expression for expression in asked if not scraped.wait_for(expression)] == []


@needs_prometheus
@pytest.mark.slow
@pytest.mark.promise("S2-043")
def test_every_recording_rule_evaluates(scraped):
    """Every recording rule of the example is healthy and has a value."""
    groups = yaml.safe_load((EXAMPLES / "recording_rules.yml").read_text(encoding="utf-8"))["groups"]
    for rule in (rule for group in groups for rule in group["rules"]):
        found = scraped.wait_for(rule["record"])
        assert {labels["run"] for labels, _ in found} == {RUN}
    health = [rule["health"] for group in scraped.get("rules")["groups"] for rule in group["rules"]]
    assert set(health) == {"ok"}


@needs_prometheus
@pytest.mark.slow
@pytest.mark.promise("S2-005", "X-09")
@pytest.mark.parametrize(
    ("query", "values"),
    [
        ('training_loss{rank="0"}', [0.125]),
        ("gpu_utilization_percent", [50.0, 50.0]),
        ("gpu_memory_used_mb", [1024.0, 1024.0]),
        ('stepscope_a_b{rank="1"}', [1.0, 2.0]),
        ('{metric="odd \\"name\\"\\\\ and ünïcode", rank="0"}', [3.0]),
        ('stepscope_nan{rank="0"} != stepscope_nan', [pytest.approx(float("nan"), nan_ok=True)]),
        ("stepscope_exporter_dropped_series_total", [0.0]),
        ("up", [1.0]),
    ],
)
def test_values_arrive_as_they_are(scraped, query, values):
    """What was recorded arrives with its value and labels, however odd its name; nothing is refused."""
    assert until(lambda: sorted(value for _, value in scraped.ask(query)) == values, f"values of {query}", every=0.2)


@needs_prometheus
@pytest.mark.slow
def test_variables_have_values(scraped):
    """The dashboard's variables find the run, its project, ranks and GPUs; no label clashes with one of Prometheus'."""
    for name, label, values in [("project", "project", ["mnist"]), ("run", "run", [RUN]), ("rank", "rank", ["0", "1"])]:
        found = scraped.get(f"label/{label}/values", **{"match[]": "training_steps_total"})
        assert found == values, name
    assert scraped.get("label/gpu_id/values", **{"match[]": "gpu_utilization_percent"}) == ["0", "1"]
    assert not [label for label in scraped.get("labels") if label.startswith("exported_")]


@needs_prometheus
@pytest.mark.slow
@pytest.mark.promise("S0-029")
def test_monitor_of_the_documents_is_scraped(tmp_path):
    """A real Prometheus scrapes PrometheusMonitor, found by its file, and forgets it when the file goes."""
    with PrometheusMonitor(port=0) as monitor:
        monitor.update_metrics(0.5, {"0": {"memory_allocated": 12.0}}, 40.0, 0.2)
        file = TargetsFile(tmp_path / "targets" / "x.json", f"127.0.0.1:{monitor.port}")
        prometheus = Prometheus(tmp_path, tmp_path / "targets")
        try:
            [(labels, value)] = prometheus.wait_for("gpu_memory_mb")
            assert (labels["gpu_id"], value) == ("0", 12.0)
            file.remove()
            prometheus.wait_for("absent(up)")
        finally:
            prometheus.close()


@pytest.mark.promise("S2-052")
@pytest.mark.parametrize(("kind", "name"), [("config", "prometheus.yml"), ("rules", "recording_rules.yml")])
def test_examples_are_valid(kind, name):
    """Prometheus' own tool accepts the example configuration and the recording rules."""
    if shutil.which("promtool") is None:
        pytest.skip(NEEDED)
    command = ["promtool", "check", kind, str(EXAMPLES / name)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
