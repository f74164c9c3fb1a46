"""The alerts of a run, read back from its events: one row per occurrence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from stepscope.core.events import is_users

if TYPE_CHECKING:
    from collections.abc import Iterable

ACTIVE = ("firing", "acknowledged", "silenced")


def alerts_of(events: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return one row per alert, the newest first: its current state, since when, until when, and its text.

    Keys: alert, rule, state, severity, since and until (seconds since 1970; until is None while it lasts), text,
    remedy, labels, evidence, rank, step, key, count (changes), transitions (time, state, severity, text of each).
    """
    rows: dict[str, dict[str, Any]] = {}
    for event in events:
        if event.get("kind") != "alert" or not isinstance(event.get("alert"), str) or is_users(event):
            continue
        _update(rows.setdefault(event["alert"], _row(event)), event)
    return sorted(rows.values(), key=lambda row: -row["since"])


def _row(event: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "alert": event["alert"],
        "rule": str(event.get("rule", "")),
        "state": "",
        "severity": "info",
        "since": _time(event),
        "until": None,
        "text": "",
        "remedy": "",
        "labels": {},
        "evidence": {},
        "rank": event.get("rank"),
        "step": event.get("step"),
        "key": str(event.get("key", "")),
        "count": 0,
        "transitions": [],
    }


def _update(row: dict[str, Any], event: Mapping[str, Any]) -> None:
    state = str(event.get("state", ""))
    row["state"], row["count"] = state, row["count"] + 1
    row["until"] = _time(event) if state == "resolved" else None
    for key in ("severity", "text", "remedy"):
        if isinstance(event.get(key), str) and event[key]:
            row[key] = event[key]
    for key in ("labels", "evidence"):
        if isinstance(event.get(key), Mapping) and event[key]:
            row[key] = dict(event[key])
    change = {"time": _time(event), "state": state, "severity": row["severity"], "text": row["text"]}
    row["transitions"].append(change)


def _time(event: Mapping[str, Any]) -> float:
    time = event.get("time")
    return float(time) if isinstance(time, (int, float)) else 0.0
