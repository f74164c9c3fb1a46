"""log() from everywhere: threads, signal handlers, destructors, exit functions, asyncio, notebooks."""

from __future__ import annotations

import pytest

import stepscope
from stepscope.store.layout import RunFolder
from stepscope.store.states import read_nodes
from tests.integration.processes import until


def finished(path):
    """Return the run once it has ended well, and how many rows and values were refused or lapped."""
    until(lambda: stepscope.open(path).state != "running", "the end of the run")
    past = stepscope.open(path)
    assert (past.state, past.problems()) == ("finished", [])
    rank = read_nodes(RunFolder(past.path))[0][0].ranks[0]
    return past, rank.lost + rank.refused


def test_sixteen_threads_lose_no_row(bench):
    """Every row of every thread is there, in its thread's order, or is counted as refused."""
    trainer = bench.start("""
        import json, threading, time
        import stepscope
        run = stepscope.init(project="threads")
        gate = threading.Barrier(16)
        def work(number):
            gate.wait()
            for step in range(500):
                run.log({f"t{number}": step, "shared": number}, step=step)
                if step % 20 == 0:
                    time.sleep(0.002)
        threads = [threading.Thread(target=work, args=(number,)) for number in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        run.finish()
        print(json.dumps(str(run.path)))
    """)
    past, missing = finished(trainer.facts())
    series = [past.series(f"t{number}").value.tolist() for number in range(16)]
    assert sum(map(len, series)) + missing == 8000
    assert len(past.series("shared")) + missing == 8000
    assert all(values == sorted(set(values)) and set(values) <= set(range(500)) for values in series)
    assert missing < 800, "a row is refused only where a thread was kept for long in the middle of another"


def test_threads_that_end_the_run_at_once_end_it_once(bench):
    """finish() from many threads, and again afterwards, is one end and raises nothing."""
    trainer = bench.start("""
        import json, threading
        import stepscope
        run = stepscope.init(project="threads")
        run.log({"x": 1.0})
        gate, errors = threading.Barrier(8), []
        def end():
            gate.wait()
            try:
                run.finish()
                run.log({"x": 2.0})
                with run.step(), run.phase("late"):
                    run.event("late")
            except BaseException as error:
                errors.append(repr(error))
        threads = [threading.Thread(target=end) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        run.finish()
        print(json.dumps([str(run.path), errors]))
    """)
    path, errors = trainer.facts()
    assert errors == []
    assert finished(path)[0].series("x").value.tolist()[0] == 1.0
    assert trainer.err == ""


def test_a_signal_handler_that_logs_neither_hangs_nor_loses(bench):
    """Interrupted in the middle of a row by a handler that logs too, both rows are there."""
    trainer = bench.start("""
        import json, signal
        import stepscope
        from tests.integration.pace import let_catch_up
        run = stepscope.init(project="signals")
        handled = 0
        def handler(*_):
            global handled
            handled += 1
            run.log({"handled": handled}, step=handled)
            signal.setitimer(signal.ITIMER_REAL, 0.0005)  # again: a handler slower than its clock would never end
            with run.phase("handler"):
                pass
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, 0.0005)
        rows = 0
        while handled < 500:
            run.log({"x": rows, "y": 1.0}, step=rows)
            rows += 1
            if rows % 1000 == 0:
                let_catch_up(run)
        signal.setitimer(signal.ITIMER_REAL, 0)
        run.finish()
        print(json.dumps([str(run.path), rows, handled]))
    """)
    path, rows, handled = trainer.facts()
    past, missing = finished(path)
    assert len(past.series("x")) + len(past.series("handled")) + missing == rows + handled
    assert missing == 0
    assert sorted(past.series("handled").value.tolist()) == list(range(1, handled + 1))


def test_an_interrupt_inside_a_row_does_not_silence_the_run(bench, monkeypatch):
    """After exceptions raised by a signal handler at any moment, this thread and others still record."""
    monkeypatch.delenv("COVERAGE_PROCESS_CONFIG", raising=False)  # such an exception leaves coverage's own lock held
    trainer = bench.start("""
        import json, signal, threading, time
        import stepscope
        run = stepscope.init(project="signals")
        class Alarm(Exception):
            pass
        def handler(*_):
            raise Alarm
        signal.signal(signal.SIGALRM, handler)
        raised, row = 0, {"x": 1.0}
        while raised < 500:
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.0003)
                while True:
                    run.log(row)
            except Alarm:
                raised += 1
        signal.setitimer(signal.ITIMER_REAL, 0)
        time.sleep(0.3)
        thread = threading.Thread(target=lambda: [run.log({"after": n}) for n in range(10)])
        thread.start()
        thread.join()
        run.log({"last": 1.0})
        run.finish()
        print(json.dumps(str(run.path)))
    """)
    past, _ = finished(trainer.facts())
    assert past.series("after").value.tolist() == list(range(10))
    assert past.series("last").value.tolist() == [1.0]


