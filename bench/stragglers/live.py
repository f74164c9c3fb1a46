"""How soon the alert tells of a straggler while it trains: eight ranks on two nodes, each with a watcher of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import stepscope
from bench.figure import Figure
from bench.stragglers.cases import Case

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from bench.stragglers.jobs import Jobs

LATE = Case("compute", 8, (5,), steps=1600, per_node=4, since=200)
HEALTHY = Case("checkpoint", 8, (), steps=500, per_node=4)
UNTIL = 900
SOON = 60.0
"""Limit in seconds from the first late step to the alert."""


def measure_live(jobs: Jobs) -> list[Figure]:
    """Return how soon the alert fires and resolves, and how often; none may come of a healthy job."""
    run, _ = jobs.run(LATE, until=UNTIL)
    wait_for_end(run)
    healthy, _ = jobs.run(HEALTHY)
    wait_for_end(healthy)
    alerts = straggler_alerts(run)
    fired = [one for one in alerts if one["state"] == "firing"]
    over = [one for one in alerts if one["state"] == "resolved"]
    late, on_time = (_time_of(run, step) for step in (LATE.since, UNTIL))
    soon = fired[0]["time"] - late if fired else None
    resolved = over[-1]["time"] - on_time if over else None
    told = str(fired[0]["text"]) if fired else "no alert"
    false = len(straggler_alerts(healthy))
    right = len({one["evidence"].get("rank") for one in fired} ^ set(LATE.late))
    return [
        Figure("straggler_alert", "from the first late step to the alert, two nodes", soon, "s", SOON, told),
        Figure("straggler_resolved", "from the last late step to its end", resolved, "s", SOON),
        Figure("straggler_alerts", "alerts beyond one for the job", abs(len(fired) - 1), "", 0.0),
        Figure("straggler_alert_rank", "wrong ranks in it", right, "", 0.0),
        Figure("straggler_alert_false", "alerts of a healthy job", false, "", 0.0),
    ]


def wait_for_end(run: Path) -> None:
    """Wait until no watcher writes the run any more."""
    from bench.sandbox import settled

    settled(run)


def straggler_alerts(run: Path) -> list[Mapping[str, Any]]:
    """Return the changes of the alert in a run, in order of time."""
    events = stepscope.open(run).events()
    return sorted(
        (one for one in events if one.get("kind") == "alert" and one.get("rule") == "straggler"),
        key=lambda one: float(one["time"]),
    )


def _time_of(run: Path, step: int) -> float:
    series = stepscope.open(run).series("step_seconds")
    return float(series.time[series.step == step].min())
