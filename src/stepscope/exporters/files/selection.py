"""Which metrics of a run to export, and under which names."""

from __future__ import annotations

from collections import Counter
from difflib import get_close_matches
from typing import TYPE_CHECKING, NamedTuple

from stepscope.core.errors import UsageError
from stepscope.core.vocabulary import canonical, pattern_of, spellings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.store.reader import Past

SPELLINGS = ("recorded", "canonical", "documents")
"""Of names: as logged; as in docs/reference/metrics.md; as in compatible files."""
RECORDED, _, DOCUMENTS = SPELLINGS

DOCUMENTED = {
    "grad_norm": "gradient_norm",
    "samples_per_second": "throughput_samples_per_sec",
    "step_seconds": "batch_time",
    "steps_total": "training_steps_total",
    "steps_per_second": "batches_per_second",
    "cpu/usage_ratio": "cpu_percent",
    "memory/used_ratio": "memory_percent",
    "memory/available_bytes": "memory_available_gb",
    "memory/peak_bytes": "memory_peak_mb",
    "process/*/memory_bytes": "cpu_memory_mb",
    "disk/read_bytes_per_second": "disk_read_mb_s",
    "gpu/*/memory_used_bytes": "gpu_memory_used_mb",
    "gpu/*/memory_total_bytes": "gpu_memory_total_mb",
    "gpu/*/memory_allocated_bytes": "memory_allocated_mb",
    "gpu/*/memory_reserved_bytes": "memory_reserved_mb",
    "gpu/*/memory_peak_bytes": "max_memory_allocated",
    "gpu/*/utilization_ratio": "gpu_utilization_percent",
    "gpu/*/temperature_celsius": "gpu_temperature_celsius",
    "gpu/*/power_watts": "gpu_power_draw_watts",
    "gpu/*/fan_ratio": "gpu_fan_speed_percent",
}
"""Canonical names with another spelling in compatible files."""


class ExportedMetric(NamedTuple):
    """A metric to export: its recorded name, the name to write, and the factor for its values."""

    recorded: str
    written: str
    factor: float = 1.0


def choose(past: Past, wanted: Sequence[str] | None = None, spelling: str = RECORDED) -> list[ExportedMetric]:
    """Return the `wanted` metrics, or all of them, in order of the names that are written.

    Two metrics that would get the same name in a spelling both keep the recorded one.

    Raises:
        UsageError: the run has no such metric.
    """
    known = past.names()
    recorded = known if wanted is None else list(dict.fromkeys(_find(name, known, past.id) for name in wanted))
    return sorted(_apart([_spelled(name, spelling) for name in recorded]), key=lambda metric: metric.written)


def _find(name: str, known: Sequence[str], run: str) -> str:
    found = next((recorded for recorded, _ in spellings(name) if recorded in known), None)
    if found is None:
        near = get_close_matches(name, known, 1)
        remedy = f"did you mean {near[0]!r}?" if near else f"`stepscope show {run}` lists what there is"
        raise UsageError(f"export metric {name!r}", f"run {run} has none of that name", remedy)
    return found


def _spelled(recorded: str, spelling: str) -> ExportedMetric:
    if spelling == RECORDED:
        return ExportedMetric(recorded, recorded)
    main = canonical(recorded)
    pattern = pattern_of(main)
    instance = main.split("/")[1] if pattern != main else "0"
    written = DOCUMENTED.get(pattern, main) if spelling == DOCUMENTS else main
    factor = dict(spellings(written, instance)).get(recorded, 1.0)
    # A compatible name without a GPU means the first; the others are gpu_<index>.
    further = written != main and instance != "0"
    return ExportedMetric(recorded, f"gpu_{instance}/{written}" if further else written, factor)


def _apart(metrics: list[ExportedMetric]) -> list[ExportedMetric]:
    """Give recorded names back to metrics that would share one, until no two do."""
    while True:
        taken = Counter(metric.written for metric in metrics)
        shared = [taken[metric.written] > 1 and metric.written != metric.recorded for metric in metrics]
        if not any(shared):
            return metrics
        pairs = zip(metrics, shared, strict=True)
        metrics = [ExportedMetric(metric.recorded, metric.recorded) if back else metric for metric, back in pairs]
