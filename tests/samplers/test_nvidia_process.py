"""The whole chain: sampler, helper process, real binding, fake driver; and nvitop beside it."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time

import pytest

from stepscope.samplers.memory import MemorySampler
from stepscope.samplers.nvidia import NvidiaSampler, describe_gpus
from stepscope.samplers.nvidia_metrics import METRICS
from stepscope.watcher.journal import Journal
from stepscope.watcher.sampling import Sampling, SamplingPlan
from tests.nvml.fixture import fake_driver  # noqa: F401 - the fixture `driver`

pytestmark = pytest.mark.processes

pytest.importorskip("pynvml")
SECOND = 10**9
NVITOP = """
import json, nvitop
def row(device):
    shot = device.as_snapshot()
    return [shot.name, shot.uuid, shot.gpu_utilization, shot.memory_utilization, shot.memory_used, shot.memory_total,
            shot.temperature, shot.power_usage, shot.power_limit, shot.fan_speed, shot.sm_clock, shot.memory_clock,
            shot.total_volatile_uncorrected_ecc_errors]
def instances(device):
    return [[mig.memory_used(), mig.memory_total()] for mig in device.mig_devices()]
found = nvitop.Device.all()
print(json.dumps([[row(each), instances(each)] for each in found]))
"""


@pytest.fixture
def make(driver):
    """Give a function that makes a sampler which waits for its answers; end what it started."""
    made = []

    def one(visible=None, all_devices=False, patience=120.0):
        made.append(NvidiaSampler(visible, all_devices, lambda: {os.getpid()}, patience=patience))
        return made[-1]

    yield one
    for each in made:
        each.close()


def gone(pid, seconds=120.0):
    """Tell whether a process ends within that time; a zombie has ended."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    ended = bool(poll.poll(seconds * 1000))
    os.close(descriptor)
    return ended


@pytest.mark.promise("S2-059", "S2-001")
def test_eight_gpus_through_the_whole_chain(driver, make):
    """Eight GPUs come with all their values, every name of which is declared."""
    driver.set({"0.processes": f"{os.getpid()}:1000,1:50", "7.mig": 1})
    values = make().sample(0)
    assert values["gpu/7/temperature_celsius"] == values["gpu/max_temperature_celsius"] == 47.0
    assert (values["gpu/0/own_memory_bytes"], values["gpu/0/other_memory_bytes"]) == (1000.0, 50.0)
    assert values["gpu/sum_memory_used_bytes"] == 36 * 2.0**30
    declared = {metric.name for metric in METRICS}
    assert {"/".join("*" if part.isdecimal() else part for part in name.split("/")) for name in values} <= declared


@pytest.mark.promise("S3-031")
def test_nvitop_shows_the_same_numbers(driver, make):
    """On one driver nvitop and we read the same."""
    pytest.importorskip("nvitop")
    driver.set({"1.util": 77, "2.memory_used": 12345678, "3.power": 333_000, "4.ecc_uncorrected": 2, "5.mig": 2})
    done = subprocess.run([sys.executable, "-c", NVITOP], capture_output=True, text=True, check=True, timeout=240)
    source = make()
    values = source.sample(0)

    def row(index):
        factors = {
            "utilization_ratio": 100,
            "memory_busy_ratio": 100,
            "memory_used_bytes": 1,
            "memory_total_bytes": 1,
            "temperature_celsius": 1,
            "power_watts": 1000,
            "power_limit_watts": 1000,
            "fan_ratio": 100,
            "sm_clock_hertz": 1e-6,
            "memory_clock_hertz": 1e-6,
            "ecc_uncorrected_errors_total": 1,
        }
        known = [values.get(f"gpu/{index}/{name}") for name in factors]
        numbers = [
            "N/A" if value is None else round(value * by) for value, by in zip(known, factors.values(), strict=True)
        ]
        return [source.devices[index].name, source.devices[index].uuid, *numbers]

    def instances(index):
        names = ("memory_used_bytes", "memory_total_bytes")
        count = len(source.devices[index].instances)
        return [[values[f"gpu/{index}/mig/{at}/{name}"] for name in names] for at in range(count)]

    theirs = json.loads(done.stdout)
    assert len(theirs) == 8
    for index, (their_row, their_instances) in enumerate(theirs):
        assert their_row == row(index)
        assert their_instances == instances(index)


