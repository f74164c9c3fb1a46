"""The events of a run: counted as its files grow, and listed as readable lines; its alerts and histograms."""

from __future__ import annotations

import json
import os
from collections import Counter
from typing import TYPE_CHECKING, Any

from stepscope.alerts.delivery.outbox import deliveries
from stepscope.alerts.evaluation.history import ACTIVE, alerts_of
from stepscope.core.events import fits, is_users, ours
from stepscope.store.events import decode_event

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stepscope.store.layout import RunFolder
    from stepscope.store.reader import Past

SHOWN = ("text", "message", "why", "error", "cause", "reason", "name", "path", "detail")
"""Fields of an event that describe it in words, best first."""
PLACE = ("time", "kind", "rank", "attempt", "step")
TEXT = 500
"""Maximum characters of a line."""
VALUE = 2000
"""Maximum characters of one field of an event."""
QUIET = frozenset(
    (
        *("histogram", "definitions", "config", "instrumentation", "hyperparameters", "alert_options"),
        *("optimizer_made", "loader", "graph", "torch_setup", "optimizer_setup", "gradient_layers", "log"),
        *("flight_recorder", "nccl_ras", "rank_placed"),
    )
)
"""Kinds that are hidden unless requested: data of other views."""
TEXTS = "log"
"""Kind of the events with texts that a program passed to `log`."""
NOTIFICATION = "notification"
ALERT = b'"alert"'
ALERT_TEXT = 300
"""Maximum characters of an alert."""
MOST_ALERTS, MOST_CHANGES = 1000, 50
"""Maximum alerts that are listed (active ones first, then the newest), and changes of each (the newest)."""
MOST_BYTES = 1 << 24
"""Maximum bytes of events read per poll; the rest waits for the next."""


def event_list(past: Past, kind: str | None = None, limit: int = 500) -> dict[str, Any]:
    """Return the newest events ordered by time, each with a line that describes it."""
    from stepscope.sources.clocks import true_events  # NumPy and DuckDB: the card at a program's end needs neither

    found = [one for one in true_events(past) if (one.get("kind") == kind if kind else one.get("kind") not in QUIET)]
    return {"total": len(found), "events": [_event(one) for one in found[-limit:]]}


def _event(event: dict[str, Any]) -> dict[str, Any]:
    data = {key: _bounded(value) for key, value in event.items() if key not in {*PLACE, "sequence"}}
    if event.get("kind") == TEXTS:
        data["values"] = {name: text[:VALUE] for name, text in _texts(event).items()}
    place = {key: event.get(key) for key in PLACE}
    return {**place, "kind": str(event.get("kind", "other"))[:100], "text": line_of(event), "data": data}


def line_of(event: dict[str, Any]) -> str:
    """Return a one-line description of an event."""
    if event.get("kind") == TEXTS:
        return _line("; ".join(f"{name}: {text}" for name, text in _texts(event).items()))
    if event.get("kind") == NOTIFICATION:
        return _line(_notification(event))
    words = next((str(event[key]) for key in SHOWN if event.get(key)), "")
    if event.get("what"):  # the specific name, if the kind covers many things
        words = f"{event['what']}: {words}" if words else str(event["what"])
    if event.get("kind") == "alert" and event.get("rule"):
        words = f"{event['rule']} {event.get('state', '')}: {words}"
    return _line(words)


def _notification(event: Mapping[str, Any]) -> str:
    """Return the channel, what became of the message, and which alerts it contained."""
    alerts = event.get("alerts")
    which = " ".join(map(str, alerts)) if isinstance(alerts, list) else ""
    words = [f"{event.get('channel', '')}: {event.get('state', '')} {which}".strip(), str(event.get("why") or "")]
    return "; ".join(filter(None, words))


def _line(words: str) -> str:
    return " ".join(words.split())[:TEXT]


def _texts(event: dict[str, Any]) -> dict[str, str]:
    """Return the texts of an event by name; other values as JSON."""
    values = event.get("values")
    if not isinstance(values, dict):
        return {}
    return {
        str(name): value if isinstance(value, str) else json.dumps(value, default=str) for name, value in values.items()
    }


