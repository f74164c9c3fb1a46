"""How a trainer ends, and what the run says of it; the monitor changes neither exit code nor hooks nor output."""

from __future__ import annotations

import os
import signal
import textwrap

import pytest

import stepscope
from tests.integration.processes import PATIENCE, left_behind, until, watchers

BODY = """
    import atexit, os, signal, sys, threading
    import stepscope

    run = stepscope.init(project="ends")
    print(run.path, flush=True)
    run.log({{"x": 1.0}})
    {end}
"""
WAYS = [
    ("run.finish()", 0, "finished", ""),
    ("pass", 0, "finished", ""),
    ("sys.exit(0)", 0, "finished", ""),
    ("raise ValueError('no such batch')", 1, "failed", "ValueError: no such batch"),
    ("os._exit(3)", 3, "failed", "exit code 3"),
    ("os.abort()", -signal.SIGABRT, "killed", "killed by SIGABRT"),
    ("import ctypes; ctypes.string_at(0)", -signal.SIGSEGV, "killed", "killed by SIGSEGV"),
    ("os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM, "killed", "killed by SIGTERM"),
    ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL, "killed", "killed by SIGKILL"),
    (
        "os.kill(os.getpid(), signal.SIGINT); import time; time.sleep(600)",
        -signal.SIGINT,
        "interrupted",
        "Ctrl-C",
    ),
    ("signal.signal(signal.SIGINT, signal.SIG_DFL); signal.raise_signal(2)", -signal.SIGINT, "interrupted", "SIGINT"),
    ("sys.exit(130)", 130, "interrupted", "exit code 130"),
]


def ended(path):
    """Return the run once its end is known."""
    until(lambda: stepscope.open(path).state != "running", "the end of the run")
    return stepscope.open(path)


@pytest.mark.parametrize(("end", "code", "state", "cause"), WAYS, ids=[way[0][:24] for way in WAYS])
def test_each_way_to_end_has_its_state_and_keeps_its_exit_code(bench, end, code, state, cause):
    """The run tells finished, failed and killed apart, and the process ends as it would have without us."""
    trainer = bench.run(BODY.format(end=end))
    past = ended(trainer.out.split()[0])
    assert (trainer.process.returncode, past.state) == (code, state)
    assert cause in past.cause
    assert past.series("x").value.tolist() == [1.0]


@pytest.mark.parametrize("code", [3, "a reason"])
def test_sys_exit_keeps_its_code_and_rows(bench, code):
    """sys.exit with a code or a text ends the run, with the row, and the process with that code."""
    trainer = bench.run(BODY.format(end=f"sys.exit({code!r})"))
    past = ended(trainer.out.split()[0])
    assert trainer.process.returncode == (3 if code == 3 else 1)
    assert (past.state, past.cause) == ("failed", f"exit code {trainer.process.returncode}")
    assert past.series("x").value.tolist() == [1.0]


@pytest.mark.parametrize("end", ["raise KeyboardInterrupt", "os.kill(os.getpid(), signal.SIGTERM)"])
def test_an_end_by_hand_is_no_alarm(bench, end):
    """Ctrl-C, and the SIGTERM that shuts a notebook's kernel down, interrupt a run and alert nobody."""
    trainer = bench.run("import sys; sys.ps1 = 'In : '\n" + textwrap.dedent(BODY.format(end=end)))
    past = ended(trainer.out.split()[0])
    bench.quiet()
    assert past.state == "interrupted"
    assert past.events("alert") == []


NAN = """
    import math, time
    import stepscope
    run = stepscope.init(project="ends", run_id="nan")
    for step in range(100):
        with run.step():
            run.log({"loss": math.nan if step > 50 else 1.0 / (step + 1)})
            time.sleep(0.02)
    run.finish()
    print(run.path)
"""


def test_a_run_that_ended_with_nan_is_not_simply_finished(bench):
    """Its state is finished, what was wrong is its cause, and the alert says that it was so to the end."""
    trainer = bench.run(NAN)
    bench.quiet()
    past = stepscope.open(trainer.out.split()[0])
    assert past.state == "finished"
    assert past.cause.endswith("still so at the end")
    told = past.events("alert")
    assert [event["state"] for event in told if event["rule"] == "not_finite"] == ["firing", "firing"]


