from __future__ import annotations

import ctypes
import errno
import multiprocessing
import os
import shutil
import subprocess
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.samplers import process_files
from stepscope.samplers.kernel import KernelFile
from stepscope.samplers.numa import cpus_of
from stepscope.samplers.process import OpenFiles, ProcessSampler, is_worker
from stepscope.samplers.process_files import PAGE, TICKS, parse_children, parse_io, parse_status
from tests.integration.processes import until
from tests.samplers.machines import SECOND, answer_or_error, process

pytestmark = pytest.mark.processes

TRAIN = "python train.py"
SPAWN = "python -c from_multiprocessing.spawn_import_spawn_main --multiprocessing-fork"
SERVER = "python -c from_multiprocessing.forkserver_import_main"


def sampler_of(root, ranks=None, own=1):
    return ProcessSampler(lambda: {0: 100} if ranks is None else ranks, root, own)


@pytest.mark.promise("S1-010", "S3-032", "S3-033")
def test_a_rank(tmp_path):
    """A rank tells memory, threads and files at once, processor time and reading from the second sample on."""
    sampler = sampler_of(process(tmp_path, 100))
    first = sampler.sample(0)
    assert first["process/0/memory_bytes"] == 1000 * PAGE
    assert (first["process/0/threads"], first["process/0/open_files"]) == (3, 2)
    assert "process/0/cpu_ratio" not in first
    process(tmp_path, 100, ticks=100 + 3 * TICKS, io=(4096, 512, 9000))
    values = sampler.sample(2 * SECOND)
    assert values["process/0/cpu_ratio"] == 1.5
    assert values["process/0/read_bytes_per_second"] == 2048
    assert values["process/0/write_bytes_per_second"] == 256
    assert values["process/0/tree_requested_bytes_per_second"] == 4500


def test_the_numa_node_of_a_rank(tmp_path):
    """That of the CPU on which its main thread ran last; nothing on a machine with a single one."""
    process(tmp_path, 100)
    assert "process/0/numa_node" not in sampler_of(tmp_path).sample(0)
    for node, cpus in ((0, "0-1,4"), (1, "2-3")):
        folder = tmp_path / "sys" / "devices" / "system" / "node" / f"node{node}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(f"{cpus}\n")
    path = tmp_path / "proc" / "100" / "stat"
    words = path.read_text().split()
    for cpu, node in ((4, 0), (3, 1)):
        path.write_text(" ".join([*words[:22], *["0"] * (38 - 22), str(cpu), "0"]))
        assert path.read_text().split()[38] == str(cpu)
        assert sampler_of(tmp_path).sample(0)["process/0/numa_node"] == node


@pytest.mark.parametrize(
    ("text", "cpus"), [("0-3", [0, 1, 2, 3]), ("0,2-3", [0, 2, 3]), ("", []), ("x-2,-1,5-4", []), ("0-999999999", [])]
)
def test_lists_of_cpus(text, cpus):
    """As the kernel writes them; anything else is left out."""
    assert cpus_of(text) == cpus


def test_waiting_for_a_processor(tmp_path):
    """The time that the main thread was ready to run and did not, where the kernel counts it."""
    sampler = sampler_of(process(tmp_path, 100))
    assert "process/0/run_wait_ratio" not in sampler.sample(0)
    path = tmp_path / "proc" / "100" / "schedstat"
    path.write_text("9000000000 1000000000 5\n")
    assert "process/0/run_wait_ratio" not in sampler.sample(SECOND)
    path.write_text("9000000000 1500000000 9\n")
    assert sampler.sample(3 * SECOND)["process/0/run_wait_ratio"] == 0.25
    path.write_text("nonsense\n")
    assert "process/0/run_wait_ratio" not in sampler.sample(4 * SECOND)


@pytest.mark.promise("S1-010")
def test_tree_and_workers(tmp_path):
    """The tree is the rank with everything below it, children of children too; only workers count as such."""
    process(tmp_path, 100, children="201 202 300")
    process(tmp_path, 201, 100, "pt_data_worker", pages=10)
    process(tmp_path, 202, 100, pages=20)
    process(tmp_path, 300, 100, "git", command="git status", pages=30, children="301")
    process(tmp_path, 301, 300, "less", command="less", pages=40)
    values = sampler_of(tmp_path).sample(0)
    assert (values["process/0/children"], values["process/0/workers"]) == (3, 2)
    assert values["process/0/tree_memory_bytes"] == 1100 * PAGE


