"""Misuse: init says what is wrong in one line and turns itself off; hostile names and values never raise."""

from __future__ import annotations

import pytest

import stepscope
from tests.faults import spaces
from tests.integration.processes import until

INIT = """
    import os, sys
    import stepscope
    with stepscope.init({arguments}) as run:
        for step in range(100):
            with run.step(samples=4), run.phase("forward"):
                run.log({{"x": step}}, step=step)
        for item in run.data([1, 2, 3]):
            run.event("item", value=item)
        run.histogram("h", [1.0, 2.0])
    stepscope.log(x=1)
    stepscope.finish()
    print("end", run.recording, repr(run.id))
"""
WRONG = {
    "a project with a slash": ("project='a/b'", "project"),
    "a project of dots": ("project='..'", "project"),
    "a project that is no text": ("project=5", "project"),
    "an endless project": ("project='x' * 10**6", "project"),
    "an id with a slash": ("run_id='../../etc'", "run id"),
    "an id with NUL": ("run_id='a\\0b'", "run id"),
    "a folder that is a file": ("dir=__file__", "train.py"),
    "a folder below a file": ("dir=__file__ + '/runs'", "train.py"),
    "a folder with NUL": ("dir='a\\0b'", "null"),
    "a setting that does not exist": ("recorder__ring_byts=5", "ring_byt"),
    "a setting out of range": ("recorder__ring_bytes=1", "ring_bytes"),
    "a setting of nonsense": ("store__seal_bytes='many'", "seal_bytes"),
    "a configuration that is not there": ("config_file='nowhere.yaml'", "nowhere.yaml"),
    "a folder in /proc": ("dir='/proc/stepscope'", "/proc"),
}


@pytest.mark.parametrize("case", WRONG)
def test_misuse_of_init_is_one_line_and_a_training_that_runs(bench, case):
    """Whatever is wrong with its arguments, init names it once on stderr and nothing raises afterwards."""
    arguments, named = WRONG[case]
    trainer = bench.run(INIT.format(arguments=arguments))
    assert trainer.process.returncode == 0, trainer.err
    assert trainer.out.startswith("end False")
    assert len(trainer.err.splitlines()) == 1, trainer.err
    assert trainer.err.startswith("stepscope: cannot ")
    assert "; " in trainer.err
    assert named in trainer.err


def test_init_on_a_full_disk_is_one_line(bench):
    """Without space for run.json, the run is off, with one line that says so, and leaves no half a file."""
    disk = bench.folder / "disk"
    disk.mkdir()
    code = INIT.format(arguments="dir=sys.argv[1]").replace(
        "import stepscope\n",
        "import subprocess, stepscope\n"
        "    subprocess.run(['mount', '-t', 'tmpfs', '-o', 'size=64k', 'tmpfs', sys.argv[1]], check=True)\n"
        "    with open(sys.argv[1] + '/ballast', 'wb', 0) as file:\n"
        "        try:\n"
        "            [file.write(bytes(4096)) for _ in range(99)]\n"
        "        except OSError:\n"
        "            pass\n",
        1,
    )
    trainer = bench.run(code, disk, prefix=spaces.unshared(spaces.MOUNTS))
    assert (trainer.process.returncode, trainer.out.split()[:2]) == (0, ["end", "False"]), trainer.err
    assert len(trainer.err.splitlines()) == 1
    assert "No space left" in trainer.err


