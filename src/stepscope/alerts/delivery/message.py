"""The text of notifications: alerts of one run, grouped, with nothing that could act on the program that shows them."""

from __future__ import annotations

import html
import re
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from stepscope.alerts.delivery.channel import SEVERITIES, rank_of
from stepscope.core.names import UNSAFE
from stepscope.core.redact import redact, redact_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

MOST_SHOWN = 20
"""Alerts that a message lists one by one; the rest is counted by rule."""
MAX_LINE = 500
MAX_TITLE = 120
EVIDENCE_SHOWN = 8
_MENTION = re.compile(r"@(?=(?:everyone|here|channel|all|[!&]?\d))|<(?=[!@#/A-Za-z])", re.IGNORECASE)
_LINK = re.compile(r"\]\(|:(?=//)|\bwww\.")


@dataclass(frozen=True)
class MessageSubject:
    """The run that the alerts belong to."""

    run: str
    project: str = ""
    name: str = ""
    node: str = ""
    page: str = ""
    """Address of the page from the configuration, or ""."""

    def title(self) -> str:
        """Return the name of the run for a title."""
        label = self.name or self.run
        return plain(f"{self.project}/{label}" if self.project else label)


@dataclass(frozen=True)
class Message:
    """Some alerts of one run, for one channel."""

    id: str
    """The same whenever it is sent again, so that a receiver can drop duplicates."""
    subject: MessageSubject
    events: Sequence[Mapping[str, Any]] = field(default_factory=tuple)
    """The alert events, oldest first."""

    @property
    def severity(self) -> str:
        """The highest severity of the firing alerts; info if all are resolved."""
        return max((event_severity(event) for event in self.events), key=rank_of, default="info")

    @property
    def resolved(self) -> bool:
        """Whether every alert of it is resolved."""
        return all(event.get("state") == "resolved" for event in self.events)

    def title(self) -> str:
        """Return one line: how bad, which run, what."""
        word = "resolved" if self.resolved else self.severity
        rules = Counter(plain(event.get("rule", "alert")) for event in self.events)
        if len(self.events) == 1:
            what = plain(self.events[0].get("text") or self.events[0].get("rule", "alert"))
        else:
            shown = ", ".join(f"{rule} ({count})" if count > 1 else rule for rule, count in list(rules.items())[:4])
            what = f"{len(self.events)} alerts: {shown}" + (" …" if len(rules) > 4 else "")
        return cut(f"[{word}] {self.subject.title()}: {what}", MAX_TITLE)

    def text(self) -> str:
        """Return the body as plain text."""
        lines: list[str] = []
        for event in self.events[:MOST_SHOWN]:
            lines += [*_lines(event), ""]
        rest = self.events[MOST_SHOWN:]
        if rest:
            lines += [f"and {len(rest)} more: {_counted(rest)}", ""]
        return "\n".join([*lines, *_footer(self.subject)])

    def html(self) -> str:
        """Return the body as HTML: every text escaped, links only to the page of the configuration."""
        parts: list[str] = []
        for event in self.events[:MOST_SHOWN]:
            first, *others = _lines(event)
            body = "<br>".join(html.escape(line) for line in others)
            parts.append(f"<p><b>{html.escape(first)}</b><br>{body}</p>")
        rest = self.events[MOST_SHOWN:]
        if rest:
            parts.append(f"<p>and {len(rest)} more: {html.escape(_counted(rest))}</p>")
        run, details = map(html.escape, _footer(self.subject))
        link = f'<a href="{details}">{details}</a>' if self.subject.page else details
        parts.append(f"<p>{run}<br>{link}</p>")
        return "\n".join(parts)

    def facts(self, now: float) -> dict[str, Any]:
        """Return the message as plain data, for a webhook; `now` in unix seconds."""
        subject = {"id": self.subject.run, "project": self.subject.project, "name": self.subject.name}
        return {
            "version": 1,
            "id": self.id,
            "type": "stepscope.alerts",
            "sent": moment(now),
            "severity": self.severity,
            "resolved": self.resolved,
            "title": self.title(),
            "run": {**redact(subject), "node": self.subject.node, "page": self.subject.page},
            "alerts": [_public(event) for event in self.events],
        }


def trial_event(now: float, name: str) -> dict[str, Any]:
    """Return the alert that a test sends; `now` in unix seconds."""
    return {
        "kind": "alert",
        "alert": f"test-{name}",
        "rule": "test",
        "state": "firing",
        "severity": "critical",
        "text": "This is a test: alerts of this run arrive here.",
        "remedy": "Nothing is wrong, and nothing has to be done.",
        "labels": {},
        "evidence": {},
        "rank": None,
        "step": None,
        "time": now,
    }


