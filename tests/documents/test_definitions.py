"""The classes and functions that the documents define are ours too, with their methods, parameters and results.

A block is run as pasted where its imports are there, and the same calls are made to its class and to ours.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import subprocess
import sys
import types

import pytest

from tests.documents import seeds
from tests.integration.processes import free_port, until

pytestmark = pytest.mark.skipif(not seeds.documents(), reason=seeds.ABSENT)

OURS = {
    "TrainingMonitor": "stepscope.monitor",
    "monitor_resources": "stepscope.monitor",
    "TensorBoardMonitor": "stepscope.exporters",
    "PrometheusMonitor": "stepscope.exporters",
    "MonitoringDashboard": "stepscope.web",
    "PerformanceAlerting": "stepscope.alerting",
    "RealTimeMonitor": "stepscope.monitor",
    "PerformanceAnalyzer": "stepscope.analysis",
    "custom_condition": "",
    "train_model_with_monitoring": "",
}
"""What the documents define, and where we have it; empty: the user's own, which runs in test_python_blocks.py."""
INNER = {"update_graphs", "_get_current_loss", "_get_gpu_memory", "_get_cpu_usage"}
"""Parts that are no interface, or that a document calls and never defines."""


def definitions():
    """Return every class and function at the top of a Python block, with the block."""
    found = {}
    for block in seeds.blocks("python"):
        for node in ast.parse(block.code).body:
            if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and not block.later:
                found[node.name] = node, block
    return found


def ours(name):
    return getattr(importlib.import_module(OURS[name]), name)


def accepts(function, arguments, *, bound):
    """Say whether a function takes these parameters by place and by name."""
    signature = inspect.signature(function)
    own = [object()] if bound else []
    signature.bind(*own, *arguments)
    signature.bind(*own, **dict.fromkeys(arguments))
    return True


def test_every_definition_is_known():
    """Nothing that a document defines is missing from the table."""
    assert definitions().keys() == OURS.keys()


@pytest.mark.promise("X-13")
@pytest.mark.parametrize("name", [name for name, home in OURS.items() if home])
def test_ours_has_what_theirs_has(name):
    """Every public method of a document's class is one of ours, and takes the same parameters."""
    node, _ = definitions()[name]
    if isinstance(node, ast.FunctionDef):
        assert accepts(ours(name), [argument.arg for argument in node.args.args], bound=False)
        return
    for method in node.body:
        if isinstance(method, ast.FunctionDef) and method.name not in INNER and method.name != "_log_metrics":
            arguments = [argument.arg for argument in method.args.args[1:]]
            if method.name == "_monitor_loop":
                continue
            assert accepts(getattr(ours(name), method.name), arguments, bound=True), method.name


def theirs(name):
    """Return a document's class or function, run as it is pasted."""
    _, block = definitions()[name]
    space = {"__name__": "documents"}
    exec(compile(block.code, block.place, "exec"), space)  # it is what this test is for
    return space[name]


def follow(monitor):
    torch = pytest.importorskip("torch", reason="the documents give tensors")
    assert monitor.get_training_stats() == {}
    for step, loss in enumerate([2.0, 1.0, 1.5]):
        monitor.record_metrics(step, torch.tensor(loss), 1e-3, 8)
    found = monitor.get_training_stats()
    return {key: value for key, value in found.items() if key != "training_time"}, sorted(found)


