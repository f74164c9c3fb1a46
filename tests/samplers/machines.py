"""Folders that look like machines: the text of their /proc and /sys, as kernels write it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

SECOND = 1_000_000_000
GIB = 1 << 30


def write(root: Path, files: Mapping[str, str]) -> Path:
    """Write files below `root`, by path; an existing one is changed in place, as the kernel does."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def stat_text(cores: int, busy: int = 100, idle: int = 300, iowait: int = 0, steal: int = 0) -> str:
    """Return /proc/stat of a machine whose processors have each been busy and idle for so many ticks."""
    one = f"{busy} 0 0 {idle} {iowait} 0 0 {steal} 0 0"
    everything = f"{busy * cores} 0 0 {idle * cores} {iowait * cores} 0 0 {steal * cores} 0 0"
    lines = [f"cpu  {everything}", *(f"cpu{core} {one}" for core in range(cores))]
    return "\n".join([*lines, "intr 1 2 3" + " 0" * 500, "ctxt 5", "btime 1700000000", "processes 9", ""])


MEMINFO = """MemTotal:       67108864 kB
MemFree:         1048576 kB
MemAvailable:   50331648 kB
Buffers:          204800 kB
Cached:         41943040 kB
SwapCached:            0 kB
Shmem:           2097152 kB
SwapTotal:       8388608 kB
SwapFree:        6291456 kB
HugePages_Total:       0
Hugepagesize:       2048 kB
"""


def host(root: Path, cores: int = 4) -> Path:
    """Make a machine with processors, 64 GiB of memory and 8 GiB of swap."""
    return write(
        root,
        {
            "proc/stat": stat_text(cores),
            "proc/loadavg": "1.50 0.75 0.25 3/97 28304\n",
            "proc/meminfo": MEMINFO,
            "sys/devices/system/cpu/online": f"0-{cores - 1}\n",
        },
    )


V2_MOUNTS = """22 27 0:21 / /proc rw,relatime - proc proc rw
31 23 0:28 / /sys/fs/cgroup rw,nosuid,nodev,noexec,relatime shared:9 - cgroup2 cgroup2 rw,nsdelegate
"""
UNIT = "sys/fs/cgroup/system.slice/slurm.scope"


def cgroup_v2(root: Path) -> Path:
    """Add groups of version 2 as systemd makes them: 2 processors and 8 GiB for a job, nothing for its step."""
    groups = {"sys/fs/cgroup", "sys/fs/cgroup/system.slice", UNIT, f"{UNIT}/step"}
    write(root, {f"{group}/cgroup.controllers": "cpuset cpu io memory pids\n" for group in groups})
    return write(
        root,
        {
            "proc/self/cgroup": "0::/system.slice/slurm.scope/step\n",
            "proc/self/mountinfo": V2_MOUNTS,
            f"{UNIT}/memory.max": f"{8 * GIB}\n",
            f"{UNIT}/memory.current": f"{7 * GIB}\n",
            f"{UNIT}/memory.stat": f"anon {4 * GIB}\nfile {3 * GIB}\ninactive_anon 0\ninactive_file {GIB}\nslab 5\n",
            f"{UNIT}/cpu.max": "200000 100000\n",
            f"{UNIT}/cpu.stat": v2_cpu_stat(10.0, 100, 10, 1.0),
            f"{UNIT}/step/memory.max": "max\n",
            f"{UNIT}/step/memory.current": f"{5 * GIB}\n",
            f"{UNIT}/step/memory.stat": "inactive_file 0\n",
            f"{UNIT}/step/memory.events": "low 0\nhigh 0\nmax 12\noom 0\noom_kill 0\noom_group_kill 0\n",
            f"{UNIT}/step/cpu.max": "max 100000\n",
            f"{UNIT}/step/cpu.stat": v2_cpu_stat(4.0, 0, 0, 0.0),
        },
    )


def v2_cpu_stat(used: float, periods: int, throttled: int, waited: float) -> str:
    """Return cpu.stat of version 2; `used` and `waited` in seconds."""
    return (
        f"usage_usec {used * 1e6:.0f}\nuser_usec 0\nsystem_usec 0\nnr_periods {periods}\n"
        f"nr_throttled {throttled}\nthrottled_usec {waited * 1e6:.0f}\nnr_bursts 0\nburst_usec 0\n"
    )


HYBRID_MOUNTS = """32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 /docker/4f2a /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
36 31 0:33 /docker/4f2a /sys/fs/cgroup/cpuset rw,relatime - cgroup cgroup rw,cpuset
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
"""


def cgroup_hybrid(root: Path) -> Path:
    """Add groups of version 1 beside an empty version 2, as older Docker has: 1.5 processors and 4 GiB."""
    cpu = "sys/fs/cgroup/cpu,cpuacct/docker/4f2a"
    return write(
        root,
        {
            "proc/self/cgroup": "4:memory:/docker/4f2a\n3:cpuset:/docker/4f2a\n2:cpu,cpuacct:/docker/4f2a\n0::/\n",
            "proc/self/mountinfo": HYBRID_MOUNTS,
            "sys/fs/cgroup/unified/cgroup.controllers": "\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{4 * GIB}\n",
            "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{3 * GIB}\n",
            "sys/fs/cgroup/memory/memory.stat": f"cache 1\ninactive_file 7\ntotal_inactive_file {GIB}\n",
            "sys/fs/cgroup/memory/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n",
            "sys/fs/cgroup/cpuset/cpuset.effective_cpus": "0-3\n",
            f"{cpu}/cpu.cfs_quota_us": "150000\n",
            f"{cpu}/cpu.cfs_period_us": "100000\n",
            f"{cpu}/cpu.stat": "nr_periods 40\nnr_throttled 4\nthrottled_time 2000000000\n",
            f"{cpu}/cpuacct.usage": "6000000000\n",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "-1\n",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
        },
    )


