"""Rows that come faster than anybody can write them: none is lost while a watcher lives, and else it is told."""

from __future__ import annotations

import os
import signal
import time

import numpy as np
import pytest

import stepscope
from stepscope.core.places import find_places
from tests.faults import spaces
from tests.integration.processes import the_run, until

BURST = """
    import os, signal, sys
    import stepscope
    rows, width, end = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    run = stepscope.init(project="burst")
    names = [f"x{at}" for at in range(width)]
    for row in range(rows):
        run.log(dict.fromkeys(names, float(row)))
    if end == "finish":
        run.finish()
    elif end == "exit":
        os._exit(0)
    elif end == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
"""


def check(past, name, rows):
    """Every row is there, once and in order."""
    found = past.series(name)
    assert np.array_equal(found.step, np.arange(rows))
    assert np.array_equal(found.value, np.arange(rows, dtype=float))


@pytest.mark.parametrize("end", ["finish", "return", "exit", "kill"])
def test_a_burst_right_after_init_is_kept(bench, end):
    """Whether the program ends well, at once or by a kill, all rows that log returned for are in the run."""
    trainer = bench.start(BURST, 300_000, 3, end)
    assert trainer.wait() == (-signal.SIGKILL if end == "kill" else 0)
    past = the_run()
    check(past, "x2", 300_000)
    assert trainer.complaints() == []
    until(
        lambda: not list(find_places().disk.rglob("*.spill")) and not find_places().rings(), "an empty runtime folder"
    )


def test_only_python(bench):
    """The hot path in Python keeps a burst as the twin in C does."""
    assert bench.start(BURST, 100_000, 10, "finish", environ={"STEPSCOPE_PURE": "1"}).wait() == 0
    check(the_run(), "x9", 100_000)


READ_BACK = """
    import sys
    import stepscope
    for rows in (1000, 200_000):
        run = stepscope.init(project="burst")
        for row in range(rows):
            run.log({"x": float(row)})
        run.finish()
        print(len(stepscope.open(run.path).series("x")), flush=True)
"""


def test_a_run_that_has_just_ended_is_read_whole(bench):
    """`open` right after `finish` waits for the rows that are still on their way."""
    trainer = bench.start(READ_BACK)
    assert trainer.wait() == 0
    assert trainer.out.split() == ["1000", "200000"]


SMALL = """
    import json, subprocess, sys
    import stepscope
    from stepscope.core.places import find_places
    from tests.integration.processes import until

    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", "/dev/shm"], check=True)
    run = stepscope.init(project="small")
    for row in range(300_000):
        run.log({"x": float(row)})
    places = find_places()
    on_disk, in_memory = (len(list(root.rglob("*.spill"))) for root in (places.disk, places.shared))
    run.finish()
    past = stepscope.open(run.path)
    until(lambda: past.state == "finished", "the end")
    print(json.dumps([on_disk, in_memory, len(past.series("x"))]))
"""


def test_small_shared_memory_is_not_filled_by_a_burst(bench):
    """Where shared memory is small a burst spills to local disk, and all rows are kept."""
    trainer = bench.start(SMALL, prefix=spaces.unshared(spaces.MOUNTS))
    on_disk, in_memory, rows = trainer.facts()
    assert (on_disk <= 1, in_memory, rows) == (True, 0, 300_000)


THREADS = """
    import sys, threading
    import stepscope
    run = stepscope.init(project="threads")

    def work(number):
        for row in range(40_000):
            run.log({f"x{number}": float(row)}, step=row)

    workers = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    run.finish()
"""


def test_threads_that_burst(bench):
    """Several threads that log as fast as they can lose nothing."""
    trainer = bench.start(THREADS)
    assert trainer.wait() == 0
    past = the_run()
    for number in range(4):
        check(past, f"x{number}", 40_000)
    assert trainer.complaints() == []


RANKS = """
    import os, sys
    import stepscope
    os.environ.update(RANK=sys.argv[1], WORLD_SIZE="3", STEPSCOPE_RUN_ID="ranks")
    run = stepscope.init(project="ranks")
    for row in run.data(range(30_000)):
        with run.step(samples=4), run.phase("forward"):
            run.log({"x": float(row)})
    run.finish()
"""


