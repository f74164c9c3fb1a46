"""The sections of a report as HTML: text and tables, with everything from a run escaped."""

from __future__ import annotations

import json
import re
import shlex
import time
from typing import TYPE_CHECKING, Any

from stepscope.analysis.compare.difference import SAME
from stepscope.analysis.first_error.judge import ranks_text
from stepscope.core.endings import is_bad
from stepscope.core.numbers import format_change, format_count, format_share, format_value
from stepscope.core.vocabulary import PHASES, matches
from stepscope.reports.markup import Markup, named, table, tag
from stepscope.views.sinks import behind_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

TONES = {"running": "go", "finished": "good", "interrupted": "warn"}
MACHINE_ROWS = 60
ALERTS, CONFIG, EVENTS = 100, 200, 40
SURE = 0.95
"""Confidence from which a finding is shown without it."""
PHASE_TITLES = ("phase", "share", "per step", "p50", "p95", "max")
SINK_TITLES = ("sink", "state", "behind", "rows sent", "refused", "why")
ENVIRONMENT = ("host", "platform", "python", "cpu", "memory", "git", "command", "world_size", "path")
LABELS = {"cpu": "processors", "world_size": "world size", "path": "folder"}
"""Labels of facts about the environment that differ from their keys."""


def head(facts: Mapping[str, Any]) -> list[Any]:
    """Return name, state, time, the verdict and the key numbers."""
    about, status, verdict = facts["run"], facts["status"], facts["diagnosis"]
    when = moment(about["created"])
    took = "" if status["duration"] is None else f", {format_value(status['duration'], 'seconds')}"
    title = tag("h1", about["name"] or about["id"])
    numbers = [tag("div", tag("b", one["text"]), tag("span", one["label"]), class_="fact") for one in facts["numbers"]]
    tone = "bad" if is_bad(status["state"], status["cause"]) else TONES.get(status["state"], "bad")
    return [
        tag("div", title, tag("span", status["state"], class_=f"state {tone}"), class_="report-head"),
        tag("p", f"Run {about['id']} of project {about['project'] or '-'}, {when}{took}", class_="soft"),
        tag("p", status["cause"], class_=f"lead {tone}") if status["cause"] else None,
        tag("p", tag("strong", f"{verdict['primary']}: "), verdict["summary"], class_="lead"),
        tag("div", numbers, class_="numbers"),
    ]


def moment(seconds: float | None) -> str:
    """Return a time for people, in UTC."""
    return "at an unknown time" if not seconds else time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(seconds))


def performance(facts: Mapping[str, Any]) -> list[Any]:
    """Return where the time goes, how fast the run was, and the cost of watching."""
    taken = facts["performance"]["time"]
    parts: list[Any] = []
    if taken is not None:
        rows = [
            [[tag("span", "■ ", class_=phase_class(one["phase"])), named(one["phase"])], *phase_cells(one)]
            for one in taken["phases"]
        ]
        whole = [tag("strong", "the step"), "", *phase_cells(taken["step"])]
        parts += [step_bar(taken["phases"]), _sheet(table(PHASE_TITLES, [*rows, whole], " nnnnn"))]
    rates = [_rate(one) for one in facts["performance"]["throughput"]]
    texts = [text for text in [*rates, own_cost(facts["performance"]["own_cost"])] if text]
    return [*parts, *(tag("p", text, class_="soft") for text in texts)]


def phase_cells(one: Mapping[str, Any]) -> list[str]:
    """Return share, mean, median, 95th percentile and maximum of a phase; the step itself has no share."""
    share = [format_value(one["share"], "ratio")] if "share" in one else []
    return share + [format_value(one[key], "seconds") for key in ("mean", "p50", "p95", "max")]


def _rate(one: Mapping[str, Any]) -> str:
    units = {"steps_per_second": "steps/second", "samples_per_second": "samples/second"}
    parts = [format_value(one[key], unit) for key, unit in units.items() if one[key] is not None]
    ranks = f", {one['ranks']} ranks together" if one["ranks"] > 1 else ""
    return f"Attempt {one['attempt']}: {', '.join(parts)}{ranks}." if parts else ""


