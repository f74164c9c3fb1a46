"""How real trainers die, and that the watcher names the cause: at once, whoever reaps them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import stepscope
from stepscope.watcher.death import Trainee
from tests.integration.processes import PATIENCE, kill, until, watchers

PARENT = """
import os, sys
pid = os.fork()
if not pid:
    import ctypes, fcntl, signal
    descriptor = os.open(sys.argv[1], os.O_RDWR)
    fcntl.lockf(descriptor, fcntl.LOCK_EX, 1, 0)
    print("held", flush=True)
    sys.stdin.readline()
    exec(sys.argv[2])
if sys.argv[3] == "reaps":
    os.waitpid(pid, 0)
    print("reaped", flush=True)
sys.stdin.close()
os.read(os.open(sys.argv[4], os.O_RDONLY), 1)
"""
ENDS = [
    ("os.kill(os.getpid(), signal.SIGKILL)", signal.SIGKILL),
    ("ctypes.string_at(0)", signal.SIGSEGV),
    ("os._exit(3)", 3 << 8),
    ("os._exit(0)", 0),
]


@pytest.fixture
def parent(tmp_path):
    """Start parents whose child holds a ring's lock; of neither anything is left."""
    ring_path, fifo = tmp_path / "a.ring", tmp_path / "fifo"
    ring_path.write_bytes(bytes(64))
    os.mkfifo(fifo)
    started = []

    def start(end, habit):
        command = [sys.executable, "-c", PARENT, ring_path, end, habit, fifo]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout.readline() == "held\n"
        descriptor = os.open(ring_path, os.O_RDWR)
        started.append(descriptor)
        return process, Trainee.find(descriptor)

    yield start
    for each in started:
        if isinstance(each, int):
            os.close(each)
        else:
            each.kill()
            each.communicate()


@pytest.mark.parametrize("habit", ["reaps", "never reaps"])
@pytest.mark.parametrize(("end", "status"), ENDS, ids=[end[0][:20] for end in ENDS])
def test_the_wait_status_of_a_process_that_is_not_our_child_is_seen(parent, end, status, habit):
    """By /proc while its parent lets it lie, by the pidfd when the parent was quicker, where the kernel has that."""
    process, trainee = parent(end, habit)
    process.stdin.write("go\n")
    process.stdin.flush()
    assert trainee.dead(PATIENCE)
    if habit == "reaps":
        assert process.stdout.readline() == "reaped\n"
        if trainee.status() is None and os.uname().release.split(".")[:2] < ["6", "15"]:
            pytest.skip("before Linux 6.15 nobody tells how a reaped process ended")
    found = trainee.status()
    trainee.close()
    assert found is not None
    assert found & ~0x80 == status


TRAINER = """
    import os, signal, sys, threading, time
    import stepscope

    {before}
    run = stepscope.init(project="deaths")
    print(run.path, flush=True)
    run.log({{"x": 1.0}})
    sys.stdin.readline()
    {end}
"""
WAYS = [
    ("os.kill(os.getpid(), signal.SIGKILL)", "killed", "killed by SIGKILL"),
    ("import ctypes; ctypes.string_at(0)", "killed", "killed by SIGSEGV"),
    ("os.abort()", "killed", "killed by SIGABRT"),
    ("os.kill(os.getpid(), signal.SIGTERM)", "killed", "killed by SIGTERM"),
    ("os._exit(3)", "failed", "exit code 3"),
    ("os._exit(0)", "finished", ""),
    ("sys.exit(3)", "failed", "exit code 3"),
    ("raise SystemExit('a reason')", "failed", "exit code 1"),
    ("sys.exit(0)", "finished", ""),
    ("pass", "finished", ""),
    ("raise ValueError('no such batch')", "failed", "ValueError: no such batch"),
    ("with run: sys.exit(3)", "failed", "exit code 3"),
    ("with run: sys.exit(0)", "finished", ""),
    ("os.execv(sys.executable, [sys.executable, '-c', 'import sys; sys.stdin.read()'])", "lost", "another program"),
]


class Watched:
    """A trainer whose watcher has found it, waiting for a word to die."""

    def __init__(self, bench, end, before="", **options):
        self.trainer = bench.start(TRAINER.format(end=end, before=before), stdin=subprocess.PIPE, **options)
        self.path, self.lives_on = self.trainer.line(), "execv" in end
        bench.heard(self.path)

    def go(self):
        """Let it die, and return the run once its end is known; what it became by exec lives as long."""
        self.trainer.process.stdin.write("go\n")
        self.trainer.process.stdin.flush()
        if not self.lives_on:
            self.trainer.wait()
        past = self.ended()
        self.trainer.wait()
        return past

    def ended(self):
        until(lambda: stepscope.open(self.path).state != "running", "the end of the run", every=0.01)
        return stepscope.open(self.path)