def alert_list(past: Past) -> dict[str, Any]:
    """Return the alerts of a run, active ones first, then the newest first, and the state of its notifications."""
    rows = alerts_of(past.events("alert"))
    rows.sort(key=lambda row: row["state"] not in ACTIVE)
    shown = [{**row, "transitions": row["transitions"][-MOST_CHANGES:]} for row in rows[:MOST_ALERTS]]
    return {"total": len(rows), "alerts": shown, "deliveries": deliveries(past.path)[:MOST_ALERTS]}


def text_list(past: Past, limit: int = 500) -> list[dict[str, Any]]:
    """Return the newest texts that the program logged, ordered by time: name, text, step, time, rank."""
    place = ("step", "time", "rank")
    found = [
        {"name": name, "text": text[:VALUE], **{key: event.get(key) for key in place}}
        for event in past.events(TEXTS)[-limit:]
        for name, text in _texts(event).items()
    ]
    return found[-limit:]


def last_texts(past: Past) -> list[dict[str, Any]]:
    """Return the newest text of each name, ordered by name, with `count`, the number of texts."""
    texts = text_list(past, limit=100_000)
    counts, last = Counter(one["name"] for one in texts), {one["name"]: one for one in texts}
    return [{**last[name], "count": counts[name]} for name in sorted(last)]


def _bounded(value: Any) -> Any:
    if isinstance(value, str):
        return value[:VALUE]
    text = json.dumps(value, default=str)
    return value if len(text) <= VALUE * 4 else f"{text[:VALUE]}…"


def histogram_list(past: Past, name: str | None = None, limit: int = 200) -> dict[str, Any]:
    """Return the histograms of one name, the first by default, thinned evenly to `limit` rows."""

    def are_numbers(values: Any) -> bool:
        return isinstance(values, list) and all(fits(value, (float,)) for value in values)

    events = ours(past.events("histogram"))
    found = [one for one in events if are_numbers(one.get("edges")) and are_numbers(one.get("counts"))]
    names = sorted({str(one.get("name", "")) for one in found})
    chosen = name if name is not None else next(iter(names), "")
    rows = [one for one in found if str(one.get("name", "")) == chosen]
    every = -(-len(rows) // limit) or 1
    kept = [*rows[: len(rows) - 1 : every], *rows[-1:]][-limit:]
    keys = ("step", "time", "rank", "attempt", "edges", "counts")
    return {"names": names[:1000], "rows": [{key: one.get(key) for key in keys} for one in kept]}


class EventCount:
    """The number of events of a run and its firing alerts, from what was appended to its files."""

    def __init__(self, folder: RunFolder) -> None:
        """Start at zero; `look` counts."""
        self._folder = folder
        self._at: dict[str, int] = {}
        self.total = 0
        self.firing: dict[str, str] = {}
        """Severity of each alert that is firing, by its id."""
        self.last: dict[str, str] | None = None
        """Short text of the last alert."""

    def look(self) -> None:
        """Count the events since the last call."""
        try:
            with os.scandir(self._folder.path / "events") as entries:
                files = [(entry.path, entry.stat().st_size) for entry in entries if entry.name.endswith(".jsonl")]
        except OSError:  # no event yet, or an unreadable folder: the list of runs shows that
            return
        for path, size in sorted(files):
            if size > self._at.get(path, 0):
                self._take(path)

    def _take(self, path: str) -> None:
        with open(path, "rb") as file:
            file.seek(self._at.get(path, 0))
            data = file.read(MOST_BYTES)
        whole = data.rfind(b"\n") + 1
        self._at[path] = self._at.get(path, 0) + whole
        self.total += data.count(b"\n", 0, whole)
        for line in data[:whole].split(b"\n") if ALERT in data else ():
            if ALERT in line:
                self._note(line)

    def _note(self, line: bytes) -> None:
        event = decode_event(line)
        if event is None or event["kind"] != "alert" or is_users(event):
            return  # a damaged line counts as an event without content
        name, state = str(event.get("alert") or event.get("rule")), event.get("state")
        self.last = {key: str(event.get(key) or "")[:ALERT_TEXT] for key in ("rule", "severity", "state", "text")}
        if state == "firing":
            self.firing[name] = str(event.get("severity", "info"))
        elif state != "pending":
            self.firing.pop(name, None)