def own_cost(own: Mapping[str, Any]) -> str:
    """Return the cost of watching in one sentence."""
    share = f", {format_value(own['cost_ratio'], 'ratio')} of the time" if own["cost_ratio"] is not None else ""
    return f"Watching: {own['rows']:,} rows, {own['lost']:,} lost, {own['refused']:,} refused{share}."


def phase_class(name: str) -> str:
    """Return the CSS class of a phase's color, the same as on the page."""
    return f"phase-{name if name in PHASES else 'own'}"


def step_bar(phases: Sequence[Mapping[str, Any]]) -> Markup | None:
    """Return the step as one bar."""
    shares = [(one["phase"], one["share"] or 0.0) for one in phases]
    if not any(share for _, share in shares):
        return None
    at, drawn = 0.0, []
    for name, share in shares:
        label = tag("title", f"{name} {format_value(share, 'ratio')}")
        drawn.append(tag("g", label, tag("rect", x=at, y=0, width=share * 1000, height=26, class_=phase_class(name))))
        at += share * 1000
    return tag("svg", drawn, viewBox="0 0 1000 26", preserveAspectRatio="none", class_="step-bar", role="img")


def _sheet(*children: Any) -> Markup:
    return tag("div", children, class_="sheet")


def metrics(facts: Mapping[str, Any]) -> Any:
    """Return the metrics of the training as a table."""
    found, keys, rows = facts["training"]["metrics"], ("last", "best", "min", "max", "mean"), []
    if not found:
        return tag("p", "No metrics were recorded.", class_="soft")
    for one in found:
        bad = tag("span", f"{one['nonfinite']:,}", class_="bad") if one["nonfinite"] else ""
        rows.append([*_figures(one, keys), f"{one['count']:,}", bad])
    rest = facts["training"]["total"] - len(found)
    more = tag("p", f"And {rest} more; the JSON form of the run has them.", class_="soft") if rest > 0 else None
    return [_sheet(table(["metric", *keys, "points", "NaN, inf"], rows, " nnnnnnn")), more]


def texts(facts: Mapping[str, Any]) -> Any:
    """Return the texts that the program logged, the newest first."""
    found = [[named(one["name"]), one["step"], one["text"]] for one in reversed(facts["texts"])]
    if not found:
        return None
    return [tag("h3", "Texts", class_="sub"), _sheet(table(["name", "step", "text"], found, " n "))]


def _figures(one: Mapping[str, Any], keys: Sequence[str]) -> list[Any]:
    cells = ("" if key == "best" and one[key] is None else format_value(one[key], one["unit"]) for key in keys)
    return [named(one["name"]), *cells]


def resources(facts: Mapping[str, Any]) -> Any:
    """Return the machine's metrics, and what could not be sampled."""
    found, keys = facts["resources"]["metrics"], ("mean", "min", "max", "last")
    if not found:
        return tag("p", "The machine was not sampled.", class_="soft")
    rows = [_figures(one, keys) for one in found if not matches("cpu/*/usage_ratio", one["name"])]
    whole = _sheet(table(["metric", *keys], rows[:MACHINE_ROWS], " nnnn"))
    absent = {what: why for node in facts["resources"]["nodes"] for what, why in node["absent"].items()}
    gone = [tag("p", f"Not known: {what}, {why}", class_="soft") for what, why in sorted(absent.items())]
    return tag("details", tag("summary", f"{len(found)} metrics of the machine"), whole, gone)


def diagnosis(facts: Mapping[str, Any]) -> list[Any]:
    """Return the findings, each with its evidence, remedy and gain."""
    found = facts["diagnosis"]
    if not found["findings"]:
        return [tag("p", found["summary"], class_="lead good")]
    changes = [tag("li", one["text"]) for one in [*found["changes"], *found["slow_steps"]][:12]]
    missing = ", ".join(one["signal"] for one in found["missing"])
    return [
        *map(_finding, found["findings"]),
        [tag("h3", "What changed", class_="sub"), tag("ul", changes)] if changes else None,
        tag("p", f"Not known: {missing}.", class_="soft") if missing else None,
    ]


