from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.samplers.memory import MemorySampler, parse_meminfo
from tests.samplers.machines import GIB, MEMINFO, cgroup_hybrid, cgroup_v2, host, write


@pytest.mark.promise("S2-003")
def test_memory_of_the_machine(tmp_path):
    """Used is what is not available; without a limit the ratio is that of the machine."""
    values = MemorySampler(host(tmp_path)).sample(0)
    assert values["memory/used_bytes"] == 16 * GIB
    assert values["memory/available_bytes"] == values["memory/headroom_bytes"] == 48 * GIB
    assert values["memory/used_ratio"] == values["memory/machine_used_ratio"] == 0.25
    assert (values["swap/used_bytes"], values["swap/used_ratio"]) == (2 * GIB, 0.25)
    assert values["memory/shared_bytes"] == 2 * GIB


@pytest.mark.parametrize(("groups", "ratio", "headroom"), [(cgroup_v2, 0.75, 2 * GIB), (cgroup_hybrid, 0.5, 2 * GIB)])
@pytest.mark.promise("S3-033")
def test_share_of_the_limit(tmp_path, groups, ratio, headroom):
    """In a container use is a share of its limit, without idle cache, and what is left is what the limit leaves."""
    values = MemorySampler(groups(host(tmp_path))).sample(0)
    assert (values["memory/used_ratio"], values["memory/headroom_bytes"]) == (ratio, headroom)
    assert values["memory/machine_used_ratio"] == 0.25


def test_machine_fuller_than_the_limit(tmp_path):
    """A machine with less left than the limit leaves decides how much can be taken."""
    root = write(cgroup_v2(host(tmp_path)), {"proc/meminfo": MEMINFO.replace("50331648", "1048576")})
    assert MemorySampler(root).sample(0)["memory/headroom_bytes"] == GIB


def test_limit_above_the_machine(tmp_path):
    """A limit of more than the machine has binds nothing."""
    root = write(cgroup_hybrid(host(tmp_path)), {"sys/fs/cgroup/memory/memory.limit_in_bytes": f"{65 * GIB}\n"})
    assert MemorySampler(root).sample(0)["memory/used_ratio"] == 0.25


def test_no_swap(tmp_path):
    """A machine without swap has no share of it in use, and the reason is given."""
    root = write(host(tmp_path), {"proc/meminfo": MEMINFO.replace("8388608", "0").replace("6291456", "0")})
    assert "swap/used_ratio" not in MemorySampler(root).sample(0)
    assert "no swap" in MemorySampler(root).absent()["swap/used_ratio"]


@given(st.binary(max_size=200))
def test_parser_meets_anything(data):
    """Whatever stands in the file, parsing gives bytes or a ValueError."""
    try:
        found = parse_meminfo(b"MemTotal: " + data)
    except ValueError:
        return
    assert all(isinstance(value, int) for value in found.values())


@pytest.mark.parametrize("text", ["", "MemTotal: 0 kB\n", "MemTotal: 5 kB\nMemAvailable: 9 kB\n"])
def test_nonsense(tmp_path, text):
    """A file without a sensible total is a ValueError, never a figure."""
    with pytest.raises(ValueError, match="meminfo"):
        MemorySampler(write(tmp_path, {"proc/meminfo": text})).sample(0)


def test_this_machine():
    """On the machine that runs the test memory is in use, and not all of it."""
    values = MemorySampler().sample(time.monotonic_ns())
    assert 0 < values["memory/machine_used_ratio"] < 1