def test_training_monitors_agree(tmp_path, monkeypatch):
    """The document's monitor and ours give the same statistics of the same steps."""
    pytest.importorskip("torch", reason="the documents give tensors")
    monkeypatch.setenv("STEPSCOPE_DIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monitor = ours("TrainingMonitor")()
    figures, keys = follow(monitor)
    monitor.stop_monitoring()
    expected, their_keys = follow(theirs("TrainingMonitor")())
    assert {key: figures[key] for key in expected} == expected
    assert set(their_keys) <= set(keys)


def test_resources_agree():
    """Ours has the keys of the document's function, and does not wait a second for them."""
    pytest.importorskip("psutil", reason="the document's function needs it")
    pytest.importorskip("torch", reason="the document's function needs it")
    assert theirs("monitor_resources")().keys() <= ours("monitor_resources")().keys()


def test_tensorboard_monitors_agree(tmp_path):
    """The same calls give the same tags in TensorBoard; what breaks the document's class does not break ours."""
    torch = pytest.importorskip("torch", reason="the document's class needs it")
    pytest.importorskip("tensorboard", reason="the document's class needs it")
    model = torch.nn.Linear(2, 1)
    model(torch.ones(1, 2)).sum().backward()
    tags = []
    for number, kind in enumerate((theirs("TensorBoardMonitor"), ours("TensorBoardMonitor"))):
        monitor = kind(str(tmp_path / str(number)))
        monitor.log_training_metrics(1, {"loss": 0.5})
        monitor.log_resource_metrics(1, {"cpu_percent": 5.0, "gpu": {"memory": 1.0}})
        monitor.log_model_parameters(1, model)
        monitor.close()
        module = importlib.import_module("tensorboard.backend.event_processing.event_accumulator")
        found = module.EventAccumulator(str(tmp_path / str(number))).Reload().Tags()
        tags.append((sorted(found["scalars"]), sorted(found["histograms"])))
    assert tags[0] == tags[1]
    nested = ours("TensorBoardMonitor")(tmp_path / "nested")
    nested.log_resource_metrics(1, ours("monitor_resources")())
    nested.close()


HISTORY = [{"loss": 5.0 - at / 10, "timestamp": at, "cpu_percent": 50.0, "gpu_memory": 10.0} for at in range(30)]


def test_analyzers_agree():
    """The document's analysis and ours find the same trend and the same usage."""
    one, two = theirs("PerformanceAnalyzer")(HISTORY), ours("PerformanceAnalyzer")(HISTORY)
    trend, expected = two.analyze_loss_trend(), one.analyze_loss_trend()
    assert (trend["trend"], trend["significance"]) == (expected["trend"], expected["significance"])
    assert trend["slope"] == pytest.approx(expected["slope"])
    assert two.analyze_resource_usage()["cpu_stats"] == pytest.approx(one.analyze_resource_usage()["cpu_stats"])


def test_alertings_agree():
    """The same figures raise the same kinds of alerts; ours compares memory with what the card has."""
    email = {"from": "a@example.org", "to": "b@example.org", "smtp_server": "localhost", "smtp_port": 25}
    email |= {"username": "u", "password": "p"}
    memory = {"gpu_0": {"memory_allocated": 95.0, "memory_reserved": 100.0, "memory_total": 100.0}}
    now, before = {"loss": 2.0, "gpu_memory": memory, "cpu_percent": 99.0}, {"loss": 1.0}
    kinds = [
        {alert["type"] for alert in kind(email).check_alerts(now, before)}
        for kind in (theirs("PerformanceAlerting"), ours("PerformanceAlerting"))
    ]
    assert kinds[0] == kinds[1]


@pytest.fixture
def graphs(monkeypatch):
    """Supply what the document's dashboard imports and only hands on: Dash, Plotly's boxes, and a frame."""

    class App:
        def __init__(self, _name):
            self.layout = None

        def callback(self, *_arguments):
            return lambda function: function

    class Parts:
        def __getattr__(self, _name):
            return lambda *arguments, **options: (arguments, options)

    boxes = types.SimpleNamespace(Scatter=dict, Layout=dict)
    modules = {"dash": types.SimpleNamespace(Dash=App, dcc=Parts(), html=Parts()), "dash.dependencies": Parts()}
    modules |= {"plotly": types.SimpleNamespace(graph_objs=boxes), "plotly.graph_objs": boxes}
    modules["pandas"] = types.SimpleNamespace(
        DataFrame=lambda rows: {key: [row[key] for row in rows] for key in rows[0]}
    )
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)


