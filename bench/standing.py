"""How soon a training that stands still is told, and a driver that hangs; what the watcher does to steps beside it."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bench.figure import Figure, Options
from bench.loop import RESAMPLES, Training
from bench.processes import WATCHER, children, environment, find, output_of, python, wait_until

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Numbers = NDArray[np.float64]

STEPS = """
import sys, threading, time, stepscope
run = stepscope.init(project="standing", dir=sys.argv[1], run_id=sys.argv[2])
for number in range(int(sys.argv[3])):
    with run.step():
        time.sleep(float(sys.argv[4]))
    run.log(loss=1.0)
print(time.time(), flush=True)
lock = threading.Lock()
lock.acquire()
lock.acquire()
"""
EFFECT_SECONDS, PART = 150.0, 500
"""How long steps are watched for the effect of the watcher; steps between two looks for its threads."""
BEFORE, AFTER, NEIGHBOURS = 2, 4, 51
"""Steps before one in which the watcher was seen to have run, as the kernel counts at its ticks; steps after it that
it may still slow, by what it took of the caches; undisturbed steps around one that tell how long it would have been."""


def measure(options: Options, gpus: dict[str, str]) -> list[Figure]:
    """Return the figures."""
    root = options.scratch / "standing"
    found = [*_hangs(root), _driver(root, gpus)]
    if options.quick:
        return [*found, Figure("effect", "watcher beside 2 ms torch steps", None, "%", 2.0, "not with --quick")]
    return [*found, _effect(root)]


def _hangs(root: Path) -> list[Figure]:
    """Let one training of 1 s steps deadlock and stop another; return when each was told."""
    locked = _start(root, "locked", 4, 1.0)
    stopped = _start(root, "stopped", 10**6, 1.0)
    try:
        assert locked.stdout is not None
        began = float(locked.stdout.readline())
        os.kill(stopped.pid, signal.SIGSTOP)
        froze = time.time()
        stalled = _event(root / "standing" / "locked", "stalled", 60.0)
        hung = _event(root / "standing" / "stopped", "hung", 60.0)
    finally:
        for child in (locked, stopped):
            child.kill()
            child.communicate()
    frames = sum(len(thread["frames"]) for thread in stalled["stacks"])
    return [
        Figure(
            *("stalled", "1 s steps, then a deadlock: stalled, with stacks", stalled["time"] / 1e6 - began, "s", 15.0),
            f"{frames} frames",
        ),
        Figure("hung", "1 s steps, then SIGSTOP: hung", hung["time"] / 1e6 - froze, "s", 20.0),
    ]


def _driver(root: Path, gpus: dict[str, str]) -> Figure:
    """Let the driver hang; return when that was told, and the longest gap in the samples of the host."""
    what = "driver hangs: event"
    if not gpus:
        return Figure("driver", what, None, "s", 10.0, "no compiler for the fake driver")
    child = _start(root, "driver", 10**6, 0.1, **gpus)
    state, run = Path(gpus["FAKE_NVML_STATE"]), root / "standing" / "driver"
    try:
        wait_until(lambda: bool(list((run / "nodes").glob("*.machine"))), 30.0)
        time.sleep(3.0)
        state.write_text("2.hang=1\n")
        began = time.time()
        told = _event(run, "gpu_driver_hung", 60.0)
        time.sleep(3.0)
        gap = json.loads(output_of("-m", "bench.standing", "gap", str(run))[0])
    finally:
        state.write_text("")
        child.kill()
        child.communicate()
    beside = f"longest gap of the host's samples {gap['memory']:.2f} s, of the 0.1 s steps {gap['loss']:.2f} s"
    return Figure("driver", what, told["time"] / 1e6 - began, "s", 10.0, beside)


def _start(root: Path, name: str, steps: int, seconds: float, **more: str) -> subprocess.Popen[bytes]:
    arguments = ("-c", STEPS, str(root), name, str(steps), str(seconds))
    return python(*arguments, env=environment(**more), stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)


def _event(run: Path, kind: str, seconds: float) -> dict[str, Any]:
    """Return the first event of a kind, times in microseconds since 1970."""
    found: list[dict[str, Any]] = []

    def look() -> bool:
        for path in (run / "events").glob("*.jsonl"):
            lines = [json.loads(line) for line in path.read_bytes().splitlines()]
            found.extend(line for line in lines if line["kind"] == kind)
        return bool(found)

    wait_until(look, seconds)
    return found[0]


def _effect(root: Path) -> Figure:
    """Return by how much the watcher slows 2 ms torch steps that are recorded."""
    what = "watcher beside 2 ms torch steps (upper bound)"
    if importlib.util.find_spec("torch") is None:
        return Figure("effect", what, None, "%", 2.0, "torch not installed")
    told = json.loads(output_of("-m", "bench.standing", "effect", str(root))[0].splitlines()[-1])
    seconds, ran = np.array(told["seconds"]), np.array(told["ran"]) > 0
    middle, low, high = slowed(seconds, ran)
    beside = (
        f"{middle:+.2f} % [{low:+.2f}, {high:+.2f}] of {len(seconds)} steps of {np.median(seconds) * 1e3:.2f} ms; "
        f"it ran in {ran.mean():.1%} of them, {told['share']:.2%} of a core"
    )
    return Figure("effect", what, high, "%", 2.0, beside)


def slowed(seconds: Numbers, ran: Any) -> tuple[float, float, float]:
    """Return in percent by how much steps are longer for what ran beside some of them, with its interval (95 %).

    Steps in which it ran, and a few after those, are compared with the median of their neighbours in which it did not:
    what others do on a shared machine lasts longer and meets both. Whatever steps differ by anyhow is taken off.
    """
    near = np.convolve(ran, np.ones(BEFORE + 1 + AFTER))
    marked = near[BEFORE : BEFORE + len(ran)] > 0
    usual = np.full(len(seconds), np.nan)
    quiet = np.flatnonzero(~marked)
    views = np.lib.stride_tricks.sliding_window_view(seconds[quiet], NEIGHBOURS)
    usual[quiet[NEIGHBOURS // 2 : NEIGHBOURS // 2 + len(views)]] = np.median(views, axis=1)
    known = np.isfinite(usual)
    usual = np.interp(np.arange(len(usual)), np.flatnonzero(known), usual[known])
    longer = seconds / usual - 1
    parts = [np.arange(at, min(at + PART, len(seconds))) for at in range(0, len(seconds), PART)]
    sums = np.array([[longer[p][marked[p]].sum(), marked[p].sum(), longer[p][~marked[p]].sum(), len(p)] for p in parts])

    def effect(rows: Numbers) -> float:
        above, count, anyhow, whole = rows.sum(axis=0)
        return float(count / whole * (above / count - anyhow / (whole - count)) * 100)

    draw = np.random.default_rng(0).integers(0, len(sums), (RESAMPLES, len(sums)))
    low, high = np.percentile([effect(sums[one]) for one in draw], [2.5, 97.5])
    return effect(sums), float(low), float(high)


def _train(root: Path) -> None:
    import torch

    import stepscope

    torch.set_num_threads(1)
    run = stepscope.init(project="standing", dir=root, run_id="effect")
    training = Training(torch, run)
    training.calibrate()
    wait_until(lambda: bool(find(WATCHER, run.path)), 30.0)
    [watcher] = find(WATCHER, run.path)
    seconds, ran = [], []
    began = time.monotonic()
    while time.monotonic() - began < EFFECT_SECONDS:
        tasks = [os.open(path, os.O_RDONLY) for path in _tasks(watcher)]  # anew: it starts others, as to seal
        before = _ran(tasks)
        for _ in range(PART):
            start = time.perf_counter()
            training.on(1)
            seconds.append(time.perf_counter() - start)
            now = _ran(tasks)
            ran.append(now - before)
            before = now
        for task in tasks:
            os.close(task)
    share = sum(ran) / 1e9 / (time.monotonic() - began)
    run.finish()
    print(json.dumps({"seconds": seconds, "ran": ran, "share": share}))


def _tasks(watcher: int) -> list[Path]:
    """Return the files that say how long each thread of the watcher and of its children has run."""
    return [path for pid in (watcher, *children(watcher)) for path in Path(f"/proc/{pid}/task").glob("*/schedstat")]


def _ran(tasks: list[int]) -> int:
    """Return how long they have run, in ns."""
    total = 0
    for task in tasks:
        with contextlib.suppress(OSError, ValueError):  # it has ended
            total += int(os.pread(task, 64, 0).split(b" ", 1)[0])
    return total


def _gaps(run: Path) -> None:
    import stepscope

    past = stepscope.open(run)
    names = {"memory": "memory/used_ratio", "loss": "loss"}
    print(json.dumps({key: float(np.diff(past.series(name).time).max()) for key, name in names.items()}))


def main(arguments: list[str]) -> int:
    """Train beside a watcher that is stopped in turn, or measure the gaps in a run's samples."""
    {"effect": _train, "gap": _gaps}[arguments[0]](Path(arguments[1]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
