from __future__ import annotations

import os
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.samplers.disk import DiskSampler, parse_diskstats, whole_disks
from tests.samplers.machines import SECOND, answer_or_error, write

NAMES = ["loop0", "nvme0n1", "nvme0n1p1", "nvme0c0n1", "sda", "sda1", "dm-0", "md127", "zram0", "sr0"]


def line(name, reads=0, sectors=0, waited=0, writes=0, written=0, busy=0):
    return f" 259 0 {name} {reads} 0 {sectors} {waited} {writes} 0 {written} 0 0 {busy} 0 0 0 0 0 0 0"


def disks(root, **counts):
    """Make a machine with two disks, one with a partition in a volume, and everything that lies about them."""
    write(root, {"proc/diskstats": "\n".join(line(name, **counts) for name in NAMES) + "\n"})
    for name in NAMES:
        if name not in {"nvme0n1p1", "sda1"}:
            write(root, {f"sys/block/{name}/hidden": "1\n" if name == "nvme0c0n1" else "0\n"})
            (root / f"sys/block/{name}/slaves").mkdir(exist_ok=True)
    write(root, {"sys/block/dm-0/slaves/sda1": "", "sys/block/md127/slaves/sda": ""})
    return root


@pytest.mark.promise("S1-008", "S3-034")
def test_rates_count_each_byte_once(tmp_path):
    """Bytes and requests are those of the two disks; partitions, volumes, paths and loops repeat them."""
    sampler = DiskSampler(disks(tmp_path), tmp_path)
    assert "disk/read_bytes_per_second" not in sampler.sample(0)
    disks(tmp_path, reads=100, sectors=800, waited=50, writes=10, written=2000, busy=500)
    values = sampler.sample(2 * SECOND)
    assert values["disk/read_bytes_per_second"] == 2 * 800 * 512 / 2
    assert values["disk/write_bytes_per_second"] == 2 * 2000 * 512 / 2
    assert (values["disk/reads_per_second"], values["disk/writes_per_second"]) == (100, 10)
    assert values["disk/busy_ratio"] == 0.25


@pytest.mark.promise("S3-034")
def test_pattern_of_access(tmp_path):
    """The mean size and wait of read requests tell scattered from long reads; without requests there is none."""
    sampler = DiskSampler(disks(tmp_path), tmp_path)
    sampler.sample(0)
    disks(tmp_path, reads=100, sectors=800, waited=50)
    values = sampler.sample(SECOND)
    assert values["disk/read_request_bytes"] == 4096
    assert values["disk/read_wait_seconds"] == pytest.approx(0.0005)
    assert "disk/read_request_bytes" not in sampler.sample(2 * SECOND)


def test_disks_without_sys(tmp_path):
    """Without /sys the names decide."""
    names = [*NAMES, "vda", "vda15", "mmcblk0", "mmcblk0p1"]
    assert whole_disks(names, tmp_path) == {"nvme0n1", "nvme0c0n1", "sda", "vda", "mmcblk0"}


def test_space(tmp_path):
    """Free space is that of the file system of the run; a run that is gone has none."""
    space = os.statvfs(tmp_path)
    sampler = DiskSampler(tmp_path, tmp_path)
    free = sampler.sample(0)["disk/free_bytes"]
    assert abs(free - space.f_bavail * space.f_frsize) < 1 << 30
    assert DiskSampler(tmp_path, tmp_path / "gone").sample(0) == {}


def test_no_disks(tmp_path):
    """A machine that shows no disks says so."""
    assert "diskstats" in DiskSampler(tmp_path, tmp_path).absent()["disk"]
    write(tmp_path, {"proc/diskstats": line("loop0")})
    assert set(DiskSampler(tmp_path, tmp_path).absent()) == {"disk/*_per_second"}


@given(st.binary(max_size=200))
def test_parser_meets_anything(data):
    """Whatever stands in the file, parsing gives counts or a ValueError."""
    found = answer_or_error(parse_diskstats, data + b"\n 8 0 sda 1 2 3 4 5 6 7 8 9 10 " + data)
    assert isinstance(found, ValueError) or all(len(counts) == 6 for counts in found.values())


def test_this_machine(tmp_path):
    """On the machine that runs the test the busy share lies between 0 and 1."""
    sampler = DiskSampler(disk=tmp_path)
    sampler.sample(time.monotonic_ns())
    values = sampler.sample(time.monotonic_ns())
    assert 0 <= values.get("disk/busy_ratio", 0) <= 1
