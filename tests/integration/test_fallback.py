"""Where no process can be started, a thread of the trainer writes the run, and says so."""

from __future__ import annotations

import os

import pytest

import stepscope
from tests.faults import spaces
from tests.integration.processes import until, watchers

CODE = """
    import sys
    {before}
    import stepscope
    run = stepscope.init(project="fallback")
    for step in range(20_000):
        run.log({{"x": step, "y": -step}})
    run.event("note", text="kept")
    print(run.path, flush=True)
    {after}
"""


@pytest.mark.parametrize("after", ["run.finish()", "pass", "raise ValueError('no')"])
def test_without_an_interpreter_to_start_a_thread_writes_the_run(bench, after):
    """Every row and the end are in the run, one line says who writes it, and the process ends as it would."""
    trainer = bench.run(CODE.format(before="sys.executable = ''", after=after))
    path = trainer.out.split()[0]
    past = stepscope.open(path)
    until(lambda: stepscope.open(path).state != "running", "the end")
    assert past.series("x").value.tolist() == list(range(20_000))
    assert past.series("y").value.tolist() == [-step for step in range(20_000)]
    assert [event["text"] for event in past.events("note")] == ["kept"]
    assert past.problems() == []
    assert past.state == ("failed" if "raise" in after else "finished")
    assert trainer.process.returncode == ("raise" in after)
    assert len(trainer.complaints()) == 1
    assert "thread" in trainer.err
    assert watchers(path) == []


def test_a_kill_of_the_trainer_and_its_thread_loses_nothing(bench):
    """With trainer and draining thread killed together, the next reader salvages what was not drained."""
    after = "import os; os.kill(os.getpid(), 9)"
    trainer = bench.run(CODE.format(before="sys.executable = ''", after=after))
    path = trainer.out.split()[0]
    until(lambda: stepscope.open(path).state == "killed", "the end")  # a reader leaves a young ring to a late watcher
    assert stepscope.open(path).series("x").value.tolist() == list(range(20_000))


def test_where_processes_are_forbidden_the_run_is_still_recorded(bench, monkeypatch):
    """Under a limit of no further process and no further thread, rows wait in the ring and the next reader has them."""
    before = """
    import resource, os
    import stepscope.session.opening, stepscope.session.watching
    stepscope.init  # loads what that user may not read
    os.setgid(65534); os.setuid(65534)
    resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
    """
    if os.getuid() != 0:
        pytest.skip("needs root, to become a user without processes")
    for folder in (bench.folder, *bench.folder.parents):
        if str(folder).startswith("/tmp/"):
            folder.chmod(0o755)
    monkeypatch.delenv("COVERAGE_PROCESS_CONFIG", raising=False)  # that user may not write our coverage
    shared = bench.folder / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    code = CODE.format(before=before, after="run.finish()").replace(
        'project="fallback"', f'project="fallback", dir={str(shared)!r}'
    )
    trainer = bench.run(
        code, environ={"STEPSCOPE_RUNTIME_DIR": str(shared / "runtime"), "PYTHONDONTWRITEBYTECODE": "1"}
    )
    assert trainer.process.returncode == 0, trainer.err
    assert len(trainer.complaints()) >= 1
    assert "Traceback" not in trainer.err


def test_a_full_disk_at_the_end_keeps_the_ring_for_the_next_reader(bench):
    """Rows that the thread could not write stay in shared memory, and are in the run once there is space."""
    disk = bench.folder / "disk"
    disk.mkdir()
    trainer = bench.start(
        """
        import json, subprocess, sys
        sys.executable = ""
        import stepscope
        def mount(*options):
            subprocess.run(["mount", "-t", "tmpfs", "-o", ",".join(options), "tmpfs", sys.argv[1]], check=True)
        mount("size=256k")
        run = stepscope.init(project="fallback", dir=sys.argv[1])
        for step in range(20_000):
            run.log({"x": step, "y": -step})
        run.finish()
        mount("remount", "size=64m")
        past = stepscope.open(run.path)
        print(json.dumps([past.series("x").value.tolist() == list(range(20_000)), past.state, past.problems()]))
    """,
        disk,
        prefix=spaces.unshared(spaces.MOUNTS),
    )
    assert trainer.facts() == [True, "finished", []]
    assert [line for line in trainer.complaints() if "disk is full" in line]