def test_destructors_and_collections_may_log(bench):
    """log() in __del__, called by the garbage collector inside whatever runs, is recorded."""
    trainer = bench.start("""
        import gc, json
        import stepscope
        run = stepscope.init(project="destructors")
        gc.set_threshold(5, 1, 1)
        class Node:
            def __init__(self):
                self.me = self
            def __del__(self):
                run.log({"deleted": 1.0})
        for step in range(2000):
            Node()
            run.log({"x": step, "names": [step][0]})
        gc.collect()
        run.finish()
        print(json.dumps(str(run.path)))
    """)
    past, missing = finished(trainer.facts())
    assert len(past.series("x")) == 2000
    assert len(past.series("deleted")) + missing == 2000
    assert missing == 0


EXITS = {
    "an exit function": "atexit.register(run.log, {'late': 1.0})",
    "a thread that outlives main": "threading.Thread(target=lambda: (time.sleep(0.2), run.log({'late': 1.0}))).start()",
    "an exit function registered first": "pass",
    "a destructor at exit": "keep = type('Late', (), {'__del__': lambda self: run.log({'late': 1.0})})()",
    "a finalizer": "weakref.finalize(run, run.log, {'late': 1.0})",
}


@pytest.mark.parametrize("way", EXITS)
def test_logging_while_the_interpreter_ends_is_safe_and_quick(bench, way):
    """Rows logged on the way out are recorded where the run is still open, and never delay or break the exit."""
    first = "atexit.register(lambda: run.log({'late': 1.0}))" if "first" in way else "pass"
    trainer = bench.run(f"""
        import atexit, sys, threading, time, weakref
        {first}
        import stepscope
        run = stepscope.init(project="exits")
        run.log({{"x": 1.0}})
        print(run.path, flush=True)
        {EXITS[way]}
    """)
    assert (trainer.process.returncode, trainer.err) == (0, "")
    past, _ = finished(trainer.out.split()[0])
    assert past.series("x").value.tolist() == [1.0]
    if way in {"an exit function", "a thread that outlives main"}:
        assert past.series("late").value.tolist() == [1.0]


def test_asyncio_tasks_log_without_blocking_the_loop(bench):
    """Many tasks log; all rows are there and the loop is never held for long."""
    trainer = bench.start("""
        import asyncio, json
        import stepscope
        from tests.integration.pace import Calls
        run = stepscope.init(project="tasks")
        calls = Calls()
        async def task(number):
            for step in range(100):
                calls.time(lambda: run.log({f"task{number}": step}, step=step))
                await asyncio.sleep(0)
        async def main():
            await asyncio.gather(*(task(number) for number in range(20)))
        asyncio.run(main())
        run.finish()
        print(json.dumps([str(run.path), calls.held_up()]))
    """)
    path, held_up = trainer.facts()
    past, _ = finished(path)
    assert all(past.series(f"task{number}").value.tolist() == list(range(100)) for number in range(20))
    assert not held_up


def test_cells_of_a_notebook_record_like_a_script(bench):
    """Code run by exec in a namespace of its own, an exception in between, a second init: two runs, both right."""
    trainer = bench.start("""
        import json, sys, traceback
        cells = [
            "import stepscope",
            "run = stepscope.init(project='cells', name='first')",
            "run.log({'x': 1.0})",
            "1 / 0",
            "run.log({'x': 2.0}); first = run",
            "run = stepscope.init(project='cells', name='second')",
            "stepscope.log({'x': 3.0}); first.finish(); run.finish()",
        ]
        space = {"__name__": "__main__"}
        for number, cell in enumerate(cells):
            try:
                exec(compile(cell, f"<cell {number}>", "exec"), space)
            except ZeroDivisionError as error:
                sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
        print(json.dumps([str(space["first"].path), str(space["run"].path)]))
    """)
    first, second = trainer.facts()
    assert finished(first)[0].series("x").value.tolist() == [1.0, 2.0]
    assert finished(second)[0].series("x").value.tolist() == [3.0]


def test_a_thread_that_does_not_end_does_not_hold_the_exit(bench):
    """A daemon thread logging without pause is cut off at exit, cleanly, and the run is finished."""
    trainer = bench.run("""
        import threading, time
        import stepscope
        run = stepscope.init(project="daemon")
        def work():
            while True:
                run.log({"x": 1.0})
        threading.Thread(target=work, daemon=True).start()
        time.sleep(0.2)
        print(run.path)
    """)
    assert trainer.process.returncode == 0, trainer.err
    assert finished(trainer.out.strip())[0].state == "finished"
    assert trainer.err == ""
