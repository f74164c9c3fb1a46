"""The events of a run as readable lines, and its histograms."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from stepscope.core.events import fits, ours

if TYPE_CHECKING:
    from collections.abc import Mapping

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
        *("optimizer_made", "loader", "graph", "torch_setup", "optimizer_setup", "gradient_layers", "log"),
    )
)
"""Kinds that are not told unless they are asked for: data of other views."""
TEXTS = "log"
"""Kind of the events that hold texts which a program gave to `log`."""


def event_list(past: Past, kind: str | None = None, limit: int = 500) -> dict[str, Any]:
    """Return the newest events in order of time, each with a line that says what happened."""
    found = [one for one in past.events() if (one.get("kind") == kind if kind else one.get("kind") not in QUIET)]
    return {"total": len(found), "events": [_event(one) for one in found[-limit:]]}


def _event(event: dict[str, Any]) -> dict[str, Any]:
    data = {key: _bounded(value) for key, value in event.items() if key not in {*PLACE, "sequence"}}
    if event.get("kind") == TEXTS:
        data["values"] = {name: text[:VALUE] for name, text in _texts(event).items()}
    place = {key: event.get(key) for key in PLACE}
    return {**place, "kind": str(event.get("kind", "other"))[:100], "text": line_of(event), "data": data}


def line_of(event: dict[str, Any]) -> str:
    """Return what happened in one line."""
    if event.get("kind") == TEXTS:
        return _line("; ".join(f"{name}: {text}" for name, text in _texts(event).items()))
    words = next((str(event[key]) for key in SHOWN if event.get(key)), "")
    if event.get("what"):  # the name of what happened, where the kind is that of many things
        words = f"{event['what']}: {words}" if words else str(event["what"])
    if event.get("kind") == "alert" and event.get("rule"):
        words = f"{event['rule']} {event.get('state', '')}: {words}"
    return _line(words)


def _line(words: str) -> str:
    return " ".join(words.split())[:TEXT]


def _texts(event: dict[str, Any]) -> dict[str, str]:
    """Return what an event holds of texts by name; a value that is no text is one as JSON."""
    values = event.get("values")
    if not isinstance(values, dict):
        return {}
    return {
        str(name): value if isinstance(value, str) else json.dumps(value, default=str) for name, value in values.items()
    }


def text_list(past: Past, limit: int = 500) -> list[dict[str, Any]]:
    """Return the newest texts that the program logged, in order of time: name, text, step, time, rank."""
    place = ("step", "time", "rank")
    found = [
        {"name": name, "text": text[:VALUE], **{key: event.get(key) for key in place}}
        for event in past.events(TEXTS)[-limit:]
        for name, text in _texts(event).items()
    ]
    return found[-limit:]


def last_texts(past: Past) -> list[dict[str, Any]]:
    """Return the newest text of each name, in order of names, with `count`, how many there are of it."""
    found: dict[str, dict[str, Any]] = {}
    for one in text_list(past, limit=100_000):
        known = found.get(one["name"])
        found[one["name"]] = {**one, "count": known["count"] + 1 if known else 1}
    return [found[name] for name in sorted(found)]


def _bounded(value: Any) -> Any:
    if isinstance(value, str):
        return value[:VALUE]
    text = json.dumps(value, default=str)
    return value if len(text) <= VALUE * 4 else f"{text[:VALUE]}…"


def is_histogram(event: Mapping[str, Any]) -> bool:
    """Say whether an event has the edges and counts of a histogram."""
    edges, counts = event.get("edges"), event.get("counts")
    return all(isinstance(one, list) and all(fits(value, (float,)) for value in one) for one in (edges, counts))


def histogram_list(past: Past, name: str | None = None, limit: int = 200) -> dict[str, Any]:
    """Return the histograms of one name, the first by default, thinned out evenly to `limit` rows."""
    found = [one for one in ours(past.events("histogram")) if is_histogram(one)]
    names = sorted({str(one.get("name", "")) for one in found})
    chosen = name if name is not None else next(iter(names), "")
    rows = [one for one in found if str(one.get("name", "")) == chosen]
    every = -(-len(rows) // limit) or 1
    kept = [*rows[: len(rows) - 1 : every], *rows[-1:]][-limit:]
    keys = ("step", "time", "rank", "attempt", "edges", "counts")
    return {"names": names[:1000], "rows": [{key: one.get(key) for key in keys} for one in kept]}
