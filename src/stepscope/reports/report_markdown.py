"""A report as Markdown, for a pull request, a wiki or a terminal."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from stepscope.core.names import REPLACEMENT, UNSAFE
from stepscope.core.numbers import format_change, format_value
from stepscope.core.vocabulary import matches
from stepscope.reports.report_sections import PHASE_TITLES, flat, moment, own_cost, phase_cells, text_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

METRICS, MACHINE, ALERTS, CONFIG = 40, 40, 40, 60
_ACTIVE = re.compile(r"([\\`*_{}\[\]<>|#~!])")


def markdown(facts: Mapping[str, Any]) -> str:
    """Return the report of `views.report.report`."""
    sections = (
        ("Comparison", _comparison(facts["comparison"])),
        ("Performance Summary", _performance(facts)),
        (facts["ledger"]["title"], _ledger(facts["ledger"])),
        ("Training Progress", _training(facts)),
        ("Resource Utilization", _resources(facts)),
        ("Diagnosis and Recommendations", _diagnosis(facts)),
        ("Alerts", _alerts(facts)),
        ("Texts", _texts(facts)),
        ("Environment", _environment(facts)),
    )
    lines = [*_head(facts)]
    for title, section in sections:
        content = [*section]
        lines += [f"## {title}", "", *content] if content else []
    return "\n".join(lines) + "\n"


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


def _table_or(titles: Sequence[str], rows: Sequence[Sequence[str]], none: str, total: int) -> Iterator[str]:
    """Yield a table and how many more rows there are in total, or a sentence if there is no row."""
    if rows:
        yield from _table(titles, rows)
    if total > len(rows) or not rows:
        yield f"And {total - len(rows)} more." if rows else none
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
    rows = []
    for one in facts["numbers"]:
        cells = [text(one["name"])]
        for value, change in zip(one["values"], one["differences"], strict=True):
            cells.append(format_value(None if value is None else value["value"], one["unit"]))
            if change is not None and change["ratio"] is not None:
                cells[-1] += f" ({format_change(change['ratio'])}, {change['verdict']})"
        rows.append(cells)
    yield from _table(["quantity", *(text(one["name"] or one["id"]) for one in facts["runs"])], rows)


def _performance(facts: Mapping[str, Any]) -> Iterator[str]:
    taken, own = facts["performance"]["time"], facts["performance"]["own_cost"]
    if taken is None:
        yield "No steps were recorded."
        yield ""
    else:
        rows = [[text(phase["phase"]), *phase_cells(phase)] for phase in taken["phases"]]
        yield from _table(PHASE_TITLES, [*rows, ["**the step**", "", *phase_cells(taken["step"])]])
    yield own_cost(own)
    yield ""


def _ledger(ledger: Mapping[str, Any]) -> Iterator[str]:
    yield from _table(ledger["titles"], ledger["rows"])
    yield ledger["summary"]
    yield ""


def _training(facts: Mapping[str, Any]) -> Iterator[str]:
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
    titles = ("metric", *keys, "points", "NaN, inf")
    yield from _table_or(titles, rows, "No metrics were recorded.", facts["training"]["total"])


def _resources(facts: Mapping[str, Any]) -> Iterator[str]:
    found = [one for one in facts["resources"]["metrics"] if not matches("cpu/*/usage_ratio", one["name"])]
    keys = ("mean", "min", "max", "last")
    rows = [[text(one["name"]), *(format_value(one[key], one["unit"]) for key in keys)] for one in found[:MACHINE]]
    yield from _table_or(("metric", *keys), rows, "The machine was not sampled.", len(found))


def _diagnosis(facts: Mapping[str, Any]) -> Iterator[str]:
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
    rows = [
        [text(one["rule"]), one["severity"], one["state"], moment(one["since"]), text(one["text"])]
        for one in facts["alerts"][:ALERTS]
    ]
    yield from _table_or(("alert", "severity", "state", "began", "what"), rows, "No alert fired.", len(rows))


def _texts(facts: Mapping[str, Any]) -> Iterator[str]:
    """Yield the texts that the program logged, the newest first."""
    if not facts["texts"]:
        return
    rows = [
        [text(one["name"]), "" if one["step"] is None else text(one["step"]), text(one["text"])]
        for one in reversed(facts["texts"])
    ]
    yield from _table(["name", "step", "text"], rows)


def _environment(facts: Mapping[str, Any]) -> Iterator[str]:
    about = facts["run"]
    keys = ("host", "platform", "python", "cpu", "memory", "git", "command", "world_size")
    rows = [[key, text(text_of(about[key]))] for key in keys if about.get(key) not in (None, "", {})]
    rows += [[f"config {text(key)}", text(value)] for key, value in flat(about.get("config"))][:CONFIG]
    yield from _table(["", ""], rows)