@pytest.mark.parametrize(("end", "state", "cause"), WAYS, ids=[way[0][:24] for way in WAYS])
def test_the_cause_of_each_death_is_named(bench, end, state, cause):
    """State and cause say what happened, and an event has the signal or the exit code."""
    past = Watched(bench, end).go()
    assert past.state == state
    assert cause in past.cause
    assert bool(past.cause) == bool(cause)
    told = [(event["state"], event["cause"]) for event in past.events("ended")]
    assert told == ([] if state == "finished" else [(past.state, past.cause)])
    bench.quiet()


@pytest.mark.parametrize(("name", "value"), [("SLURM_JOB_ID", "7"), ("KUBERNETES_SERVICE_HOST", "10.0.0.1")])
def test_sigterm_to_a_job_of_a_scheduler_is_preemption(bench, name, value):
    """By default action, and by a handler that leaves with 143."""
    past = Watched(bench, "os.kill(os.getpid(), signal.SIGTERM)", environ={name: value}).go()
    assert past.state == "preempted"
    handler = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))"
    watched = Watched(bench, "time.sleep(600)", handler, environ={name: value, "STEPSCOPE_RUN_ID": "second"})
    watched.trainer.process.terminate()
    watched.trainer.wait()
    assert watched.ended().state == "preempted"


def test_sigkill_after_the_whole_job_was_told_to_end_is_preemption(bench):
    """A scheduler sends SIGTERM to every process of the job, also to the watcher, which stays to see the end."""
    handler = "signal.signal(signal.SIGTERM, signal.SIG_IGN)"
    watched = Watched(bench, "time.sleep(600)", handler)
    watcher = watchers(watched.path)[0]
    for pid in (watched.trainer.pid, watcher):
        kill(pid, signal.SIGTERM)
    watched.trainer.process.kill()
    watched.trainer.wait()
    past = watched.ended()
    assert (past.state, past.cause) == ("preempted", "SIGKILL to the whole job")
    bench.quiet()


@pytest.fixture
def memory_group():
    """A memory cgroup of 80 MiB, of version 1 or 2; the path of its list of processes."""
    version1 = Path("/sys/fs/cgroup/memory")
    own = Path("/proc/self/cgroup").read_text(encoding="ascii")
    inside = next((line.split(":", 2)[2] for line in own.splitlines() if ":memory:" in line), "/").lstrip("/")
    folder = (version1 / inside if version1.is_dir() else Path("/sys/fs/cgroup")) / f"stepscope-{os.getpid()}"
    try:
        folder.mkdir()
        limit = folder / ("memory.limit_in_bytes" if version1.is_dir() else "memory.max")
        limit.write_text(str(80 << 20))
    except OSError as error:
        if folder.is_dir():
            folder.rmdir()
        pytest.skip(f"no memory cgroup can be made here: {error}")
    if (folder / "memory.swap.max").exists():
        (folder / "memory.swap.max").write_text("0")
    yield folder / "cgroup.procs"
    until(lambda: not (folder / "cgroup.procs").read_text(), "the end of all in the cgroup")
    folder.rmdir()


EAT = """
    held = []
    while True:
        held.append(bytearray(os.urandom(1 << 20)))
"""


@pytest.mark.skipif(os.getuid() != 0, reason="making a memory cgroup takes root")
def test_a_trainer_that_is_out_of_memory_is_oom_killed(bench, memory_group):
    """The state says so, with the limit and the last memory, within the cgroup that the watcher lives in too."""
    join = f"open({str(memory_group)!r}, 'w').write('0')"
    past = Watched(bench, EAT, f"file = {join}").go()
    assert past.state == "oom-killed"
    assert past.cause.startswith("out of memory: limit 80 MiB, last seen with ")
    event = past.events("ended")[-1]
    assert (event["limit_bytes"], event["signal"]) == (80 << 20, "SIGKILL")
    assert 10 << 20 < event["rss_bytes"] < 160 << 20  # with pages of files that other cgroups pay for
    bench.quiet()


@pytest.mark.skipif(os.getuid() != 0, reason="making a memory cgroup takes root")
def test_a_kill_in_a_cgroup_that_was_never_out_of_memory_is_a_kill(bench, memory_group):
    """SIGKILL alone is no lack of memory."""
    join = f"open({str(memory_group)!r}, 'w').write('0')"
    past = Watched(bench, "os.kill(os.getpid(), signal.SIGKILL)", f"file = {join}").go()
    assert (past.state, past.cause) == ("killed", "killed by SIGKILL")
    bench.quiet()
