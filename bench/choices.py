"""What parts written by hand save beside the library: readers of /proc beside psutil, checksums beside bare DuckDB."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.figure import Figure, Options

if TYPE_CHECKING:
    from collections.abc import Callable

WORKERS = 8
SOURCES = {"CpuSampler", "MemorySampler", "DiskSampler", "NetworkSampler", "ProcessSampler"}
"""The samplers that read what psutil reads, too."""
POINTS = 20_000


def measure(options: Options) -> list[Figure]:
    """Return the cost of one sample by psutil over ours, and how many flipped bits give wrong values."""
    return [sampling(5 if options.quick else 40), *flipped(options.scratch, 60 if options.quick else 1500)]


def sampling(repeats: int) -> Figure:
    """Return the CPU time of a sample of the machine and of nine processes, psutil's over ours."""
    what = "one sample of the machine and 9 processes, psutil over ours"
    try:
        import psutil
    except ImportError:
        return Figure("sampling", what, None, "x", None, "psutil is not installed")
    from stepscope.samplers.machine import host_samplers

    workers = [subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) for _ in range(WORKERS)]
    try:
        samplers = host_samplers(Path("/"), Path("/tmp"), lambda: {0: os.getpid()})  # noqa: S108 - where is of no matter
        chosen = [sampler for sampler in samplers if type(sampler).__name__ in SOURCES]
        ours = [cost(lambda: [sampler.sample(time.monotonic_ns()) for sampler in chosen], repeats) for _ in range(5)]
        theirs = [cost(lambda: by_psutil(psutil), repeats) for _ in range(5)]
    finally:
        for worker in workers:
            worker.kill()
            worker.communicate()
    mine, other = sorted(ours)[2], sorted(theirs)[2]
    return Figure("sampling", what, other / mine, "x", None, f"{other * 1e6:.0f} µs, ours {mine * 1e6:.0f} µs")


def cost(call: Callable[[], object], repeats: int) -> float:
    """Return seconds of CPU time per call."""
    call()
    began = time.thread_time()
    for _ in range(repeats):
        call()
    return (time.thread_time() - began) / repeats


def by_psutil(psutil: Any) -> None:
    """Read the same values with psutil."""
    psutil.cpu_times(percpu=True), psutil.getloadavg(), psutil.cpu_freq()
    psutil.virtual_memory(), psutil.swap_memory()
    psutil.disk_io_counters(perdisk=True), psutil.disk_usage("/tmp"), psutil.net_io_counters(pernic=True)  # noqa: S108
    own = psutil.Process()
    for process in (own, *own.children(recursive=True)):
        with process.oneshot():
            process.cpu_times(), process.memory_info(), process.num_threads(), process.num_fds(), process.io_counters()


def flipped(scratch: Path, flips: int) -> list[Figure]:
    """Return how often one flipped bit in a sealed file gives wrong values without an error: DuckDB alone, and ours."""
    import numpy as np

    from stepscope.store.parquet import Selection, connect, fetch
    from stepscope.store.points import NO_NS, Points
    from stepscope.store.sealed import open_sealed, read_points, write_sealed

    draw = random.Random(0)
    count = np.arange(POINTS, dtype=np.int64)
    zeros = np.zeros(POINTS, np.int32)
    value = np.random.default_rng(0).normal(size=POINTS)
    times = count * 1000 + 1_700_000_000_000_000
    points = Points(["loss"], zeros, zeros, zeros, count, count, times, value, np.full(POINTS, NO_NS))
    path = write_sealed(scratch, "node-0-0-0", points, last_seq={"0": POINTS - 1})
    whole = path.read_bytes()
    unit, connection = open_sealed(path), connect()
    wrong = {"duckdb": 0, "ours": 0}
    for _ in range(flips):
        bit = draw.randrange(len(whole) * 8)
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        wrong["duckdb"] += is_wrong(lambda: fetch(connection, Selection(), [path], ["loss"]).points(), value)
        wrong["ours"] += is_wrong(lambda: read_points([unit])[0], value)
    what = f"of {flips} flipped bits in sealed files, wrong values without an error"
    return [
        Figure("flips_duckdb", f"{what}: DuckDB alone", wrong["duckdb"]),
        Figure("flips_ours", f"{what}: Stepscope", wrong["ours"], "", 0),
    ]


def is_wrong(read: Callable[[], Any], value: Any) -> bool:
    """Return whether a reader gives values that were never written, without an error."""
    import duckdb
    import numpy as np

    try:
        points = read()
    except (duckdb.Error, OSError, ValueError):
        return False
    kept = points.seq
    if not len(kept):
        return False
    inside = (kept >= 0) & (kept < len(value))
    return not (bool(inside.all()) and np.array_equal(points.value, value[kept]) and np.array_equal(points.step, kept))
