"""A disk that is full, read-only, forbidden or gone: the training goes on, losses are counted, the rest is right."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest

import stepscope
from stepscope.store.layout import RunFolder
from stepscope.store.states import read_nodes
from tests.faults import spaces
from tests.integration.processes import until, watchers

FULL = """
    import json, os, subprocess, sys, time
    import stepscope
    from stepscope.store.layout import RunFolder
    from stepscope.store.states import read_nodes
    from tests.integration.pace import Calls, Heard, let_catch_up
    from tests.integration.processes import until

    disk, steps, ends_first = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "ends first"

    def mount(*options):
        subprocess.run(["mount", "-t", "tmpfs", "-o", ",".join(options), "tmpfs", disk], check=True)

    mount("size=2m")
    names = [f"metric{number}" for number in range(20)]
    errors, calls, heard = 0, Calls(), Heard()
    run = stepscope.init(project="full", dir=disk)
    for step in range(steps):
        row = {name: step + number for number, name in enumerate(names)}
        try:
            calls.time(run.log, row)
        except Exception:
            errors += 1
        if step % 50 == 0:
            time.sleep(0.003)
        if step % 1000 == 0 and step <= 5000:
            let_catch_up(run, 0)  # so far there is space
    others = 0

    def told(number):
        global others
        run.log({"other": 1.0})
        others += 1
        return len(heard.lines) >= number

    until(lambda: told(1), "a word about the disk")
    if ends_first:
        run.finish()
    mount("remount", "size=64m")
    if not ends_first:
        until(lambda: told(2), "a word about its end")
        run.finish()
    past = stepscope.open(run.path)
    until(lambda: past.state == "finished", "the end")
    series = [past.series(name) for name in names]
    found = series[0].step.tolist()
    rank = read_nodes(RunFolder(run.path))[0][0].ranks[0]
    newest = next((n for n in range(1, len(found)) if found[-n] != steps - n), len(found) + 1) - 1
    oldest = next((n for n in range(len(found)) if found[n] != n), len(found))
    exact = all(s.step.tolist() == found and s.value.tolist() == [i + n for i in found] for n, s in enumerate(series))
    print(json.dumps(dict(errors=errors, held_up=calls.held_up(), others=others, found=len(found), lost=rank.lost,
        rows=rank.rows, refused=rank.refused, newest=newest, oldest=oldest, exact=exact, problems=past.problems())))
"""


@pytest.mark.parametrize("when", ["ends first", "goes on"])
@pytest.mark.parametrize("steps", [20_000, 60_000])
def test_a_full_disk_costs_only_counted_rows(bench, steps, when):
    """On 2 MiB, every row up to full and the newest 10 000 come back with the space, and the rest is counted."""
    (bench.folder / "disk").mkdir()
    trainer = bench.start(FULL, bench.folder / "disk", steps, when, prefix=spaces.unshared(spaces.MOUNTS))
    facts = trainer.facts()
    assert (facts["errors"], facts["refused"], facts["exact"], facts["problems"]) == (0, 0, True, [])
    assert not facts["held_up"]
    assert facts["found"] + facts["lost"] == steps
    assert facts["rows"] == facts["found"] + facts["others"]
    assert facts["newest"] >= 10_000
    assert facts["oldest"] >= (20_000 if steps == 20_000 else 5_000)
    full = [line for line in trainer.complaints() if "disk is full" in line]
    assert len(full) == 1
    assert len(trainer.complaints()) == (1 if when == "ends first" else 2)


READ_ONLY = """
    import subprocess, sys
    import stepscope

    subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", sys.argv[1]], check=True)
    with stepscope.init(project="fixed", dir=sys.argv[1]) as run:
        for step in range(300):
            run.log({"x": step})
    print("end")
"""


def test_a_read_only_disk_at_the_start_turns_recording_off_with_one_line(bench):
    """EROFS at init is told once, with the path, and every call is a no-op."""
    disk = bench.folder / "disk"
    disk.mkdir()
    trainer = bench.run(READ_ONLY, disk, prefix=spaces.unshared(spaces.MOUNTS))
    assert (trainer.process.returncode, trainer.out) == (0, "end\n")
    assert len(trainer.complaints()) == 1
    assert "Read-only file system" in trainer.err
    assert str(disk) in trainer.err


NOBODY = """
    import os, sys
    import stepscope
    stepscope.init(project="warm", recorder__memory_map=False).finish()  # nobody may not be able to read the library
    os.setgid(65534)
    os.setuid(65534)
    run = stepscope.init(project="forbidden", dir=sys.argv[1])
    with run:
        for step in range(10):
            with run.step(samples=1):
                run.log({"x": step})
    print(repr(str(run.id)))
