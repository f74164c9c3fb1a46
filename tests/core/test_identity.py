from __future__ import annotations

import re
import subprocess
import sys
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.core.errors import UsageError
from stepscope.core.identity import Distributed, Identity, Process, check_project, check_run_id, identify

NOW = 1_700_000_000.0
HERE = Process(pid=100, ppid=50, parent_start="777", boot_id="boot pid:[1]", argv=("train.py", "--lr", "1"))
ELASTIC = {
    "TORCHELASTIC_RUN_ID": "none",
    "TORCHELASTIC_RESTART_COUNT": "0",
    "RANK": "1",
    "WORLD_SIZE": "2",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "GROUP_RANK": "0",
    "GROUP_WORLD_SIZE": "1",
}
SLURM = {
    "SLURM_JOB_ID": "4242",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_NTASKS": "4",
}


def who(environ: dict[str, str] | None = None, parent: Process = HERE, **options) -> Identity:
    given_options = {"project": "mnist", "now": NOW, "token": "a1b2", **options}
    return identify(environ or {}, parent=parent, **given_options)


def test_alone():
    """A process that nothing names gets a new id from time and token, as rank 0 of 1, and the next free attempt."""
    assert who() == Identity("20231114-221320-a1b2", "new", 0, 1, None, None, None)


def test_argument_first():
    """The argument wins over the variable, and the variable over the launcher."""
    environ = {**SLURM, "STEPSCOPE_RUN_ID": "from-env"}
    assert (who(environ, run_id="mine").run_id, who(environ, run_id="mine").source) == ("mine", "argument")
    assert (who(environ).run_id, who(environ).source) == ("from-env", "environment")
    assert who(environ).rank == 3


def test_empty_variable():
    """An empty STEPSCOPE_RUN_ID is as good as none."""
    assert who({"STEPSCOPE_RUN_ID": ""}).source == "new"


def test_slurm_ranks_agree():
    """Every task of an srun computes one id from job and step, and its own rank."""
    first, last = who({**SLURM, "SLURM_PROCID": "0"}), who(SLURM, HERE._replace(pid=7, ppid=9, parent_start="1"))
    assert re.fullmatch(r"slurm-[0-9a-f]{12}", first.run_id)
    assert (first.run_id, first.attempt) == (last.run_id, last.attempt) == (first.run_id, 0)
    assert (last.rank, last.world_size, last.local_rank, last.node_rank) == (3, 4, 1, 1)


@pytest.mark.parametrize(
    "change",
    [{"SLURM_JOB_ID": "4243"}, {"SLURM_STEP_ID": "1"}, {"SLURM_ARRAY_JOB_ID": "4242", "SLURM_ARRAY_TASK_ID": "7"}],
)
def test_slurm_key(change):
    """Another job, step or array task is another run."""
    assert who({**SLURM, **change}).run_id != who(SLURM).run_id


def test_project_in_key():
    """One job may feed two projects: the project is part of the key."""
    assert who(SLURM).run_id != who(SLURM, project="other").run_id


def test_requeue():
    """A requeued job is a new attempt of the same run."""
    again = who({**SLURM, "SLURM_RESTART_COUNT": "2"})
    assert (again.run_id, again.attempt) == (who(SLURM).run_id, 2)


def test_requeue_and_restart_never_meet():
    """Requeues and torchrun's restarts both count, and two different pairs give two attempts."""
    both = {**SLURM, **ELASTIC}
    pairs = [(requeue, restart) for requeue in range(4) for restart in range(4)]
    attempts = {
        who({**both, "SLURM_RESTART_COUNT": str(a), "TORCHELASTIC_RESTART_COUNT": str(b)}).attempt for a, b in pairs
    }
    assert len(attempts) == len(pairs)


def test_srun_torchrun():
    """With torchrun inside srun, torchrun's variables give the rank and SLURM the key."""
    mixed = {**SLURM, **ELASTIC, "RANK": "9", "WORLD_SIZE": "16", "LOCAL_RANK": "1", "GROUP_RANK": "1"}
    found = who(mixed)
    assert (found.source, found.rank, found.world_size, found.local_rank, found.node_rank) == ("slurm", 9, 16, 1, 1)
    assert found.run_id == who({**mixed, "RANK": "2"}, HERE._replace(boot_id="other")).run_id
    assert found.warnings == ()


def test_batch_script_programs():
    """Two programs that one batch script starts without srun are two runs, and SLURM_PROCID is no rank there."""
    batch = {"SLURM_JOB_ID": "4242", "SLURM_PROCID": "0", "SLURM_NTASKS": "8"}
    one, other = who(batch), who(batch, HERE._replace(argv=("finetune.py",)))
    assert one.run_id != other.run_id
    assert (one.source, one.rank, one.world_size, one.attempt) == ("slurm", 0, 1, None)


