from __future__ import annotations

import shutil

import pytest

from stepscope.samplers.amd import METRICS, AmdSampler
from stepscope.samplers.other_gpus import OtherGpuSampler
from tests.samplers.machines import GIB, amd, write


@pytest.mark.promise("S1-008", "S1-009")
def test_one_gpu(tmp_path):
    """An AMD GPU tells use, memory, temperature, power, fan and clocks under the names of any GPU."""
    values = AmdSampler(amd(tmp_path)).sample(0)
    assert values["gpu/0/utilization_ratio"] == pytest.approx(0.87)
    assert (values["gpu/0/memory_used_bytes"], values["gpu/0/memory_total_bytes"]) == (4 * GIB, 16 * GIB)
    assert (values["gpu/0/temperature_celsius"], values["gpu/0/memory_temperature_celsius"]) == (54.0, 72.0)
    assert (values["gpu/0/power_watts"], values["gpu/0/power_limit_watts"]) == pytest.approx((213.0, 300.0))
    assert values["gpu/0/fan_ratio"] == pytest.approx(0.5)
    assert (values["gpu/0/sm_clock_hertz"], values["gpu/0/memory_clock_hertz"]) == (1.725e9, 1e9)
    assert {name.replace("/0/", "/*/") for name in values} == {metric.name for metric in METRICS}


def test_order_and_sums(tmp_path):
    """GPUs are numbered by slot, not by card, and are added up over the node."""
    amd(tmp_path, card=0, slot="0000:c1:00.0", used=GIB)
    amd(tmp_path, card=1, slot="0000:03:00.0", used=3 * GIB)
    values = AmdSampler(tmp_path).sample(0)
    assert (values["gpu/0/memory_used_bytes"], values["gpu/1/memory_used_bytes"]) == (3 * GIB, GIB)
    assert (values["gpu/sum_memory_used_bytes"], values["gpu/max_memory_used_bytes"]) == (4 * GIB, 3 * GIB)
    assert values["gpu/count"] == 2


def test_beside_gpus_of_another_maker(tmp_path):
    """Beside two GPUs of another maker the first AMD one is number 2, and sums are left to the other sampler."""
    values = AmdSampler(amd(tmp_path), first=2).sample(0)
    assert all(name.startswith("gpu/2/") for name in values)


def test_card_without_fan_and_edge(tmp_path):
    """A server card without fan, and with a junction thermometer only, tells the rest and says what is missing."""
    root = amd(tmp_path)
    monitor = root / "sys/devices/pci0000:00/0000:c1:00.0/hwmon/hwmon3"
    for name in ("temp1_input", "temp1_label", "fan1_input", "fan1_max"):
        (monitor / name).unlink()
    sampler = AmdSampler(root)
    assert sampler.sample(0)["gpu/0/temperature_celsius"] == 66.0
    assert set(sampler.absent()) == {"gpu/0/fan_ratio"}


def test_lost_gpu(tmp_path):
    """A GPU that leaves the bus is told once; the others go on."""
    amd(tmp_path, card=0, slot="0000:03:00.0")
    amd(tmp_path, card=1, slot="0000:c1:00.0")
    sampler = AmdSampler(tmp_path)
    sampler.sample(0)
    shutil.rmtree(tmp_path / "sys/devices/pci0000:00/0000:03:00.0")
    for card in sampler._cards:  # as the kernel does: a read through an open file fails once the device is gone
        for file, _ in card.readings.values():
            file.close()
    values = sampler.sample(1)
    assert "gpu/0/power_watts" not in values
    assert values["gpu/1/power_watts"] == pytest.approx(213.0)
    assert [event["kind"] for event in sampler.events()] == ["gpu_lost"]
    sampler.sample(2)
    assert sampler.events() == []


def test_no_amd_gpu(tmp_path):
    """A machine without AMD GPU gives no values, and says so."""
    write(tmp_path, {"sys/class/drm/card0/device/vendor": "0x10de\n"})
    sampler = AmdSampler(tmp_path)
    assert sampler.sample(0) == {}
    assert "amdgpu" in sampler.absent()["amd"]


def test_intel_clock(tmp_path):
    """An Intel GPU tells its clock, and why it tells no more."""
    files = {"sys/class/drm/card0/device/vendor": "0x8086\n", "sys/class/drm/card0/gt_act_freq_mhz": "1350\n"}
    sampler = OtherGpuSampler(write(tmp_path, files), platform="linux")
    assert sampler.sample(0) == {"gpu/intel/0/clock_hertz": 1.35e9}
    assert "intel_gpu_top" in sampler.absent()["gpu/intel"]


def test_apple(tmp_path):
    """On a Mac there are no counters without root, which is said; elsewhere there is nothing to say."""
    assert "root" in OtherGpuSampler(tmp_path, platform="darwin").absent()["gpu"]
    assert OtherGpuSampler(tmp_path, platform="linux").absent() == {}
