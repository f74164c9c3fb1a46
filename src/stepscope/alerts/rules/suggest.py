"""Propose thresholds from healthy runs: a margin beyond their values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from stepscope.alerts.evaluation.series_store import bind
from stepscope.alerts.rules.builtin import THRESHOLDS
from stepscope.core.numbers import format_value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from stepscope.alerts.rules.backtest import RecordedRun
    from stepscope.core.arrays import Floats


FEWEST = 50
"""Points below which nothing is proposed."""
SHARE, MARGIN = 0.999, 0.1
"""Share of the healthy points that are within a threshold, and how far beyond them it is, as a share of the value."""


def suggest(sources: Iterable[tuple[str, RecordedRun]]) -> list[dict[str, Any]]:
    """Return a threshold for every built-in rule that healthy runs, given with their names, have data for.

    Each row has `rule`, `key` (the setting), `value`, `default`, `seen` (the highest level in these runs), `points`,
    `runs` and `reason`; values are in base units.
    """
    runs = [(source, frozenset(source.names())) for _, source in sources]
    found = []
    for key, (rule, read, is_floor) in READERS.items():
        levels = [level[np.isfinite(level)] for source, names in runs if (level := read(source, names)) is not None]
        joined = np.concatenate(levels) if levels else np.empty(0)
        if len(joined) >= FEWEST:
            found.append(_row(rule, key, joined, len(levels), is_floor=is_floor))
    return found


def _row(rule: str, key: str, levels: Floats, runs: int, *, is_floor: bool) -> dict[str, Any]:
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


def _plain(pattern: str) -> Callable[[RecordedRun, frozenset[str]], Floats | None]:
    """Return a function that reads the values of all metrics that match a pattern."""

    def read(source: RecordedRun, names: frozenset[str]) -> Floats | None:
        mine = [_values(source, name) for name in names if bind(pattern, name) is not None]
        return np.concatenate(mine) if mine else None

    return read


def _values(source: RecordedRun, name: str) -> Floats:
    return np.asarray(source.series(name).value, dtype=np.float64)


def _against(
    name: str, compare: Callable[[Floats, Floats], Floats]
) -> Callable[[RecordedRun, frozenset[str]], Floats | None]:
    """Return a function that compares the medians of 20 points and of the 200 before them, at about 2 000 places."""

    def read(source: RecordedRun, names: frozenset[str]) -> Floats | None:
        values = _values(source, name) if name in names else np.empty(0)
        values = values[np.isfinite(values)]
        if len(values) < 240:
            return None
        views = np.lib.stride_tricks.sliding_window_view(values, 220)[:: max(1, len(values) // 2000)]
        now, before = np.median(views[:, 200:], axis=1), np.median(views[:, :200], axis=1)
        good = (now > 0) & (before > 0)
        return compare(now[good], before[good])

    return read


def _waiting(source: RecordedRun, names: frozenset[str]) -> Floats | None:
    """Return the share of the step that is spent waiting for data, over 100 steps."""
    if not {"phase/data", "step_seconds"} <= names:
        return None
    data, step = (_values(source, name) for name in ("phase/data", "step_seconds"))
    size = min(len(data), len(step)) // 100 * 100
    if not size:
        return None
    waited, total = (values[:size].reshape(-1, 100).sum(axis=1) for values in (data, step))
    return np.asarray(waited / np.where(total > 0, total, np.nan))


def _gpu_share(source: RecordedRun, names: frozenset[str]) -> Floats | None:
    used = [name for name in names if name.startswith("gpu/") and name.endswith("/memory_used_bytes")]
    pairs = [(name, name.replace("memory_used_bytes", "memory_total_bytes")) for name in used]
    found = [_values(source, name) / float(np.max(_values(source, total))) for name, total in pairs if total in names]
    return np.concatenate(found) if found else None


READERS: dict[str, tuple[str, Callable[[Any, frozenset[str]], Floats | None], bool]] = {
    "loss_increase": ("loss_increase", _against("loss", lambda now, before: now / before - 1), False),
    "training_speed": ("training_speed", _against("step_seconds", lambda now, before: 1 - before / now), False),
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
"""For each threshold: its rule, the function that reads its values, and whether the rule fires below it."""
RATIOS = {key for key in READERS if key not in {"grad_norm_exploded", "gpu_temperature"}}
