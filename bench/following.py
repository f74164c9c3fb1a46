"""`stepscope follow` beside a writer of 1 000 points a second: how late they are recorded, and what that costs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bench.figure import Figure, Options
from bench.processes import children, cpu_seconds, kill, python, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

METRICS, STEPS_PER_SECOND, FLUSH_EVERY = 10, 100, 10
"""Metrics of a step, steps a second, and steps between two flushes of the writer."""
KINDS = {"tfevents": "board/events*", "wandb": "wandb/offline-run-*/*.wandb", "jsonl": "log.jsonl"}
"""What is followed, and where the writer puts it."""
TITLES = {"tfevents": "SummaryWriter", "wandb": "W&B offline", "jsonl": "JSON rows"}
WARM_SECONDS = 3.0
"""Seconds before anything is measured: the follower loads, and takes in what is there."""
SNAPSHOTS = 40
"""Moments at which the content of the file is compared with the run."""
MOST_DELAY, MOST_SHARE = 2.0, 3.0
"""Limits: seconds, and percent of a core."""


def measure(options: Options) -> list[Figure]:
    """Return delay and processor share for each format."""
    found = []
    for kind in KINDS:
        place = options.scratch / kind
        place.mkdir()
        try:
            delays, share = followed(kind, place, 4.0 if options.quick else 20.0)
        except ModuleNotFoundError as error:
            found.append(Figure(f"follow_{kind}", f"follow: {TITLES[kind]}", None, beside=str(error)))
            continue
        middle, most = float(np.median(delays)), max(delays)
        beside = f"median {middle:.2f} s, of {len(delays)} moments"
        what = f"follow: delay after the flush, most, {TITLES[kind]}"
        found.append(Figure(f"follow_delay_{kind}", what, most, "s", MOST_DELAY, beside))
        what = f"follow: processor share of follower and child, {TITLES[kind]}"
        beside = f"{METRICS * STEPS_PER_SECOND} points/s"
        found.append(Figure(f"follow_share_{kind}", what, share, "% of a core", MOST_SHARE, beside))
    return found


def followed(kind: str, place: Path, seconds: float) -> tuple[list[float], float]:
    """Follow a writer for some seconds; return the delays in seconds, and the share of a core in percent."""
    steps = round((WARM_SECONDS + seconds + 2.0) * STEPS_PER_SECOND)
    writer = python("-m", "bench.following", kind, str(place), str(steps))
    follower: subprocess.Popen[bytes] | None = None
    try:
        if not wait_until(lambda: next(place.glob(KINDS[kind]), None) or writer.poll() is not None, 60.0, 0.02):
            raise RuntimeError("the writer did not start")
        if writer.poll():
            raise ModuleNotFoundError(f"{TITLES[kind]} cannot write here")
        path = next(place.glob(KINDS[kind]))
        runs = place / "runs"
        command = ("-m", "stepscope", "follow", str(path), "--dir", str(runs), "--json")
        follower = python(*command, stdout=subprocess.DEVNULL)
        wait_until(lambda: next(runs.glob("*/*/run.json"), None), 30.0, 0.02)
        time.sleep(WARM_SECONDS)
        grown, arrived, share = observe(path, next(runs.glob("*/*")), follower.pid, seconds)
    finally:
        for process in (writer, follower):
            if process is not None:
                kill(process.pid)
                process.wait()
    return list(delays_of(path, grown, arrived)), share


def observe(
    path: Path, run: Path, pid: int, seconds: float
) -> tuple[list[tuple[float, int]], list[tuple[float, int]], float]:
    """Return when the file had grown to which size, when the run had which step, and the share of a core in percent."""
    from stepscope.store.following import TailFollower
    from stepscope.store.layout import RunFolder

    tails = TailFollower(RunFolder(run))
    grown: list[tuple[float, int]] = []
    arrived: list[tuple[float, int]] = []
    pids = [pid, *children(pid)]
    spent, began = sum(sum(cpu_seconds(one)) for one in pids), time.monotonic()
    while (now := time.monotonic()) < began + seconds:
        size = path.stat().st_size
        if not grown or grown[-1][1] != size:
            grown.append((now, size))
        points = tails.look()
        mine = points.step[points.rank >= 0]
        if len(mine):
            arrived.append((time.monotonic(), int(mine.max())))
        time.sleep(0.01)
    share = 100 * (sum(sum(cpu_seconds(one)) for one in pids) - spent) / (time.monotonic() - began)
    tails.close()
    return grown, arrived, share


def delays_of(path: Path, grown: list[tuple[float, int]], arrived: list[tuple[float, int]]) -> Iterator[float]:
    """Yield how long after the file had grown to some size what it held was recorded; what came last does not count."""
    from stepscope.importers import formats

    until = arrived[-1][0] - MOST_DELAY
    chosen = [one for one in grown if one[0] < until]
    data, copy = path.read_bytes(), path.parent / "copy"
    for when, size in chosen[:: max(1, len(chosen) // SNAPSHOTS)]:
        copy.write_bytes(data[:size])
        held = max(int(series.step.max()) for run in formats.read(str(copy)) for series in run.columns.values())
        yield max(0.0, next(time for time, step in arrived if step >= held) - when)


def write(kind: str, place: Path, steps: int) -> None:
    """Write ten metrics a step, a hundred steps a second, and flush every tenth step."""
    row, flush = {"tfevents": summaries, "wandb": wandb_rows, "jsonl": json_rows}[kind](place)
    began = time.monotonic()
    for step in range(steps):
        row(step, {f"metric/{number}": step / (number + 1) for number in range(METRICS)})
        if step % FLUSH_EVERY == 0:
            flush()
        time.sleep(max(0.0, began + step / STEPS_PER_SECOND - time.monotonic()))


def summaries(place: Path):
    """Return what writes a row and what flushes, for torch's SummaryWriter."""
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(place / "board"))

    def row(step, values):
        for name, value in values.items():
            writer.add_scalar(name, value, step)

    return row, writer.flush


def wandb_rows(place: Path):
    """Return the same for W&B offline, which flushes by itself."""
    os.environ |= {"WANDB_MODE": "offline", "WANDB_DIR": str(place), "WANDB_SILENT": "true"}
    import wandb

    run = wandb.init(project="bench")
    return (lambda step, values: run.log(values, step=step)), lambda: None


def json_rows(place: Path):
    """Return the same for a file of JSON rows."""
    file = (place / "log.jsonl").open("w")
    return (lambda step, values: print(json.dumps({"step": step, **values}), file=file)), file.flush


if __name__ == "__main__":
    write(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