def test_ctrl_c_in_a_group_of_ranks_interrupts_the_run(bench):
    """All ranks of a launcher get the SIGINT of the terminal, some a SIGTERM as well: the run is interrupted."""
    trainer = bench.start(GROUP, start_new_session=True)
    path = trainer.line()
    assert sorted(trainer.line() for _ in range(3)) == ["ready"] * 3
    os.killpg(trainer.pid, signal.SIGINT)
    trainer.wait()
    bench.quiet()
    past = ended(path)
    assert past.state == "interrupted"
    assert past.events("alert") == []


GROUP = """
    import os, signal, subprocess, sys, time
    import stepscope
    if len(sys.argv) == 1:
        ranks = []
        for rank in range(3):
            given = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "3", "STEPSCOPE_RUN_ID": "group"}
            ranks.append(subprocess.Popen([sys.executable, __file__, "rank"], env={**os.environ, **given}))
        try:
            for process in ranks:
                process.wait()
        except KeyboardInterrupt:
            time.sleep(0.2)
            for process in ranks:
                process.terminate()
            for process in ranks:
                process.wait()
        sys.exit(1)
    run = stepscope.init(project="ends")
    if run.rank == 0:
        print(run.path, flush=True)
    else:
        time.sleep(2)
    run.log({"x": 1.0})
    print("ready", flush=True)
    try:
        time.sleep(600)
    finally:
        time.sleep(5 if run.rank == 2 else 0)  # rank 2 is slow to unwind, and gets the SIGTERM
"""


def test_the_excepthook_of_the_user_is_still_called(bench):
    """An uncaught exception reaches the user's own excepthook once, with our state recorded beside it."""
    trainer = bench.run("""
        import sys
        import stepscope
        sys.excepthook = lambda kind, value, trace: print("mine:", kind.__name__, value)
        with stepscope.init(project="ends") as run:
            print(run.path)
            raise OSError("gone")
    """)
    lines = trainer.out.splitlines()
    past = ended(lines[0])
    assert lines[1:] == ["mine: OSError gone"]
    assert (trainer.process.returncode, past.state, past.cause) == (1, "failed", "OSError: gone")
    assert "raise OSError" in past.events("exception")[0]["traceback"]


def test_sigterm_goes_to_the_handler_of_the_user_once(bench):
    """A user's handler for preemption runs exactly once and finishes the run."""
    trainer = bench.run("""
        import os, signal, sys
        import stepscope
        def handler(*_):
            print("handled")
            run.log({"last": 1.0})
            run.finish()
            sys.exit(143)
        signal.signal(signal.SIGTERM, handler)
        run = stepscope.init(project="ends")
        print(run.path)
        os.kill(os.getpid(), signal.SIGTERM)
    """)
    past = ended(trainer.out.split()[0])
    assert trainer.out.split()[1:] == ["handled"]
    assert (trainer.process.returncode, past.state, past.names()) == (143, "finished", ["last", *past.names()[1:]])


def test_rows_are_on_disk_soon_after_a_signal(bench):
    """SIGTERM, then SIGKILL: the last row before the first is in the run without a word of the trainer."""
    trainer = bench.start("""
        import signal, time
        import stepscope
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        run = stepscope.init(project="ends")
        print(run.path, flush=True)
        run.log({"x": 7.0})
        print("logged", flush=True)
        time.sleep(600)
    """)
    path = trainer.line()
    assert trainer.line() == "logged"
    trainer.process.terminate()
    past = stepscope.open(path)
    until(past.names, "the row")
    trainer.process.kill()
    assert past.series("x").value.tolist() == [7.0]