def event_severity(event: Mapping[str, Any]) -> str:
    """Return the severity of an event: info once it is resolved."""
    if event.get("state") == "resolved":
        return "info"
    severity = str(event.get("severity", "warning"))
    return severity if severity in SEVERITIES else "warning"


def plain(text: object, limit: int = MAX_LINE) -> str:
    """Return a run's text on one line, without secrets, control characters or escape sequences."""
    return cut(redact_text(UNSAFE.sub(" ", str(text)[: 4 * limit])).strip(), limit)


def inert(text: str) -> str:
    """Return text for a chat that mentions nobody and contains no tag or link."""
    text = _MENTION.sub(lambda found: "@ " if found[0] == "@" else "\u2039", text)
    return _LINK.sub(lambda found: {"](": "] (", ":": ": "}.get(found[0], "www ."), text)


def cut(text: str, limit: int) -> str:
    """Return at most `limit` characters of a text."""
    return text if len(text) <= limit else f"{text[: limit - 1].rstrip()}…"


def moment(seconds: float) -> str:
    """Return a time (unix seconds) as ISO 8601 in UTC."""
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _lines(event: Mapping[str, Any]) -> list[str]:
    """Return the lines of one alert: the fact, what to do, when and where, and the evidence."""
    state, severity = plain(event.get("state", "firing"), 40), plain(event.get("severity", "warning"), 40)
    head = "resolved" if state == "resolved" else severity
    lines = [f"{head}: {plain(event.get('text') or event.get('rule', 'alert'))}"]
    if event.get("remedy") and state != "resolved":
        lines.append(f"What to do: {plain(event['remedy'])}")
    lines.append(f"Rule: {plain(event.get('rule', ''), 120)}, {_place(event)}")
    evidence = event.get("evidence")
    if isinstance(evidence, dict) and evidence:
        lines.append(f"Evidence: {', '.join(_evidence(evidence))}")
    return lines


def _evidence(evidence: Mapping[str, Any]) -> list[str]:
    """Return the evidence, each value with its name; the values of several metrics come last."""
    facts = {key: value for key, value in evidence.items() if not isinstance(value, dict)}
    values = evidence.get("values")
    if isinstance(values, dict) and set(values) != {evidence.get("metric")}:
        facts |= values
    safe = redact(dict(list(facts.items())[:EVIDENCE_SHOWN]))
    return [
        f"{plain(key, 60)} {f'{value:.6g}' if isinstance(value, float) else plain(value, 120)}"
        for key, value in safe.items()
    ]


def _place(event: Mapping[str, Any]) -> str:
    """Return when and where it happened."""
    numbers = [(key, event.get(key)) for key in ("rank", "step")]
    parts = [f"{key} {number}" for key, number in numbers if isinstance(number, int) and number >= 0]
    time = event.get("time")
    if isinstance(time, (int, float)):
        parts.append(moment(time))
    return ", ".join(parts) or "now"


def _counted(events: Iterable[Mapping[str, Any]]) -> str:
    rules = Counter(plain(event.get("rule", "alert"), 60) for event in events)
    return ", ".join(f"{rule} ({count})" for rule, count in rules.most_common(10))


def _footer(subject: MessageSubject) -> list[str]:
    run = plain(subject.run, 120)
    name = f"{plain(subject.project, 120)}/{run}" if subject.project else run
    where = f" on {plain(subject.node, 80)}" if subject.node else ""
    return [f"Run: {name}{where}", subject.page or f"Details: stepscope alerts list {run}"]


def _public(event: Mapping[str, Any]) -> dict[str, Any]:
    """Return an event as it may leave this machine: cleaned and without secrets."""
    cleaned = {str(key): _clean(value) for key, value in event.items() if key not in {"kind", "attempt", "sequence"}}
    found: dict[str, Any] = redact(cleaned)
    time = event.get("time")
    if isinstance(time, (int, float)):
        found["time"] = moment(time)
    return found


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return UNSAFE.sub(" ", value[:4000])
    if isinstance(value, dict):
        return {UNSAFE.sub(" ", str(key)[:200]): _clean(item) for key, item in list(value.items())[:200]}
    if isinstance(value, (list, tuple)):
        return [_clean(item) for item in list(value)[:200]]
    if isinstance(value, float) and value - value != 0:  # NaN or infinity: JSON has none
        return str(value)
    return value
