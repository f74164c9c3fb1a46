"""Trainings that stand still: told with their stacks, in time, and only if they really do."""

from __future__ import annotations

import os
import signal
import subprocess

import pytest

import stepscope
from tests.integration.processes import left_behind, until

TRAINER = """
    import ctypes, os, signal, sys, threading, time
    import stepscope

    run = stepscope.init(project="hangs", {settings})
    print(run.path, flush=True)

    def steps(count=3, seconds=1.0):
        for _ in range(count):
            with run.step():
                time.sleep(seconds)

    def deadlock():
        lock = threading.Lock()
        lock.acquire()
        lock.acquire()

    def holding_the_lock_of_the_interpreter():
        while True:  # a signal wakes it, and it sleeps again
            ctypes.PyDLL(None).sleep(600)

    def un_annotated_evaluation(until_there_is):
        while not os.path.exists(until_there_is):
            sum(range(10000))

    steps()
    print("standing", flush=True)
    {end}
"""


class Standing:
    """A training that has stopped making steps."""

    def __init__(self, bench, name, end, settings="", **options):
        code = TRAINER.format(end=end, settings=settings)
        self.trainer = bench.start(code, name=f"{name}.py", stdin=subprocess.PIPE, **options)
        self.path = self.trainer.line()
        assert self.trainer.line() == "standing"

    def event(self, kind):
        """Return the first event of a kind, which must come."""
        return until(lambda: stepscope.open(self.path).events(kind), f"{kind} in {self.path}", every=0.1)[0]

    def kinds(self):
        return [event["kind"] for event in stepscope.open(self.path).events() if event["kind"] != "sampler_slowed"]


def functions(event):
    """Return the functions in the stacks of an event."""
    return [frame["function"] for thread in event["stacks"] for frame in thread["frames"]]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_trainings_that_stand_still_are_told_with_their_stacks(bench):
    """Side by side: a deadlock, C code that keeps the interpreter, a stopped process, and two that are just fine."""
    locked = Standing(bench, "locked", "deadlock()")
    held = Standing(bench, "held", "holding_the_lock_of_the_interpreter()")
    stopped = Standing(bench, "stopped", "time.sleep(600)")
    os.kill(stopped.trainer.pid, signal.SIGSTOP)
    working = Standing(bench, "working", "un_annotated_evaluation('evaluated'); steps(1)")
    asking = Standing(bench, "asking", "pass", interpreter=("-i",))
    quiet = Standing(bench, "quiet", "time.sleep(600)", "watcher={'stacks': False}")

    stalled = locked.event("stalled")
    assert functions(stalled).count("deadlock") == 1
    assert stalled["stacks_by"] == "faulthandler"
    assert stalled["seconds"] >= stalled["threshold_seconds"] >= 10
    assert [row["step"] for row in stalled["rows"]] == [0, 1, 2]
    assert "holding_the_lock_of_the_interpreter" in functions(held.event("stalled"))
    assert stopped.event("stalled")["no_stacks"] == "the process is stopped"
    assert quiet.event("stalled")["no_stacks"] == "stacks are switched off"
    for each in (locked, held, stopped):
        assert "the same" in each.event("hung")["why"]
    working.event("stalled")
    (bench.folder / "evaluated").touch()  # by now it has stood as long as those that hang

    os.kill(stopped.trainer.pid, signal.SIGCONT)
    assert working.event("recovered")["was"] == "stalled"
    assert working.kinds().count("hung") == 0
    assert asking.kinds() in ([], ["stalled", "recovered"])  # the second where it took seconds to say that it waits
    for each in (locked, held, stopped, working, asking, quiet):
        each.trainer.process.kill()
        each.trainer.wait()
    bench.quiet()
    assert left_behind() == []


def test_the_handler_of_the_stacks_is_the_only_one(bench):
    """One signal is caught that was not before; with stacks switched off none; after finish() none is left over."""
    trainer = bench.run("""
        import signal, sys
        import stepscope
        from stepscope.session.stacks import SIGNAL

        def caught():
            with open("/proc/self/status") as file:
                line = next(line for line in file if line.startswith("SigCgt"))
            return {number for number in range(1, 65) if int(line.split()[1], 16) >> (number - 1) & 1}

        before = caught()
        run = stepscope.init(project="hangs")
        assert caught() - before == {SIGNAL}, caught() - before
        run.finish()
        assert caught() == before
        run = stepscope.init(project="hangs", watcher={"stacks": False})
        assert caught() == before
        run.finish()
    """)
    assert (trainer.process.returncode, trainer.err) == (0, "")
    bench.quiet()
    assert left_behind() == []
