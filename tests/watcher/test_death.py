"""How a rank ended: the judgement over what is known, and the process found behind a ring."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.core import ring
from stepscope.store.states import KILLED
from stepscope.watcher import death
from stepscope.watcher.death import EndEvidence, RankEnd, Trainee, decide_end, lock_holder, scheduler, shutting_down
from stepscope.watcher.oom import Oom

pytestmark = pytest.mark.processes

RUNNING, FINISHED, FAILED, EXITED = (
    ring.STATE_RUNNING,
    ring.STATE_FINISHED,
    ring.STATE_FAILED,
    ring.STATE_EXITED,
)
KILL, TERM, USR1, SEGV, ABRT = (
    int(number) for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGUSR1, signal.SIGSEGV, signal.SIGABRT)
)
INT = int(signal.SIGINT)
GROUP = Oom(60 << 20, 58 << 20, kills=1)
BY_HAND = "rank 3 was interrupted"
JUDGED = [
    # What the run said itself comes first.
    (EndEvidence(status=KILL, state=FINISHED), RankEnd("finished", "")),
    (EndEvidence(state=FAILED, error="ValueError: no"), RankEnd("failed", "ValueError: no")),
    (EndEvidence(state=FAILED, error="SystemExit: 0"), RankEnd("finished", "")),
    (EndEvidence(state=FAILED, error="SystemExit: None"), RankEnd("finished", "")),
    (EndEvidence(state=FAILED, error="SystemExit: 3"), RankEnd("failed", "exit code 3")),
    (EndEvidence(state=FAILED, error="SystemExit: bad data"), RankEnd("failed", "exit code 1")),
    # Exit codes, with and without the exit functions having run.
    (EndEvidence(status=0, state=EXITED), RankEnd("finished", "")),
    (EndEvidence(status=0), RankEnd("finished", "")),
    (EndEvidence(status=3 << 8, state=EXITED), RankEnd("failed", "exit code 3")),
    (EndEvidence(status=3 << 8), RankEnd("failed", "exit code 3")),
    (EndEvidence(status=1 << 8, error="OSError: gone"), RankEnd("failed", "OSError: gone (exit code 1)")),
    # Signals.
    (EndEvidence(status=KILL), RankEnd("killed", "killed by SIGKILL")),
    (EndEvidence(status=SEGV), RankEnd("killed", "killed by SIGSEGV")),
    (EndEvidence(status=ABRT | 0x80), RankEnd("killed", "killed by SIGABRT, with a core dump")),
    (EndEvidence(status=TERM), RankEnd("killed", "killed by SIGTERM")),
    (EndEvidence(status=40), RankEnd("killed", "killed by signal 40")),
    # A person ended it.
    (EndEvidence(state=FAILED, error="KeyboardInterrupt"), RankEnd("interrupted", "Ctrl-C")),
    (EndEvidence(state=FAILED, error="KeyboardInterrupt: stop it"), RankEnd("interrupted", "Ctrl-C")),
    (EndEvidence(status=INT), RankEnd("interrupted", "Ctrl-C (SIGINT)")),
    (EndEvidence(status=130 << 8, state=EXITED), RankEnd("interrupted", "Ctrl-C (exit code 130)")),
    (EndEvidence(state=FAILED, error="SystemExit: 130"), RankEnd("interrupted", "Ctrl-C (exit code 130)")),
    (EndEvidence(status=TERM, after=BY_HAND), RankEnd("interrupted", f"SIGTERM, after {BY_HAND}")),
    (EndEvidence(status=1 << 8, after=BY_HAND), RankEnd("interrupted", f"exit code 1, after {BY_HAND}")),
    (
        EndEvidence(state=FAILED, error="OSError: peer", after=BY_HAND),
        RankEnd("interrupted", f"OSError: peer, after {BY_HAND}"),
    ),
    (
        EndEvidence(status=TERM, at_prompt=True),
        RankEnd("interrupted", "the notebook or prompt that it ran in was closed (SIGTERM)"),
    ),
    (EndEvidence(status=SEGV, at_prompt=True), RankEnd("killed", "killed by SIGSEGV")),
    (
        EndEvidence(status=KILL, at_prompt=True, oom=GROUP),
        RankEnd("oom-killed", "out of memory: limit 60 MiB, last seen with 58 MiB resident"),
    ),
    # Lack of memory.
    (
        EndEvidence(status=KILL, oom=GROUP),
        RankEnd("oom-killed", "out of memory: limit 60 MiB, last seen with 58 MiB resident"),
    ),
    (
        EndEvidence(status=KILL, oom=Oom(64 << 30, None, named=True, whole_machine=True)),
        RankEnd("oom-killed", "out of memory: memory of the machine 64 GiB"),
    ),
    (EndEvidence(status=SEGV, oom=GROUP), RankEnd("killed", "killed by SIGSEGV")),
    (
        EndEvidence(state=FAILED, error="RuntimeError: worker is gone", oom=GROUP),
        RankEnd(
            "failed",
            "RuntimeError: worker is gone; a process of its cgroup had been killed for lack of memory (limit 60 MiB)",
        ),
    ),
    # The machine was taken away.
    (
        EndEvidence(status=TERM, scheduler="SLURM"),
        RankEnd("preempted", "SIGTERM in a SLURM job (preempted, cancelled or out of time)"),
    ),
    (
        EndEvidence(status=143 << 8, state=EXITED, scheduler="Kubernetes"),
        RankEnd("preempted", "exit code 143 after SIGTERM in a Kubernetes job (preempted, cancelled or out of time)"),
    ),
    (EndEvidence(status=143 << 8, state=EXITED), RankEnd("failed", "exit code 143")),
    (
        EndEvidence(status=USR1, scheduler="SLURM"),
        RankEnd("preempted", "SIGUSR1 in a SLURM job (preempted, cancelled or out of time)"),
    ),
    (EndEvidence(status=USR1, warned=True), RankEnd("killed", "killed by SIGUSR1")),
    (EndEvidence(status=KILL, scheduler="SLURM"), RankEnd("killed", "killed by SIGKILL")),
    (
        EndEvidence(status=KILL, scheduler="SLURM", warned=True),
        RankEnd("preempted", "SIGKILL in a SLURM job (preempted, cancelled or out of time)"),
    ),
    (EndEvidence(status=TERM, shutting_down=True), RankEnd("preempted", "SIGTERM while the machine was shutting down")),
    (
        EndEvidence(status=TERM, scheduler="SLURM", after="rank 3 failed"),
        RankEnd("killed", "SIGTERM, after rank 3 failed"),
    ),
    # Nobody saw it.
    (EndEvidence(), RankEnd("killed", KILLED, certain=False)),
    (EndEvidence(state=EXITED), RankEnd("finished", "", certain=False)),
    (
        EndEvidence(oom=Oom(60 << 20, 59 << 20)),
        RankEnd("oom-killed", "out of memory: limit 60 MiB, last seen with 59 MiB resident", certain=False),
    ),
    (EndEvidence(shutting_down=True), RankEnd("preempted", "ended while the machine was shutting down", certain=False)),
]


@pytest.mark.parametrize(("evidence", "end"), JUDGED)
def test_each_evidence_has_its_judgement(evidence, end):
    """The run's own last words come first, then the wait status, then what else is known; a guess says so."""
    assert decide_end(evidence) == end


