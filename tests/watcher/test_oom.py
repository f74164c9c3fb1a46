"""Death by lack of memory: counters of both versions of cgroups, and the kernel's log."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.watcher import oom
from stepscope.watcher.oom import KernelLog, MemoryCgroup, Oom, OomWatch, parse_line

PID = 4242
KILLED = (
    "3,907,5000030,-;Memory cgroup out of memory: Killed process 4242 (python3) total-vm:183276kB, "
    "anon-rss:56320kB, file-rss:5120kB, shmem-rss:1024kB, UID:0 pgtables:220kB oom_score_adj:0\n"
)
LINES = (
    "6,901,5000000,-;python invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0\n",
    "6,905,5000010,-;memory: usage 61440kB, limit 61440kB, failcnt 40\n",
    "6,906,5000020,-;oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),task=python,pid=4242,uid=0\n",
    KILLED,
)
WHOLE = (
    "3,990,7000000,-;Out of memory: Killed process 77 (a (b) c) total-vm:9kB, "
    "anon-rss:8kB, file-rss:0kB, shmem-rss:0kB\n"
)
V1 = "36 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n"
V2 = "30 23 0:26 / /sys/fs/cgroup rw,relatime - cgroup2 cgroup2 rw,nsdelegate\n"


class Machine:
    """A root directory with the files of one process and its cgroup."""

    def __init__(self, root, version=2, path="/jobs/one", mount_root="/"):
        self.root = root
        mounts = V2 if version == 2 else V1
        self.write("proc/self/mountinfo", mounts.replace(" / /", f" {mount_root} /", 1))
        self.write(f"proc/{PID}/cgroup", f"0::{path}\n" if version == 2 else f"4:memory:{path}\n0::/\n")
        self.write("proc/meminfo", "MemTotal:       2048 kB\n")
        inside = os.path.relpath(path, mount_root)
        top = "sys/fs/cgroup" if version == 2 else "sys/fs/cgroup/memory"
        self.group = os.path.normpath(f"{top}/{inside}")
        self.version = version
        self.set(0)

    def write(self, path, text):
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text)

    def set(self, kills):
        if self.version == 2:
            self.write(
                f"{self.group}/memory.events", f"low 0\nhigh 0\nmax 9\noom 1\noom_kill {kills}\noom_group_kill 0\n"
            )
        else:
            self.write(f"{self.group}/memory.oom_control", f"oom_kill_disable 0\nunder_oom 0\noom_kill {kills}\n")

    def limit(self, text, group=None):
        name = "memory.max" if self.version == 2 else "memory.limit_in_bytes"
        self.write(f"{group or self.group}/{name}", f"{text}\n")

    def watch(self, log=None):
        return OomWatch(PID, log, str(self.root))


@pytest.fixture(params=[1, 2])
def machine(request, tmp_path):
    """A process in a memory cgroup of either version."""
    return Machine(tmp_path, request.param)


@pytest.mark.promise("S4-051")
def test_a_kill_in_the_cgroup_after_we_looked_is_evidence(machine):
    """The counter must have grown since the process was found; limit and last memory are told with it."""
    machine.set(2)
    machine.limit(60 << 20)
    watch = machine.watch()
    assert watch.evidence(58 << 20) is None
    machine.set(3)
    assert watch.evidence(58 << 20) == Oom(60 << 20, 58 << 20, kills=1)


def test_the_limit_is_the_tightest_of_the_groups_above(machine):
    """A group without a limit of its own has that of its parent."""
    machine.limit("max" if machine.version == 2 else 9223372036854771712)
    machine.limit(100 << 20, os.path.dirname(machine.group))
    assert machine.watch().limit() == 100 << 20


def test_without_a_limit_the_memory_of_the_machine_counts(machine):
    """No group bounds it: then the machine does."""
    assert machine.watch().limit() == 2 << 20


def test_a_group_that_went_with_its_process_keeps_its_last_limit(machine):
    """A cgroup that is removed at once leaves what was read of it, and no evidence."""
    machine.limit(60 << 20)
    watch = machine.watch()
    for path in (machine.root / machine.group).iterdir():
        path.unlink()
    assert (watch.limit(), watch.evidence(1)) == (60 << 20, None)


def test_a_container_that_sees_its_own_part_of_the_hierarchy_alone(tmp_path):
    """The path in /proc/<pid>/cgroup is taken relative to what is mounted."""
    machine = Machine(tmp_path, 1, "/docker/abc", "/docker/abc")
    assert MemoryCgroup.find(PID, str(machine.root)).path == str(machine.root / "sys/fs/cgroup/memory")


def test_no_cgroup_and_no_process_is_no_evidence(tmp_path):
    """A machine without cgroups says nothing, and nothing fails."""
    watch = OomWatch(PID, None, str(tmp_path))
    assert (watch.group, watch.evidence(1), watch.limit()) == (None, None, None)


def test_a_line_of_the_kernels_log_is_read():
    """The killed process, its memory and the moment stand in one line; the limit is that of the lines before."""
    assert parse_line(KILLED, 61440 << 10) == oom.Kill(4242, 62464 << 10, 61440 << 10, 5000030)
    assert parse_line(WHOLE, 1) == oom.Kill(77, 8 << 10, None, 7000000)
    assert parse_line(LINES[0]) is None


@given(st.text())
def test_any_line_of_the_kernels_log_is_survived(line):
    """Whatever the kernel writes around and into its lines, reading it raises nothing."""
    assert parse_line(line) is None or "Killed process" in line
    assert parse_line(f"{KILLED}{line}").pid == parse_line(KILLED).pid


class FakeLog(KernelLog):
    """A kernel log whose lines the test writes."""

    def __init__(self):
        self.kills, self._limit, self._descriptor, self.lines = {}, None, -1, []

    def _read(self):
        for line in self.lines:
            self._take(line)
        self.lines = []


def test_the_kernels_log_names_the_process(machine):
    """A line about this very pid needs no counter, and its figures are the exact ones."""
    log = FakeLog()
    watch = machine.watch(log)
    log.lines = list(LINES)
    assert watch.evidence(1) == Oom(61440 << 10, 62464 << 10, named=True)


def test_a_line_about_an_earlier_process_with_this_pid_is_not_evidence(machine):
    """What the log said before we found the process belongs to somebody else."""
    log = FakeLog()
    log.lines = list(LINES)
    watch = machine.watch(log)
    assert watch.evidence(1) is None


def test_a_log_that_may_not_be_read_says_nothing(tmp_path):
    """No file, no right, or another pid namespace: the log is absent and asking it is harmless."""
    log = KernelLog(str(tmp_path / "kmsg"))
    assert (log.readable, log.of(PID)) == (False, None)
    elsewhere = KernelLog("/dev/null", str(tmp_path))
    assert not elsewhere.readable
