"""The alerts of a run for a screen: one row per occurrence, and the state of its notifications."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stepscope.alerts.delivery.outbox import deliveries
from stepscope.alerts.evaluation.history import ACTIVE, alerts_of

if TYPE_CHECKING:
    from stepscope.store.reader import Past

MOST = 1000
"""Maximum alerts shown: active ones first, then the newest."""
CHANGES = 50
"""Maximum changes shown of one alert: the newest."""


def alert_list(past: Past) -> dict[str, Any]:
    """Return the alerts of a run, active ones first, then the newest first."""
    rows = alerts_of(past.events("alert"))
    rows.sort(key=lambda row: row["state"] not in ACTIVE)
    told = [{**row, "transitions": row["transitions"][-CHANGES:]} for row in rows[:MOST]]
    return {"total": len(rows), "alerts": told, "deliveries": deliveries(past.path)[:MOST]}
