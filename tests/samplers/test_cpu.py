from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.samplers.cpu import CpuSampler, Ticks, parse_load, parse_stat, shares
from tests.samplers.machines import (
    SECOND,
    UNIT,
    answer_or_error,
    cgroup_hybrid,
    cgroup_v2,
    host,
    stat_text,
    v2_cpu_stat,
    write,
)


@pytest.mark.promise("S2-003", "S3-032")
def test_use_of_all_and_of_each(tmp_path):
    """The use of 64 processors and of each is the busy share of the time between two samples."""
    sampler = CpuSampler(host(tmp_path, cores=64))
    first = sampler.sample(0)
    assert "cpu/usage_ratio" not in first
    write(tmp_path, {"proc/stat": stat_text(64, busy=175, idle=315, iowait=10, steal=0)})
    values = sampler.sample(SECOND)
    assert values["cpu/usage_ratio"] == values["cpu/machine_usage_ratio"] == 0.75
    assert values["cpu/iowait_ratio"] == 0.1
    assert [values[f"cpu/{core}/usage_ratio"] for core in range(64)] == [0.75] * 64
    assert values["cpu/count"] == 64


def test_load_and_stolen_time(tmp_path):
    """Load is told at once; stolen time is a share of all, and counts as not free."""
    sampler = CpuSampler(host(tmp_path))
    assert sampler.sample(0)["cpu/load_1m"] == 1.5
    write(tmp_path, {"proc/stat": stat_text(4, busy=100, idle=350, steal=50)})
    values = sampler.sample(SECOND)
    assert (values["cpu/steal_ratio"], values["cpu/usage_ratio"]) == (0.5, 0.5)


@pytest.mark.promise("S1-008")
def test_share_of_the_quota(tmp_path):
    """In a group of version 2 with a quota of 2 processors, use is a share of these; the machine's has its own name."""
    sampler = CpuSampler(cgroup_v2(host(tmp_path)))
    sampler.sample(0)
    write(tmp_path, {"proc/stat": stat_text(4, busy=150, idle=350), f"{UNIT}/cpu.stat": v2_cpu_stat(11.5, 110, 15, 2)})
    values = sampler.sample(SECOND)
    assert values["cpu/usage_ratio"] == pytest.approx(0.75)
    assert values["cpu/machine_usage_ratio"] == 0.5


def test_share_of_the_quota_of_version_1(tmp_path):
    """In a group of version 1 with 1.5 processors, 0.75 s per second are half of what may be used."""
    sampler = CpuSampler(cgroup_hybrid(host(tmp_path)))
    sampler.sample(0)
    write(tmp_path, {"sys/fs/cgroup/cpu,cpuacct/docker/4f2a/cpuacct.usage": "6750000000\n"})
    assert sampler.sample(SECOND)["cpu/usage_ratio"] == pytest.approx(0.5)


@pytest.mark.promise("S1-009")
def test_clock(tmp_path):
    """The clock is the mean over processors, asked every 5 s."""
    policies = {f"sys/devices/system/cpu/cpufreq/policy{core}/scaling_cur_freq": "2000000\n" for core in range(64)}
    sampler = CpuSampler(write(host(tmp_path), policies))
    assert sampler.sample(0)["cpu/frequency_hertz"] == 2e9
    assert "cpu/frequency_hertz" not in sampler.sample(SECOND)
    assert "cpu/frequency_hertz" in sampler.sample(5 * SECOND)


def test_counters_that_go_back():
    """A counter of the kernel that goes back, as iowait may, counts as standing still."""
    assert shares(Ticks(10, 10, 10, 0), Ticks(20, 20, 5, 0)) == (0.5, 0.0, 0.0)
    assert shares(Ticks(1, 1, 1, 0), Ticks(1, 1, 1, 0)) is None


@given(st.binary(max_size=200).map(lambda data: b"cpu" + data))
def test_parsers_meet_anything(data):
    """Whatever stands in the files, parsing gives ticks or a ValueError."""
    for parse, kind in {parse_stat: dict, parse_load: tuple}.items():
        assert isinstance(answer_or_error(parse, data), (kind, ValueError))


def test_missing(tmp_path):
    """Without /proc/stat the sample fails with OSError, and the reason is given."""
    sampler = CpuSampler(tmp_path)
    with pytest.raises(OSError, match="stat"):
        sampler.sample(0)
    assert set(sampler.absent()) == {"cpu", "cpu/frequency_hertz"}


def test_this_machine():
    """On the machine that runs the test all shares lie between 0 and 1."""
    sampler = CpuSampler()
    sampler.sample(time.monotonic_ns())
    end = time.monotonic() + 60
    values = {}
    while "cpu/machine_usage_ratio" not in values and time.monotonic() < end:
        values = sampler.sample(time.monotonic_ns())
    assert 0 <= values["cpu/machine_usage_ratio"] <= 1
    assert sampler.events() == []