@pytest.mark.promise("S1-010")
def test_worker_figures(tmp_path):
    """The oldest worker is number 0; processor time of the tree is the sum over it."""
    process(tmp_path, 100, children="201 202")
    process(tmp_path, 201, 100, started=7000, pages=10)
    process(tmp_path, 202, 100, started=6000, pages=20)
    sampler = sampler_of(tmp_path)
    sampler.sample(0)
    process(tmp_path, 100, children="201 202", ticks=100 + TICKS)
    process(tmp_path, 202, 100, started=6000, pages=20, ticks=100 + TICKS // 2)
    values = sampler.sample(SECOND)
    assert values["process/0/workers"] == values["process/0/children"] == 2
    assert values["process/0/worker/0/cpu_ratio"] == 0.5
    assert values["process/0/worker/1/cpu_ratio"] == 0.0
    assert values["process/0/tree_cpu_ratio"] == 1.5
    assert values["process/0/tree_memory_bytes"] == 1030 * PAGE


def test_new_worker_takes_the_free_place(tmp_path):
    """When workers are started anew, each takes a place that is free, and the others keep theirs."""
    process(tmp_path, 100, children="201 202")
    process(tmp_path, 201, 100, started=6000, pages=1)
    process(tmp_path, 202, 100, started=7000, pages=2)
    sampler = sampler_of(tmp_path)
    sampler.sample(0)
    process(tmp_path, 201, 100, state="Z", started=6000)
    process(tmp_path, 203, 100, started=8000, pages=3)
    process(tmp_path, 100, children="202 203")
    values = sampler.sample(SECOND)
    pages = {place: values[f"process/0/worker/{place}/memory_bytes"] / PAGE for place in (0, 1)}
    assert pages == {0: 3, 1: 2}


def test_many_workers(tmp_path):
    """Forty workers are counted, and 32 have values of their own."""
    pids = range(200, 240)
    process(tmp_path, 100, children=" ".join(map(str, pids)))
    for pid in pids:
        process(tmp_path, pid, 100, started=pid)
    values = sampler_of(tmp_path).sample(0)
    assert values["process/0/workers"] == 40
    assert sum("/worker/" in name for name in values) == 32


def test_children_of_other_threads(tmp_path):
    """A child that another thread started is found at the next look of 5 s, not before."""
    root = process(tmp_path, 100)
    sampler = sampler_of(root)
    sampler.sample(0)
    process(root, 250, 100)
    (root / "proc/100/task/123").mkdir()
    (root / "proc/100/task/123/children").write_text("250")
    counts = [sampler.sample(at * SECOND)["process/0/children"] for at in (1, 5)]
    assert counts == [0, 1]


def test_others_are_not_the_ranks_work(tmp_path):
    """Another rank below the first, and the watcher itself, count for neither, nor does what they start."""
    process(tmp_path, 100, children="101 500")
    process(tmp_path, 101, 100, pages=7, children="102")
    process(tmp_path, 102, 101, pages=1)
    process(tmp_path, 500, 100, children="501")
    process(tmp_path, 501, 500)
    values = sampler_of(tmp_path, {0: 100, 1: 101}, own=500).sample(0)
    assert values["process/0/tree_memory_bytes"] == 1000 * PAGE
    assert values["process/1/tree_memory_bytes"] == 8 * PAGE


@pytest.mark.parametrize(
    ("name", "command", "parent", "expected"),
    [
        ("pt_data_worker", "anything", TRAIN, True),
        ("pt_data_worker_3", SERVER, TRAIN, True),
        ("python", TRAIN, TRAIN, True),
        ("python", SPAWN, TRAIN, True),
        ("python", SERVER, SERVER, True),
        ("python", SERVER, TRAIN, False),
        ("python", "python -c from_multiprocessing.resource_tracker_import_main", TRAIN, False),
        ("python", "", TRAIN, False),
        ("git", "git status", TRAIN, False),
    ],
)
def test_who_is_a_worker(name, command, parent, expected):
    """Workers are named so, forked from the rank, spawned by multiprocessing or forked by its server."""
    assert is_worker(name, command.encode(), parent.encode(), TRAIN.encode()) is expected


def test_hidden_process(tmp_path, monkeypatch):
    """A process that the system hides has no values and a reason; the other ranks go on."""
    process(tmp_path, 100)
    process(tmp_path, 101)
    plain = KernelFile.read_same

    def refuse(self):
        if "/100/" in self.path:
            raise PermissionError(errno.EPERM, "Operation not permitted")
        return plain(self)

    monkeypatch.setattr(KernelFile, "read_same", refuse)
    sampler = sampler_of(tmp_path, {0: 100, 1: 101})
    assert {name.split("/")[1] for name in sampler.sample(0)} == {"1"}
    assert set(sampler.absent()) == {"process/0/*"}


@pytest.mark.parametrize("change", ["gone", "zombie", "another"])
def test_ended(tmp_path, change):
    """A rank whose process is gone, dead or replaced by another of the same pid has no values."""
    root = process(tmp_path, 100)
    sampler = sampler_of(root)
    sampler.sample(0)
    if change == "gone":
        shutil.rmtree(root / "proc/100")
        (trainer,) = sampler._trainers.values()
        trainer.files._stat.close()  # as the kernel does: the open file of a process that is gone fails
    else:
        process(root, 100, state="Z" if change == "zombie" else "S", started=5000 if change == "zombie" else 6000)
    assert sampler.sample(SECOND) == {}
    process(root, 100)
    assert sampler.sample(2 * SECOND) == {}


def test_restarted_rank(tmp_path):
    """A rank that comes back with another pid has values again."""
    ranks = {0: 100}
    sampler = sampler_of(process(tmp_path, 100, state="Z"), ranks)
    assert sampler.sample(0) == {}
    ranks[0] = 110
    process(tmp_path, 110)
    assert sampler.sample(SECOND)["process/0/threads"] == 3


def test_proportional_memory(tmp_path):
    """PSS is read once a minute, one rank at a time."""
    process(tmp_path, 100)
    process(tmp_path, 101)
    sampler = sampler_of(tmp_path, {0: 100, 1: 101})
    found = [{name for name in sampler.sample(at * SECOND) if name.endswith("pss_bytes")} for at in (0, 1, 2, 60, 61)]
    zero, one = {"process/0/pss_bytes"}, {"process/1/pss_bytes"}
    assert found == [zero, one, set(), zero, one]
    assert sampler.sample(120 * SECOND)["process/0/pss_bytes"] == 2 << 20


def test_no_proportional_memory_of_large_processes(tmp_path, monkeypatch):
    """Above 2 GiB PSS is never read, and that is said."""
    monkeypatch.setattr(process_files.ProcessFiles, "proportional_bytes", lambda self: pytest.fail("was read"))
    sampler = sampler_of(process(tmp_path, 100, pages=(2 << 30) // PAGE + 1))
    assert "process/0/pss_bytes" not in sampler.sample(0)
    assert "2 GiB" in sampler.absent()["process/0/pss_bytes"]


def test_process_of_another_user(tmp_path, monkeypatch):
    """Files that we may not read leave their values out, with the reason; the rest goes on."""
    plain = KernelFile.read_same

    def refuse(self):
        if self.path.endswith("/io"):
            raise PermissionError(errno.EACCES, "Permission denied")
        return plain(self)

    monkeypatch.setattr(KernelFile, "read_same", refuse)
    sampler = sampler_of(process(tmp_path, 100))
    sampler.sample(0)
    values = sampler.sample(SECOND)
    assert "process/0/read_bytes_per_second" not in values
    assert values["process/0/cpu_ratio"] == 0.0
    assert sampler.absent() == {
        "process/0/read_bytes_per_second": "/proc/100/io: Permission denied; run as the user of process 100"
    }


def test_kernel_without_children(tmp_path):
    """Where the kernel does not list children there are no sums over the tree, and that is said."""
    root = process(tmp_path, 100)
    (root / "proc/100/task/100/children").unlink()
    sampler = sampler_of(root)
    assert "process/0/tree_memory_bytes" not in sampler.sample(0)
    assert "CONFIG_PROC_CHILDREN" in sampler.absent()["process/0/tree_*"]


def test_strange_name():
    """A name with brackets, spaces and line ends does not shift the fields."""
    status = parse_status(
        b"7 (a) b) (\n) S 3 " + b" ".join(b"%d" % at for at in range(9)) + b" 5 6 0 0 0 0 8 0 99 0 44"
    )
    assert (status.name, status.parent, status.ticks, status.threads, status.started, status.pages) == (
        "a) b) (\n",
        3,
        11,
        8,
        99,
        44,
    )


@given(st.binary(max_size=200))
def test_parsers_meet_anything(data):
    """Whatever stands in the files, parsing gives an answer or a ValueError."""
    for parse in (parse_status, parse_children, parse_io, lambda rest: parse_status(b"1 (x) " + rest)):
        assert answer_or_error(parse, data) is not None


def as_worker(ready, stop):
    """Take the name that torch gives its workers, then wait."""
    ctypes.CDLL(None).prctl(15, b"pt_data_worker", 0, 0, 0)
    ready.set()
    stop.wait(300)


@pytest.mark.promise("S1-010")
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_workers_of_this_process(method):
    """Real workers of multiprocessing are found below a real process, and are gone once they have ended."""
    context = multiprocessing.get_context(method)
    ready, stop = context.Event(), context.Event()
    child = context.Process(target=as_worker, args=(ready, stop))
    child.start()
    try:
        assert ready.wait(120)
        values = ProcessSampler(lambda: {0: os.getpid()}).sample(time.monotonic_ns())
        assert values["process/0/workers"] >= 1
        assert values["process/0/worker/0/memory_bytes"] > 1 << 20
    finally:
        stop.set()
        child.join(120)


def test_real_process_that_ends():
    """A real process has values while it runs and none afterwards, collected or not."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        sampler = ProcessSampler(lambda: {3: child.pid})
        assert sampler.sample(time.monotonic_ns())["process/3/memory_bytes"] > 0
        child.kill()
        assert until(lambda: sampler.sample(time.monotonic_ns()) == {})
    assert sampler.sample(time.monotonic_ns()) == {}


def test_real_processor_time():
    """A real process that is busy shows it."""
    sampler = ProcessSampler(lambda: {0: os.getpid()})
    sampler.sample(time.monotonic_ns())
    assert until(lambda: sampler.sample(time.monotonic_ns()).get("process/0/cpu_ratio", 0) > 0, every=0)


def test_open_files_are_counted():
    """The number of open files is the same by the kernel's own count and by listing."""
    files = process_files.ProcessFiles("/proc", os.getpid())
    counted = OpenFiles("/proc").count(files)
    listed = OpenFiles("/nowhere").count(files)
    assert abs(counted - listed) <= 1
