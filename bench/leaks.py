"""Leaks: found where planted into real memory series, and none in healthy ones; forecasts of the end of real runs."""

from __future__ import annotations

import csv
import json
import resource
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bench.figure import Figure, Options
from bench.processes import ROOT, output_of
from stepscope.analysis.series.forecast import end_of_run
from stepscope.analysis.series.leak import assess

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    Numbers = NDArray[np.float64]

DATA = ROOT.parent / "shared" / "data"
RATE = 0.01 / 1000
"""Of the level, with each step."""
WINDOW = 500
"""Readings of a part of a long series."""
HELD = 60
"""Readings of one process that make a series."""
CUTS = (0.3, 0.5, 0.7, 0.9)
"""Shares of a run at which its end is forecast."""


def measure(options: Options) -> list[Figure]:
    """Return leaks missed and invented: on real series, on some drawn from their noise, on processes of our own."""
    if not DATA.is_dir():
        why = "the real data is not installed: ../shared/data"
        keys = ("leaks_missed", "leaks_false", "leaks_missed_drawn", "leaks_false_drawn", "forecast_outside")
        return [*(Figure(key, key.replace("_", " "), None, beside=why) for key in keys), *_own(options)]
    real, healthy = list(_series()), [*_series(), *_telemetry()]
    leaking = [*real, *_held()]
    missed = [name for name, step, value in leaking if not _grows(step, value, RATE)]
    invented = [name for name, step, value in healthy if _grows(step, value)]
    drawn = 100 if options.quick else 1000
    rng = np.random.default_rng(options.seed)
    lost = sum(not _grows(step, value, RATE) for step, value in _drawn(rng, drawn))
    false = sum(_grows(step, value) for step, value in _drawn(rng, drawn))
    percent = "%"
    return [
        Figure(
            *("leaks_missed", "leaks of 1 % per 1 000 steps missed, real series", 100 * len(missed) / len(leaking)),
            *(percent, 5.0, f"{len(leaking) - len(missed)} of {len(leaking)} found {' '.join(missed)}"),
        ),
        Figure(
            *("leaks_false", "leaks said of healthy real series", float(len(invented)), "", 0.0),
            f"of {len(healthy)} series and windows {' '.join(invented)}",
        ),
        Figure(
            *("leaks_missed_drawn", "  missed, 20 readings drawn from their noise", 100 * lost / drawn, percent, None),
            f"{drawn} series",
        ),
        Figure("leaks_false_drawn", "  said of healthy ones", float(false), "", None, f"{drawn} series"),
        *_own(options),
        _forecasts(),
    ]


def _grows(step: Numbers, value: Numbers, rate: float = 0.0) -> bool:
    level = float(np.nanmedian(value))
    return assess(step, value + rate * level * (step - step[0])).growing


def _series() -> Iterator[tuple[str, Numbers, Numbers]]:
    """Yield name, step and bytes of real training runs that do not leak."""
    for path in sorted((DATA / "peft-memory-metamathqa").glob("*.json")):
        rows = [row for row in json.loads(path.read_text())["train_info"]["metrics"] if "mem reserved avg" in row]
        step = np.array([row["step"] for row in rows], np.float64)
        for key in ("mem reserved avg", "mem allocated avg"):
            yield f"{path.stem}:{key}", step, np.array([row[key] for row in rows], np.float64)
    for path in sorted((DATA / "megatron-golden").glob("*/*.json")):
        for key, found in json.loads(path.read_text()).items():
            if not key.startswith("mem-"):
                continue
            step = np.array([int(number) for number in found["values"]], np.float64)
            value = np.array([float(number) for number in found["values"].values()])
            yield f"{path.parent.name}:{key}", step, value
            for part in _parts(value, peak="max" in key):
                yield f"{path.parent.name}:{key}:{part.start}", step[part], value[part]


