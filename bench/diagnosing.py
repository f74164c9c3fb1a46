"""Diagnosing a long run: seconds, memory, and that its cause is found; and the straggler of a published trace."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bench.figure import Figure, Options
from bench.processes import python
from bench.synthetic import DAYS_30, START, WRITER, small_run
from stepscope.store.layout import RunFolder
from stepscope.store.points import NO_NS, Points
from stepscope.store.sealed import write_sealed

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Numbers = NDArray[np.float64]

STEPS, QUICK_STEPS, UNIT = 1_000_000, 20_000, 50_000
SECONDS, MEBIBYTES, SLOWDOWN_ERROR = 3.0, 400.0, 0.02
PHASES = {"data": 0.02, "forward": 0.008, "backward": 0.016, "optimizer": 0.003, "logging": 0.0002, "other": 0.0008}
"""Seconds of a step: the run waits for its data."""
METRICS = ("loss", "learning_rate", "grad_norm", "samples", "accuracy", "perplexity", "memory/resident_bytes")
FILLERS = 6
PUBLISHED = Path(__file__).parents[2] / "shared" / "data" / "bytedance-straggler-ST"
TRUE_SLOWDOWN, TRUE_STAGE = 1.1787, 3
"""As the authors of the trace have found."""


def measure(options: Options) -> list[Figure]:
    """Return what a diagnosis of a long run takes, and how far the slowdown of the published trace is off."""
    steps = QUICK_STEPS if options.quick else STEPS
    run = options.scratch / "diagnosing" / "long"
    write(run, steps)
    seconds, busy, peak, told = diagnose(str(run))
    size = f"{steps} steps x {len(PHASES) + 1 + len(METRICS) + FILLERS} metrics"
    beside = f"{size}, {busy:.1f} s of a processor, verdict {told['primary']}"
    wrong = float(told["primary"] != "input_bound")
    found = [
        Figure("diagnose_seconds", "diagnose a long run", seconds, "s", SECONDS, beside),
        Figure("diagnose_memory", "  most memory", peak, "MiB", MEBIBYTES),
        Figure("diagnose_wrong", "  wrong verdicts", wrong, "", 0.0),
    ]
    trace = PUBLISHED / "trace-ST.parquet"
    if not trace.exists():
        absent = (("straggler_error", "slowdown of the published trace, error"), ("straggler_missed", "  wrong stages"))
        return [*found, *(Figure(key, what, None) for key, what in absent)]
    _, _, _, told = diagnose(str(trace))
    evidence = told["findings"][0]["evidence"]
    off = abs(evidence["slowdown"] / TRUE_SLOWDOWN - 1)
    named = f"S {evidence['slowdown']:.4f}, the authors' {TRUE_SLOWDOWN}; stage {evidence['late_stage']} named"
    miss = float(evidence["late_stage"] != TRUE_STAGE)
    return [
        *found,
        Figure("straggler_error", "slowdown of bytedance-straggler-ST, error", off, "", SLOWDOWN_ERROR, named),
        Figure("straggler_missed", "  wrong stages", miss, "", 0.0),
    ]


def diagnose(run: str) -> tuple[float, float, float, dict[str, Any]]:
    """Diagnose a run in a process of its own; return its seconds, those of a processor, its peak in MiB, its answer."""
    started = time.perf_counter()
    child = python("-m", "stepscope", "diagnose", run, "--json", stdout=-1)
    assert child.stdout is not None
    printed = child.stdout.read()
    _, status, usage = os.wait4(child.pid, 0)
    seconds = time.perf_counter() - started
    child.stdout.close()
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise RuntimeError(f"stepscope diagnose {run} ended with {child.returncode}")
    return seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024, json.loads(printed)


def write(path: Path, steps: int) -> None:
    """Write a run of one rank that waits for its data, with all its phases, sealed in units of 50 000 steps."""
    small_run(path, "long", steps - 1)
    for unit, first in enumerate(range(0, steps, UNIT)):
        _seal(path, unit, first, min(steps, first + UNIT), steps)


def _seal(path: Path, unit: int, first: int, last: int, steps: int) -> None:
    rng = np.random.default_rng(unit)
    count = last - first
    columns = _columns(np.arange(first, last), rng, steps)
    names = sorted(columns)
    step = np.arange(first, last, dtype=np.int64)
    moment = START + step * (DAYS_30 // steps)
    points = Points(
        names,
        name=np.repeat(np.arange(len(names), dtype=np.int32), count),
        rank=np.zeros(len(names) * count, np.int32),
        attempt=np.zeros(len(names) * count, np.int32),
        seq=np.tile(step, len(names)),
        step=np.tile(step, len(names)),
        time=np.tile(moment, len(names)),
        value=np.concatenate([columns[name] for name in names]),
        ns=np.full(len(names) * count, NO_NS, np.int64),
    )
    stage = path / f"stage-{unit}"
    stage.mkdir()
    write_sealed(stage, RunFolder(path).unit_stem(WRITER, unit, unit), points, last_seq={"0": last - 1})
    for part in stage.iterdir():
        part.rename(path / "metrics" / part.name)
    stage.rmdir()


def _columns(step: NDArray[np.int64], rng: np.random.Generator, steps: int) -> dict[str, Numbers]:
    """Return the metrics of some steps."""
    count = len(step)
    phases = {f"phase/{name}": mean * rng.lognormal(0, 0.2, count) for name, mean in PHASES.items()}
    found = {**phases, "step_seconds": np.sum(list(phases.values()), axis=0)}
    loss = 2 + 6 * np.exp(-8 * step / steps) + rng.normal(0, 0.05, count)
    made = {"loss": loss, "perplexity": np.exp(loss), "accuracy": 1 / loss, "learning_rate": np.full(count, 3e-4)}
    made |= {"grad_norm": rng.lognormal(0, 0.2, count), "samples": np.full(count, 64.0)}
    made["memory/resident_bytes"] = 4e9 + rng.normal(0, 1e6, count)
    return found | made | {f"own/{at}": rng.normal(at, 1, count) for at in range(FILLERS)}


def main(arguments: list[str]) -> int:
    """Write a run into the folder that is named, for a look at it."""
    write(Path(arguments[0]), int(arguments[1]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
