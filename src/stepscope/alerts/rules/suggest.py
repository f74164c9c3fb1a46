"""Proposes thresholds from healthy runs: beyond their values, by a margin."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from stepscope.alerts.rules.builtin import THRESHOLDS
from stepscope.core.numbers import format_value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from numpy.typing import NDArray

    from stepscope.alerts.rules.backtest import RecordedRun

    Numbers = NDArray[np.float64]

FEWEST = 50
"""Points below which nothing is proposed."""
SHARE = 0.999
"""Share of the healthy points that are within a threshold."""
MARGIN = 0.1
"""And how far beyond, as a share of it."""


def suggest(sources: Iterable[tuple[str, RecordedRun]]) -> list[dict[str, Any]]:
    """Return a threshold for every built-in rule that the healthy runs have data for.

    Args:
        sources: names and runs that went well.

    Returns:
        Rows with `rule`, `key` (the setting), `value`, `default`, `seen` (the highest level of these runs), `points`,
        `runs` and `reason`; the values in base units.
    """
    runs = [(name, source, frozenset(source.names())) for name, source in sources]
    found = []
    for key, (rule, read, is_floor) in READERS.items():
        levels = [(name, level) for name, source, names in runs if (level := read(source, names)) is not None]
        levels = [(name, level[np.isfinite(level)]) for name, level in levels]
        whole = np.concatenate([level for _, level in levels]) if levels else np.empty(0)
        if len(whole) < FEWEST:
            continue
        found.append(_row(rule, key, whole, len(levels), is_floor=is_floor))
    return found


def _row(rule: str, key: str, levels: Numbers, runs: int, *, is_floor: bool) -> dict[str, Any]:
    edge = float(np.quantile(levels, 1 - SHARE if is_floor else SHARE))
    value = edge * (1 - MARGIN if is_floor else 1 + MARGIN)
    if key in RATIOS:
        value = min(value, 0.99)
    way = "above" if is_floor else "below"
    reason = f"{format_value(SHARE, 'ratio')} of {len(levels)} points in {runs} healthy runs are {way} {edge:.3g}"
    return {
        "rule": rule,
        "key": f"alerting.thresholds.{key}",
        "value": float(f"{value:.3g}"),
        "default": THRESHOLDS[key],
        "seen": edge,
        "points": len(levels),
        "runs": runs,
        "reason": reason,
    }


def _values(source: RecordedRun, names: frozenset[str], wanted: Callable[[str], bool]) -> Numbers | None:
    mine = [np.asarray(source.series(name).value, dtype=np.float64) for name in names if wanted(name)]
    return np.concatenate(mine) if mine else None


def _plain(name: str) -> Callable[[RecordedRun, frozenset[str]], Numbers | None]:
    from stepscope.alerts.evaluation.series_store import bind

    return lambda source, names: _values(source, names, lambda given: bind(name, given) is not None)


def _rise(source: RecordedRun, names: frozenset[str]) -> Numbers | None:
    """Return how far the median of 20 points of the loss is above that of the 200 before, as a share."""
    return _against(source, names, "loss", lambda now, before: now / before - 1)


def _slowdown(source: RecordedRun, names: frozenset[str]) -> Numbers | None:
    """Return the loss of speed of 20 steps against the 200 before, as a share."""
    return _against(source, names, "step_seconds", lambda now, before: 1 - before / now)


def _against(
    source: RecordedRun, names: frozenset[str], name: str, compare: Callable[[Numbers, Numbers], Numbers]
) -> Numbers | None:
    if name not in names:
        return None
    values = np.asarray(source.series(name).value, dtype=np.float64)
    values = values[np.isfinite(values)]
    if len(values) < 240:
        return None
    views = np.lib.stride_tricks.sliding_window_view(values, 220)[:: max(1, len(values) // 2000)]
    now, before = np.median(views[:, 200:], axis=1), np.median(views[:, :200], axis=1)
    good = (now > 0) & (before > 0)
    return compare(now[good], before[good])


def _waiting(source: RecordedRun, names: frozenset[str]) -> Numbers | None:
    """Return the share of the step that is spent waiting for data, over 100 steps."""
    if not {"phase/data", "step_seconds"} <= names:
        return None
    data, step = (np.asarray(source.series(name).value, dtype=np.float64) for name in ("phase/data", "step_seconds"))
    size = min(len(data), len(step)) // 100 * 100
    if not size:
        return None
    sums = [values[:size].reshape(-1, 100).sum(axis=1) for values in (data, step)]
    return np.asarray(sums[0] / np.where(sums[1] > 0, sums[1], np.nan))


def _gpu_share(source: RecordedRun, names: frozenset[str]) -> Numbers | None:
    found = []
    for name in names:
        if name.startswith("gpu/") and name.endswith("/memory_used_bytes"):
            total = name.replace("memory_used_bytes", "memory_total_bytes")
            if total in names:
                whole = float(np.max(source.series(total).value))
                found.append(np.asarray(source.series(name).value, dtype=np.float64) / whole)
    return np.concatenate(found) if found else None


READERS: dict[str, tuple[str, Callable[[Any, frozenset[str]], Numbers | None], bool]] = {
    "loss_increase": ("loss_increase", _rise, False),
    "training_speed": ("training_speed", _slowdown, False),
    "grad_norm_exploded": ("gradient_exploding", _plain("grad_norm"), False),
    "data_wait": ("data_starvation", _waiting, False),
    "gpu_memory": ("gpu_memory", _gpu_share, False),
    "gpu_utilization": ("gpu_underused", _plain("gpu/*/utilization_ratio"), True),
    "gpu_temperature": ("gpu_temperature", _plain("gpu/*/temperature_celsius"), False),
    "cpu_usage": ("cpu_usage", _plain("cpu/usage_ratio"), False),
    "memory_usage": ("memory_pressure", _plain("memory/used_ratio"), False),
    "io_wait": ("io_wait", _plain("cpu/iowait_ratio"), False),
    "disk_usage": ("disk_usage", _plain("disk/used_ratio"), False),
}
"""For each threshold: its rule, what to read of a run, and whether the rule fires below it."""
RATIOS = {key for key in READERS if key not in {"grad_norm_exploded", "gpu_temperature"}}
