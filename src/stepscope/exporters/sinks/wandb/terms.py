"""A run of ours in W&B's terms: its id, what it is called, its configuration, its rows, news about it."""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Any

from stepscope.exporters.sinks.sink import written_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from stepscope.exporters.sinks.sink import RunFacts, RunNews, SentRow

MOST_TAG, MOST_TITLE, MOST_NAME, MOST_TEXT = 64, 63, 128, 4000
"""Characters of W&B's tags, titles of alerts, names of runs and projects, and of our texts."""
STEP, TIME, ATTEMPT, ROW = "stepscope/step", "stepscope/time", "stepscope/attempt", "stepscope/row"
"""What each row of the history has in addition to its values."""
UPDATED = "stepscope/updated"
OWN = frozenset((STEP, TIME, ATTEMPT, ROW, UPDATED))


def run_id(run: RunFacts) -> str:
    """Return the run's id in W&B, at most 64 characters: the same for the same run, and for no other."""
    readable = re.sub(r"[^A-Za-z0-9_-]+", "-", run.id).strip("-")[:50]
    return f"{readable}-{hashlib.sha256(run.identity.encode()).hexdigest()[:12]}".lstrip("-")


def text(given: str) -> str:
    """Return a text that can be sent: a lone half of a character, as in a file name, cannot."""
    return given.encode("utf-8", "backslashreplace").decode().replace("\0", "\\x00")


def project_name(given: str) -> str:
    """Return the name of a project as W&B allows it."""
    return re.sub(r"[/\\#?%:\x00-\x1f]", "-", text(given))[:MOST_NAME] or "uncategorized"


def tags(given: Iterable[str]) -> list[str]:
    """Return tags as W&B allows them."""
    return list(dict.fromkeys(tag for one in given if (tag := text(one).strip()[:MOST_TAG])))


def config(run: RunFacts, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration, with what leads back to our run under `stepscope`."""
    ours = {"run": run.id, "project": run.project, "path": run.path, "host": run.host, "commit": run.commit}
    ours["page"] = run.page
    back: dict[str, Any] = {key: text(value) for key, value in ours.items() if value}
    return {**_sendable(given), "stepscope": {**back, "created": run.created}}


def _sendable(value: Any) -> Any:
    if isinstance(value, str):
        return text(value)
    if isinstance(value, (list, tuple)):
        return [_sendable(one) for one in value]
    if hasattr(value, "items"):
        return {text(str(key)): _sendable(one) for key, one in value.items()}
    return value


def metric(name: str) -> str:
    """Return the name of a metric in W&B, which keeps names that begin with _ for itself, as we do a few."""
    name = text(name)
    return f"metric/{name}" if not name or name.startswith("_") or name in OWN else name


def written(row: SentRow, prefix: str) -> list[Any]:
    """Return a row as the helper takes it: id, step, time, attempt, values by name."""
    values = {metric(written_name(prefix, name, row.rank)): value for name, value in row.values.items()}
    return [row.id, row.step, row.time, row.attempt, values]


def report_of(run: RunFacts, news: RunNews) -> dict[str, Any]:
    """Return news as the helper takes it."""
    summary: dict[str, Any] = {"stepscope/state": text(news.state)}
    for name, value in (("cause", news.cause), ("verdict", news.verdict)):
        if value:
            summary[f"stepscope/{name}"] = text(value)[:MOST_TEXT]
    if news.progress is not None:
        summary["stepscope/progress"] = news.progress
    for alert in news.alerts:
        said = f"{alert.state} ({alert.severity}): {alert.text}"
        summary[f"stepscope/alert/{text(alert.rule)}"] = text(said)[:MOST_TEXT]
    called = run.name or run.id
    return {
        "do": "report",
        "config": config(run, news.config) if news.config else {},
        "tags": tags(news.tags),
        "notes": text(news.notes),
        "summary": summary,
        "alerts": [
            (text(f"{alert.rule} in {called}")[:MOST_TITLE], text(alert.text)[:MOST_TEXT], alert.severity)
            for alert in news.alerts
            if alert.state == "firing"
        ],
    }
