from __future__ import annotations

import errno

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.samplers.kernel import KernelFile
from stepscope.samplers.power import PowerSampler, find_sensors, grown, slug
from tests.samplers.machines import SECOND, hwmon, rapl, write

ENERGY = "sys/class/powercap/{}/energy_uj"


@pytest.mark.promise("S1-009")
def test_energy_becomes_watts(tmp_path):
    """Packages add up, memory is apart, parts of a package and its second face do not count."""
    sampler = PowerSampler(rapl(tmp_path))
    assert sampler.sample(0) == {}
    grow = {
        "intel-rapl:0": 120,
        "intel-rapl:1": 80,
        "intel-rapl:0:0": 90,
        "intel-rapl:0:1": 10,
        "intel-rapl-mmio:0": 120,
    }
    write(tmp_path, {ENERGY.format(zone): f"{1_000_000 + joules * 1_000_000}\n" for zone, joules in grow.items()})
    assert sampler.sample(2 * SECOND) == {
        "power/cpu_watts": 100.0,
        "power/cpu_joules_total": 200.0,
        "power/dram_watts": 5.0,
    }


def test_counter_that_starts_again(tmp_path):
    """A counter that has passed its range goes on from 0."""
    root = rapl(tmp_path)
    write(root, {ENERGY.format("intel-rapl:0"): "262143328850\n"})
    sampler = PowerSampler(root)
    sampler.sample(0)
    write(root, {ENERGY.format("intel-rapl:0"): "49999999\n"})
    assert sampler.sample(SECOND)["power/cpu_watts"] == pytest.approx(50.0)


@given(st.integers(0, 2**40), st.integers(0, 2**40), st.none() | st.integers(0, 2**40))
def test_growth_is_never_negative(before, after, limit):
    """Whatever a counter shows, growth is not negative, and unknown where nothing explains the step back."""
    step = grown(before, after, limit)
    assert step is None or step >= 0


def test_only_root_may_read(tmp_path, monkeypatch):
    """Counters that we may not read give no watts and a reason with its remedy; temperatures go on."""
    sampler = PowerSampler(hwmon(rapl(tmp_path)))
    plain = KernelFile.read

    def refuse(self):
        if "powercap" in self.path:
            raise PermissionError(errno.EACCES, "Permission denied")
        return plain(self)

    monkeypatch.setattr(KernelFile, "read", refuse)
    values = sampler.sample(0)
    assert "power/cpu_watts" not in values
    assert values["temperature/cpu_celsius"] == 61.0
    assert "chmod o+r" in sampler.absent()["power/cpu_watts"]


@pytest.mark.promise("S1-009")
def test_sensors(tmp_path):
    """Each sensor has chip and label in its name; cores, GPUs and what is shown twice are left out."""
    sampler = PowerSampler(hwmon(tmp_path))
    assert sampler.sample(0) == {
        "temperature/coretemp_package_id_0/celsius": 61.0,
        "temperature/cpu_celsius": 61.0,
        "temperature/nvme_composite/celsius": pytest.approx(38.85),
        "temperature/nvme_composite_2/celsius": pytest.approx(41.85),
        "temperature/acpitz/celsius": pytest.approx(27.8),
        "power/power_meter_power1/watts": pytest.approx(412.0),
    }


def test_slow_sensors(tmp_path):
    """Between two looks of 10 s only the processors' own thermometers are asked."""
    sampler = PowerSampler(hwmon(tmp_path))
    sampler.sample(0)
    assert set(sampler.sample(SECOND)) == {"temperature/coretemp_package_id_0/celsius", "temperature/cpu_celsius"}
    assert len(sampler.sample(10 * SECOND)) == 6


def test_broken_sensor(tmp_path):
    """A sensor that shows nonsense, or less than absolute zero, is left out and asked again."""
    root = hwmon(tmp_path)
    sampler = PowerSampler(root)
    for text in ("-274000\n", "nonsense\n"):
        write(root, {"sys/class/hwmon/hwmon1/temp1_input": text})
        assert "temperature/cpu_celsius" not in sampler.sample(0)
    write(root, {"sys/class/hwmon/hwmon1/temp1_input": "50000\n"})
    assert sampler.sample(SECOND)["temperature/cpu_celsius"] == 50.0


def test_bounded(tmp_path):
    """A machine with hundreds of sensors gives 32, the processors' first."""
    root = hwmon(tmp_path)
    write(root, {f"sys/class/hwmon/hwmon0/temp{number}_input": "1000\n" for number in range(2, 300)})
    found = find_sensors(root)
    assert len(found) == 32
    assert found[0].cpu


def test_nothing_there(tmp_path):
    """A machine without meters gives no values, and says so."""
    sampler = PowerSampler(tmp_path)
    assert sampler.sample(0) == {}
    assert set(sampler.absent()) == {"power/cpu_watts", "temperature/*/celsius"}


@given(st.text(max_size=30))
def test_name_is_one_segment(label):
    """Any label becomes one segment of lower-case letters, digits and underscores."""
    assert all(sign in "abcdefghijklmnopqrstuvwxyz0123456789_" for sign in slug("chip", label))
