"""Figures of exporting: the memory that a metric of ten million points takes in each format."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from bench.figure import Figure
from bench.processes import output_of
from bench.synthetic import long_run

if TYPE_CHECKING:
    from pathlib import Path

    from bench.figure import Options

EXPORT = """
import json, resource, sys
from stepscope.cli.main import main
code = main(["export", sys.argv[1], "--output", sys.argv[2], "--force", *sys.argv[3:]])
usage = resource.getrusage(resource.RUSAGE_SELF)
print(json.dumps({"code": code, "kib": usage.ru_maxrss, "cpu": usage.ru_utime + usage.ru_stime}))
"""
"""Exports a run and prints what that took of memory and processor."""
FORMS = {
    "csv": ("--format", "csv"),
    "wide": ("--format", "csv", "--wide"),
    "json": ("--format", "json"),
    "parquet": ("--format", "parquet"),
    "arrow": ("--format", "arrow"),
    "tensorboard": ("--format", "tensorboard"),
}
LIMIT = 320.0
"""MiB; numpy, DuckDB and pyarrow take 60 to 130 of them before a point is read."""


def measure(options: Options) -> list[Figure]:
    """Return the peak of each format, of one metric that is read and written whole."""
    points, units = (400_000, 4) if options.quick else (10_000_000, 16)
    run = options.scratch / "exporting" / "one" / "long"
    long_run(run, 1, points, units)
    return [_peak(run, form, points) for form in FORMS]


def _peak(run: Path, form: str, points: int) -> Figure:
    target = run.parent / f"exported.{form}"
    printed, _, _ = output_of("-c", EXPORT, str(run), str(target), *FORMS[form])
    told = json.loads(printed.splitlines()[-1])
    if told["code"]:
        raise RuntimeError(f"the export to {form} failed")
    paths = [target] if target.is_file() else [path for path in target.rglob("*") if path.is_file()]
    size = sum(path.stat().st_size for path in paths)
    what = f"peak memory, one metric of {points / 1e6:g} M points to {form}"
    beside = f"{told['cpu']:.1f} s CPU, {size / 2**20:.0f} MiB written"
    return Figure(f"export_{form}", what, told["kib"] / 1024, "MiB", LIMIT, beside)