def test_a_process_that_lives_on_without_its_ring_is_lost_and_not_killed():
    """A trainer that became another program by exec is not called dead."""
    assert decide_end(EndEvidence(alive=True)).state == "lost"


@given(
    st.builds(
        EndEvidence,
        status=st.none() | st.integers(0, 255).map(lambda code: code << 8) | st.integers(1, 64),
        state=st.sampled_from([RUNNING, FINISHED, FAILED, EXITED, 0, 99]),
        error=st.text(),
        oom=st.none() | st.builds(Oom, st.none() | st.integers(1), st.none() | st.integers(1), st.booleans()),
        scheduler=st.sampled_from(["", "SLURM"]),
        warned=st.booleans(),
        shutting_down=st.booleans(),
        after=st.sampled_from(["", "rank 3 failed", BY_HAND]),
        at_prompt=st.booleans(),
        alive=st.booleans(),
    )
)
def test_any_evidence_is_judged(evidence):
    """Whatever is known, there is a state of the vocabulary; only finished has no cause, and the event tells it."""
    end = decide_end(evidence)
    assert end.state in ("finished", "interrupted", "failed", "killed", "oom-killed", "preempted", "lost")
    assert bool(end.cause) == (end.state != "finished")
    assert end.event(evidence)["kind"] == "ended"


