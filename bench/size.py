"""Bytes that a point takes on disk once it is sealed, through the real path: record, drain, seal."""

from __future__ import annotations

import itertools
import random
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from bench.figure import Figure, Options
from bench.peers import KEYS
from bench.processes import output_of
from bench.sandbox import settled

if TYPE_CHECKING:
    from collections.abc import Callable

LIMITS = {"f32": 5.0, "f64": 8.5, "durations": 5.0}
TITLES = {"f32": "f32-valued", "f64": "full f64", "durations": "durations"}
STEP_NS = 2_000_000
"""Median time of a simulated step."""
BURST = 4000
"""Rows between two pauses: far less than the ring holds, so that nothing is dropped."""


def measure(options: Options) -> list[Figure]:
    """Return bytes per sealed point of three kinds of metrics, without and with pyramid and checksums."""
    rows = 20_000 if options.quick else 150_000
    found = []
    for kind, limit in LIMITS.items():
        root = options.scratch / "size"
        output_of("-m", "bench.size", str(root), kind, str(rows))
        run = root / "size" / kind
        settled(run)
        sizes = weigh(run)
        if not sizes["count"]:
            raise RuntimeError(f"nothing was sealed: see {run}/watcher.log")
        alone, pyramid, sums = (sizes[part] / sizes["count"] for part in ("points", "blocks", "sum"))
        counted = f"{sizes['count']:.0f} points in {sizes['units']:.0f} units"
        added = f"pyramid {pyramid:.2f}, checksums {sums:.2f}"
        what, total = f"bytes per point sealed, {TITLES[kind]}", alone + pyramid + sums
        found += [
            Figure(f"size_{kind}", what, alone, "", limit, counted),
            Figure(f"size_{kind}_all", "  with pyramid and checksums", total, "", None, added),
        ]
    return found


def weigh(run: Path) -> dict[str, float]:
    """Return bytes of points, pyramid and checksums, the number of points, and that of units."""
    from stepscope.store.layout import RunFolder
    from stepscope.store.sealed import open_sealed

    units = [open_sealed(unit.path) for unit in RunFolder(run).all_units()]
    return {
        "points": float(sum(unit.path.stat().st_size for unit in units)),
        "blocks": float(sum(unit.blocks_path.stat().st_size for unit in units)),
        "sum": float(sum(unit.path.with_suffix(".sum").stat().st_size for unit in units)),
        "count": float(sum(sum(unit.names.values()) for unit in units)),
        "units": float(len(units)),
    }


def clock(rows: int, seed: int = 0) -> Callable[[], int]:
    """Return a clock for the recorder that ends about now and runs as if each call were part of a 2 ms step.

    A loop without work would give durations and times that compress too well to be true.
    """
    draw = random.Random(seed).lognormvariate
    steps = itertools.accumulate((int(draw(0, 0.3) * STEP_NS / 4) for _ in itertools.repeat(0)), initial=0)
    origin = time.monotonic_ns() - rows * STEP_NS * 3
    return lambda: origin + next(steps)


def main(arguments: list[str]) -> int:
    """Record rows of one kind under a simulated clock."""
    import numpy as np

    import stepscope
    from stepscope.recorder import hotpath

    root, kind, rows = Path(arguments[0]), arguments[1], int(arguments[2])
    run = stepscope.init(project="size", dir=root, run_id=kind)
    noise = np.random.default_rng(0).normal(0.0, 1.0, (rows, len(KEYS))) * np.logspace(-2, 1, len(KEYS))
    values = (2.5 * np.exp(-np.arange(rows) / rows))[:, None] + noise  # from a smooth curve to pure noise
    data = (values.astype(np.float32) if kind == "f32" else values).tolist()
    vars(hotpath)["monotonic_ns"] = clock(rows)
    for at, row in enumerate(data):
        if kind == "durations":
            with run.step():
                for phase in ("forward", "backward", "optimizer"):
                    with run.phase(phase):
                        pass
        else:
            run.log(dict(zip(KEYS, row, strict=True)))
        if at % BURST == 0:
            time.sleep(0.2)
    run.finish()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
