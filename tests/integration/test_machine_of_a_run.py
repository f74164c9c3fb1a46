"""A real run with its watcher, on a machine with 8 GPUs of a fake driver: samples, faults, and a real Prometheus."""

from __future__ import annotations

import pytest

import stepscope
from stepscope.exporters.prometheus.grafana import dashboard
from tests.exporters.dashboards import expressions
from tests.integration.processes import until
from tests.integration.prometheus_server import Prometheus, needs_prometheus, plain
from tests.nvml.fixture import fake_driver  # noqa: F401 - the fixture `driver`

TRAIN = """
    import json, sys, time
    import stepscope
    run = stepscope.init(project="machine", **json.loads(sys.argv[1]))
    print(run.path, flush=True)
    for number in range(10**6):
        with run.step(samples=4):
            with run.phase("forward"):
                time.sleep(0.02)
            with run.phase("data"):
                time.sleep(0.001)
            run.log({"loss": 1 / (number + 1), "lr": 1e-3, "grad_norm": 2.0, "epoch": 0.5,
                     "gpu/0/memory_allocated_bytes": 2.0**20})
"""


def last(path, name):
    past = stepscope.open(path)
    return past.series(name).value[-1] if name in past.names() else None


@pytest.mark.promise("S2-001", "S2-003", "S1-008", "S1-052", "S2-059")
def test_samples_of_gpus_and_host_are_in_the_run(bench, driver):
    """A run has the samples of the host, of its process and of each GPU, as the driver tells them, and their sums."""
    driver.set({"0.util": 37, "3.power": 250000})
    path = bench.start(TRAIN, "{}").line()
    until(lambda: last(path, "gpu/0/utilization_ratio") == pytest.approx(0.37), "the use of GPU 0")
    driver.set({"0.util": 90})
    until(lambda: last(path, "gpu/0/utilization_ratio") == pytest.approx(0.9), "the new use of GPU 0")
    expected = {"cpu/usage_ratio", "memory/used_ratio", "process/0/memory_bytes", "gpu/mean_utilization_ratio"}
    expected |= {f"gpu/{index}/power_watts" for index in range(8)}
    until(lambda: expected <= set(stepscope.open(path).names()), "samples of everything")
    assert stepscope.open(path).metric("gpu/5/power_watts").unit == "watts"
    until(lambda: stepscope.open(path).machines()[0].devices.get("gpu/5"), "the names of the GPUs")
    assert "NVIDIA" in stepscope.open(path).machines()[0].devices["gpu/0"]


def test_a_lost_gpu_and_a_hung_driver(bench, driver):
    """A GPU that is lost and a driver that hangs become events; host samples and steps go on."""
    path = bench.start(TRAIN, "{}").line()
    until(lambda: last(path, "gpu/1/power_watts") is not None, "samples of GPU 1")
    driver.set({"1.lost": 1})
    until(lambda: stepscope.open(path).events("gpu_lost"), "the loss of GPU 1")
    driver.set({"2.hang": 1})
    until(lambda: stepscope.open(path).events("gpu_driver_hung"), "the hang of the driver")
    seen = len(stepscope.open(path).series("memory/used_ratio")), len(stepscope.open(path).series("loss"))
    until(lambda: len(stepscope.open(path).series("memory/used_ratio")) > seen[0] + 1, "more samples of the host")
    assert until(lambda: len(stepscope.open(path).series("loss")) > seen[1], "more steps")


@needs_prometheus
@pytest.mark.promise("S2-005", "S2-043", "S0-037")
def test_a_real_prometheus_scrapes_a_live_run(bench, driver, tmp_path):
    """A Prometheus finds a live run by the file in its folder, and every query of the dashboard has data."""
    settings = '{"exporters": {"prometheus": {"enabled": true, "port": 0, "targets": "%s"}}}'
    driver.set({"0.fan": 30})
    trainer = bench.start(TRAIN, settings % (tmp_path / "targets"))
    prometheus = Prometheus(tmp_path, tmp_path / "targets")
    try:
        prometheus.wait_for("count_over_time(training_steps_total[30s]) >= 3")
        asked = [plain(expression) for expression in expressions(dashboard())]
        assert [expression for expression in asked if not prometheus.wait_for(expression)] == []
        [(labels, value)] = prometheus.ask("training_loss")
        assert (labels["rank"], labels["project"], 0 < value <= 1) == ("0", "machine", True)
    finally:
        prometheus.close()
    trainer.process.kill()
    until(lambda: not list((tmp_path / "targets").iterdir()), "the end of the file")
