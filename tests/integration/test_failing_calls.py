"""The n-th system call fails, for every n: nothing is raised into the training and no file is corrupt."""

from __future__ import annotations

import json
import os
import shutil
import tempfile

import pytest

import stepscope
from tests.faults import shim
from tests.integration.processes import until

DRIVER = """
    import sys
    from tests.faults import failing
    failing.main(*sys.argv[1:])
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """The compiled shim."""
    return shim.build(tmp_path_factory.mktemp("shim"))


@pytest.fixture
def runs(bench):
    """A folder for many short runs: in memory where that is possible, as each of them is synced often."""
    memory = "/dev/shm"
    folder = tempfile.mkdtemp(prefix="stepscope-test-", dir=memory if os.access(memory, os.W_OK) else bench.folder)
    yield folder
    shutil.rmtree(folder)


def outcome(bench, library, what, fault, runs):
    """Return what a driver with the shim found."""
    return bench.start(DRIVER, runs, what, fault, environ={"LD_PRELOAD": str(library)}).facts()


@pytest.mark.parametrize("fault", list(shim.FAULTS))
def test_a_failing_call_while_draining_loses_nothing(bench, library, runs, fault):
    """Whichever call on tail, events or node file fails, once or until space returns, every row and event is there."""
    found = outcome(bench, library, "draining", fault, runs)
    assert found["wrong"] == []
    assert {"open", "write", "fdatasync", "rename"} <= set(found["calls"])


@pytest.mark.parametrize("fault", ["ENOSPC", "EIO", "short write"])
def test_a_failing_call_while_sealing_loses_nothing(bench, library, runs, fault):
    """Whichever call of sealing fails, the rows are readable from tail or sealed file, each once."""
    found = outcome(bench, library, "sealing", fault, runs)
    assert found["wrong"] == []
    assert {"open", "write", "fsync", "rename", "unlink"} <= set(found["calls"])


@pytest.mark.parametrize("fault", ["ENOSPC", "EROFS", "EDQUOT"])
def test_a_failing_call_inside_init_never_raises(bench, library, runs, fault):
    """Whichever call of init fails, it returns a run: one that records what it is given, or one that is off."""
    found = outcome(bench, library, "init", fault, runs)
    assert found["wrong"] == []
    assert {"open", "write", "mkdir"} <= set(found["calls"])


LOOP = """
    import json, os, sys, time
    import stepscope
    from tests.integration.pace import Calls, Heard, let_catch_up
    guard, calls, heard = sys.argv[1], Calls(), Heard()
    run = stepscope.init(project="refused")
    print(run.path, flush=True)
    for step in range(20_000):
        if step == 500:
            let_catch_up(run, 0)  # the watcher is there
            open(guard, "w").close()
        if step >= 2500 and heard.lines and os.path.exists(guard):
            os.unlink(guard)
        if step >= 3000 and len(heard.lines) > 1:
            break
        calls.time(run.log, {"x": step})
        time.sleep(0.001 if step < 3000 else 0.01)
    run.finish()
    print(json.dumps([step, calls.held_up()]))
"""


@pytest.mark.parametrize(("fault", "text"), [("EROFS", "read-only"), ("EIO", "reports an error"), ("EDQUOT", "full")])
def test_a_disk_that_refuses_for_a_while_is_told_and_costs_nothing(bench, library, fault, text):
    """While every call on the run fails, the training runs on and is told once; afterwards every row is there."""
    guard = bench.folder / "guard"
    faults = shim.environment(library, os.environ["STEPSCOPE_DIR"], guard, shim.FAULTS[fault])
    trainer = bench.start(LOOP, guard, environ=faults)
    path = trainer.line()
    assert trainer.wait() == 0
    past = stepscope.open(path)
    until(lambda: past.state == "finished", "the end")
    steps, held_up = json.loads(trainer.out)
    assert past.series("x").value.tolist() == list(range(steps))
    assert past.problems() == []
    assert not held_up
    assert [text in trainer.complaints()[0], "written again" in trainer.complaints()[-1]] == [True, True]
    assert len(trainer.complaints()) == 2