def test_rank_argument_ignored():
    """The --local-rank argument that old launchers add does not split a run."""
    batch = {**ELASTIC, "SLURM_JOB_ID": "4242"}
    ids = {
        who(batch, HERE._replace(argv=("train.py", *extra, "--lr", "1"))).run_id
        for extra in (["--local-rank=0"], ["--local_rank", "1"], [])
    }
    assert len(ids) == 1


@pytest.mark.parametrize("mark", [{"SLURM_PTY_PORT": "1"}, {"SLURM_STEP_ID": "4294967290"}])
def test_interactive_slurm(mark):
    """A program typed into an interactive SLURM shell is a new run each time."""
    assert who({"SLURM_JOB_ID": "4242", **mark}).source == "new"


def test_torchrun_id():
    """An id given to torchrun names the run on every node."""
    named = {**ELASTIC, "TORCHELASTIC_RUN_ID": "exp7"}
    other = who({**named, "RANK": "5", "WORLD_SIZE": "8"}, HERE._replace(boot_id="other", ppid=1))
    assert who(named).run_id == other.run_id
    assert who(named).source == "torchrun"


def test_default_torchrun():
    """Ranks and restarts under one torchrun agent share a run; the restart count is the attempt."""
    first = who({**ELASTIC, "RANK": "0", "LOCAL_RANK": "0"}, HERE._replace(pid=1))
    again = who({**ELASTIC, "TORCHELASTIC_RESTART_COUNT": "1"}, HERE._replace(pid=999))
    assert (first.run_id, first.attempt, again.attempt) == (again.run_id, 0, 1)
    assert first.warnings == again.warnings == ()


@pytest.mark.parametrize("change", [{"ppid": 51}, {"parent_start": "778"}, {"boot_id": "boot2 pid:[1]"}])
def test_successive_torchruns(change):
    """Two default torchruns never merge, even with a recycled pid, after a reboot or in another container."""
    assert who(ELASTIC, HERE._replace(**change)).run_id != who(ELASTIC).run_id


def test_nodes_without_key():
    """Several nodes without a key record a run per node, and say once per node what to set."""
    nodes = {**ELASTIC, "WORLD_SIZE": "4", "LOCAL_RANK": "0", "RANK": "0"}
    first, second = who(nodes), who({**nodes, "RANK": "2", "GROUP_RANK": "1"}, HERE._replace(boot_id="b"))
    assert first.run_id != second.run_id
    assert len(first.warnings) == len(second.warnings) == 1
    assert "STEPSCOPE_RUN_ID" in first.warnings[0]
    assert who({**nodes, "RANK": "1", "LOCAL_RANK": "1"}).warnings == ()
    assert who({**nodes, "STEPSCOPE_RUN_ID": "x"}).warnings == ()


def test_ranks_without_launcher():
    """Ranks set by hand give no key: each is its own run, with the warning."""
    found = who({"RANK": "1", "WORLD_SIZE": "2"})
    assert (found.source, found.rank, len(found.warnings)) == ("new", 1, 1)


def test_spawn_by_group():
    """Children of multiprocessing with an initialised process group share the run of their parent."""
    child = HERE._replace(is_spawned=True)
    found = [who({}, child._replace(pid=pid), distributed=Distributed(pid, 2)) for pid in (0, 1)]
    assert found[0].run_id == found[1].run_id
    assert [(item.source, item.rank, item.world_size, item.attempt) for item in found] == [
        ("spawn", 0, 2, None),
        ("spawn", 1, 2, None),
    ]


def test_spawn_without_rank():
    """A child of multiprocessing that has no rank is no part of its parent's run."""
    assert who({}, HERE._replace(is_spawned=True)).source == "new"


def test_group_beats_variables():
    """An initialised process group knows the rank better than variables that may mean the node."""
    assert who({"RANK": "1", "WORLD_SIZE": "2"}, distributed=Distributed(5, 16)).rank == 5


def test_ray():
    """Ranked Ray workers share the job's run on that cluster, whatever SLURM step their raylet came from."""
    worker = {"RAY_JOB_ID": "01000000", "RANK": "0", "WORLD_SIZE": "2"}
    cluster = HERE._replace(argv=("default_worker.py", "--node-ip-address=1", "--cluster-id=abc"))
    moved = cluster._replace(boot_id="b", argv=("default_worker.py", "--node-ip-address=2", "--cluster-id=abc"))
    assert who(worker, cluster).source == "ray"
    assert who(worker, cluster).run_id == who({**worker, **SLURM, "RANK": "1"}, moved).run_id
    assert who(worker, cluster).run_id != who(worker, cluster._replace(argv=("w", "--cluster-id=x"))).run_id


def test_ray_trial():
    """Ray tasks and trials without a rank are runs of their own."""
    assert who({"RAY_JOB_ID": "01000000", **SLURM}).source == "new"