HOSTILE = """
    import decimal, fractions, json, math, os, sys, warnings
    import numpy as np
    import stepscope

    class Raises:
        def __init__(self, kind):
            self.kind = kind
        def __float__(self):
            raise self.kind("from __float__")
        __index__ = __array__ = __float__
        def __repr__(self):
            raise self.kind("from __repr__")
        __str__ = __repr__

    class Nonsense:
        def __float__(self):
            return "five"

    class Keys(dict):
        def items(self):
            raise RuntimeError("from items")
        keys = __iter__ = items

    class Counts(int):
        def __add__(self, other):
            raise ValueError("from __add__")
        __radd__ = __float__ = __add__

    run = stepscope.init(project="hostile")
    names = ["", " ", "a" * 10**6, "nul\\0", "../../etc/passwd", "\\ud800", "\\u202egnp", "x\\ny", "\\x1b[31m",
             "é" * 300, 5, None, 1.5, ("a",), b"bytes", frozenset(), Raises(ValueError), True, "emoji \\U0001f600"]
    values = [Raises(ValueError), Raises(KeyError), Raises(RecursionError), Nonsense(), 10**400, -10**400, 2**80,
              decimal.Decimal("0.1"), decimal.Decimal("NaN"), decimal.Decimal("sNaN"), fractions.Fraction(1, 3),
              np.array([1.0, 2.0]), np.array(3.0), np.array([4.0]), np.zeros((0,)), np.float16(0.5), np.longdouble(1),
              np.int8(-3), np.uint64(2**63), np.bool_(True), np.complex128(1j), np.datetime64("2020-01-01"),
              complex(1, 2), None, b"x", "text", "x" * 10**6, {"a": {"b": [1, Raises(OSError)]}}, [1, 2], {1, 2},
              object(), type, lambda: 1, float("nan"), float("inf"), 5e-324, -0.0, True, Counts(5), Ellipsis,
              memoryview(b"x"), range(3), sys, NotImplemented]
    loop = {}
    loop["self"] = loop
    values.append(loop)
    raised = []
    def attempt(what, call, *arguments, **more):
        try:
            call(*arguments, **more)
        except BaseException as error:
            raised.append(f"{what}: {type(error).__name__}")
    for turn in range(2):
        for number, name in enumerate(names):
            attempt(f"name {number}", run.log, {name: 1.0})
            attempt(f"phase {number}", lambda: run.phase(name).__enter__())
            attempt(f"phase {number}", lambda: run.phase(name).__exit__(None, None, None))
            attempt(f"histogram name {number}", run.histogram, name, [1.0])
            attempt(f"event {number}", run.event, name, x=1)
        for number, value in enumerate(values):
            attempt(f"value {number}", run.log, {"v": value, "fine": turn})
            attempt(f"keyword {number}", run.log, v=value)
            attempt(f"step {number}", run.log, {"s": 1.0}, step=value)
            attempt(f"samples {number}", lambda: run.step(samples=value).__enter__() and 0)
            attempt(f"samples {number}", lambda: run.step(samples=value).__exit__(None, None, None))
            attempt(f"index {number}", lambda: [run.step(index=value).__enter__(), run.step().__enter__()] and 0)
            attempt(f"event {number}", run.event, "odd", value=value)
            attempt(f"whole {number}", run.log, value)
            attempt(f"histogram {number}", run.histogram, "h", value)
            attempt(f"watch {number}", run.watch, value)
        attempt("keys", run.log, Keys(a=1.0))
        attempt("no arguments", run.log)
        attempt("empty", run.log, {})
        attempt("text", run.log, "loss")
    run.log({"exact": 5e-324, "nan": float("nan"), "inf": -math.inf, "big": 2**80}, step=2**62)
    attempt("unhashable phase", run.phase, [])
    run.finish()
    print(json.dumps([str(run.path), raised, str(run.recording)]))
"""


def test_hostile_names_and_values_never_raise(bench):
    """Every call with nonsense returns; what can be kept is kept, the rest is counted and told once per kind."""
    path, raised, _ = bench.start(HOSTILE).facts()
    assert raised == []
    until(lambda: stepscope.open(path).state != "running", "the end of the run")
    past = stepscope.open(path)
    assert past.state == "finished"
    assert past.problems() == []
    assert past.series("exact").value.tolist() == [5e-324]
    assert past.series("exact").step.tolist() == [2**62]
    assert past.series("inf").value.tolist() == [float("-inf")]
    assert past.series("big").value.tolist() == [2.0**80]
    assert past.summary("nan")["nonfinite"] == 1
    assert len(past.series("fine")) >= 40
    assert all(len(name) <= 256 and name.isprintable() for name in past.names())


def test_complaints_come_once_per_kind(bench):
    """A thousand bad values are one line each kind, and a count."""
    trainer = bench.run("""
        import stepscope
        with stepscope.init(project="hostile") as run:
            for step in range(1000):
                run.log({"x": None})
                run.log({"": 1.0})
                run.log({"x": 1.0}, step="five")
        print(run.path)
    """)
    assert trainer.process.returncode == 0
    assert len(trainer.complaints()) == 3
    past = stepscope.open(trainer.out.strip())
    until(lambda: past.state == "finished", "the end")
    assert past.summary("stepscope/refused_total")["last"] == 3000


MANY = """
    import json, resource, sys, time
    import stepscope
    from tests.integration.pace import let_catch_up
    def rss():
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * 4096
    run = stepscope.init(project="many")
    before, count = rss(), int(sys.argv[1])
    start = time.thread_time()
    for number in range(count):
        run.log({f"layer/{number:06d}/gradient/norm": number}, step=number)
        if number % 500 == 0:
            let_catch_up(run)
    first = time.thread_time() - start
    start = time.thread_time()
    for number in range(0, count, 10):
        run.log({f"layer/{number:06d}/gradient/norm": number + 1}, step=count)
        if number % 5000 == 0:
            let_catch_up(run)
    again = time.thread_time() - start
    grown = rss() - before
    run.finish()
    print(json.dumps([str(run.path), grown, first / count * 1e6, again / count * 1e7]))
"""


@pytest.mark.timeout(900)
def test_a_hundred_thousand_names_stay_within_bounds_and_can_be_read(bench):
    """100 000 distinct names cost at most 200 MB in the trainer, and every one of them reads back."""
    path, grown, first, again = bench.start(MANY, 100_000).facts(800.0)
    past = stepscope.open(path)
    until(lambda: past.state == "finished", "the end")
    names = [name for name in past.names() if name.startswith("layer/")]
    assert len(names) == 100_000
    assert past.series("layer/099990/gradient/norm").value.tolist() == [99_990.0, 99_991.0]
    assert grown < 200e6
    assert max(first, again) < 1000, "microseconds a call, on a machine that others use too"
    written = sum(file.stat().st_size for file in past.path.rglob("*") if file.is_file())
    assert written < 200e6
