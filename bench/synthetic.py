"""Runs that were never recorded: long ones sealed straight from arrays, and folders of many small ones."""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from bench.processes import output_of
from stepscope.store.layout import RunFolder, Writer
from stepscope.store.points import NO_NS, Points
from stepscope.store.sealed import write_sealed
from stepscope.store.states import NodeState, RankState

START = 1_750_000_000_000_000
"""Microseconds since 1970 UTC of the first point."""
DAYS_30 = 30 * 86_400 * 1_000_000
WRITER = Writer("synthetic", 0)
WORKERS = 2


def long_run(path: Path, names: int, steps: int, units: int) -> None:
    """Make a run of `names` series with `steps` points each over 30 days, in so many sealed units."""
    small_run(path, "long", steps - 1)
    bounds = np.linspace(0, steps, units + 1).astype(int).tolist()
    jobs = [(str(path), names, steps, unit, *bounds[unit : unit + 2]) for unit in range(units)]
    shares = [json.dumps(jobs[worker::WORKERS]) for worker in range(WORKERS)]
    with ThreadPoolExecutor(WORKERS) as pool:
        list(pool.map(lambda share: output_of("-m", "bench.synthetic", share), shares))


def seal_unit(path: Path, names: int, steps: int, unit: int, first: int, last: int) -> None:
    """Seal the steps from `first` to before `last` of all series: f32 values on a slow curve, a spike and a NaN."""
    count, rng = last - first, np.random.default_rng(unit)
    step = np.arange(first, last, dtype=np.int64)
    time = START + step * (DAYS_30 // steps) + rng.integers(0, 1000, count)
    value = rng.standard_normal((names, count), dtype=np.float32) * np.float32(0.1)
    value += (np.arange(names, dtype=np.float32)[:, None] + 2) * np.exp(-step / steps).astype(np.float32)
    value[np.arange(names), rng.integers(0, count, names)] = 1000.0
    value[:, rng.integers(0, count)] = np.nan
    points = Points(
        [name_of(index) for index in range(names)],
        name=np.repeat(np.arange(names, dtype=np.int32), count),
        rank=np.zeros(names * count, np.int32),
        attempt=np.zeros(names * count, np.int32),
        seq=np.tile(step, names),
        step=np.tile(step, names),
        time=np.tile(time, names),
        value=value.astype(np.float64).reshape(-1),
        ns=np.full(names * count, NO_NS, np.int64),
    )
    # In a folder of its own first: a writer clears away what another of the same name seems to have left behind.
    stage = path / f"stage-{unit}"
    stage.mkdir()
    write_sealed(stage, RunFolder(path).unit_stem(WRITER, unit, unit), points, last_seq={"0": last - 1})
    for part in stage.iterdir():
        part.rename(path / "metrics" / part.name)
    stage.rmdir()


def name_of(index: int) -> str:
    """Return the name of one of the series."""
    return f"train/metric_{index:02}"


def small_run(path: Path, name: str, step: int = 100) -> None:
    """Make the folder of a run that ended well and has no points."""
    folder = RunFolder(path)
    folder.make()
    facts = {"format": 1, "id": path.name, "project": path.parent.name, "name": name, "created": START}
    folder.describe({**facts, "config": {"learning_rate": 3e-4, "layers": 12}, "host": {"name": "synthetic"}})
    rank = RankState(state="finished", pid=1, rows=step, step=step, started=START, ended=START + DAYS_30)
    NodeState(WRITER.node, 0, 7, START + DAYS_30, 1, "", ended=True, ranks={0: rank}).save(folder)


def main(arguments: list[str]) -> int:
    """Seal some units, one after another."""
    for path, *numbers in json.loads(arguments[0]):
        seal_unit(Path(path), *numbers)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
