"""A good guest in the trainer's process: no handlers, no children, few files, whatever modules the user has."""

from __future__ import annotations

import contextlib
import json
import os

import pytest

import stepscope
from tests.integration.processes import until, watchers


def test_only_the_users_own_children_are_waited_for(bench):
    """An os.wait() loop in the trainer meets its own children and nobody else."""
    trainer = bench.start("""
        import json, os
        import stepscope
        run = stepscope.init(project="guest")
        mine, met = set(), set()
        for number in range(20):
            pid = os.fork()
            if not pid:
                os._exit(0)
            mine.add(pid)
            run.log({"x": number})
        while True:
            try:
                met.add(os.wait()[0])
            except ChildProcessError:
                break
        run.finish()
        print(json.dumps(met == mine))
    """)
    assert trainer.facts() is True


def test_init_works_where_children_are_reaped_by_the_system(bench):
    """With SIGCHLD ignored the watcher starts all the same, and the setting stays."""
    trainer = bench.start("""
        import json, signal
        import stepscope
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        with stepscope.init(project="guest") as run:
            run.log({"x": 1.0})
        print(json.dumps([str(run.path), signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN]))
    """)
    path, same = trainer.facts()
    assert same
    assert trainer.err == ""
    until(lambda: stepscope.open(path).state == "finished", "the end")


SHADOWED = """
    import stepscope
    with stepscope.init(project="guest") as run:
        run.log({"x": 1.0})
    print(run.path)
"""


@pytest.mark.parametrize("name", ["random", "json", "stepscope"])
@pytest.mark.parametrize("place", ["in the working directory", "beside the script"])
def test_a_module_of_the_user_does_not_shadow_ours(bench, name, place):
    """A file with the name of a module that watcher or sealing needs breaks neither, wherever the user has it."""
    if place == "beside the script" and name != "random":
        pytest.skip("there it is the trainer's own import that meets it")
    folder = bench.folder / "work"
    folder.mkdir()
    (folder / f"{name}.py").write_text("raise RuntimeError('the wrong module')\n", encoding="utf-8")
    script = "work/train.py" if place == "beside the script" else "train.py"
    trainer = bench.run(SHADOWED, cwd=folder, name=script)
    path = trainer.out.strip()
    bench.quiet()
    past = stepscope.open(path)
    assert (past.state, trainer.err) == ("finished", "")
    log = past.path / "watcher.log"
    assert not log.exists(), log.read_text()
    assert [unit.name for unit in (past.path / "metrics").glob("*.parquet")]


MANNERS = """
    import json, os, signal, sys, threading
    import stepscope

    def handlers():
        ours = {signal.SIGRTMIN + 9}  # shows the watcher where this process stands
        return [str(signal.getsignal(number)) for number in sorted(signal.valid_signals() - ours)]

    def files():
        return len(os.listdir("/proc/self/fd"))

    def hooks():
        return [str(hook) for hook in (sys.excepthook, sys.unraisablehook, threading.excepthook, sys.breakpointhook)]

    before = handlers(), hooks(), os.getcwd(), os.umask(0o022), dict(os.environ), signal.set_wakeup_fd(-1)
    open_before, threads = files(), threading.active_count()
    run = stepscope.init(project="guest")
    for step in range(1000):
        with run.step(samples=1), run.phase("forward"):
            run.log({"x": step})
    opened = files() - open_before
    started = threading.active_count() - threads
    after = handlers(), hooks(), os.getcwd(), os.umask(0o022), dict(os.environ), signal.set_wakeup_fd(-1)
    inheritable = [fd for fd in range(3, 64) if os.path.exists(f"/proc/self/fd/{fd}") and os.get_inheritable(fd)]
    run.finish()
    print(json.dumps([before == after, opened, started, inheritable, files() - open_before]))
"""


def test_the_trainers_process_is_left_as_it_was(bench):
    """But for the handler for stacks no signal handler, hook, thread, inheritable file or environment changes."""
    same, opened, threads, inheritable, left = bench.start(MANNERS).facts()
    assert same
    assert 0 < opened <= 8
    assert (threads, inheritable, left) == (0, [], 0)


def test_many_runs_one_after_another_leave_no_file_open(bench):
    """A dozen runs in one process end with as many open files as it began with."""
    trainer = bench.start("""
        import json, os
        import stepscope
        def files():
            return len(os.listdir("/proc/self/fd"))
        def once():
            with stepscope.init(project="guest", recorder__ring_bytes=256 << 10) as run:
                run.log({"x": 1.0})
        once()
        before = files()
        for number in range(12):
            once()
        print(json.dumps(files() - before))
    """)
    assert trainer.facts() == 0


@pytest.mark.parametrize("limit", [20, 8, 6, 4])
def test_few_files_may_be_open(bench, limit):
    """Under `ulimit -n` the run is recorded, or off with a line; the training runs either way."""
    trainer = bench.run(
        """
        import json, resource, sys
        import stepscope
        import stepscope.session.opening
        limit = int(sys.argv[1])
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        run = stepscope.init(project="guest")
        for step in range(1000):
            with run.step():
                run.log({"x": step})
        run.finish()
        print(json.dumps([run.id, str(run.path)]), flush=True)
    """,
        limit,
    )
    assert trainer.process.returncode == 0, trainer.err
    run, path = json.loads(trainer.out)
    if limit == 20:
        until(lambda: stepscope.open(path).state == "finished", "the end")
        assert len(stepscope.open(path).series("x")) == 1000
    else:
        assert bool(run) or len(trainer.complaints()) >= 1
    assert "Traceback" not in trainer.err


def test_the_watcher_holds_none_of_the_trainers_files(bench):
    """The watcher stdin stands for the trainer, stdout and stderr lead nowhere, and it holds none of its files."""
    trainer = bench.start("""
        import sys, time
        import stepscope
        held = open(__file__)
        import os
        os.set_inheritable(held.fileno(), True)
        run = stepscope.init(project="guest")
        print(run.path, flush=True)
        time.sleep(600)
    """)
    path = trainer.line()
    pid = bench.watcher()
    until(lambda: os.path.exists(f"/proc/{pid}/fd/3"), "the watcher's lock")

    def files():
        with contextlib.suppress(FileNotFoundError):  # it opens and closes others meanwhile
            return [os.readlink(f"/proc/{pid}/fd/{name}") for name in sorted(os.listdir(f"/proc/{pid}/fd"), key=int)]

    links = until(files, "its files")
    assert [os.readlink(f"/proc/{pid}/fd/{name}") for name in (0, 1, 2)] == [links[0], "/dev/null", "/dev/null"]
    assert "pidfd" in links[0]
    assert not [link for link in links if "pipe" in link or link.endswith("train.py")]
    assert os.readlink(f"/proc/{pid}/cwd") == "/"
    assert os.getsid(pid) not in {os.getsid(0), os.getsid(trainer.process.pid)}
    assert watchers(path) == [pid]
