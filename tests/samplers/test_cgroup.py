from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.samplers.cgroup import (
    Cgroup,
    CgroupSampler,
    count_processors,
    find_hierarchy,
    parse_cpu_max,
    parse_memberships,
    parse_mounts,
)
from tests.samplers.machines import (
    GIB,
    SECOND,
    UNIT,
    V2_MOUNTS,
    answer_or_error,
    cgroup_hybrid,
    cgroup_v2,
    host,
    v2_cpu_stat,
    write,
)


def test_version_2(tmp_path):
    """The group whose limit binds is the outermost with the smallest limit, and what counts is counted there."""
    group = Cgroup(cgroup_v2(host(tmp_path)))
    assert group.memory(0) == (7 * GIB, 6 * GIB, 8 * GIB)
    assert group.cpu(0) == (10.0, 2.0, 100, 10, 1.0)
    assert group.oom_kills(0) == 0


def test_version_1_beside_2(tmp_path):
    """Controllers of version 1 are found where they are mounted, also if a container sees its own group on top."""
    group = Cgroup(cgroup_hybrid(host(tmp_path)))
    assert group.memory(0) == (3 * GIB, 2 * GIB, 4 * GIB)
    assert group.cpu(0) == (6.0, 1.5, 40, 4, 2.0)
    assert group.oom_kills(0) == 2


def test_processors_chosen(tmp_path):
    """A choice of 2 of 4 processors limits like a quota, and the smaller of both counts."""
    root = cgroup_v2(host(tmp_path))
    write(root, {f"{UNIT}/cpuset.cpus.effective": "0\n", "sys/fs/cgroup/cpuset.cpus.effective": "0-3\n"})
    assert Cgroup(root).cpu(0).limit == 1.0


def test_choice_without_account(tmp_path):
    """Where processors are chosen for a group whose time nobody counts, the limit is known and the use is not."""
    root = cgroup_hybrid(host(tmp_path))
    text = "3:cpuset:/docker/4f2a\n2:cpu,cpuacct:/\n0::/\n"
    write(root, {"proc/self/cgroup": text, "sys/fs/cgroup/cpuset/job/cpuset.effective_cpus": "1\n"})
    mounts = "36 31 0:33 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n"
    mounts += "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
    write(root, {"proc/self/mountinfo": mounts, "proc/self/cgroup": text.replace("docker/4f2a", "job")})
    use = Cgroup(root).cpu(0)
    assert (use.limit, use.used_seconds) == (1.0, None)


def test_path_of_another_namespace(tmp_path):
    """A group outside of what is mounted (`/..`) is looked at from the top that is visible."""
    root = write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/../../other\n",
            "proc/self/mountinfo": V2_MOUNTS,
            "sys/fs/cgroup/cgroup.controllers": "memory\n",
        },
    )
    assert find_hierarchy("memory", root).names == ("",)


def test_moved_and_changed(tmp_path):
    """A limit that changes, and a process that is moved, are noticed within 10 s."""
    root = cgroup_v2(host(tmp_path))
    group = Cgroup(root)
    assert group.memory(0).limit == 8 * GIB
    write(root, {f"{UNIT}/memory.max": f"{9 * GIB}\n"})
    assert [group.memory(at * SECOND).limit for at in (9, 10)] == [8 * GIB, 9 * GIB]
    write(root, {"proc/self/cgroup": "0::/system.slice\n"})
    assert group.memory(20 * SECOND) is None


@pytest.mark.promise("S1-008")
def test_values(tmp_path):
    """The sampler tells limits at once, and processor time and throttling since the last sample."""
    root = cgroup_v2(host(tmp_path))
    sampler = CgroupSampler(root)
    first = sampler.sample(0)
    assert (first["cgroup/memory_limit_bytes"], first["cgroup/cpu_limit"]) == (8 * GIB, 2.0)
    assert "cgroup/throttled_ratio" not in first
    write(root, {f"{UNIT}/cpu.stat": v2_cpu_stat(13.0, 120, 15, 1.5)})
    values = sampler.sample(2 * SECOND)
    assert values["cgroup/cpu_ratio"] == 1.5
    assert (values["cgroup/throttled_ratio"], values["cgroup/throttled_seconds_total"]) == (0.25, 1.5)


@pytest.mark.promise("S3-033")
def test_kill_is_an_event(tmp_path):
    """A kill for want of memory is told once, with its limit; kills before the first sample are history."""
    root = cgroup_v2(host(tmp_path))
    events = f"{UNIT}/step/memory.events"
    write(root, {events: "oom_kill 3\n"})
    sampler = CgroupSampler(root)
    sampler.sample(0)
    assert sampler.events() == []
    write(root, {events: "oom_kill 4\n"})
    assert sampler.sample(SECOND)["cgroup/oom_kills_total"] == 4
    assert sampler.events() == [{"kind": "cgroup_oom_kill", "count": 1, "total": 4, "limit_bytes": 8 * GIB}]
    assert sampler.events() == []


def test_no_groups(tmp_path):
    """A machine without control groups gives no values, and says so."""
    sampler = CgroupSampler(tmp_path)
    assert sampler.sample(0) == {}
    assert set(sampler.absent()) == {"cgroup/memory_*", "cgroup/cpu_*"}


def test_no_limit(tmp_path):
    """A group without limits has no limit among its values."""
    root = cgroup_v2(host(tmp_path))
    write(root, {f"{UNIT}/memory.max": "max\n", f"{UNIT}/cpu.max": "max 100000\n"})
    values = CgroupSampler(root).sample(0)
    assert "cgroup/memory_limit_bytes" not in values
    assert "cgroup/cpu_limit" not in values
    assert values["cgroup/memory_used_bytes"] == 5 * GIB


@given(st.text(max_size=200))
def test_parsers_meet_anything(text):
    """Whatever stands in the files, parsing gives an answer or a ValueError."""
    answers = {parse_memberships: dict, parse_mounts: dict, count_processors: int, parse_cpu_max: tuple}
    for parse, kind in answers.items():
        assert isinstance(answer_or_error(parse, text), (kind, ValueError))


def test_lists_of_processors():
    """Ranges and single processors are counted."""
    assert [count_processors(text) for text in ("0-3,8\n", "5", "")] == [5, 1, 0]


def test_mount_with_a_space():
    """A space in a path, which the kernel writes as its octal code, is understood."""
    line = "35 31 0:32 / /sys/fs/cgroup/my\\040group rw - cgroup cgroup rw,memory"
    assert parse_mounts(line) == {"rw": ("/", "/sys/fs/cgroup/my group"), "memory": ("/", "/sys/fs/cgroup/my group")}


def test_this_machine():
    """On the machine that runs the test memory in use does not exceed memory with its cache."""
    values = CgroupSampler().sample(0)
    assert values.get("cgroup/memory_used_bytes", 0) <= values.get("cgroup/memory_current_bytes", 0)
