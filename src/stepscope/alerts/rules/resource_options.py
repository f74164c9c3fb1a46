"""The resource callback's options, as they change the built-in rules: they reach the watcher as an event of the run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

THRESHOLDS = {
    "gpu_util_threshold": ("gpu_utilization", 0.5),
    "memory_threshold": ("memory_usage", 0.9),
    "io_wait_threshold": ("io_wait", 0.3),
}
"""The threshold behind each option, and the option's default: an unchanged option changes nothing."""
SWITCHES = {
    "alert_gpu_underutilization": ("gpu_underused",),
    "alert_memory_pressure": ("memory_pressure",),
    "alert_io_bottleneck": ("io_wait", "io_pressure"),
}
"""Rules behind each switch."""


def changes_of(options: Mapping[str, Any]) -> tuple[dict[str, float], set[str]]:
    """Return the effect of the options: thresholds by name, and the rules that are off."""
    limits = {}
    for key, (name, usual) in THRESHOLDS.items():
        value = options.get(key)
        if isinstance(value, (int, float)) and value != usual and 0 < value <= 1:
            limits[name] = float(value)
    return limits, {name for key, names in SWITCHES.items() if options.get(key) is False for name in names}
