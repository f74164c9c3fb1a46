"""Reading in a cold process: one long series, the list of a thousand runs, the overview of a 30-day run.

CPU seconds are those of the whole process: the interpreter, its imports and the reading.
"""

from __future__ import annotations

import json
import statistics
from typing import TYPE_CHECKING, Any

import numpy as np

from bench.figure import Figure, Options
from bench.processes import output_of
from bench.synthetic import WRITER, long_run, name_of, small_run

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from stepscope.store.pyramid import Blocks

BUCKETS = 2000
SERIES = 50
READ = """
import json, sys
import stepscope
past = stepscope.open(sys.argv[1])
found = past.overview(past.names()[:int(sys.argv[2])], points=int(sys.argv[3])).values()
buckets = [one.buckets for one in found if one.buckets is not None]
print(json.dumps({"buckets": sum(map(len, buckets)), "points": sum(int(one.count.sum()) for one in buckets)}))
"""
"""Reads the overview of a run's first series and prints how many buckets and points that was."""
LIST = "import sys, stepscope; print(len(stepscope.runs(sys.argv[1])))"
"""Lists the runs of a folder and prints how many."""


def measure(options: Options) -> list[Figure]:
    """Return the figures of reading."""
    root = options.scratch / "reading"
    repeats = 3 if options.quick else 9
    return [_one_series(root, options, repeats), _list(root, options, repeats), *_overview(root, options, repeats)]


def _one_series(root: Path, options: Options, repeats: int) -> Figure:
    points, units = (1_000_000, 2) if options.quick else (10_000_000, 16)
    run = root / "one" / "long"
    long_run(run, 1, points, units)
    seconds, told = _cold(run, 1, BUCKETS, repeats)
    what = f"one series of {points / 1e6:.0f} M points to {BUCKETS} buckets, cold"
    beside = f"{told['buckets']} buckets of {told['points']} points in {units} units"
    return Figure("one_series", what, seconds, "s CPU", 0.5, beside)


def _list(root: Path, options: Options, repeats: int) -> Figure:
    count = 200 if options.quick else 1000
    for index in range(count):
        small_run(root / "many" / f"project-{index % 10}" / f"20261115-120000-{index:04x}", f"run {index}")
    results = [output_of("-c", LIST, str(root / "many")) for _ in range(repeats)]
    if any(int(printed) != count for printed, _, _ in results):
        raise RuntimeError("the list of runs is not complete")
    wall, cpu = statistics.median(result[2] for result in results), statistics.median(result[1] for result in results)
    return Figure("list", f"listing {count} runs, cold", wall, "s", 1.0, f"{cpu:.2f} s CPU")


def _overview(root: Path, options: Options, repeats: int) -> list[Figure]:
    millions, units = (2, 4) if options.quick else (800, 190) if options.huge else (80, 190)
    buckets = max(10, BUCKETS * millions // 800)  # so that a bucket holds as many points as in the longest run
    run = root / "days" / "long"
    steps = millions * 1_000_000 // SERIES
    long_run(run, SERIES, steps, units)
    seconds, told = _cold(run, SERIES, buckets, repeats)
    size = sum(path.stat().st_size for path in run.rglob("*.parquet"))
    beside = f"{buckets} buckets each, {told['points']} points, {size / 2**30:.2f} GiB, {units} units"
    wrong = _differences(run, [name_of(index) for index in range(SERIES)], buckets)
    title = f"{millions} M-point run of 30 days: {SERIES} overview series, cold"
    return [
        Figure("overview", title, seconds, "s CPU", 2.0, beside),
        Figure("overview_equal", "  its buckets that differ from the raw scan", float(wrong), "", 0.0),
    ]


def _cold(run: Path, series: int, buckets: int, repeats: int) -> tuple[float, dict[str, Any]]:
    """Return the CPU seconds of a fresh process that reads the overview, and what it saw."""
    results = [output_of("-c", READ, str(run), str(series), str(buckets)) for _ in range(repeats)]
    return statistics.median(cpu for _, cpu, _ in results), json.loads(results[0][0])


def _differences(run: Path, names: list[str], points: int) -> int:
    """Compare the buckets of each series with a scan of its raw points by DuckDB; return how many are not equal."""
    import stepscope

    found = stepscope.open(run).overview(names, points=points)
    return sum(_difference(run, name, found[name].buckets) for name in names)


def _difference(run: Path, name: str, buckets: Blocks | None) -> int:
    if buckets is None:
        raise RuntimeError(f"{name} was not downsampled")
    seq, value = _scan(run, name)
    starts = np.searchsorted(seq, buckets.first_seq)
    expected = figures(value, starts)
    equal = np.ones(len(buckets), bool)
    for key, column in expected.items():
        equal &= _same(getattr(buckets, key), column, exact=key != "mean")
    covered = starts[0] == 0 and int(buckets.count.sum()) == len(value)
    return int((~equal).sum()) + (not covered)


def _scan(run: Path, name: str) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return seq and value of every raw point of a series, in order."""
    import duckdb

    query = "SELECT seq, value FROM read_parquet($1) WHERE name = $2 ORDER BY seq"
    files = [str(path) for path in (run / "metrics").glob(f"{WRITER.stem}-*[0-9].parquet")]
    with duckdb.connect() as connection:
        found = connection.execute(query, [files, name]).fetchnumpy()
    return np.ma.getdata(found["seq"]), np.ma.getdata(found["value"])


def figures(value: NDArray[np.float64], starts: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
    """Return what the buckets that begin at `starts` must say, reckoned plainly."""
    finite = np.isfinite(value)
    counts = np.diff(starts, append=len(value))
    good = np.add.reduceat(finite.astype(np.int64), starts)
    return {
        "count": counts,
        "nonfinite": counts - good,
        "min": np.minimum.reduceat(np.where(finite, value, np.inf), starts),
        "max": np.maximum.reduceat(np.where(finite, value, -np.inf), starts),
        "mean": np.add.reduceat(np.where(finite, value, 0.0), starts) / good,
        "last": value[np.append(starts[1:], len(value)) - 1],
    }


def _same(one: NDArray[Any], other: NDArray[Any], *, exact: bool) -> NDArray[np.bool_]:
    if exact:
        return np.asarray((one == other) | (np.isnan(one) & np.isnan(other)))
    return np.asarray(np.isclose(one, other, rtol=1e-9, atol=0.0))
