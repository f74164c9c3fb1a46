"""Rows of the compatible JSON-lines files: their field names and units, made from values in base units.

A row has every field of its file, in one order. An unknown value is null. JSON has no NaN and no infinity: such a
value is null too, and `nonfinite` says which it was: `{"loss": "nan"}`. How numbers are rounded:

- times: cut to a millisecond, UTC, with a Z;
- percentages: cut to a tenth, so that 100.0 means full (22500 of 24576 MB is 91.5);
- MB (2**20 bytes), MB/s, degrees and watts: rounded to a thousandth;
- what the training gives (loss, learning rate, norms, throughput): not rounded at all.
"""

from __future__ import annotations

import json
import math
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from stepscope.core.vocabulary import MIB

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

Row = dict[str, object]

PERCENT = 100.0
GPU_FIELDS = {
    "utilization_percent": ("utilization_ratio", PERCENT),
    "memory_used_mb": ("memory_used_bytes", 1 / MIB),
    "memory_total_mb": ("memory_total_bytes", 1 / MIB),
    "memory_percent": ("memory_ratio", PERCENT),
    "temperature_celsius": ("temperature_celsius", 1.0),
    "power_draw_watts": ("power_watts", 1.0),
    "fan_speed_percent": ("fan_ratio", PERCENT),
}
"""Measured fields of a GPU's row: the metric below `gpu/<index>/` and the factor to the field's unit."""
TRAINING_FIELDS = (
    "timestamp",
    "step",
    "epoch",
    "loss",
    "learning_rate",
    "gradient_norm",
    "throughput_samples_per_sec",
    "memory_allocated_mb",
    "memory_reserved_mb",
)
SYSTEM_FIELDS = {
    "cpu_usage_percent": ("cpu/usage_ratio", PERCENT),
    "memory_usage_percent": ("memory/used_ratio", PERCENT),
    "memory_used_mb": ("memory/used_bytes", 1 / MIB),
    "memory_available_mb": ("memory/available_bytes", 1 / MIB),
    "disk_read_mb_s": ("disk/read_bytes_per_second", 1 / MIB),
    "disk_write_mb_s": ("disk/write_bytes_per_second", 1 / MIB),
    "network_received_mb_s": ("network/received_bytes_per_second", 1 / MIB),
    "network_sent_mb_s": ("network/sent_bytes_per_second", 1 / MIB),
}
"""Fields of the host's row: the metric and the factor to the field's unit."""


def timestamp(wall_ns: int) -> str:
    """Return nanoseconds since 1970 as ISO 8601 in UTC with milliseconds and Z."""
    seconds, rest = divmod(wall_ns, 1_000_000_000)
    return f"{datetime.fromtimestamp(seconds, timezone.utc):%Y-%m-%dT%H:%M:%S}.{rest // 1_000_000:03}Z"


def percent(ratio: float) -> float:
    """Return a share as a percentage, cut to a tenth; one just below a tenth, by float arithmetic, is that tenth."""
    return math.floor(ratio * 1000 + 1e-6) / 10 if math.isfinite(ratio) else ratio


def gpu_indices(values: Mapping[str, float]) -> list[int]:
    """Return which GPUs are among values named `gpu/<index>/…`, in order."""
    parts = (name.split("/", 2) for name in values if name.startswith("gpu/"))
    return sorted({int(part[1]) for part in parts if len(part) == 3 and part[1].isdecimal()})


def gpu_row(values: Mapping[str, float], index: int, wall_ns: int) -> Row | None:
    """Return the row of one GPU for `gpu_metrics_*.jsonl`; None if the values have nothing about it.

    The values are in base units, by canonical name; `wall_ns` is in nanoseconds since 1970.
    """
    start = f"gpu/{index}/"
    own = {name.removeprefix(start): value for name, value in values.items() if name.startswith(start)}
    if not own:
        return None
    used, total = own.get("memory_used_bytes"), own.get("memory_total_bytes")
    if used is not None and total:
        own["memory_ratio"] = used / total
    return {"timestamp": timestamp(wall_ns), "gpu_index": index, **_fields(own, GPU_FIELDS)}


def gpu_rows(values: Mapping[str, float], wall_ns: int, only: Iterable[int] | None = None) -> list[Row]:
    """Return the rows of all GPUs among the values, or of `only` these."""
    wanted = gpu_indices(values) if only is None else sorted(set(only))
    return [row for index in wanted if (row := gpu_row(values, index, wall_ns)) is not None]


def system_row(values: Mapping[str, float], wall_ns: int) -> Row:
    """Return the row of the host for `system_metrics_*.jsonl`."""
    return {"timestamp": timestamp(wall_ns), **_fields(values, SYSTEM_FIELDS)}


def _fields(values: Mapping[str, float], fields: Mapping[str, tuple[str, float]]) -> Row:
    row: Row = dict.fromkeys(fields)
    for field, (name, factor) in fields.items():
        if name in values:
            row[field] = percent(values[name]) if factor == PERCENT else _rounded(values[name] * factor)
    return row


def training_row(values: Mapping[str, object], wall_ns: int) -> Row:
    """Return the row of one step for `training_metrics_*.jsonl`; memory is in MiB, further fields follow in the row."""
    row: Row = {**dict.fromkeys(TRAINING_FIELDS), **values, "timestamp": timestamp(wall_ns)}
    for name in ("memory_allocated_mb", "memory_reserved_mb"):
        size = row[name]
        row[name] = _rounded(size) if isinstance(size, (int, float)) else None
    return row


def encode(row: Mapping[str, object]) -> bytes:
    """Return a row as one line of strict JSON."""
    broken = {name: repr(value) for name, value in row.items() if isinstance(value, float) and not math.isfinite(value)}
    if broken:
        row = {**row, **dict.fromkeys(broken), "nonfinite": broken}
    return json.dumps(row, allow_nan=False, separators=(",", ":"), default=str).encode() + b"\n"


def _rounded(value: float) -> float:
    return round(value, 3) if math.isfinite(value) else value
