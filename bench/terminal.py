"""What `stepscope top` costs beside a live run, and how large a report of a million points is."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from typing import TYPE_CHECKING

import numpy as np

from bench.drawn_runs import Drawn, write
from bench.figure import Figure

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from bench.figure import Options

SIZE = (36, 120)
"""Rows and columns of the terminal."""
TRAINING = """\
import math, sys, time
import stepscope
run = stepscope.init(project="bench", name="live", dir=sys.argv[1])
for step in range(100000):
    with run.step(samples=32):
        with run.phase("data"): time.sleep(0.005)
        with run.phase("forward"): time.sleep(0.015)
        with run.phase("backward"): time.sleep(0.03)
        run.log({f"metric_{number}": math.sin(step / (number + 1)) for number in range(10)} | {"loss": 1 / (step + 1)})
"""
METRICS, STEPS = 50, 20_000


def measure(options: Options) -> list[Figure]:
    """Measure the terminal beside a live run, then a report."""
    with _training(options.scratch) as path:
        cpu, memory, sent = _top(path, 5.0 if options.quick else 30.0)
    size, seconds, kept = _report(options.scratch)
    shape = f"{SIZE[1]}x{SIZE[0]}, 20 steps/s, 11 metrics"
    return [
        Figure("top_cpu", "top at 2 Hz, share of a core", cpu, "%", 5.0, shape),
        Figure("top_memory", "top, resident memory", memory, "MiB", 80.0, shape),
        Figure("top_traffic", "top, sent to the terminal", sent, "kB/s", None, "over ssh"),
        Figure(
            "report_size",
            "HTML report of 1 M points",
            size,
            "MB",
            2.0,
            f"{METRICS} metrics, made in {seconds:.1f} s CPU",
        ),
        Figure("report_spikes", "spikes of one step lost in it", kept, "", 0.0, "of 24 charts"),
    ]


@contextlib.contextmanager
def _training(scratch: Path) -> Iterator[Path]:
    """Run a training until the end of the block; give the folder of its run."""
    root = scratch / "live"
    silence = {"stdin": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    child = subprocess.Popen([sys.executable, "-c", TRAINING, str(root)], **silence)
    try:
        end = time.monotonic() + 30
        while not (found := list(root.glob("*/*/tail/*"))) and time.monotonic() < end:
            time.sleep(0.05)
        time.sleep(1.0)
        yield found[0].parent.parent
    finally:
        child.send_signal(signal.SIGINT)
        child.wait(30)


def _top(path: Path, seconds: float) -> tuple[float, float, float]:
    """Return percent of a core, MiB and kB/s of a dashboard that has settled."""
    pid, terminal = pty.fork()
    if not pid:
        os.environ["TERM"] = "xterm-256color"
        os.execv(sys.executable, [sys.executable, "-m", "stepscope", "top", str(path)])  # noqa: S606 - no shell is wanted
    try:
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", *SIZE, 0, 0))
        end = time.monotonic() + 30
        while not _children(pid) and time.monotonic() < end:  # the past is read once, by a process of its own
            _drained(terminal, 0.5)
        _drained(terminal, 1.0)
        before, start = _spent(pid), time.monotonic()
        sent = _drained(terminal, seconds)
        taken, passed = _spent(pid) - before, time.monotonic() - start
        return taken / passed * 100, _resident(pid), sent / passed / 1e3
    finally:
        os.kill(pid, signal.SIGTERM)
        _drained(terminal, 1.0)
        os.waitpid(pid, 0)
        os.close(terminal)


def _drained(terminal: int, seconds: float) -> int:
    """Read what is drawn for so long; return its bytes."""
    end, read = time.monotonic() + seconds, 0
    while (left := end - time.monotonic()) > 0:
        if select.select([terminal], [], [], left)[0]:
            try:
                read += len(os.read(terminal, 1 << 16))
            except OSError:  # the program has ended
                break
    return read


def _spent(pid: int) -> float:
    """Return the processor seconds of a process, its ended children included."""
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def _children(pid: int) -> int:
    """Return the processor time of the ended children of a process, in ticks."""
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return int(fields[13]) + int(fields[14])


def _resident(pid: int) -> float:
    with open(f"/proc/{pid}/status") as file:
        found = next(line for line in file if line.startswith("VmRSS"))
    return int(found.split()[1]) / 1024


def _report(scratch: Path) -> tuple[float, float, float]:
    """Return MB, processor seconds and lost spikes of the report of a million points."""
    random, run = np.random.default_rng(1), Drawn("long", steps=STEPS, step_seconds=0.01)
    for number in range(METRICS):
        run.values[f"metric_{number:02}"] = random.normal(1.0, 0.1, STEPS)
        run.values[f"metric_{number:02}"][1000 + 300 * number] = 1000.0 + number
    path, target = write(scratch / "p" / "long", run), scratch / "report.html"
    before = os.times()
    subprocess.run(
        [sys.executable, "-m", "stepscope", "report", str(path), "--html", str(target)], check=True, capture_output=True
    )
    after = os.times()
    seconds = after.children_user + after.children_system - before.children_user - before.children_system
    return target.stat().st_size / 1e6, seconds, float(_lost(target))


def _lost(target: Path) -> int:
    """Return in how many charts of a report the highest value is not the spike."""
    import base64
    import gzip
    import json
    import re

    packed = re.search(r'<template id="report-series">(.*?)</template>', target.read_text(encoding="utf-8"), re.DOTALL)
    data = gzip.decompress(base64.b64decode(packed.group(1))) if packed else b"SSB1\x02\0\0\0{}"
    size = struct.unpack("<I", data[4:8])[0]
    lost = 0
    for head in json.loads(data[8 : 8 + size]).get("curves", []):
        column = np.frombuffer(data[8 + size :], "<f8", head["n"], head["at"] + 4 * 8 * head["n"])
        lost += column.max() != 1000.0 + int(head["name"][-2:])
    return lost
