"""Figures of importing: a million points of each format, beside the vendor's own reader of the same file."""

from __future__ import annotations

import math
import os
import resource
import subprocess
import time
from typing import TYPE_CHECKING

from bench.figure import Figure
from bench.peers import log_records
from bench.processes import kib, output_of, python, tree

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from bench.figure import Options

SECONDS, MIB = 5.0, 300.0
NAMES = ("loss", "learning_rate", *(f"train/metric_{index}" for index in range(8)))
"""Metrics of each file."""
EVERY = 0.02
"""Seconds between two looks at the memory."""


def make_tfevents(folder: Path, points: int) -> Path:
    """Write scalars with torch's SummaryWriter; return the file."""
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(folder), max_queue=10_000)
    for step in range(points // len(NAMES)):
        for index, name in enumerate(NAMES):
            writer.add_scalar(name, math.sin(step + index), step)
    writer.close()
    return next(folder.glob("events.*"))


def vendor_tfevents(path: Path) -> int:
    """Count the scalars with TensorBoard's own loader."""
    from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader

    return sum(len(event.summary.value) for event in LegacyEventFileLoader(str(path)).Load())


def make_wandb(folder: Path, points: int) -> Path:
    """Log rows of ten with W&B offline; return the run's file."""
    quiet = {"WANDB_MODE": "offline", "WANDB_SILENT": "true", "WANDB_ERROR_REPORTING": "false"}
    os.environ.update(quiet)
    import wandb

    run = wandb.init(project="p", dir=str(folder), settings=wandb.Settings(x_disable_stats=True, console="off"))
    for step in range(points // len(NAMES)):
        run.log({name: math.sin(step + index) for index, name in enumerate(NAMES)}, step=step)
    run.finish()
    return next(folder.glob("wandb/offline-run-*/*.wandb"))


def vendor_wandb(path: Path) -> int:
    """Count the logged values with W&B's own classes; it ships no reader of the file any more."""
    import json

    from wandb.proto.wandb_internal_pb2 import Record

    found = 0
    for data in log_records(path.read_bytes()):
        items = Record.FromString(data).history.item
        found += sum(
            isinstance(json.loads(item.value_json), (int, float)) for item in items if item.nested_key[0] in NAMES
        )
    return found


def make_mlflow_sql(folder: Path, points: int) -> Path:
    """Let MLflow make a SQLite store with a run, and fill its table of metrics; return the database."""
    import sqlite3

    from mlflow import MlflowClient

    path = folder / "mlflow.db"
    client = MlflowClient(f"sqlite:///{path}")
    run = client.create_run(client.create_experiment("p"), start_time=0).info.run_id
    rows = ((NAMES[at % len(NAMES)], math.sin(at), at, run, at // len(NAMES), 0) for at in range(points))
    with sqlite3.connect(path) as store:
        store.executemany(
            "INSERT INTO metrics (key, value, timestamp, run_uuid, step, is_nan) VALUES (?,?,?,?,?,?)", rows
        )
    store.close()
    return path


def vendor_mlflow_sql(path: Path) -> int:
    """Count the points with MLflow's own client."""
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{path}")
    runs = client.search_runs([each.experiment_id for each in client.search_experiments()])
    return sum(len(client.get_metric_history(run.info.run_id, name)) for run in runs for name in NAMES)


def make_trackio(folder: Path, points: int) -> Path:
    """Log rows of ten into a database of Trackio, by its own storage; return the database."""
    os.environ["TRACKIO_DIR"] = str(folder)
    from trackio.sqlite_storage import SQLiteStorage

    for first in range(0, points // len(NAMES), 10_000):
        steps = list(range(first, min(first + 10_000, points // len(NAMES))))
        rows = [{name: math.sin(step + index) for index, name in enumerate(NAMES)} for step in steps]
        SQLiteStorage.bulk_log("p", "run", rows, steps=steps)
    return folder / "p.db"


def vendor_trackio(path: Path) -> int:
    """Count the logged values with Trackio's own reader."""
    os.environ["TRACKIO_DIR"] = str(path.parent)
    from trackio.sqlite_storage import SQLiteStorage

    return sum(name in row for row in SQLiteStorage.get_logs("p", "run") for name in NAMES)


FORMATS: dict[str, tuple[Callable[[Path, int], Path], Callable[[Path], int], str]] = {
    "tfevents": (make_tfevents, vendor_tfevents, "tensorboard's loader"),
    "wandb": (make_wandb, vendor_wandb, "W&B's protobuf classes"),
    "mlflow_sql": (make_mlflow_sql, vendor_mlflow_sql, "MLflow's client"),
    "trackio": (make_trackio, vendor_trackio, "Trackio's storage"),
}
"""What writes a file, what reads it, and the reader's name."""
CALL = """
import pathlib, sys, bench.importing
print(getattr(bench.importing, sys.argv[1])(pathlib.Path(sys.argv[2]), *map(int, sys.argv[3:])))
"""
"""Calls a function of this module in a process of its own."""


def measure(options: Options) -> list[Figure]:
    """Return time and memory of `stepscope import` for a file of each format."""
    points = 20_000 if options.quick else 1_000_000
    chosen = [form for form in FORMATS if options.only in form]
    return [figure for form in chosen for figure in _figures(form, options.scratch / "importing" / form, points)]


def _figures(form: str, folder: Path, points: int) -> list[Figure]:
    folder.mkdir(parents=True)
    make, vendor, reader = FORMATS[form]
    path = output_of("-c", CALL, make.__name__, str(folder), str(points))[0].split()[-1]
    before = cpu_of_children()
    seconds, mib = ours(path, str(folder / "runs"))
    cpu = cpu_of_children() - before
    count, _, vendor_seconds = output_of("-c", CALL, vendor.__name__, path)
    what = f"import of {points / 1e6:g} M points of {form}"
    beside = f"{cpu:.1f} s CPU; {reader}, reading only: {vendor_seconds:.1f} s, {count.split()[-1]} points"
    return [
        Figure(f"import_{form}", what, seconds, "s", SECONDS, beside),
        Figure(f"import_{form}_memory", f"peak memory, {what}", mib, "MiB", MIB, "command and reading child together"),
    ]


def cpu_of_children() -> float:
    """Return the CPU seconds of all children that have ended, with theirs."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def ours(path: str, root: str) -> tuple[float, float]:
    """Run `stepscope import`; return its seconds, and the most MiB that it and its child had together."""
    started, peak = time.perf_counter(), 0
    child = python("-m", "stepscope", "import", "--quiet", "--dir", root, path, stdout=subprocess.DEVNULL)
    while child.poll() is None:
        peak = max(peak, sum(kib(pid, "Pss", "smaps_rollup") for pid in tree(child.pid)))
        time.sleep(EVERY)
    if child.returncode:
        raise RuntimeError(f"the import of {path} failed")
    return time.perf_counter() - started, peak / 1024
