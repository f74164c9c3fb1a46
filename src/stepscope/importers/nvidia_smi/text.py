"""The human-readable forms of nvidia-smi: `dmon`, one line per GPU and second, and the table that `-l` repeats."""

from __future__ import annotations

import math
import re
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING

from stepscope.importers.words import moment, parsed, scaled

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from stepscope.importers.run_builder import RunBuilder

DMON = {
    "pwr": ("power_watts", 1.0),
    "gtemp": ("temperature_celsius", 1.0),
    "temp": ("temperature_celsius", 1.0),
    "mtemp": ("memory_temperature_celsius", 1.0),
    "sm": ("utilization_ratio", 0.01),
    "mem": ("memory_utilization_ratio", 0.01),
    "enc": ("encoder_utilization_ratio", 0.01),
    "dec": ("decoder_utilization_ratio", 0.01),
    "mclk": ("memory_clock_hertz", 1e6),
    "pclk": ("sm_clock_hertz", 1e6),
    "fb": ("memory_used_bytes", 2.0**20),
    "rxpci": ("pcie_received_bytes_per_second", 1e6),
    "txpci": ("pcie_sent_bytes_per_second", 1e6),
}
"""Columns of dmon: the metric and the factor to its unit."""
HEADING = re.compile(r"#\s*(?:Date\s+Time\s+|Time\s+)?gpu\s(?!.*\bpid\b)")
"""For dmon only; pmon lists processes, not GPUs."""
DATE = re.compile(r"\w{3} (\w{3}\s+\d{1,2} \d\d:\d\d:\d\d \d{4})\s*")
GPU = re.compile(r"\|\s{1,5}(\d{1,3})\s{1,6}(\S[^|]{0,60})\|")
MEMORY = re.compile(r"(\d{1,8})MiB\s{0,5}/\s{0,5}(\d{1,8})MiB")
FIGURES = {
    "fan_ratio": (re.compile(r"^\|\s{0,5}(\d{1,3})%\s"), 0.01),
    "power_watts": (re.compile(r"\s(\d{1,5})W\s{0,5}/\s{0,5}\d{1,5}W"), 1.0),
    "power_limit_watts": (re.compile(r"\s\d{1,5}W\s{0,5}/\s{0,5}(\d{1,5})W"), 1.0),
    "temperature_celsius": (re.compile(r"\s(\d{1,3})C\s"), 1.0),
}
"""Figures of a GPU in the table, by metric, with the factor to its unit."""
BUSY = re.compile(r"\|\s{1,10}(\d{1,3})%\s")
"""The utilization, which comes after the memory."""


def recognises(first: Sequence[str]) -> bool:
    """Return whether a text starts as dmon or the table does."""
    return HEADING.match(first[0]) is not None or any("| NVIDIA-SMI " in line for line in first)


def add(run: RunBuilder, texts: Iterable[str]) -> None:
    """Add the lines of either form."""
    columns: list[str] = []
    time, gpu = math.nan, None
    for line in texts:
        if line.startswith("#"):
            columns = line.lstrip("# ").split() if HEADING.match(line) else columns
        elif columns:
            _add_dmon(run, columns, line.split())
        elif (found := DATE.fullmatch(line)) is not None:
            time = math.nan
            with suppress(ValueError):
                time = datetime.strptime(f"{' '.join(found[1].split())} +0000", "%b %d %H:%M:%S %Y %z").timestamp()
        elif (measured := MEMORY.search(line)) is not None and gpu is not None:
            _add_table(run, line, gpu, time, measured)
            gpu = None
        elif (found := GPU.match(line)) is not None:
            gpu = int(found[1])


def _add_dmon(run: RunBuilder, columns: Sequence[str], cells: Sequence[str]) -> None:
    """Add one line of dmon; `-` is absent. A time without a date is ignored."""
    row = dict(zip(columns, cells, strict=False))
    gpu = row.get("gpu", "")
    if not gpu.isdecimal() or len(gpu) > 5:
        return
    day = row.get("Date", "")
    time = moment(f"{day[:4]}-{day[4:6]}-{day[6:8]} {row.get('Time', '')}") if len(day) == 8 else math.nan
    for column, cell in row.items():
        figure = parsed(cell) if column in DMON else None
        if figure is not None:
            name, factor = DMON[column]
            run.add(f"gpu/{gpu}/{name}", scaled(figure, factor), time=time)


def _add_table(run: RunBuilder, line: str, gpu: int, time: float, memory: re.Match[str]) -> None:
    """Add the second line of a GPU in the table."""
    found = {"memory_used_bytes": float(memory[1]) * 2.0**20, "memory_total_bytes": float(memory[2]) * 2.0**20}
    for name, (pattern, factor) in FIGURES.items():
        if (figure := pattern.search(line)) is not None:
            found[name] = scaled(float(figure[1]), factor)
    if (busy := BUSY.search(line, memory.end())) is not None:
        found["utilization_ratio"] = float(busy[1]) / 100
    for name, value in found.items():
        run.add(f"gpu/{gpu}/{name}", value, time=time)
