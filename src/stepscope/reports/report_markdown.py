"""A report as Markdown, for a pull request, a wiki or a terminal."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from stepscope.analysis.first_error.judge import ranks_text
from stepscope.core.names import REPLACEMENT, UNSAFE
from stepscope.core.numbers import format_change, format_share, format_value
from stepscope.core.vocabulary import matches
from stepscope.reports.report_sections import (
    PHASE_TITLES,
    SINK_TITLES,
    flat,
    moment,
    own_cost,
    phase_cells,
    sink_cells,
    text_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

METRICS, MACHINE, ALERTS, CONFIG = 40, 40, 40, 60
_ACTIVE = re.compile(r"([\\`*_{}\[\]<>|#~!])")


def markdown(facts: Mapping[str, Any]) -> str:
    """Return the report of `views.report.report`."""
    sections = (
        ("How It Ended", _ended(facts["end"])),
        ("Comparison", _comparison(facts["comparison"])),
        ("Performance Summary", _performance(facts)),
        (facts["ledger"]["title"], _ledger(facts["ledger"])),
        ("Training Progress", _training(facts)),
        ("Resource Utilization", _resources(facts)),
        ("Diagnosis and Recommendations", _diagnosis(facts)),
        ("Alerts", _alerts(facts)),
        ("Texts", _texts(facts)),
        ("Sinks", _sinks(facts)),
        ("Environment", _environment(facts)),
    )
    paragraphs = [*_head(facts)]
    for title, section in sections:
        content = [*section]
        paragraphs += [f"## {title}", *content] if content else []
    return "".join(f"{paragraph}\n\n" for paragraph in paragraphs)


def text(value: object, limit: int = 500) -> str:
    """Return text of a run on one line, escaped for Markdown: no markup, no link, no table cell."""
    plain = UNSAFE.sub(REPLACEMENT, " ".join(str(value)[:limit].split()))
    return _ACTIVE.sub(r"\\\1", plain)


def table(titles: Sequence[str], rows: Sequence[Sequence[str]], numeric: str = "") -> str:
    """Return a table; `numeric` has one letter per column, `n` for numbers: all but the first by default."""
    kinds = numeric or f" {'n' * (len(titles) - 1)}"
    lines = [f"| {' | '.join(titles)} |", f"|{'|'.join('---:' if kind == 'n' else '---' for kind in kinds)}|"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def _table_or(titles: Sequence[str], rows: Sequence[Sequence[str]], none: str, total: int) -> Iterator[str]:
    """Yield a table and how many more rows there are in total, or a sentence if there is no row."""
    if rows:
        yield table(titles, rows)
    if total > len(rows) or not rows:
        yield f"And {total - len(rows)} more." if rows else none


def _head(facts: Mapping[str, Any]) -> Iterator[str]:
    about, status = facts["run"], facts["status"]
    cause = f": {text(status['cause'])}" if status["cause"] else ""
    began = f"Began {moment(about['created'])}; report of {moment(facts['made'])} by stepscope {facts['stepscope']}."
    yield f"# {text(about['name'] or about['id'])}"
    yield f"Run `{about['id']}` of project {text(about['project'] or '-')}, **{status['state']}**{cause}.\n{began}"
    yield f"**{facts['diagnosis']['primary']}**: {text(facts['diagnosis']['summary'])}"
    yield table(["", "value"], [[text(one["label"]), one["text"]] for one in facts["numbers"]])


def _ended(end: Mapping[str, Any] | None) -> Iterator[str]:
    """Yield the first error among the ranks, the last lines of its rank, and the errors that follow from it."""
    if not end:
        return
    first, lines = end["first_error"], end["traceback"]
    if first is not None:
        yield f"**{text(first['summary'])}**"
        why = text(first["why"])
        yield f"{why[:1].upper()}{why[1:]} ({format_share(first['confidence'])} sure)."
        if lines:
            yield f"The last lines of rank {first['rank']}:"
    if lines:
        yield "\n".join(f"    {UNSAFE.sub(REPLACEMENT, line)}" for line in lines)  # so nothing in it is markup
    others = first["others"] if first is not None else ()
    if others:
        rows = [[ranks_text(one["ranks"]), text(one["why"]), text(one["line"])] for one in others]
        yield table(["other ranks", "why", "error"], rows, "   ")


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
    yield table(["quantity", *(text(one["name"] or one["id"]) for one in facts["runs"])], rows)


def _performance(facts: Mapping[str, Any]) -> Iterator[str]:
    taken, own = facts["performance"]["time"], facts["performance"]["own_cost"]
    if taken is None:
        yield "No steps were recorded."
    else:
        rows = [[text(phase["phase"]), *phase_cells(phase)] for phase in taken["phases"]]
        yield table(PHASE_TITLES, [*rows, ["**the step**", "", *phase_cells(taken["step"])]])
    yield own_cost(own)


def _ledger(ledger: Mapping[str, Any]) -> Iterator[str]:
    yield table(ledger["titles"], ledger["rows"])
    yield ledger["summary"]


def _training(facts: Mapping[str, Any]) -> Iterator[str]:
    keys = ("last", "best", "min", "max", "mean")
    rows = [
        [*_figures(one, keys), f"{one['count']:,}", f"{one['nonfinite']:,}"]
        for one in facts["training"]["metrics"][:METRICS]
    ]
    titles = ("metric", *keys, "points", "NaN, inf")
    yield from _table_or(titles, rows, "No metrics were recorded.", facts["training"]["total"])


def _figures(one: Mapping[str, Any], keys: Sequence[str]) -> list[str]:
    return [text(one["name"]), *(format_value(one[key], one["unit"]) for key in keys)]


def _resources(facts: Mapping[str, Any]) -> Iterator[str]:
    found = [one for one in facts["resources"]["metrics"] if not matches("cpu/*/usage_ratio", one["name"])]
    keys = ("mean", "min", "max", "last")
    rows = [_figures(one, keys) for one in found[:MACHINE]]
    yield from _table_or(("metric", *keys), rows, "The machine was not sampled.", len(found))


def _diagnosis(facts: Mapping[str, Any]) -> Iterator[str]:
    lines = []
    for one in facts["diagnosis"]["findings"]:
        lines.append(f"- **{one['kind']}** ({one['severity']}): {text(one['text'], 1000)}")
        lines += [f"  Gain: {text(one['expected_gain'])}"] if one.get("expected_gain") else []
        lines += [f"  Do: {text(one['remedy'], 1000)}"] if one.get("remedy") else []
    yield "\n".join(lines) or text(facts["diagnosis"]["summary"])


def _alerts(facts: Mapping[str, Any]) -> Iterator[str]:
    rows = [
        [text(one["rule"]), one["severity"], one["state"], moment(one["since"]), text(one["text"])]
        for one in facts["alerts"][:ALERTS]
    ]
    yield from _table_or(("alert", "severity", "state", "began", "what"), rows, "No alert fired.", len(rows))


def _texts(facts: Mapping[str, Any]) -> Iterator[str]:
    rows = [
        [text(one["name"]), "" if one["step"] is None else text(one["step"]), text(one["text"])]
        for one in reversed(facts["texts"])
    ]
    if rows:
        yield table(["name", "step", "text"], rows)


def _sinks(facts: Mapping[str, Any]) -> Iterator[str]:
    rows = [[text(one["name"]), one["state"], *sink_cells(one), text(one["why"])] for one in facts["sinks"]]
    if rows:
        yield table(SINK_TITLES, rows, "  nnn ")


def _environment(facts: Mapping[str, Any]) -> Iterator[str]:
    about = facts["run"]
    keys = ("host", "platform", "python", "cpu", "memory", "git", "command", "world_size")
    rows = [[key, text(text_of(about[key]))] for key in keys if about.get(key) not in (None, "", {})]
    rows += [[f"config {text(key)}", text(value)] for key, value in flat(about.get("config"))][:CONFIG]
    yield table(["", ""], rows)