def _finding(one: Mapping[str, Any]) -> Markup:
    confidence = one.get("confidence")
    sure = f"{format_share(confidence)} sure" if confidence is not None and confidence < SURE else ""
    cost = f"cost {format_value(one['cost_seconds'], 'seconds')}" if one.get("cost_seconds") is not None else ""
    about = ", ".join(part for part in (one["severity"], cost, sure) if part)
    shown = [f"{source.replace('_', ' ')}: {text}" for source, said in _sources(one) for text in said]
    return tag(
        "div",
        tag("h3", one["kind"].replace("_", " "), tag("span", f"  {about}", class_="soft")),
        tag("p", one["text"]),
        tag("ul", *(tag("li", text) for text in shown), class_="soft") if shown else None,
        tag("p", one["expected_gain"], class_="soft") if one.get("expected_gain") else None,
        tag("p", one["remedy"], class_="do good") if one.get("remedy") else None,
        class_=f"finding {one['severity']}",
    )


def _sources(one: Mapping[str, Any]) -> Iterable[tuple[str, list[str]]]:
    """Return what each source of evidence about a hang shows; other findings have none."""
    shown: Mapping[str, list[str]] = one["evidence"].get("sources", {})
    return shown.items()


def alerts(facts: Mapping[str, Any]) -> Any:
    """Return every alert, the newest first."""
    found = facts["alerts"]
    if not found:
        return tag("p", "No alert fired.", class_="good")
    titles = ["alert", "severity", "state", "began", "lasted", "what", "do"]
    rows = [
        [
            named(one["rule"], 40),
            tag("span", one["severity"], class_="bad" if one["severity"] == "critical" else "warn"),
            one["state"],
            moment(one["since"]),
            "" if one["until"] is None else format_value(one["until"] - one["since"], "seconds"),
            one["text"],
            one["remedy"],
        ]
        for one in found[:ALERTS]
    ]
    return _sheet(table(titles, rows))


def sinks(facts: Mapping[str, Any]) -> Markup:
    """Return the other tools that get a copy of the run."""
    rows = [
        [named(one["name"]), tag("span", one["state"], class_=one["tone"]), *sink_cells(one), one["why"]]
        for one in facts["sinks"]
    ]
    return _sheet(table(SINK_TITLES, rows, "  nnn"))


def sink_cells(one: Mapping[str, Any]) -> list[str]:
    """Return how far a sink is behind, and how many rows it took and refused."""
    return [behind_text(one), *(format_count(one[key]) for key in ("sent_rows", "refused_rows"))]


def place_text(value: Any) -> str:
    """Return a fact about the environment in words: bytes with their unit, and no key for self-explanatory values."""
    if not isinstance(value, dict):
        return text_of(value)
    plain_words = ("system", "release", "machine", "implementation")
    words = []
    for key, item in value.items():
        if item in (None, "", {}):
            continue
        if key.endswith("_bytes") and isinstance(item, (int, float)):
            words.append(f"{format_value(float(item), 'bytes')} {key.removesuffix('_bytes')}")
        else:
            words.append(text_of(item) if key in plain_words else f"{key} {text_of(item)}")
    return ", ".join(words)


def environment(facts: Mapping[str, Any]) -> list[Any]:
    """Return the environment of the run, its configuration and its events."""
    about = facts["run"]
    command = about.get("command")
    known = {**about, "command": shlex.join(map(str, command)) if isinstance(command, list) else command}
    keys = [key for key in ENVIRONMENT if known.get(key) not in (None, "", {})]
    rows = [[LABELS.get(key, key), place_text(known[key])] for key in keys]
    parts: list[Any] = [_sheet(table(["", ""], rows))]
    config = flat(about.get("config"))
    if config:
        parts += [tag("h3", "Configuration", class_="sub"), _sheet(table(["setting", "value"], config[:CONFIG]))]
    shown = [[moment(one["time"]), one["kind"], one["step"], one["text"]] for one in facts["events"][-EVENTS:]]
    if shown:
        parts += [tag("h3", "Events", class_="sub"), _sheet(table(["time", "kind", "step", ""], shown, "  n "))]
    return parts


