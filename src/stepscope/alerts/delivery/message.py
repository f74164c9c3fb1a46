"""The text of notifications: alerts of one run, grouped, with nothing that could act on the program that shows them."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, NamedTuple

from stepscope.alerts.delivery.channel import SEVERITIES, rank_of
from stepscope.core.names import UNSAFE
from stepscope.core.numbers import format_number
from stepscope.core.redact import redact, redact_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

MOST_SHOWN = 20
"""Alerts that a message lists one by one; the rest is counted by rule."""
MAX_LINE = 500
MAX_TITLE = 120
EVIDENCE_SHOWN = 8
LONG = 12
"""Characters from which a text in the evidence is left out if the fact contains it."""
_MENTION = re.compile(r"@(?=(?:everyone|here|channel|all|[!&]?\d))|<(?=[!@#/A-Za-z])", re.IGNORECASE)
_COMMAND = re.compile(r"(`stepscope [a-z ]+)RUN\b")
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


class LastLines(NamedTuple):
    """What a rank printed before it ended, for an alert about that."""

    title: str
    """Which rank, and its error."""
    lines: tuple[str, ...] = ()

    def shown(self) -> list[str]:
        """Return the title and the lines, without secrets; at most 20 lines of bounded length."""
        kept = self.lines[-MOST_SHOWN:]
        return [plain(self.title), *(f"  {_indented(line)}" for line in kept)] if self.title else []


NOTHING = LastLines("")


@dataclass(frozen=True)
class Message:
    """Some alerts of one run, for one channel."""

    id: str
    """The same whenever it is sent again, so that a receiver can drop duplicates."""
    subject: MessageSubject
    events: Sequence[Mapping[str, Any]] = field(default_factory=tuple)
    """The alert events, oldest first."""
    last_lines: LastLines = NOTHING
    """What the rank printed that began the end of a run; empty for other alerts."""

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
            lines += [*describe_alert(event, self.subject).lines(), ""]
        rest = self.events[MOST_SHOWN:]
        if rest:
            lines += [f"and {len(rest)} more: {count_by_rule(rest)}", ""]
        told = self.last_lines.shown()
        lines += [*told, ""] if told else []
        return "\n".join([*lines, *footer_of(self.subject)])

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
            **({"last_lines": self.last_lines.shown()} if self.last_lines.title else {}),
        }


class ReadableAlert(NamedTuple):
    """One alert in words, safe to show."""

    severity: str
    """Also "resolved"."""
    fact: str
    remedy: str
    place: str
    """The rule, and where and when it fired."""
    evidence: str

    def lines(self) -> list[str]:
        """Return it as lines of text."""
        remedy = f"What to do: {self.remedy}" if self.remedy else ""
        lines = (f"{self.severity}: {self.fact}", remedy, f"Rule: {self.place}", self.evidence)
        return [line for line in lines if line]


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


def _indented(text: str) -> str:
    """Return a line of a console with its indentation, safe to show."""
    return f"{' ' * min(40, len(text) - len(text.lstrip(' ')))}{plain(text)}"


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


def describe_alert(event: Mapping[str, Any], subject: MessageSubject) -> ReadableAlert:
    """Return an alert in words; commands in its remedy name the run."""
    state, severity = plain(event.get("state", "firing"), 40), plain(event.get("severity", "warning"), 40)
    fact = plain(event.get("text") or event.get("rule", "alert"))
    remedy = "" if state == "resolved" else plain(event.get("remedy") or "")
    evidence = event.get("evidence")
    facts = _evidence(evidence, fact) if isinstance(evidence, dict) else []
    return ReadableAlert(
        "resolved" if state == "resolved" else severity,
        fact,
        _COMMAND.sub(lambda found: f"{found[1]}{plain(subject.run, 120)}", remedy),
        f"{plain(event.get('rule', ''), 120)}, {_place(event)}",
        f"Evidence: {', '.join(facts)}" if facts else "",
    )


def _evidence(evidence: Mapping[str, Any], fact: str) -> list[str]:
    """Return the evidence that the fact does not contain yet, each value with its name; those of metrics come last."""
    facts = {key: value for key, value in evidence.items() if not isinstance(value, dict)}
    values = evidence.get("values")
    if isinstance(values, dict) and set(values) != {evidence.get("metric")}:
        facts |= values
    known = {key: value for key, value in facts.items() if value not in (None, "") and not _is_in(value, fact)}
    safe = redact(dict(list(known.items())[:EVIDENCE_SHOWN]))
    return [f"{plain(key, 60)} {_shown(value)}" for key, value in safe.items()]


def _is_in(value: object, fact: str) -> bool:
    return isinstance(value, str) and len(value) > LONG and plain(value) in fact


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return format_number(value, 6) if isinstance(value, float) else plain(value, 120)


def _place(event: Mapping[str, Any]) -> str:
    """Return when and where it happened."""
    numbers = [(key, event.get(key)) for key in ("rank", "step")]
    parts = [f"{key} {number}" for key, number in numbers if isinstance(number, int) and number >= 0]
    time = event.get("time")
    if isinstance(time, (int, float)):
        parts.append(datetime.fromtimestamp(time, timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC"))
    return ", ".join(parts) or "now"


def count_by_rule(events: Iterable[Mapping[str, Any]]) -> str:
    """Return the rules of alerts that are not listed, with how often each fired."""
    rules = Counter(plain(event.get("rule", "alert"), 60) for event in events)
    return ", ".join(f"{rule} ({count})" for rule, count in rules.most_common(10))


def footer_of(subject: MessageSubject) -> list[str]:
    """Return the last two lines: the run, and where to read on."""
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
