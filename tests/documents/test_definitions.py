"""The classes and functions that the documents define are ours too, with their methods, parameters and results.

A block is run as pasted where its imports are there, and the same calls are made to its class and to ours.
"""

from __future__ import annotations

import ast
import importlib
import inspect

import pytest

from tests.documents import seeds

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