def test_mpi():
    """Ranks of a single-node mpirun share the run of their launcher."""
    mpi = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}
    assert (who(mpi).source, who(mpi).rank, who(mpi).world_size) == ("mpi", 1, 2)
    assert who({**mpi, "OMPI_COMM_WORLD_LOCAL_SIZE": "1"}).source == "new"


def test_resume():
    """Resuming takes the next free attempt, whatever a launcher counts."""
    assert who(ELASTIC, run_id="mine", resume=True).attempt is None


def test_resume_what():
    """Resuming without any id is refused with the remedy."""
    with pytest.raises(UsageError, match="pass run_id="):
        who(resume=True)


@pytest.mark.parametrize("name", ["", ".", "..", ".hid", "a/b", "../x", "a b", "x" * 65, "a\n", "a\0", "é", None, 7])
def test_bad_names(name):
    """What cannot be a folder name is refused, and the message tells what could."""
    with pytest.raises(UsageError, match=r"cannot use project name .*; call it '[A-Za-z0-9]"):
        check_project(name)
    with pytest.raises(UsageError, match=r"cannot use run id .*; set run_id= to something like"):
        check_run_id(name)


def test_bad_variable():
    """A bad STEPSCOPE_RUN_ID is named in the message."""
    with pytest.raises(UsageError, match="set STEPSCOPE_RUN_ID to something like 'a-b'"):
        who({"STEPSCOPE_RUN_ID": "a/b"})


@pytest.mark.parametrize("rank", ["", "x", "-1", "2", "1.0", "٣", "9" * 30])
def test_bad_ranks(rank):
    """A rank that is no number below the size is no rank."""
    assert (who({"RANK": rank, "WORLD_SIZE": "2"}).rank, who({"RANK": rank, "WORLD_SIZE": "2"}).world_size) == (0, 1)


@given(st.dictionaries(st.sampled_from(sorted({**SLURM, **ELASTIC, "RAY_JOB_ID": ""})), st.text(max_size=12)))
def test_any_environment(environ):
    """Whatever the variables hold, the identity is valid and the same when asked again."""
    found = who(environ)
    assert found == who(environ)
    assert check_run_id(found.run_id) == found.run_id
    assert 0 <= found.rank < found.world_size


def test_current_process():
    """The current process knows its parent, and two readings agree."""
    found = Process.current()
    assert found == Process.current()
    assert found.pid > 0
    assert not found.is_spawned
    assert found.boot_id


def test_off_linux(tmp_path):
    """Where there is no /proc the facts are empty or the host's name, and identify still works."""
    found = Process.current(proc=str(tmp_path))
    assert found.parent_start == ""
    assert who(ELASTIC, found).source == "torchrun"


def test_parent_name_with_brackets(tmp_path):
    """The start time is found behind a process name that holds blanks and brackets."""
    (tmp_path / str(Process.current().ppid)).mkdir()
    fields = " ".join(str(number) for number in range(3, 53))
    (tmp_path / str(Process.current().ppid) / "stat").write_text(f"1 (a) b (c)) {fields}\n")
    assert Process.current(proc=str(tmp_path)).parent_start == "22"


def test_group_is_never_imported(monkeypatch):
    """The process group is asked only if the program loaded it, and a half-loaded one is no group."""
    monkeypatch.delitem(sys.modules, "torch.distributed", raising=False)
    assert Distributed.current() is None
    monkeypatch.setitem(sys.modules, "torch.distributed", SimpleNamespace())
    assert Distributed.current() is None
    group = SimpleNamespace(
        is_available=lambda: True, is_initialized=lambda: True, get_rank=lambda: 1, get_world_size=lambda: 4
    )
    monkeypatch.setitem(sys.modules, "torch.distributed", group)
    assert Distributed.current() == Distributed(1, 4)


SPAWNER = """
import multiprocessing, os, sys
from stepscope.core.identity import Process

def child(queue):
    process = Process.current()
    queue.put((process.ppid, process.is_spawned, process.parent_start))

if __name__ == "__main__":
    method = multiprocessing.get_context(sys.argv[1])
    queue = method.SimpleQueue()
    process = method.Process(target=child, args=(queue,))
    process.start()
    ppid, is_spawned, start = queue.get()
    process.join()
    mine = open("/proc/self/stat").read().rpartition(")")[2].split()[19]
    print(ppid == os.getpid(), is_spawned, start == mine)
"""


@pytest.mark.parametrize("method", ["spawn", "forkserver", "fork"])
def test_real_children(tmp_path, method):
    """A child of multiprocessing names the process that asked for it, by every start method."""
    script = tmp_path / "spawner.py"
    script.write_text(SPAWNER)
    source = next(path for path in sys.path if path.endswith("src"))
    done = subprocess.run(
        [sys.executable, str(script), method], capture_output=True, text=True, check=True, env={"PYTHONPATH": source}
    )
    assert done.stdout.split() == ["True", "True", "True"]
