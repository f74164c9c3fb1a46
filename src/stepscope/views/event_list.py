"""The events of a run as readable lines, and its histograms."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stepscope.store.reader import Past

SHOWN = ("text", "message", "why", "error", "cause", "reason", "name", "path", "detail")
"""Fields of an event that say in words what happened, the best first."""
PLACE = ("time", "kind", "rank", "attempt", "step")
TEXT = 500
"""Characters of a line."""
VALUE = 2000
"""Characters of one field of an event."""
QUIET = frozenset(
    (
        *("histogram", "definitions", "config", "instrumentation", "hyperparameters", "alert_options"),
        *("optimizer_made", "loader", "graph", "torch_setup", "optimizer_setup", "gradient_layers"),
    )
)
"""Kinds that are not told unless they are asked for: data of other views."""


def event_list(past: Past, kind: str | None = None, limit: int = 500) -> dict[str, Any]:
    """Return the newest events in order of time, each with a line that says what happened."""
    found = [one for one in past.events() if (one.get("kind") == kind if kind else one.get("kind") not in QUIET)]
    return {"total": len(found), "events": [_event(one) for one in found[-limit:]]}


def _event(event: dict[str, Any]) -> dict[str, Any]:
    data = {key: _bounded(value) for key, value in event.items() if key not in {*PLACE, "sequence"}}
    place = {key: event.get(key) for key in PLACE}
    return {**place, "kind": str(event.get("kind", "other"))[:100], "text": line_of(event), "data": data}


def line_of(event: dict[str, Any]) -> str:
    """Return what happened in one line."""
    words = next((str(event[key]) for key in SHOWN if event.get(key)), "")
    if event.get("what"):  # the name of what happened, where the kind is that of many things
        words = f"{event['what']}: {words}" if words else str(event["what"])
    if event.get("kind") == "alert" and event.get("rule"):
        words = f"{event['rule']} {event.get('state', '')}: {words}"
    return " ".join(words.split())[:TEXT]


def _bounded(value: Any) -> Any:
    if isinstance(value, str):
        return value[:VALUE]
    text = json.dumps(value, default=str)
    return value if len(text) <= VALUE * 4 else f"{text[:VALUE]}…"


def histogram_list(past: Past, name: str | None = None, limit: int = 200) -> dict[str, Any]:
    """Return the histograms of one name, the first by default, thinned out evenly to `limit` rows."""
    found = [one for one in past.events("histogram") if isinstance(one.get("edges"), list)]
    names = sorted({str(one.get("name", "")) for one in found})
    chosen = name if name is not None else next(iter(names), "")
    rows = [one for one in found if str(one.get("name", "")) == chosen]
    every = -(-len(rows) // limit) or 1
    kept = [*rows[: len(rows) - 1 : every], *rows[-1:]][-limit:]
    keys = ("step", "time", "rank", "attempt", "edges", "counts")
    return {"names": names[:1000], "rows": [{key: one.get(key) for key in keys} for one in kept]}