@pytest.mark.promise("S2-021")
def test_hung_driver_is_an_event_and_delays_nobody(driver, make):
    """A driver that hangs is told within 10 s and waited for by nobody; when it answers again, that is told too."""
    source = make()
    assert source.sample(0)
    source._dialog._patience = 0.0
    driver.set(hang=1)
    told = {}
    for second in range(1, 11):
        assert source.sample(second * SECOND) == {}
        told |= {event["kind"]: second for event in source.events()}
    assert 2 <= told["gpu_driver_hung"] <= 4
    assert "did not answer" in source.absent()["gpu"]
    driver.set(hang=None)
    source._dialog._patience = 120.0
    assert source.sample(60 * SECOND)["gpu/count"] == 8.0
    assert [event["kind"] for event in source.events()] == ["gpu_driver_back"]


def test_hung_driver_leaves_the_other_sources_alone(driver, make, tmp_path):
    """While the driver hangs every other source gives its row each second."""
    source = make(patience=0.0)
    driver.set(hang=1)
    sampling = Sampling([source, MemorySampler()], SamplingPlan(), Journal(tmp_path / "log"))
    rounds = [sampling.round(second * SECOND) for second in range(12)]
    assert all(len(each.rows) == 1 and "memory/used_bytes" in each.rows[0] for each in rounds)
    assert [event["kind"] for each in rounds for event in each.events] == ["gpu_driver_hung"]


def test_one_hanging_gpu_is_a_hang(driver, make):
    """A single GPU that hangs is a hang as well: its calls do not return either."""
    source = make(patience=0.0)
    driver.set({"2.hang": 1})
    for second in range(12):
        source.sample(second * SECOND)
    assert [event["kind"] for event in source.events()] == ["gpu_driver_hung"]


def test_helper_ends_with_its_owner(driver):
    """When the owner is killed, even by SIGKILL, the helper is gone soon after."""
    program = (
        "from stepscope.samplers.nvidia import NvidiaSampler\n"
        "source = NvidiaSampler(None, True, set, patience=120.0)\n"
        "source.sample(0)\n"
        "print(source._dialog._line.pid, flush=True)\n"
        "input()\n"
    )
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environ) as owner:
        helper = int(owner.stdout.readline())
        owner.send_signal(signal.SIGKILL)
        owner.wait(120)
    assert gone(helper)


def test_killed_helper_is_replaced(driver, make):
    """A helper that something kills is told with its signal, and another one answers later."""
    source = make()
    source.sample(0)
    os.kill(source._dialog._line.pid, signal.SIGKILL)
    source.sample(SECOND)
    assert source.events() == [{"kind": "gpu_reader_ended", "reason": "killed by SIGKILL"}]
    assert source.sample(60 * SECOND)["gpu/count"] == 8.0


def test_users_modules_do_not_shadow_ours(driver, make, tmp_path, monkeypatch):
    """A random.py or pynvml.py in the user's working directory is not what the helper loads."""
    for name in ("random.py", "json.py", "pynvml.py"):
        (tmp_path / name).write_text("raise SystemExit(7)")
    monkeypatch.chdir(tmp_path)
    assert make().sample(0)["gpu/count"] == 8.0


def test_description_for_doctor(driver):
    """Doctor gets name, UUID and memory of each GPU, or the reason why there is none."""
    found = describe_gpus(wait=120.0)
    assert found.reason == ""
    assert (found.devices[7].name, found.driver) == ("NVIDIA H100 80GB HBM3", "580.65.06")
    assert found.devices[7].memory_total_bytes == 80 * 2.0**30
    driver.set(init="driver_not_loaded")
    assert "driver not loaded" in describe_gpus(wait=120.0).reason


def test_description_of_a_hung_driver(driver):
    """Doctor does not wait for a driver that hangs."""
    driver.set(hang=1)
    started = time.monotonic()
    assert "did not answer" in describe_gpus(wait=0.5).reason
    assert time.monotonic() - started < 120