def _parts(value: Numbers, *, peak: bool) -> list[slice]:
    """Return parts of a long series: windows, or of a peak the lives of its processes, at whose end it falls."""
    if len(value) < WINDOW:
        return []
    whole = np.flatnonzero(np.isfinite(value))
    if not peak:
        return [slice(int(part[0]), int(part[-1]) + 1) for part in np.array_split(whole, len(whole) // WINDOW)]
    lives = np.split(whole, np.flatnonzero(np.diff(value[whole]) < 0) + 1)
    return [slice(int(life[0]), int(life[-1]) + 1) for life in lives if len(life) >= HELD]


def _used() -> Numbers:
    with (DATA / "gpu-telemetry-nvidia-smi" / "gpu_log.csv").open() as file:
        return np.array([float(row[3].split()[0]) * 2**20 for row in csv.reader(file)])


def _telemetry() -> Iterator[tuple[str, Numbers, Numbers]]:
    """Yield windows of a card that was idle and busy by turns."""
    used = _used()
    for size in (60, 120, 200, 500, len(used)):
        for first in range(0, len(used) - size + 1, 67):
            yield f"telemetry:{size}:{first}", np.arange(size, dtype=np.float64), used[first : first + size]


def _held() -> Iterator[tuple[str, Numbers, Numbers]]:
    """Yield the parts of it in which one process held about the same memory."""
    used = _used()
    edges = np.flatnonzero(np.abs(np.diff(used)) > 64 * 2**20) + 1
    for part in np.split(used, edges):
        if len(part) >= HELD and np.median(part) > 128 * 2**20:
            yield f"held:{np.median(part) / 2**20:.0f}MiB", np.arange(len(part), dtype=np.float64), part


def _drawn(rng: np.random.Generator, count: int) -> Iterator[tuple[Numbers, Numbers]]:
    """Yield series of 20 readings whose noise is drawn from that of all real ones with noise."""
    found = [value / np.median(value) - 1 for name, _, value in _series() if name.endswith("mem reserved avg")]
    noise = np.concatenate(found)
    step = np.arange(250.0, 5001.0, 250.0)
    for _ in range(count):
        yield step, 14e9 * (1 + rng.choice(noise, len(step)))


def _own(options: Options) -> list[Figure]:
    """Measure processes of our own, whose resident memory the kernel tells: healthy in three ways, and leaking."""
    steps = 2000 if options.quick else 6000
    found = {}
    for habit in ("plain", "cache", "batches", "leak"):
        printed, _, _ = output_of("-m", "bench.leaks", habit, str(steps))
        value = np.array(json.loads(printed), np.float64)
        found[habit] = assess(np.arange(len(value), dtype=np.float64), value).verdict
    wrong = sum((verdict == "growth") != (habit == "leak") for habit, verdict in found.items())
    beside = ", ".join(f"{habit} {verdict}" for habit, verdict in found.items())
    return [Figure("leaks_own", "processes of our own judged wrongly", float(wrong), "", 0.0, beside)]


def work(habit: str, steps: int) -> list[int]:
    """Train nothing for some steps, in one of the habits, and return the resident bytes after each."""
    rng = np.random.default_rng(0)
    weights = np.ones(32 * 2**20)  # 256 MiB
    kept: list[bytes] = []
    cache: dict[int, bytes] = {}
    found = []
    for step in range(steps):
        size = int(rng.integers(1, 16)) << 16 if habit == "batches" else 1 << 19
        batch = np.ones(size)
        weights[step % len(weights)] += batch[-1]
        if habit == "leak":  # five times what the figure asks for: in so few steps a leak must be worth a word
            kept.append(b"x" * int(5 * RATE * weights.nbytes))
        if habit == "cache":
            cache[int(rng.integers(0, 200))] = b"x" * 100_000
        with Path("/proc/self/statm").open() as file:
            found.append(int(file.read().split()[1]) * resource.getpagesize())
    return found


def _forecasts() -> Figure:
    """Forecast the end of real runs from a part of them; how often it lies outside the 95 % interval."""
    outside, errors = 0, []
    for path in sorted((DATA / "mlperf-v5.1-runs").glob("*/*.txt")):
        time, step = _progress(path)
        for cut in CUTS if len(step) else ():
            part = max(2, int(len(time) * cut))
            found = end_of_run(time[:part], step[:part], int(step[-1]) + 1)
            if found is None or part == len(time):
                continue
            left = float(time[-1] - time[part - 1])
            outside += not found.low <= left <= (found.high if found.high is not None else np.inf)
            errors.append(abs(found.seconds - left) / left)
    what = "ends of real runs outside the 95 % interval of their forecast"
    if not errors:
        return Figure("forecast_outside", what, None, beside="the real data is not installed")
    beside = f"{len(errors)} forecasts, median error {100 * float(np.median(errors)):.2g} %"
    return Figure("forecast_outside", what, 100 * outside / len(errors), "%", None, beside)


def _progress(path: Path) -> tuple[Numbers, Numbers]:
    """Return when which step was logged, of an MLPerf log."""
    found = {}
    for line in path.read_text().splitlines():
        if not line.startswith(":::MLLOG"):
            continue
        row = json.loads(line.removeprefix(":::MLLOG"))
        meta = row.get("metadata") or {}
        tracked = row["value"] if row.get("key") == "tracked_stats" else {}
        if "step" in meta and any(name.endswith("train_loss") for name in tracked):
            found[float(meta["step"])] = row["time_ms"] / 1000
    step = np.array(sorted(found))
    return np.array([found[one] for one in step]), step


if __name__ == "__main__":
    print(json.dumps(work(sys.argv[1], int(sys.argv[2]))))
