"""Send alerts to a Prometheus Alertmanager, which groups, silences and routes them by its own configuration."""

from __future__ import annotations

import json
import re
import time
from typing import TYPE_CHECKING, Any

from stepscope.alerts.delivery.channel import SEVERITIES
from stepscope.alerts.delivery.message import moment, plain
from stepscope.alerts.delivery.webhook import Outcome, post

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stepscope.alerts.delivery.message import Message, MessageSubject

PATH = "/api/v2/alerts"
LASTS = 7 * 24 * 3600.0
"""Maximum seconds that an alert fires there unless we resolve it."""
_NAME = re.compile(r"[^A-Za-z0-9_]")


def send(message: Message, url: str, now: float | None = None) -> Outcome:
    """Send the alerts of a message to `alertmanager+http://host:9093`, and return the outcome."""
    when = time.time() if now is None else now
    latest = {str(event.get("alert", place)): event for place, event in enumerate(message.events)}
    alerts = [alert for event in latest.values() for alert in alerts_of(event, message.subject, when)]
    address = url.partition("+")[2].rstrip("/") + PATH
    return post(address, json.dumps(alerts, separators=(",", ":")).encode(), {})


def alerts_of(event: Mapping[str, Any], subject: MessageSubject, now: float) -> list[dict[str, Any]]:
    """Return Alertmanager's alerts for one event.

    Alertmanager identifies an alert by its labels, including the severity: a resolved alert is resolved in each
    severity it may have had.
    """
    is_over = event.get("state") == "resolved"
    severity = plain(event.get("severity", "warning"), 20)
    labels = {
        "alertname": plain(event.get("rule", "alert"), 120),
        "run": plain(subject.run, 120),
        "project": plain(subject.project, 120),
        "node": plain(subject.node, 120),
        "alert": plain(event.get("alert", ""), 120),
    }
    if isinstance(event.get("rank"), int) and event["rank"] >= 0:
        labels["rank"] = str(event["rank"])
    more = event.get("labels")
    if isinstance(more, dict):
        own = {_NAME.sub("_", plain(key, 60)): plain(value, 200) for key, value in more.items()}
        labels = {**{key: value for key, value in own.items() if key and not key[0].isdigit()}, **labels}
    notes = {"summary": plain(event.get("text", "")), "remedy": plain(event.get("remedy", ""))}
    began = event.get("since", event.get("time", now))
    times = {"startsAt": moment(float(began)), "endsAt": moment(now if is_over else now + LASTS)}
    page = {"generatorURL": subject.page} if subject.page else {}
    labels = {key: value for key, value in labels.items() if value}
    return [
        {"labels": {**labels, "severity": level}, "annotations": notes, **times, **page}
        for level in (SEVERITIES if is_over else (severity,))
    ]
