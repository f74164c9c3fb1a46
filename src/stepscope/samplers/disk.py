"""Disks: bytes and requests, utilization of the busiest, and free space where the run is written."""

from __future__ import annotations

import os
from pathlib import Path

from stepscope.core.vocabulary import BY_NAME, gauge
from stepscope.samplers.kernel import Growth, KernelFile, entries, find_text, number
from stepscope.samplers.sampler import Sampler

SECTOR = 512
"""Bytes. The unit of /proc/diskstats, whatever the device's own."""
NOT_DISKS = ("loop", "ram", "zram", "sr", "fd")
"""Name prefixes of devices in memory, in a file on another disk, or for removable media."""

METRICS = (
    BY_NAME["disk/read_bytes_per_second"],
    BY_NAME["disk/write_bytes_per_second"],
    gauge("disk/reads_per_second", "Read requests to disks per second.", "requests/second"),
    gauge("disk/writes_per_second", "Write requests to disks per second.", "requests/second"),
    gauge("disk/read_request_bytes", "Mean size of a read request; small requests mean random access."),
    gauge("disk/read_wait_seconds", "Mean latency of a read request."),
    gauge("disk/busy_ratio", "Share of time in which the busiest disk had a request in flight."),
    gauge("disk/free_bytes", "Free space on the run's file system."),
    gauge("disk/used_ratio", "Share of the run's file system in use."),
)


def parse_diskstats(data: bytes) -> dict[str, tuple[int, ...]]:
    """Return for each device: reads, sectors read, ms reading, writes, sectors written, ms with open requests."""
    found = {}
    for line in data.splitlines():
        words = line.split()
        if len(words) >= 13:
            counts = tuple(number(words[at]) for at in (3, 5, 6, 7, 9, 12))
            found[words[2].decode("utf-8", "replace")] = counts
    return found


def whole_disks(names: list[str], root: Path = Path("/")) -> set[str]:
    """Return the physical disks: no partitions, no stacked devices, nothing in memory."""
    blocks = set(entries(f"{root}/sys/block"))
    return {name for name in names if _is_whole(name, f"{root}/sys/block", blocks)}


def _is_whole(name: str, folder: str, blocks: set[str]) -> bool:
    entry = name.replace("/", "!")
    if name.rstrip("0123456789") in NOT_DISKS or (blocks and entry not in blocks):
        return False
    if not blocks:  # without /sys only the names are left to decide by
        return not name.startswith(("dm-", "md")) and not _looks_like_partition(name)
    stacked = bool(entries(f"{folder}/{entry}/slaves"))
    return not stacked and find_text(f"{folder}/{entry}/hidden") != "1"


def _looks_like_partition(name: str) -> bool:
    stem = name.rstrip("0123456789")
    if name.startswith(("nvme", "mmcblk")):
        return stem.endswith("p")
    return stem != name and name.startswith(("sd", "vd", "xvd", "hd"))


class DiskSampler(Sampler):
    """Read /proc/diskstats below `root`, and the file system of `disk`."""

    name = "disk"
    metrics = METRICS

    def __init__(self, root: Path = Path("/"), disk: Path = Path()) -> None:
        """Read the machine whose /proc is below `root`; free space is that of the file system of `disk`."""
        self._root, self._disk = root, disk
        self._stats = KernelFile(f"{root}/proc/diskstats")
        self._growth = Growth()
        self._names: list[str] = []
        self._whole: set[str] = set()

    def sample(self, now: int) -> dict[str, float]:
        """Return rates since the last call, and space; `now` is monotonic time in ns."""
        values = self._space()
        try:
            data = self._stats.read()
        except FileNotFoundError:
            return values
        devices = parse_diskstats(data)
        names = list(devices)
        if names != self._names:
            self._names, self._whole = names, whole_disks(names, self._root)
        rates = [rate for name in self._whole if (rate := self._growth.of(name, devices[name], now)) is not None]
        if rates:
            values |= _rates(rates)
        return values

    def _space(self) -> dict[str, float]:
        try:
            space = os.statvfs(self._disk)
        except FileNotFoundError:  # the run was deleted; other parts notice that
            return {}
        # As df counts: blocks reserved for root are neither used nor free.
        used = space.f_blocks - space.f_bfree
        values = {"disk/free_bytes": float(space.f_bavail * space.f_frsize)}
        if used + space.f_bavail:
            values["disk/used_ratio"] = used / (used + space.f_bavail)
        return values

    def absent(self) -> dict[str, str]:
        """Return why disks have no metrics."""
        if not Path(self._stats.path).exists():
            return {"disk": "no /proc/diskstats; Linux has it, some containers hide it"}
        names = list(parse_diskstats(self._stats.read()))
        return {} if whole_disks(names, self._root) else {"disk/*_per_second": "no disk of its own; ask the host"}


def _rates(rates: list[tuple[float, ...]]) -> dict[str, float]:
    reads, sectors_read, reading, writes, sectors_written, _ = (sum(column) for column in zip(*rates, strict=True))
    values = {
        "disk/read_bytes_per_second": sectors_read * SECTOR,
        "disk/write_bytes_per_second": sectors_written * SECTOR,
        "disk/reads_per_second": reads,
        "disk/writes_per_second": writes,
        # The counter may be ahead of the clock by 1 ms.
        "disk/busy_ratio": min(1.0, max(rate[5] for rate in rates) / 1000),
    }
    if reads:
        values["disk/read_request_bytes"] = sectors_read * SECTOR / reads
        values["disk/read_wait_seconds"] = reading / reads / 1000
    return values
