"""Children of the trainer: forked ones are inert, those that call init have a run of their own, and nobody hangs."""

from __future__ import annotations

import json

import pytest

import stepscope
from stepscope.store.layout import RunFolder
from stepscope.store.states import read_nodes
from tests.integration.processes import until


def finished(path):
    """Return the run once it has ended well."""
    until(lambda: stepscope.open(path).state != "running", "the end of the run")
    past = stepscope.open(path)
    assert (past.state, past.problems()) == ("finished", [])
    return past


FORKS = """
    import json, os, sys, threading, time
    import stepscope

    run = stepscope.init(project="forks")
    ends, logged, forks = threading.Event(), [0, 0, 0], int(sys.argv[1])

    def write(number):
        while not ends.is_set():
            run.log({f"thread{number}": logged[number]})
            logged[number] += 1
            if logged[number] > 2_000_000:  # forks are slow under coverage: a tight loop would fill the disk
                time.sleep(0.001)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    hung = wrong = 0
    for fork in range(forks):
        pid = os.fork()
        if not pid:
            for child in range(3):
                with run.step(samples=1), run.phase(f"child{child}"):
                    run.log({f"child{child}": 1.0, "thread0": -1.0})
            run.event("child")
            run.log({"text": "from a child"})
            run.finish()
            os._exit(7)
        end = time.monotonic() + 60
        while True:
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                wrong += os.waitstatus_to_exitcode(status) != 7
                break
            if time.monotonic() > end:
                hung += 1
                os.kill(pid, 9)
                os.waitpid(pid, 0)
                break
            time.sleep(0.0002)
        if hung:
            break
    ends.set()
    for thread in threads:
        thread.join()
    refused = run._words[7]
    run.finish()
    print(json.dumps([str(run.path), hung, wrong, logged, refused]))
"""


@pytest.mark.timeout(900)
def test_500_forks_while_threads_log_hang_nobody_and_add_no_row(bench):
    """A child forked in the middle of another thread's row runs through, and only the parent's rows are there."""
    path, hung, wrong, logged, refused = bench.start(FORKS, 500).facts(800.0)
    past = finished(path)
    assert (hung, wrong) == (0, 0)
    found = [past.series(f"thread{number}").value.tolist() for number in range(3)]
    assert sum(map(len, found)) + refused + drops(past) == sum(logged)
    assert all(values == sorted(set(values)) for values in found)
    assert {name for name in past.names() if not name.startswith("thread") and "/" not in name} == set()
    assert past.events("child") == []


def drops(past):
    """Return how many rows the writer lapped before they were drained."""
    return read_nodes(RunFolder(past.path))[0][0].ranks[0].lost


def test_a_fork_inside_a_row_of_another_thread_does_not_hang_the_child(bench):
    """A child forked while another thread holds the writer's token can log, step and finish at once."""
    trainer = bench.start("""
        import json, os
        import stepscope
        run = stepscope.init(project="forks")
        token = run._tokens.pop()
        pid = os.fork()
        if not pid:
            for step in range(100):
                with run.step():
                    run.log({"x": step})
            run.finish()
            os._exit(0)
        status = os.waitpid(pid, 0)[1]
        run._tokens.append(token)
        run.log({"x": 1.0})
        run.finish()
        print(json.dumps([str(run.path), status]))
    """)
    path, status = trainer.facts()  # which fails if the child hangs
    assert status == 0
    assert finished(path).series("x").value.tolist() == [1.0]


def test_what_a_forked_child_declares_never_reaches_the_parents_columns(bench):
    """New names and phases in a child leave the parent's schema file alone: its later names keep their values."""
    trainer = bench.start("""
        import json, os
        import stepscope
        run = stepscope.init(project="forks")
        run.log({"before": 1.0})
        with run.step(), run.phase("one"):
            pass
        if not os.fork():
            run.log({"child": 2.0})
            with run.step(), run.phase("theirs"):
                pass
            os._exit(0)
        os.wait()
        run.log({"after": 3.0})
        with run.step(), run.phase("two"):
            pass
        run.finish()
        print(json.dumps(str(run.path)))
    """)
    past = finished(trainer.facts())
    assert [past.series(name).value.tolist() for name in ("before", "after")] == [[1.0], [3.0]]
    phases = {name for name in past.names() if name.startswith("phase/")}
    assert phases == {"phase/one", "phase/two", "phase/other"}


CHILDREN = """
    import json, multiprocessing, os, sys
    import stepscope

    def child(number):
        run = stepscope.init(project="family", name=f"child{number}")
        run.log({"x": number})
        os.write(1, (json.dumps([str(run.path), os.getpid()]) + chr(10)).encode())  # in one: the other one writes too

    if __name__ == "__main__":
        context = multiprocessing.get_context(sys.argv[1])
        run = stepscope.init(project="family", name="parent")
        processes = [context.Process(target=child, args=(number,)) for number in (1, 2)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        run.log({"x": 0})
        run.finish()
        print(json.dumps([str(run.path), os.getpid()]), flush=True)
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_child_that_calls_init_has_a_run_of_its_own(bench, method):
    """Children of multiprocessing record into runs of their own, which end with them, beside the parent's."""
    trainer = bench.run(CHILDREN, method)
    assert trainer.process.returncode == 0, trainer.err
    paths = [json.loads(line)[0] for line in trainer.out.splitlines()]
    assert len(set(paths)) == 3
    assert sorted(finished(path).series("x").value.tolist() for path in paths) == [[0.0], [1.0], [2.0]]
    assert trainer.err == ""


def test_a_program_that_executes_another_keeps_its_rows(bench):
    """os.execv of the trainer ends its run, with every row, and the new program has its own."""
    trainer = bench.run("""
        import os, sys
        import stepscope
        run = stepscope.init(project="exec")
        run.log({"x": len(sys.argv)})
        print(run.path, flush=True)
        if len(sys.argv) < 2:
            os.execv(sys.executable, [sys.executable, *sys.argv, "again"])
        run.finish()
    """)
    first, second = trainer.out.split()
    until(lambda: stepscope.open(first).state != "running", "the end of the first")
    assert stepscope.open(first).state in {"finished", "lost"}  # by whether its watcher had come in time to see it
    assert stepscope.open(first).series("x").value.tolist() == [1.0]
    assert second != first
