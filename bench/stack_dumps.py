"""Whether asking a busy training for its stacks can end it: thousands of questions to a process with busy threads."""

from __future__ import annotations

import os
import subprocess
import time
from typing import TYPE_CHECKING

from bench.figure import Figure, Options
from bench.processes import python
from stepscope.watcher.asking import Asking
from stepscope.watcher.death import Trainee

if TYPE_CHECKING:
    from pathlib import Path

BUSY = """
import fcntl, os, pathlib, sys, threading, time
from stepscope.session.answering import Answering
from stepscope.session.stacks import register

ring = pathlib.Path(sys.argv[1])
descriptor = os.open(ring, os.O_RDWR | os.O_CREAT)
fcntl.lockf(descriptor, fcntl.LOCK_EX, 1, 0)
kept = register(ring.with_suffix(".stacks"))

def fall(depth):
    try:
        if depth:
            return sum(fall(depth - 1) for _ in range(2))
        raise KeyError(depth)
    except KeyError:
        return 1

def busy():
    while True:
        fall(7)

for _ in range(2):
    threading.Thread(target=busy, daemon=True).start()
answering = Answering(ring)
answering.look()

print("ready", flush=True)
busy()
"""


def measure(options: Options) -> list[Figure]:
    """Return the figures."""
    asked = 300 if options.quick else 6_000
    deaths, answers, slowest = ask(options.scratch / "dumps", asked)
    beside = f"{answers} of {asked} answered by the trainer's own thread, the slowest in {slowest * 1e3:.0f} ms"
    return [
        Figure("stack_deaths", f"trainings with 3 busy threads that died of {asked} questions", deaths, "", 0, beside)
    ]


def ask(folder: Path, count: int) -> tuple[int, int, float]:
    """Ask a busy process so often; return how often one died, the answers, and the slowest in seconds."""
    folder.mkdir(parents=True)
    deaths = answers = 0
    slowest, process = 0.0, None
    for number in range(count):
        if process is None:
            process, trainee, asking = _start(folder, number)
        began = time.monotonic()
        asking.ask(time.monotonic_ns())
        while (answer := asking.answer(time.monotonic_ns())) is None:
            time.sleep(0.0005)
        answers += answer.source == "trainer"
        slowest = max(slowest, time.monotonic() - began)
        if process.poll() is not None:
            deaths, process = deaths + 1, None
    if process is not None:
        asking.close()
        trainee.close()
        process.kill()
        process.communicate()
    return deaths, answers, slowest


def _start(folder: Path, number: int) -> tuple[subprocess.Popen[bytes], Trainee, Asking]:
    ring = folder / f"{number}.ring"
    process = python("-c", BUSY, str(ring), stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    trainee = Trainee.find(os.open(ring, os.O_RDWR))
    assert trainee is not None
    return process, trainee, Asking(trainee, str(ring.with_suffix(".stacks")), spy="")
