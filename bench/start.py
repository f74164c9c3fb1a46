"""What starting and ending costs: import, `init()`, exit, a pipe behind the trainer. Fresh processes, interleaved."""

from __future__ import annotations

import statistics
import subprocess
import time
from typing import TYPE_CHECKING

from bench.figure import Figure, Options
from bench.processes import output_of, python

if TYPE_CHECKING:
    from pathlib import Path

BARE = "pass"
IMPORT = "import stepscope"
MODULES = """
import sys
before = set(sys.modules)
import stepscope
{use}
loaded = {name.partition(".")[0] for name in set(sys.modules) - before}
print(*sorted(loaded - set(sys.stdlib_module_names) - {"stepscope"}))
"""
INIT = """
import time, stepscope
start = time.perf_counter()
run = stepscope.init(project="start")
print(time.perf_counter() - start)
"""
WITH = """
import stepscope, time
run = stepscope.init(project="start")
for step in range(100):
    run.log({"loss": 1.0})
print(time.monotonic(), flush=True)
run.finish()
"""
WITHOUT = """
import time
print(time.monotonic(), flush=True)
"""


def measure(options: Options) -> list[Figure]:
    """Return the figures of start and end."""
    folder, rounds = options.scratch, 5 if options.quick else 25
    for code in (INIT, WITH):
        output_of("-c", code, cwd=folder)  # compiles the modules
    taken: dict[str, list[float]] = {"import": [], "init": [], "with": [], "without": [], "pipe": []}
    for _ in range(rounds):
        bare = output_of("-c", BARE, cwd=folder)[2]
        taken["import"].append(output_of("-c", IMPORT, cwd=folder)[2] - bare)
        taken["init"].append(float(output_of("-c", INIT, cwd=folder)[0]))
        taken["without"].append(exit_seconds(WITHOUT, folder))
        taken["with"].append(exit_seconds(WITH, folder))
        taken["pipe"].append(pipe_seconds(WITH, folder))
    middle = {name: statistics.median(values) for name, values in taken.items()}
    at_import, at_init = (foreign(folder, use) for use in ("", "stepscope.init(project='start')"))
    loaded = f"by init(): {', '.join(at_init) or 'none'}"
    added = f"{middle['with'] * 1e3:.0f} ms with finish(), {middle['without'] * 1e3:.0f} ms bare"
    worst = f"longest of {rounds}: {max(taken['init']) * 1e3:.0f} ms; its own imports included"
    return [
        Figure("import", "import stepscope over bare Python", middle["import"] * 1e3, "ms", 50.0),
        Figure("modules", "  third-party modules it loads", float(len(at_import)), "", 0.0, loaded),
        Figure("init", "init() returns, cold process", middle["init"] * 1e3, "ms", 100.0, worst),
        Figure("exit", "exit added", middle["with"] - middle["without"], "s", 0.5, added),
        Figure("pipe", "train.py | cat ends after the trainer", middle["pipe"], "s", 0.5),
    ]


def foreign(folder: Path, use: str) -> list[str]:
    """Return the third-party modules that are loaded by the import and some use of it."""
    return output_of("-c", MODULES.replace("{use}", use), cwd=folder)[0].split()


def exit_seconds(code: str, folder: Path) -> float:
    """Return the seconds from the last line that a script prints to its end."""
    child = python("-c", code, cwd=folder, stdout=subprocess.PIPE)
    assert child.stdout is not None
    told = float(child.stdout.readline())
    child.wait()
    ended = time.monotonic()
    child.stdout.close()
    return ended - told


def pipe_seconds(code: str, folder: Path) -> float:
    """Return the seconds from the end of a trainer to the end of the `cat` behind it."""
    trainer = python("-c", code, cwd=folder, stdout=subprocess.PIPE)
    assert trainer.stdout is not None
    cat = subprocess.Popen(["/bin/cat"], stdin=trainer.stdout, stdout=subprocess.DEVNULL)
    trainer.stdout.close()
    trainer.wait()
    ended = time.monotonic()
    cat.wait()
    return time.monotonic() - ended