def test_the_end_is_bounded_when_the_watcher_is_stopped(bench):
    """finish() gives up waiting for a watcher that does not move; it waits for less than two seconds."""
    trainer = bench.start(
        """
        import sys, time
        import stepscope
        from tests.integration.pace import Naps
        run = stepscope.init(project="ends")
        run.log({"x": 1.0})
        print(run.path, flush=True)
        sys.stdin.readline()
        naps = Naps()
        run.finish()
        print(naps.seconds, flush=True)
    """,
        stdin=-1,
    )
    path = trainer.line()
    watcher = bench.watcher()
    os.kill(watcher, signal.SIGSTOP)
    trainer.process.stdin.write("go\n")
    trainer.process.stdin.flush()
    seconds = float(trainer.line())
    trainer.wait()
    os.kill(watcher, signal.SIGCONT)
    assert seconds < 2.0
    assert ended(path).state == "finished"


def test_a_pipeline_ends_with_the_trainer(bench):
    """`train.py | cat` ends when the trainer does: the watcher holds no stdout of it."""
    trainer = bench.start(BODY.format(end="sys.stdin.readline(); print('end', flush=True)"), stdin=-1)
    trainer.line()
    watcher = bench.watcher()
    os.kill(watcher, signal.SIGSTOP)  # it does not go away before the pipe is at its end
    rest, _ = trainer.process.communicate("go\n", timeout=PATIENCE)
    assert rest == "end\n"
    assert watchers(*bench.roots) == [watcher]
    os.kill(watcher, signal.SIGCONT)


def test_nothing_is_left_behind_after_a_normal_end(bench):
    """No process, no file in shared memory and no lock remains when a run has ended and is sealed."""
    trainer = bench.run(BODY.format(end="run.finish()"))
    path = trainer.out.split()[0]
    bench.quiet()
    assert left_behind() == []
    past = stepscope.open(path)
    assert past.state == "finished"
    assert list((past.path / "tail").iterdir()) == []
    assert watchers(path) == []
    assert trainer.err == ""


def test_a_keyboard_interrupt_reaches_the_trainer(bench):
    """Ctrl-C in the terminal's process group stops the trainer, not the watcher, which records the end."""
    trainer = bench.start(
        BODY.format(
            end="""
    import time
    try:
        print("ready", flush=True)
        while True:
            run.log({"x": 1.0})
    except KeyboardInterrupt:
        print("interrupted", flush=True)
        run.log({"after": 2.0})
        run.finish()
    """
        ),
        start_new_session=True,
    )
    path = trainer.line()
    assert trainer.line() == "ready"
    bench.watcher()
    os.killpg(trainer.pid, signal.SIGINT)
    assert trainer.wait() == 0
    assert trainer.out.split() == ["interrupted"]
    past = ended(path)
    assert past.state == "finished"
    assert past.series("after").value.tolist() == [2.0]


def test_the_exit_of_the_interpreter_is_bounded_without_a_watcher(bench):
    """With the watcher killed, leaving without finish() waits for no more than a moment."""
    body = BODY.format(
        end="""
    from tests.integration.pace import Naps
    sys.stdin.readline()
    naps = Naps()
    atexit.register(lambda: None)
    run.log({"x": 2.0})
    atexit._run_exitfuncs()
    print(naps.seconds, flush=True)
    """
    )
    trainer = bench.start(body, stdin=-1)
    path = trainer.line()
    os.kill(bench.watcher(), signal.SIGKILL)
    trainer.process.stdin.write("go\n")
    trainer.process.stdin.flush()
    assert float(trainer.line()) < 2.0
    assert trainer.wait() == 0
    assert ended(path).series("x").value.tolist() == [1.0, 2.0]


def test_an_interrupted_finish_is_made_up_for_at_the_exit(bench):
    """Ctrl-C inside finish() passes through, and the run still ends as what it was: not as killed."""
    trainer = bench.run("""
        import stepscope
        run = stepscope.init(project="ends")
        print(run.path)
        run.log({"x": 1.0})
        retire = run._retire
        def interrupted(state):
            run._retire = retire
            raise KeyboardInterrupt
        run._retire = interrupted
        try:
            run.finish()
        except KeyboardInterrupt:
            print("interrupted")
    """)
    assert trainer.out.split()[1:] == ["interrupted"]
    assert ended(trainer.out.split()[0]).state == "finished"
