"""What every test starts from: no setting of the machine leaks in, and runs go to a folder of the test's own."""

from __future__ import annotations

import contextlib
import gc
import os
import shutil
import signal
import time

import pytest
from hypothesis import HealthCheck, settings

from stepscope.core.places import shared_root
from stepscope.session.run import Run
from stepscope.session.watching import Watch

LAUNCHERS = ("STEPSCOPE_", "SLURM_", "TORCHELASTIC_", "RAY_", "OMPI_", "PMI_")
RANKS = {
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "NODE_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
}

# Two workers share two cores: an example may wait for the other one, which says nothing about the code.
settings.register_profile("stepscope", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("stepscope")


@pytest.fixture(autouse=True, scope="session")
def interruptible():
    """Let Ctrl-C reach the programs that tests start, also where CI runs in the background and ignores it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def open_files():
    """Return what lists this process's open files by number and target, without what earlier tests left to collect.

    A count would not do: a collection in the midst of a test closes files of another one.
    """

    def listed():
        found = set()
        for number in os.listdir("/proc/self/fd"):
            with contextlib.suppress(FileNotFoundError):  # the one that lists, or one that another thread closed
                found.add((number, os.readlink(f"/proc/self/fd/{number}")))
        return found

    gc.collect()
    return listed


@pytest.fixture(autouse=True, scope="session")
def patient_end():
    """Let a run of the test's own process end only when its watcher has written the end, however busy the machine is.

    Half a second, which is what a training waits, is not enough everywhere to read a run right after its end.
    """
    original = Run.let_go

    def let_go(run, deadline):
        watched = type(run._watch) is Watch  # not a stand-in of a test, of which nobody comes
        original(run, max(deadline, time.monotonic() + 60.0) if watched else deadline)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Run, "let_go", let_go)
        yield


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch, tmp_path_factory):
    """Remove what tells a process its run or rank, and point the runs' folder at a temporary one."""
    for name in list(os.environ):
        if name.startswith(LAUNCHERS) or name in RANKS:
            monkeypatch.delenv(name)
    monkeypatch.setenv("STEPSCOPE_DIR", str(tmp_path_factory.mktemp("runs")))
    runtime = tmp_path_factory.mktemp("runtime")
    monkeypatch.setenv("STEPSCOPE_RUNTIME_DIR", str(runtime))
    yield
    shutil.rmtree(shared_root(str(runtime)), ignore_errors=True)  # rings of processes that a test has killed