def test_ranks_that_burst(bench):
    """Steps, phases and rows of several ranks at once are all kept."""
    trainers = [bench.start(RANKS, rank) for rank in range(3)]
    assert [trainer.wait() for trainer in trainers] == [0, 0, 0]
    past = the_run()
    for rank in range(3):
        for name in ("x", "step_seconds", "phase/forward", "samples"):
            assert len(past.series(name, rank=rank)) == 30_000, (rank, name)


LOST = """
    import sys, time
    import stepscope, stepscope.session.watching as watching
    watching.STALE_SECONDS = 600.0  # a stopped watcher stays the only one
    run = stepscope.init(project="lost", recorder__ring_bytes=256 << 10, recorder__spill_bytes=1 << 20)
    print(run.path, flush=True)
    sys.stdin.readline()
    longest = 0.0
    for row in range(100_000):
        start = time.perf_counter()
        run.log({"x": float(row)})
        longest = max(longest, time.perf_counter() - start)
    print(longest, time.monotonic(), flush=True)
    sys.stdin.readline()
    run.finish()
"""


def test_what_is_lost_is_told(bench):
    """Rows that a stopped watcher could not take are told within five seconds, and at the end with their number."""
    trainer = bench.start(LOST, stdin=-1)
    path = trainer.line()
    watcher = bench.watcher()
    bench.heard(path)
    os.kill(watcher, signal.SIGSTOP)
    trainer.process.stdin.write("go\n")
    trainer.process.stdin.flush()
    _, ended = map(float, trainer.line().split())
    first = trainer.process.stderr.readline()
    assert time.monotonic() - ended < 5.0
    assert "cannot keep every row: so far " in first
    os.kill(watcher, signal.SIGCONT)
    trainer.process.stdin.write("go\n")
    assert trainer.wait() == 0
    past = the_run()
    found = past.series("x").value
    lost = 100_000 - len(found)
    assert lost > 0
    assert np.array_equal(found, np.arange(lost, 100_000, dtype=float))
    assert f"cannot keep every row: {lost} lost, " in trainer.err.splitlines()[-1]


KILLED = """
    import os, sys, time
    import stepscope, stepscope.session.watching as watching
    from tests.integration.pace import Heard
    watching.FIRST_PAUSE = 1.0
    heard, row, returns = Heard(), 0, 0
    run = stepscope.init(project="killed")
    print(run.path, flush=True)
    while not os.path.exists(sys.argv[1]):
        for _ in range(20):
            run.log({"x": float(row)}, step=row)
            row += 1
        if sum("is back after" in line for line in heard.lines) > returns:
            returns += 1
            print("back", flush=True)
        time.sleep(0.01)
    print(row, flush=True)
    run.finish()
"""


def restarts(path):
    return [event for event in stepscope.open(path).events() if event["kind"] == "watcher_restarted"]


def test_a_watcher_that_is_killed_again_and_again(bench):
    """It comes back each time; the gaps are told on stderr and in the run, and no row is lost."""
    stop = bench.folder / "stop"
    trainer = bench.start(KILLED, stop)
    path = trainer.line()
    bench.heard(path)
    for kills in range(1, 5):
        os.kill(bench.watcher(), signal.SIGKILL)
        until(lambda kills=kills: len(restarts(path)) == kills, f"the watcher after {kills} kills")
        assert trainer.line() == "back"  # the trainer looks after its watcher once a second
    until(lambda: stepscope.open(path).state == "running", "a heartbeat")
    stop.touch()
    assert trainer.wait() == 0
    rows = int(trainer.out.split()[-1])
    check(the_run(), "x", rows)
    told = [line for line in trainer.complaints() if "is back after" in line]
    assert len(told) == 4
    assert all("no row was lost" in line for line in told)
    assert all(event["lost_rows"] == 0 and event["seconds"] > 0 for event in restarts(path))
