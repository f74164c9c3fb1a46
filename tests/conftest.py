"""What every test starts from: no setting of the machine leaks in, and runs go to a folder of the test's own."""

from __future__ import annotations

import contextlib
import gc
import os
import shutil
import signal

import pytest
from hypothesis import HealthCheck, settings

from stepscope.core.places import shared_root
from stepscope.session import current, run

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

FOLDERS = {
    "tests/browser": ("browser", "processes"),
    "tests/documents": ("documents", "processes"),
    "tests/integration": ("processes", "slow"),
}
"""Markers of every test in a folder."""

# Two workers share two cores: an example may wait for the other one, which says nothing about the code.
settings.register_profile("stepscope", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("fast", settings.get_profile("stepscope"), max_examples=25)  # for `make test-fast`
settings.load_profile("stepscope")


def pytest_collection_modifyitems(config, items):
    """Mark tests by their folder, and give those that run real processes a second try."""
    for item in items:
        folder = item.path.relative_to(config.rootpath).parent.as_posix()
        for name in FOLDERS.get(folder, ()):
            item.add_marker(name)
        if item.get_closest_marker("processes") and config.pluginmanager.hasplugin("rerunfailures"):
            item.add_marker(pytest.mark.flaky(reruns=1))


def pytest_collection_finish():
    """Let no later garbage collection scan what is loaded by now: some tests collect, and would take seconds each."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure():
    """Let the interpreter free at its end what was frozen: DuckDB prints what it takes for leaks otherwise."""
    gc.unfreeze()


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


@pytest.fixture
def patient_end(monkeypatch):
    """Let runs of this process end only when their watcher has written the end: for code that reads its own run.

    A training waits 0.4 s at most, which a busy machine may exceed. A test that reads the run itself uses
    `wait_until_written` instead, and so tests the end as users get it.
    """
    for module in (current, run):
        monkeypatch.setattr(module, "END_SECONDS", 60.0)


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
