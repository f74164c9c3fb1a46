"""The current status of a run, small enough to send twice a second."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from stepscope.store.states import read_nodes
from stepscope.views.run_card import left
from stepscope.views.run_list import standing

if TYPE_CHECKING:
    from stepscope.store.layout import RunFolder
    from stepscope.views.event_count import EventCount

SEVERITIES = ("info", "warning", "critical")


def status(folder: RunFolder, facts: dict[str, Any], events: EventCount, now: float | None = None) -> dict[str, Any]:
    """Return state, step, progress, time left, last heartbeat, and the number of events and alerts.

    Args:
        folder: of the run.
        facts: known from its points: rate, recent_rate, epoch, total_steps, names.
        events: its events so far; this call polls for more.
        now: seconds since 1970 UTC.
    """
    stands = standing(read_nodes(folder)[0])
    events.look()
    step, total = stands["step"], facts.get("total_steps")
    running = stands["state"] == "running"
    return {
        **{key: stands[key] for key in ("state", "cause", "step", "heard", "duration")},
        "now": time.time() if now is None else now,
        "epoch": facts.get("epoch"),
        "rate": facts.get("rate"),
        "total_steps": total,
        "progress": min(1.0, (step + 1) / total) if total and step is not None else None,
        "left": left(step, total, facts.get("recent_rate")) if running else None,
        "names": facts.get("names", 0),
        "events": events.total,
        "firing": len(events.firing),
        "worst": max((severity for severity in events.firing.values()), key=_weight, default=None),
    }


def _weight(severity: str) -> int:
    return SEVERITIES.index(severity) if severity in SEVERITIES else -1
