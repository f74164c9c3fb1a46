"""A report as Markdown, for a pull request, a wiki or a terminal."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from stepscope.core.names import REPLACEMENT, UNSAFE
from stepscope.core.numbers import format_change, format_value
from stepscope.core.vocabulary import matches
from stepscope.reports.report_sections import flat, moment, own_cost, text_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

METRICS, MACHINE, ALERTS, CONFIG = 40, 40, 40, 60
_ACTIVE = re.compile(r"([\\`*_{}\[\]<>|#~!])")


def markdown(facts: Mapping[str, Any]) -> str:
    """Return the report of `views.report.report`."""
    parts = [
        _head(facts),
        _comparison(facts["comparison"]),
        _performance(facts),
        _ledger(facts["ledger"]),
        _training(facts),
        _resources(facts),
        _diagnosis(facts),
        _alerts(facts),
        _texts(facts),
        _environment(facts),
    ]
    return "\n".join(line for part in parts for line in part) + "\n"


def text(value: object, limit: int = 500) -> str:
    """Return text of a run on one line, escaped for Markdown: no markup, no link, no table cell."""
    plain = UNSAFE.sub(REPLACEMENT, " ".join(str(value)[:limit].split()))
    return _ACTIVE.sub(r"\\\1", plain)


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield "| " + " | ".join(titles) + " |"
    yield "|" + "|".join("---" if not place else "---:" for place in range(len(titles))) + "|"
    for row in rows:
        yield "| " + " | ".join(row) + " |"
    yield ""


def _head(facts: Mapping[str, Any]) -> Iterator[str]:
    about, status = facts["run"], facts["status"]
    yield f"# {text(about['name'] or about['id'])}"
    yield ""
    cause = f": {text(status['cause'])}" if status["cause"] else ""
    yield f"Run `{about['id']}` of project {text(about['project'] or '-')}, **{status['state']}**{cause}."
    yield f"Began {moment(about['created'])}; report of {moment(facts['made'])} by stepscope {facts['stepscope']}."
    yield ""
    yield f"**{facts['diagnosis']['primary']}**: {text(facts['diagnosis']['summary'])}"
    yield ""
    yield from _table(["", "value"], [[text(one["label"]), one["text"]] for one in facts["numbers"]])


def _comparison(facts: Mapping[str, Any] | None) -> Iterator[str]:
    if not facts:
        return
    yield "## Comparison"
    yield ""
    rows = []
    for one in facts["numbers"]:
        cells = [text(one["name"])]
        for value, change in zip(one["values"], one["differences"], strict=True):
            shown = format_value(None if value is None else value["value"], one["unit"])
            ratio = (
                ""
                if change is None or change["ratio"] is None
                else f" ({format_change(change['ratio'])}, {change['verdict']})"
            )
            cells.append(shown + ratio)
        rows.append(cells)
    yield from _table(["quantity", *(text(one["name"] or one["id"]) for one in facts["runs"])], rows)


def _performance(facts: Mapping[str, Any]) -> Iterator[str]:
    yield "## Performance Summary"
    yield ""
    taken, own = facts["performance"]["time"], facts["performance"]["own_cost"]
    if taken is None:
        yield "No steps were recorded."
        yield ""
    else:
        keys = ("mean", "p50", "p95", "max")
        rows = [
            [text(phase["phase"]), format_value(phase["share"], "ratio")]
            + [format_value(phase[key], "seconds") for key in keys]
            for phase in taken["phases"]
        ]
        whole = ["**the step**", "", *(format_value(taken["step"][key], "seconds") for key in keys)]
        yield from _table(["phase", "share", "per step", "p50", "p95", "max"], [*rows, whole])
    yield own_cost(own)
    yield ""


def _ledger(ledger: Mapping[str, Any]) -> Iterator[str]:
    yield f"## {ledger['title']}"
    yield ""
    yield from _table(ledger["titles"], ledger["rows"])
    yield ledger["summary"]
    yield ""


def _training(facts: Mapping[str, Any]) -> Iterator[str]:
    yield "## Training Progress"
    yield ""
    found = facts["training"]["metrics"]
    keys = ("last", "best", "min", "max", "mean")
    rows = [
        [
            text(one["name"]),
            *(format_value(one[key], one["unit"]) for key in keys),
            f"{one['count']:,}",
            f"{one['nonfinite']:,}",
        ]
        for one in found[:METRICS]
    ]
    if rows:
        yield from _table(["metric", "last", "best", "min", "max", "mean", "points", "NaN, inf"], rows)
    rest = facts["training"]["total"] - len(rows)
    if rest > 0 or not rows:
        yield f"And {rest} more." if rows else "No metrics were recorded."
        yield ""


def _resources(facts: Mapping[str, Any]) -> Iterator[str]:
    yield "## Resource Utilization"
    yield ""
    found = [one for one in facts["resources"]["metrics"] if not matches("cpu/*/usage_ratio", one["name"])]
    rows = [
        [text(one["name"]), *(format_value(one[key], one["unit"]) for key in ("mean", "min", "max", "last"))]
        for one in found[:MACHINE]
    ]
    if rows:
        yield from _table(["metric", "mean", "min", "max", "last"], rows)
    if len(found) > len(rows) or not rows:
        yield f"And {len(found) - len(rows)} more." if rows else "The machine was not sampled."
        yield ""


def _diagnosis(facts: Mapping[str, Any]) -> Iterator[str]:
    yield "## Diagnosis and Recommendations"
    yield ""
    for one in facts["diagnosis"]["findings"]:
        yield f"- **{one['kind']}** ({one['severity']}): {text(one['text'], 1000)}"
        if one.get("expected_gain"):
            yield f"  Gain: {text(one['expected_gain'])}"
        if one.get("remedy"):
            yield f"  Do: {text(one['remedy'], 1000)}"
    if not facts["diagnosis"]["findings"]:
        yield text(facts["diagnosis"]["summary"])
    yield ""


def _alerts(facts: Mapping[str, Any]) -> Iterator[str]:
    yield "## Alerts"
    yield ""
    rows = [
        [text(one["rule"]), one["severity"], one["state"], moment(one["since"]), text(one["text"])]
        for one in facts["alerts"][:ALERTS]
    ]
    if rows:
        yield from _table(["alert", "severity", "state", "began", "what"], rows)
    else:
        yield "No alert fired."
        yield ""


def _texts(facts: Mapping[str, Any]) -> Iterator[str]:
    """Yield the texts that the program logged, the newest first."""
    if not facts["texts"]:
        return
    yield "## Texts"
    yield ""
    rows = [
        [text(one["name"]), "" if one["step"] is None else text(one["step"]), text(one["text"])]
        for one in reversed(facts["texts"])
    ]
    yield from _table(["name", "step", "text"], rows)


def _environment(facts: Mapping[str, Any]) -> Iterator[str]:
    yield "## Environment"
    yield ""
    about = facts["run"]
    keys = ("host", "platform", "python", "cpu", "memory", "git", "command", "world_size")
    rows = [[key, text(text_of(about[key]))] for key in keys if about.get(key) not in (None, "", {})]
    rows += [[f"config {text(key)}", text(value)] for key, value in flat(about.get("config"))][:CONFIG]
    yield from _table(["", ""], rows)