def test_the_event_of_an_end_has_its_figures():
    """Signal or exit code, and for lack of memory limit and last memory, are fields of their own."""
    evidence = EndEvidence(status=KILL, oom=GROUP)
    facts = decide_end(evidence).event(evidence)
    assert (facts["signal"], facts["limit_bytes"], facts["rss_bytes"]) == ("SIGKILL", 60 << 20, 58 << 20)
    evidence = EndEvidence(status=3 << 8)
    assert decide_end(evidence).event(evidence)["exit_code"] == 3


def test_the_scheduler_is_read_from_the_environment():
    """SLURM and Kubernetes are known by what they set; nothing set is nobody's job."""
    assert scheduler({"SLURM_JOB_ID": "7"}) == "SLURM"
    assert scheduler({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}) == "Kubernetes"
    assert scheduler({}) == ""


def test_a_machine_that_goes_down_is_known_by_what_systemd_leaves(tmp_path):
    """systemd's files of a shutdown tell it."""
    assert not shutting_down(str(tmp_path))
    (tmp_path / "run").mkdir()
    (tmp_path / "run/nologin").touch()
    assert shutting_down(str(tmp_path))


LOCKER = """
import fcntl, os, sys
descriptor = os.open(sys.argv[1], os.O_RDWR)
fcntl.lockf(descriptor, fcntl.LOCK_EX, 1, 0)
print("held", flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def ring_file(tmp_path):
    """An open file that stands for a ring."""
    path = tmp_path / "a.ring"
    path.write_bytes(bytes(64))
    descriptor = os.open(path, os.O_RDWR)
    yield path, descriptor
    os.close(descriptor)


@pytest.fixture
def locker(ring_file):
    """A process that holds the writer's lock of that file until it is told to go."""
    command = [sys.executable, "-c", LOCKER, str(ring_file[0])]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.communicate()


def test_the_holder_of_a_lock_is_found_by_its_byte(ring_file, locker):
    """The writer's byte names its process; the reader's byte is free."""
    assert lock_holder(ring_file[1], ring.LOCK_WRITER) == locker.pid
    assert lock_holder(ring_file[1], ring.LOCK_READER) is None


def test_a_ring_without_a_writer_has_no_trainee(ring_file):
    """Nobody holds the lock, so there is nobody to watch."""
    assert Trainee.find(ring_file[1]) is None


def test_a_writer_of_another_pid_namespace_is_not_guessed(ring_file, monkeypatch):
    """The kernel says 0 for a process that we cannot see: no pid is made up for it."""
    monkeypatch.setattr(death, "lock_holder", lambda *_: 0)
    assert Trainee.find(ring_file[1]) is None


def test_a_pid_that_changed_hands_is_not_adopted(ring_file, locker, monkeypatch):
    """If the lock's holder is another one behind the pidfd than before it, the pidfd may be anybody's."""
    answers = iter([os.getpid(), locker.pid])
    monkeypatch.setattr(death, "lock_holder", lambda *_: next(answers))
    assert Trainee.find(ring_file[1]) is None


def test_a_living_trainee_has_no_status(ring_file, locker):
    """Before the end nothing is told, and waiting for it takes its time and no more."""
    trainee = Trainee.find(ring_file[1])
    assert (trainee.pid, trainee.dead(), trainee.status()) == (locker.pid, False, None)
    assert not trainee.dead(0.001)
    trainee.close()
    assert trainee.fileno() == -1


def test_the_status_of_another_process_with_the_same_pid_is_not_taken(ring_file, locker, tmp_path):
    """The start time in /proc must be the one that was seen first."""
    trainee = Trainee.find(ring_file[1])
    trainee.started += 1
    locker.kill()
    assert trainee.dead(60)
    assert trainee._of_zombie() is None
    trainee.close()


def hidden(folder, trainee):
    """Return a /proc that shows a zombie to one who may not look: its exit code is 0."""
    fields = ["Z", *["0"] * 18, str(trainee.started), *["0"] * 40]
    (folder / str(trainee.pid)).mkdir()
    (folder / str(trainee.pid) / "stat").write_text(f"{trainee.pid} (python) {' '.join(fields)}")
    return str(folder)


def test_an_exit_code_that_we_may_not_see_is_not_taken_for_zero(ring_file, locker, tmp_path):
    """The kernel shows 0 to those who may not look: that is no exit code."""
    trainee = Trainee.find(ring_file[1])
    trainee._may_look = False
    locker.kill()
    assert trainee.dead(60)
    assert trainee._of_zombie() in {None, signal.SIGKILL}  # a signal that is seen is one
    trainee._proc = hidden(tmp_path, trainee)
    assert trainee._of_zombie() is None
    trainee.close()
