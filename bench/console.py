"""What it costs that `stepscope run` keeps a console: a printed line, the start, and the memory of the keeper.

The same script runs plainly and under `stepscope run`, in turn (plain, kept, kept, plain). It prints into a pipe
or a terminal that another process empties, and measures its own calls of `print`.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

from bench.figure import Figure, Options

if TYPE_CHECKING:
    from pathlib import Path

LINES, ROUNDS = 1000, 8
LINE_LIMIT, START_LIMIT, MEMORY_LIMIT = 10.0, 30.0, 15.0
SCRIPT = """
import json, os, statistics, sys, time
answer, lines, pause = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
text = "step 123 | loss 1.2345 | learning rate 0.0003 | 1234 samples/s | " + "x" * 30
time.sleep(0.5)
spent = []
for _ in range(lines):
    start = time.perf_counter()
    print(text, flush=True)
    end = time.perf_counter()
    spent.append((end - start) * 1e6)
    while time.perf_counter() < end + pause:
        pass
memory = 0
for entry in os.scandir("/proc"):
    try:
        words = open(entry.path + "/cmdline", "rb").read().split(b"\\0")
        if b"stepscope.watcher.console_keeper" in words and os.environ["STEPSCOPE_DIR"].encode() in b" ".join(words):
            memory = int(open(entry.path + "/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        pass
facts = {"median": statistics.median(spent), "mean": statistics.fmean(spent), "memory": memory}
open(answer, "w").write(json.dumps(facts))
"""
START = """
import json, sys, time
from stepscope.session import console
import tempfile
start = time.perf_counter()
capture = console.capture(tempfile.mkdtemp(), 0, 0, 1 << 25)
took = time.perf_counter() - start
capture.release()
open(sys.argv[1], "w").write(json.dumps(took * 1000))
"""
KINDS = (
    ("pipe", 0.001, "a line to a pipe, one every ms"),
    ("pipe", 0.0, "a line to a pipe, one after another"),
    ("terminal", 0.001, "a line to a terminal, one every ms"),
)


def measure(options: Options) -> list[Figure]:
    """Return the figures."""
    script = options.scratch / "prints.py"
    script.write_text(SCRIPT, encoding="utf-8")
    rounds = 1 if options.quick else ROUNDS
    figures, memory = [], 0.0
    for kind, pause, what in KINDS:
        plain: list[dict[str, float]] = []
        kept: list[dict[str, float]] = []
        for _ in range(rounds):
            for bag, launcher in ((plain, []), (kept, RUN), (kept, RUN), (plain, [])):
                bag.append(_once(options.scratch, [*launcher, str(script)], kind, pause))
        memory = max(memory, *(one["memory"] for one in kept))
        medians = [statistics.median(one["median"] for one in bag) for bag in (plain, kept)]
        means = [statistics.median(one["mean"] for one in bag) for bag in (plain, kept)]
        beside = f"median {medians[0]:.1f} → {medians[1]:.1f} µs, mean {means[0]:.1f} → {means[1]:.1f} µs"
        more = f"{beside}, ratio {medians[1] / medians[0]:.2f}"
        figures.append(
            Figure(f"console_{kind}_{pause * 1000:g}", what, medians[1] - medians[0], "µs more", LINE_LIMIT, more)
        )
    started = [_started(options.scratch) for _ in range(3 * rounds)]
    what = "start of a keeper, in the training's process"
    figures.append(Figure("console_start", what, statistics.median(started), "ms", START_LIMIT))
    figures.append(Figure("console_memory", "memory of a keeper", memory / 2**20, "MiB", MEMORY_LIMIT))
    return figures


RUN = ["-m", "stepscope", "run", "--project", "bench"]


def _environment(scratch: Path) -> dict[str, str]:
    return {**os.environ, "STEPSCOPE_DIR": str(scratch / "runs"), "PYTHONUNBUFFERED": "", "TERM": "dumb"}


def _once(scratch: Path, words: list[str], kind: str, pause: float) -> dict[str, float]:
    """Run the script once, with a thread that empties what it prints into; return its facts."""
    answer = scratch / "answer.json"
    source, sink = os.openpty() if kind == "terminal" else os.pipe()
    drain = threading.Thread(target=_empty, args=(source,), daemon=True)
    drain.start()
    command = [sys.executable, *words, str(answer), str(LINES), str(pause)]
    try:
        subprocess.run(command, stdout=sink, stderr=sink, env=_environment(scratch), check=True)
    finally:
        os.close(sink)
    drain.join(10)
    facts: dict[str, float] = json.loads(answer.read_text())
    return facts


def _empty(source: int) -> None:
    try:
        while os.read(source, 1 << 16):
            pass
    except OSError:  # a terminal without programs says so
        return
    finally:
        os.close(source)


def _started(scratch: Path) -> float:
    """Return the milliseconds that the start of a capture takes in a fresh process."""
    answer = scratch / "start.json"
    subprocess.run([sys.executable, "-c", START, str(answer)], env=_environment(scratch), check=True)
    return float(json.loads(answer.read_text()))