"""


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to become somebody else")
def test_a_folder_of_somebody_else_turns_recording_off_with_one_line(bench):
    """Without the right to write, init says so once, names the path, and every call is a no-op."""
    for folder in bench.folder.parents:
        if folder.stat().st_uid == 0 and str(folder).startswith("/tmp/"):
            folder.chmod(0o755)
    bench.folder.chmod(0o755)
    other = bench.folder / "theirs"
    other.mkdir(mode=0o755)
    trainer = bench.run(NOBODY, other, environ={"STEPSCOPE_RUNTIME_DIR": "", "HOME": "/nonexistent"})
    assert trainer.process.returncode == 0, trainer.err
    assert trainer.out.split() == ["''"]
    assert len(trainer.complaints()) == 1
    assert "Permission denied" in trainer.err
    assert str(other) in trainer.err
    assert list(other.iterdir()) == []


LIMITED = """
    import json, resource, sys
    import stepscope
    from tests.integration.pace import Calls, let_catch_up
    from tests.integration.processes import until

    limit = int(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    calls = Calls()
    run = stepscope.init(project="limited", store__seal_bytes=64 << 20)
    for step in range(40_000):
        calls.time(run.log, {f"metric{number}": step for number in range(20)})
        if step % 50 == 0:
            let_catch_up(run)
    run.finish()
    past = stepscope.open(run.path)
    until(lambda: past.state == "finished", "the end")
    print(json.dumps([past.series("metric7").value.tolist() == list(range(40_000)), past.problems(), calls.held_up()]))
"""


def test_a_limit_on_the_size_of_files_costs_nothing(bench):
    """Under `ulimit -f` the tail goes on in a new file: every row is there and the training does not notice."""
    trainer = bench.start(LIMITED, 5 << 20)
    whole, problems, held_up = trainer.facts()
    assert (whole, problems, held_up) == (True, [], False)


def test_a_limit_too_small_for_a_ring_turns_recording_off(bench):
    """Where not even the ring may be made, one line says so and the loop runs on."""
    trainer = bench.run("""
        import resource
        import stepscope
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
        with stepscope.init(project="limited") as run:
            for step in range(100):
                run.log({"x": step})
        print("end")
    """)
    assert (trainer.process.returncode, trainer.out) == (0, "end\n")
    assert len(trainer.complaints()) == 1
    assert trainer.err.count("\n") == 1


LOOP = """
    import sys, time
    import stepscope
    from tests.integration.pace import Calls, Heard
    from tests.integration.processes import until
    calls, heard, step = Calls(), Heard(), 0
    run = stepscope.init(project="moved", run_id="one")
    print(run.path, flush=True)

    def row():
        global step
        calls.time(run.log, {"x": step})
        step += 1

    for _ in range(int(sys.argv[1])):
        row()
    print("ready", flush=True)
    sys.stdin.readline()
    until(lambda: row() or heard.lines, "a word about the folder", every=0.001)
    end = time.monotonic() + 2.5  # long enough to be told once more, which nobody shall be
    while time.monotonic() < end:
        row()
        time.sleep(0.001)
    run.finish()
    print(calls.held_up())
"""


def start_loop(bench):
    """Return a trainer that waits with rows on disk, and its run's folder."""
    trainer = bench.start(LOOP, 300, stdin=subprocess.PIPE)
    path = trainer.line()
    assert trainer.line() == "ready"
    past = stepscope.open(path)
    until(lambda: "x" in past.names() and len(past.series("x")) == 300, "the rows on disk")
    return trainer, past.path


def go_on(trainer):
    """Let the trainer run on to its end; say whether calls were held up."""
    trainer.process.stdin.write("go\n")
    trainer.process.stdin.flush()
    assert trainer.wait() == 0
    return trainer.out.split()[-1] == "True"


def test_a_folder_removed_under_the_run_is_told_once(bench):
    """rm -rf midway: one line, no exception, no folder made anew, and nothing left behind."""
    trainer, path = start_loop(bench)
    shutil.rmtree(path)
    held_up = go_on(trainer)
    bench.quiet()
    stepscope.runs()
    assert [line for line in trainer.complaints() if "its folder was removed" in line] == trainer.complaints()
    assert len(trainer.complaints()) == 1
    assert not held_up
    assert not path.exists()
    assert not watchers(path)


def test_a_folder_renamed_under_the_run_keeps_what_it_has(bench):
    """mv midway: what was written reads well under the new name; nothing is written under the old one."""
    trainer, path = start_loop(bench)
    there = path.with_name("two")
    path.rename(there)
    go_on(trainer)
    bench.quiet()
    assert len(trainer.complaints()) == 1
    assert not path.exists()
    past = stepscope.open(there)
    found = past.series("x").value.tolist()
    assert found == list(range(len(found)))
    assert len(found) >= 300
    assert past.problems() == []


def test_rows_of_a_removed_run_never_enter_its_successor(bench):
    """A folder removed and made anew by another trainer holds that trainer's rows alone."""
    trainer, path = start_loop(bench)
    shutil.rmtree(path)
    other = bench.run(
        """
        import stepscope
        with stepscope.init(project="moved", run_id="one") as run:
            for step in range(50):
                run.log({"y": step})
    """,
        name="other.py",
    )
    go_on(trainer)
    bench.quiet()
    past = stepscope.open(path)
    assert other.process.returncode == 0
    assert past.series("y").value.tolist() == list(range(50))
    assert "x" not in past.names()
    assert read_nodes(RunFolder(path))[0]