@pytest.mark.usefixtures("graphs")
def test_dashboards_agree():
    """The same rows give the same curves under the same titles."""
    one, two = theirs("MonitoringDashboard")(), ours("MonitoringDashboard")()
    for dashboard in (one, two):
        dashboard.metrics_data += HISTORY
    for name in ("create_loss_graph", "create_resource_graph"):
        expected, found = getattr(one, name)(), getattr(two, name)()
        assert [list(curve["y"]) for curve in found["data"]] == [list(curve["y"]) for curve in expected["data"]]
        assert [curve["name"] for curve in found["data"]] == [curve["name"] for curve in expected["data"]]
        assert words(found["layout"]["title"]) == words(expected["layout"]["title"])


def words(title):
    """Return a title, which Plotly takes as a text or as an object."""
    return title["text"] if isinstance(title, dict) else title


class Alerting:
    """An alerting system that keeps what it is asked and told."""

    def __init__(self):
        self.asked, self.told = [], []

    def check_alerts(self, now, before):
        self.asked.append((now, before))
        return [{"type": "loss_increase", "message": "it rises"}]

    def send_alert(self, alert):
        self.told.append(alert["type"])


def test_real_time_monitors_agree(tmp_path, monkeypatch):
    """Both look again and again, compare with the first look, and send what the alerting system finds."""
    monkeypatch.setenv("STEPSCOPE_DIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    parts = {"_get_current_loss": lambda _: 1.5, "_get_gpu_memory": lambda _: {}, "_get_cpu_usage": lambda _: 5.0}
    kinds = type("Theirs", (theirs("RealTimeMonitor"),), parts), ours("RealTimeMonitor")
    keys = []
    for kind in kinds:
        alerting = Alerting()
        monitor = kind(alerting)
        monitor.start_monitoring(interval=0.1)
        until(lambda told=alerting.told: len(told) >= 2, "two looks")
        assert monitor.is_monitoring
        monitor.stop_monitoring()
        assert not monitor.is_monitoring
        count = len(alerting.told)
        assert set(alerting.told) == {"loss_increase"}
        assert alerting.asked[-1][1] == monitor.baseline_metrics
        keys.append(set(alerting.asked[-1][0]))
        assert len(alerting.told) == count  # nothing is sent any more
    assert keys[0] <= keys[1]


SCRAPED = """
import sys, urllib.request
kind = sys.argv[1]
if kind == "theirs":
    sys.path.insert(0, sys.argv[3])
    from tests.documents.test_definitions import theirs
    monitor = theirs("PrometheusMonitor")(port=int(sys.argv[2]))
else:
    from stepscope.exporters import PrometheusMonitor
    monitor = PrometheusMonitor(port=int(sys.argv[2]))
for loss in (2.0, 1.5):
    monitor.update_metrics(loss, {"0": {"memory_allocated": 512.0}}, 12.5, 0.25)
print(urllib.request.urlopen(f"http://127.0.0.1:{sys.argv[2]}/metrics", timeout=60).read().decode())
"""


def scraped(kind, tmp_path):
    """Return the samples that a monitor serves under the document's names."""
    from prometheus_client.parser import text_string_to_metric_families

    command = [sys.executable, "-c", SCRAPED, kind, str(free_port()), str(seeds.ROOT)]
    environ = {**os.environ, "PYTHONPATH": f"{seeds.ROOT}/src:{seeds.ROOT}", "STEPSCOPE_DIR": str(tmp_path)}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120, check=True)
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(done.stdout)
        for sample in family.samples
        if sample.name.startswith(("training_", "gpu_memory_mb", "cpu_usage")) and not sample.name.endswith("_created")
    }


def test_prometheus_monitors_agree(tmp_path):
    """A scrape of each finds the same samples with the same values."""
    pytest.importorskip("prometheus_client", reason="the document's class needs it")
    expected, found = scraped("theirs", tmp_path), scraped("ours", tmp_path)
    plain = {key: value for key, value in expected.items() if "_bucket" not in key[0]}
    assert {key: found.get(key) for key in plain} == plain