def how_it_ended(end: Mapping[str, Any] | None) -> list[Any]:
    """Return the first error among the ranks, the last lines of its rank, and the errors that follow from it."""
    if not end:
        return []
    first, lines = end["first_error"], _sheet(tag("pre", "\n".join(end["traceback"])))
    if first is None:
        return [tag("h3", "Traceback", class_="sub"), lines] if end["traceback"] else []
    sure = f" ({format_share(first['confidence'])} sure)."
    parts: list[Any] = [
        tag("h3", "The first error", class_="sub"),
        tag("p", tag("strong", first["summary"])),
        tag("p", first["why"][:1].upper(), first["why"][1:], sure, class_="soft"),
    ]
    if end["traceback"]:
        parts += [tag("p", f"The last lines of rank {first['rank']}:", class_="soft"), lines]
    rows = [[ranks_text(one["ranks"]), one["why"], one["line"]] for one in first["others"]]
    return [*parts, _sheet(table(("other ranks", "why", "error"), rows, "   "))] if rows else parts


def text_of(value: Any) -> str:
    """Return a fact in words."""
    if isinstance(value, dict):
        return ", ".join(f"{key} {text_of(item)}" for key, item in value.items() if item not in (None, "", {}))
    return value if isinstance(value, str) else json.dumps(value, default=str)


def flat(config: Any, above: str = "") -> list[list[Any]]:
    """Return a configuration as rows of path and value."""
    if isinstance(config, dict):
        return [row for key, value in config.items() for row in flat(value, f"{above}.{key}" if above else str(key))]
    if config is None and not above:
        return []
    return [[above, config if isinstance(config, str) else json.dumps(config, default=str)]]


def comparison(facts: Mapping[str, Any] | None) -> Any:
    """Return the differences between the runs: numbers, and settings."""
    if not facts:
        return None
    labels = [  # each name in the color of its lines
        tag("span", tag("span", "■ ", class_=f"line-{place % 8}"), one["name"] or one["id"])
        for place, one in enumerate(facts["runs"])
    ]
    rows = []
    for one in facts["numbers"]:
        cells = [named(quantity(one["name"]))]
        for value, change in zip(one["values"], one["differences"], strict=True):
            shown = format_value(None if value is None else value["value"], one["unit"])
            cells.append(tag("span", shown, _change(change, one["better"])))
        rows.append(cells)
    config = [[one["key"], *map(text_of, one["values"])] for one in facts["config"] if not one["same"]]
    return [
        tag("h2", "Comparison", class_="part"),
        _sheet(table(["quantity", *labels], rows, " " + "n" * len(labels))),
        [tag("h3", "Settings that differ", class_="sub"), _sheet(table(["setting", *labels], config))]
        if config
        else None,
        [tag("p", note, class_="soft") for note in facts["notes"][:10]],
    ]


def _change(change: Mapping[str, Any] | None, better: str | None) -> Markup | None:
    """Return the difference from the first run, colored if it is more than noise."""
    ratio, tone = None if change is None else change["ratio"], "soft"
    if change is None or ratio is None:
        return None
    if better is not None and change["verdict"] != SAME:
        tone = "good" if (ratio < 0) == (better == "lower") else "bad"
    return tag("span", f"  {format_change(ratio)}", class_=tone, title=str(change["text"]))


def quantity(name: str) -> str:
    """Return a quantity in words: `loss@1999` at step 1999, `loss@500s` after 500 seconds, `loss@50%` halfway."""
    words = {r"(\d+)": r" at step \1", r"([\d.]+)s": r" after \1 s", r"([\d.]+)%": r" at \1 % of the run"}
    for pattern, text in {**words, "end": " at the end"}.items():
        name = re.sub(f"@{pattern}$", text, name)
    return name


def ledger(summary: Mapping[str, Any]) -> list[Any]:
    """Return the table of the time ledger and its summary."""
    if not summary["rows"]:
        return [tag("p", "No time was recorded.", class_="soft")]
    numbers = "n" * (len(summary["titles"]) - 1)
    sheet = _sheet(table(summary["titles"], summary["rows"], f" {numbers}"))
    return [sheet, tag("p", summary["summary"], class_="soft")]
