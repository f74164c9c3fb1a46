"""Replay recorded runs through the alert engine: which alerts would have fired, how late, and how many falsely."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from stepscope.alerts.evaluation.new_points import NewPoints, steps_of
from stepscope.alerts.evaluation.rule_evaluator import RuleEvaluator
from stepscope.alerts.evaluation.state import FIRING, AlertTable
from stepscope.core.ring import NO_STEP

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from stepscope.alerts.evaluation.state import Transition
    from stepscope.alerts.rules.rule import Rule
    from stepscope.core.arrays import Floats, Integers

BATCH, MOST = 64, 256
"""A run is evaluated in at least `BATCH` consecutive parts; each holds at most `MOST` points of a series."""
GRACE = 50
"""Steps after an incident within which an alert belongs to it."""


class RecordedRun(Protocol):
    """A recorded run: our own, or an imported one."""

    def names(self) -> list[str]:
        """Return the names of its metrics."""
        ...

    def series(self, name: str) -> Any:
        """Return one metric: step, time, value, rank and attempt of each point."""
        ...


def replay(rules: Iterable[Rule], source: RecordedRun) -> list[Transition]:
    """Return the changes that rules would have made in a run, ordered by time.

    A run without times is assumed to have made one step per second. Attempts keep their order, and each starts with
    empty windows.
    """
    found: list[Transition] = []
    rules = list(rules)
    recorded = [(name, source.series(name)) for name in source.names()]
    attempts = sorted({int(each) for _, series in recorded for each in np.unique(series.attempt)})
    for attempt in attempts:
        found += _attempt(rules, recorded, attempt)
    return sorted(found, key=lambda change: change.time)


def _attempt(rules: list[Rule], recorded: list[tuple[str, Any]], attempt: int) -> list[Transition]:
    evaluator = RuleEvaluator(rules, AlertTable(rules), lambda _: None)
    columns: dict[tuple[int, str], tuple[Floats, ...]] = {}
    for name, series in recorded:
        for rank in np.unique(series.rank[series.attempt == attempt]).tolist():
            if evaluator.store.wants(rank, name):
                mine = (series.attempt == attempt) & (series.rank == rank)
                columns[rank, name] = _clocked(series.step[mine], series.time[mine], series.value[mine])
    if not columns:
        return []
    longest = max(len(each[1]) for each in columns.values())
    every = np.sort(np.concatenate([each[1] for each in columns.values()]))
    parts = max(BATCH, -(-longest // MOST))
    edges = every[np.linspace(0, len(every) - 1, min(parts, len(every)) + 1).round().astype(int)][1:]
    found: list[Transition] = []
    places = dict.fromkeys(columns, 0)
    for number, edge in enumerate(np.unique(edges)):
        batch: dict[tuple[int, str], list[NewPoints]] = {}
        for key, (step, time, value) in columns.items():
            start, end = places[key], int(np.searchsorted(time, edge, side="right"))
            if end > start:
                axis = hash((number, key[0], time[start:end].tobytes()))
                batch[key] = [NewPoints(step[start:end], time[start:end], value[start:end], axis)]
                places[key] = end
        found += evaluator.take(batch)
    return found


def _clocked(step: Integers, time: Floats, value: Floats) -> tuple[Floats, ...]:
    """Return steps (NaN for none), times in order, and values; without times, steps count as seconds."""
    steps = steps_of(step)
    when = np.asarray(time, dtype=np.float64)
    if not np.isfinite(when).all():
        when = np.where(np.isfinite(steps), steps, np.arange(len(steps)))
    monotonic = np.maximum.accumulate(when)  # a clock that was set back stands still until it catches up
    return steps, monotonic, np.asarray(value, dtype=np.float64)


def backtest(
    rules: Iterable[Rule],
    sources: Iterable[tuple[str, RecordedRun]],
    incidents: Mapping[str, Iterable[int]] | None = None,
) -> dict[str, Any]:
    """Return the alerts that rules would have raised in recorded runs, which are given with their names.

    `incidents` has the steps at which something was wrong, by the name of the run; an empty list for a healthy run. An
    alert up to `GRACE` steps after an incident belongs to it; all others in these runs are false alarms. Without a list
    for a run, its alerts are only counted as fired.

    Returns plain data: `runs` (name, steps, points, alerts, incidents: None if unknown, missed) and `rules` (rule,
    fired, told, false, false_per_10000_steps, delay_steps: the median; None if unknown).
    """
    rules = list(rules)
    runs = []
    for name, source in sources:
        known = (incidents or {}).get(name)
        runs.append(_run(name, source, rules, None if known is None else sorted(int(step) for step in known)))
    return {"runs": runs, "rules": [_of_rule(rule, runs) for rule in rules if not rule.event]}


def _run(name: str, source: RecordedRun, rules: list[Rule], incidents: list[int] | None) -> dict[str, Any]:
    known = incidents or []
    alerts = []
    for change in replay(rules, source):
        if change.state != FIRING or change.previous == FIRING:
            continue
        before = [step for step in known if change.step is not None and 0 <= change.step - step <= GRACE]
        row = {key: getattr(change, key) for key in ("rule", "severity", "text", "rank", "step", "time")}
        delay = change.step - before[-1] if before and change.step is not None else None
        alerts.append({**row, "incident": before[-1] if before else None, "delay": delay})
    detected = {row["incident"] for row in alerts}
    steps, points = _size(source)
    missed = [step for step in known if step not in detected]
    return {"run": name, "steps": steps, "points": points, "alerts": alerts, "incidents": incidents, "missed": missed}


def _size(source: RecordedRun) -> tuple[int, int]:
    """Return how many steps and points a run has."""
    steps: set[int] = set()
    points = 0
    for name in source.names():
        series = source.series(name)
        points += len(series.value)
        steps.update(np.unique(series.step[series.step != NO_STEP]).tolist())
    return len(steps), points


def _of_rule(rule: Rule, runs: list[dict[str, Any]]) -> dict[str, Any]:
    mine = [(run["run"], row) for run in runs for row in run["alerts"] if row["rule"] == rule.name]
    known = [run for run in runs if run["incidents"] is not None]
    false = sum(row["rule"] == rule.name and row["incident"] is None for run in known for row in run["alerts"])
    delays = sorted(row["delay"] for _, row in mine if row["delay"] is not None)
    steps = sum(run["steps"] for run in known)
    return {
        "rule": rule.name,
        "fired": len(mine),
        "told": len({(name, row["incident"]) for name, row in mine if row["incident"] is not None}),
        "false": false if known else None,
        "false_per_10000_steps": false / steps * 1e4 if steps else None,
        "delay_steps": delays[len(delays) // 2] if delays else None,
    }
