from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families as parse_text

from stepscope.exporters import PrometheusMonitor

SOURCE = Path(__file__).resolve().parents[2] / "src"


def fetch(monitor):
    with urllib.request.urlopen(monitor.url, timeout=120) as answer:
        return {sample.name: sample for family in parse_text(answer.read().decode()) for sample in family.samples}


@pytest.mark.promise("S0-029", "S0-035", "S0-036")
def test_face_of_the_documents():
    """PrometheusMonitor serves what update_metrics takes, and its attributes are metrics of prometheus_client."""
    with PrometheusMonitor(port=0) as monitor:
        assert "training_loss" not in fetch(monitor), "a loss that nobody set is absent, not 0"
        monitor.update_metrics(0.5, {"0": {"memory_allocated": 12.0}}, 40.0, 0.2)
        monitor.training_steps.inc(2)
        monitor.training_time.observe(0.3)
        monitor.gauges["learning_rate"].set(3e-4)
        found = fetch(monitor)
        monitor.training_loss.set(0.25)
        monitor.gpu_memory.labels(gpu_id="1").set(5)
        monitor.cpu_usage.dec(1)
        assert fetch(monitor)["training_loss"].value == 0.25
    assert (found["training_loss"].value, found["training_steps_total"].value) == (0.5, 3.0)
    assert (found["gpu_memory_mb"].value, found["gpu_memory_mb"].labels) == (12.0, {"gpu_id": "0"})
    assert (found["cpu_usage_percent"].value, found["training_step_duration_seconds_count"].value) == (40.0, 2.0)
    assert found["learning_rate"].value == 3e-4


@pytest.mark.promise("S0-037", "X-02")
def test_second_monitor_is_no_error(capsys):
    """Two monitors live in one process, the second on the next free port, which it says once."""
    with PrometheusMonitor() as first, PrometheusMonitor() as second:
        first.update_metrics(1.0, {}, 1.0, 1.0)
        second.update_metrics(2.0, {}, 1.0, 1.0)
        assert (fetch(first)["training_loss"].value, fetch(second)["training_loss"].value) == (1.0, 2.0)
        assert first.port != second.port
        assert min(first.port, second.port) >= 8000
        assert f"metrics are on {second.url}\n" in capsys.readouterr().err


@pytest.mark.promise("S0-038")
def test_face_listens_on_loopback():
    """The endpoint is bound to loopback; elsewhere it is refused without a token, and the training goes on."""
    with PrometheusMonitor(port=0) as monitor:
        assert monitor._endpoint._socket.getsockname()[0] == "127.0.0.1"
    assert monitor.port is None
    monitor.close()
    open_to_all = PrometheusMonitor(port=0, host="0.0.0.0")
    open_to_all.update_metrics(0.5, {}, 1.0, 1.0)
    assert open_to_all.url is None
    assert "others on the network" in open_to_all.problem


@pytest.mark.promise("X-07")
@pytest.mark.parametrize(
    ("gpu_metrics", "expected"),
    [
        ({"gpu_0": {"memory_allocated": 3.0}, "gpu_1": {"memory_allocated": 4.0}}, {"gpu_0": 3.0, "gpu_1": 4.0}),
        ({0: 3.0}, {"0": 3.0}),
        (3.0, {"0": 3.0}),
        ([3.0, 4.0], {"0": 3.0, "1": 4.0}),
        (None, {}),
        ({}, {}),
        ("rubbish", {}),
    ],
)
def test_any_shape_of_gpu_memory(gpu_metrics, expected):
    """GPU memory is taken in every shape that the documents have, in MiB; anything else is left out."""
    with PrometheusMonitor(port=0) as monitor:
        monitor.update_metrics(1.0, gpu_metrics, 1.0, 1.0)
        [family] = monitor.gpu_memory.collect() or [None]
    assert {sample.labels["gpu_id"]: sample.value for sample in (family.samples if family else [])} == expected


def test_bad_values_do_not_raise():
    """What is no number is left out and counted; None is absent."""
    with PrometheusMonitor(port=0) as monitor:
        monitor.update_metrics("high", None, None, object())
    assert monitor.refused == 2
    assert monitor.registry.get_sample_value("training_steps_total") == 1.0


def test_forked_child_leaves_the_port():
    """A forked child does not keep the port taken after its parent has closed it."""
    code = """
import json, os, socket, sys
from stepscope.exporters import PrometheusMonitor
monitor = PrometheusMonitor(port=0)
port = monitor.port
ready, done = os.pipe(), os.pipe()
pid = os.fork()
if not pid:
    os.write(ready[1], b"x")
    os.read(done[0], 1)
    os._exit(0)
os.read(ready[0], 1)
monitor.close()
try:
    socket.create_connection(("127.0.0.1", port), 5).close()
    print("taken")
except ConnectionRefusedError:
    print("free")
os.write(done[1], b"x")
os.waitpid(pid, 0)
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        check=True,
        timeout=240,
    )
    assert done.stdout == "free\n"


def test_room_offers_the_face_only():
    """stepscope.exporters has the face as a lazy attribute, and says so when asked for another name."""
    code = (
        "import sys, stepscope.exporters as e; print('prometheus_client' in sys.modules, e.PrometheusMonitor.__name__)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": str(SOURCE)}, capture_output=True, check=True
    )
    assert done.stdout.split() == [b"False", b"PrometheusMonitor"]
    import stepscope.exporters

    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = stepscope.exporters.Nothing
    assert json.dumps(stepscope.exporters.__all__) == '["PrometheusMonitor", "TensorBoardMonitor"]'