def rapl(root: Path) -> Path:
    """Add the energy counters of two processor packages, one with memory, and what shows them a second time."""
    folder = "sys/class/powercap"
    zones = {"intel-rapl:0": "package-0", "intel-rapl:0:0": "core", "intel-rapl:0:1": "dram"}
    zones |= {"intel-rapl:1": "package-1", "intel-rapl-mmio:0": "package-0"}
    write(root, {f"{folder}/intel-rapl/enabled": "1\n"})
    for zone, name in zones.items():
        files = {"name": f"{name}\n", "energy_uj": "1000000\n", "max_energy_range_uj": "262143328850\n"}
        write(root, {f"{folder}/{zone}/{file}": text for file, text in files.items()})
    return root


def hwmon(root: Path) -> Path:
    """Add the sensors of a server: processor, NVMe, power meter, an AMD GPU, and thermal zones, one shown twice."""
    chips = {
        "hwmon0": {"name": "nvme", "temp1_input": "38850", "temp1_label": "Composite"},
        "hwmon1": {
            "name": "coretemp",
            "temp1_input": "61000",
            "temp1_label": "Package id 0",
            "temp2_input": "60000",
            "temp2_label": "Core 0",
        },
        "hwmon2": {"name": "power_meter", "power1_average": "412000000", "power1_input": "1"},
        "hwmon3": {"name": "amdgpu", "temp1_input": "50000", "power1_average": "30000000"},
        "hwmon4": {"name": "nvme", "temp1_input": "41850", "temp1_label": "Composite"},
    }
    zones = {"thermal_zone0": ("x86_pkg_temp", "61000"), "thermal_zone1": ("acpitz", "27800")}
    for chip, files in chips.items():
        write(root, {f"sys/class/hwmon/{chip}/{file}": f"{text}\n" for file, text in files.items()})
    for zone, (kind, heat) in zones.items():
        write(root, {f"sys/class/thermal/{zone}/type": f"{kind}\n", f"sys/class/thermal/{zone}/temp": f"{heat}\n"})
    return root


def amd(root: Path, card: int = 1, slot: str = "0000:c1:00.0", used: int = 4 * GIB) -> Path:
    """Add an AMD GPU as the amdgpu driver shows it; `/sys/class/drm` has a connector beside it."""
    device = f"sys/devices/pci0000:00/{slot}"
    monitor = {
        "name": "amdgpu",
        "temp1_input": "54000",
        "temp1_label": "edge",
        "temp2_input": "66000",
        "temp2_label": "junction",
        "temp3_input": "72000",
        "temp3_label": "mem",
        "power1_average": "213000000",
        "power1_cap": "300000000",
        "fan1_input": "1650",
        "fan1_max": "3300",
        "freq1_input": "1725000000",
        "freq1_label": "sclk",
        "freq2_input": "1000000000",
        "freq2_label": "mclk",
    }
    facts = {"vendor": "0x1002", "gpu_busy_percent": "87", "mem_busy_percent": "40"}
    facts |= {"mem_info_vram_used": str(used), "mem_info_vram_total": str(16 * GIB)}
    write(root, {f"{device}/{file}": f"{text}\n" for file, text in facts.items()})
    write(root, {f"{device}/hwmon/hwmon3/{file}": f"{text}\n" for file, text in monitor.items()})
    write(root, {f"sys/class/drm/card{card}/dev": "226:1\n", f"sys/class/drm/card{card}-DP-1/status": "connected\n"})
    (root / f"sys/class/drm/card{card}/device").symlink_to(root / device)
    return root


def process(root: Path, pid: int, parent: int = 1, name: str = "python", **facts: object) -> Path:
    """Add a process, or change it: ticks, threads, started, pages, state, command, children, io (three counts)."""
    given = {"ticks": 100, "threads": 3, "started": 5000, "pages": 1000, "state": "S", "command": "python train.py"}
    given |= {"children": "", "io": (0, 0, 0)} | facts
    words = [given["state"], parent, *[0] * 9, given["ticks"], *[0] * 5, given["threads"], 0, given["started"], 0]
    stat = f"{pid} ({name}) {' '.join(map(str, [*words, given['pages']]))} 0 0\n"
    read, written, requested = given["io"]
    io = f"rchar: {requested}\nwchar: 0\nsyscr: 0\nsyscw: 0\nread_bytes: {read}\nwrite_bytes: {written}\n"
    return write(
        root,
        {
            f"proc/{pid}/stat": stat,
            f"proc/{pid}/statm": f"99999 {given['pages']} 10 1 0 50 0\n",
            f"proc/{pid}/io": io,
            f"proc/{pid}/cmdline": str(given["command"]).replace(" ", "\0") + "\0",
            f"proc/{pid}/task/{pid}/children": str(given["children"]),
            f"proc/{pid}/smaps_rollup": "55d0-7ffe ---p 00000000 00:00 0 [rollup]\nRss: 9 kB\nPss:     2048 kB\n",
            f"proc/{pid}/fd/0": "",
            f"proc/{pid}/fd/1": "",
        },
    )


def answer_or_error(parse, data):
    """Return what a parser gives for some data, or the ValueError with which it refuses them; nothing else may come."""
    try:
        return parse(data)
    except ValueError as error:
        return error
