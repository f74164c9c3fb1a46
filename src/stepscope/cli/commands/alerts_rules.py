"""Print the rules that apply, backtest rules on old runs, and suggest thresholds."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from stepscope.cli.command import show
from stepscope.cli.commands.alerts_channels import alert_settings
from stepscope.cli.commands.alerts_state import SEVERITIES
from stepscope.cli.text.progress import progress
from stepscope.cli.text.table import Cell, Column, table
from stepscope.core.errors import UsageError
from stepscope.core.numbers import format_count
from stepscope.core.terminal_text import plain

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Iterator, Sequence

    from stepscope.alerts.rules.rule import Rule
    from stepscope.cli.text.progress import Advance
    from stepscope.cli.text.terminal import Paint


def rules(options: argparse.Namespace) -> int:
    """Print the rules that apply."""
    from stepscope.alerts.rules.profiles import PROFILES

    found, problems = _chosen(options)
    for problem in problems:
        print(f"stepscope: {plain(problem)}", file=sys.stderr)
    facts = [rule.facts() for rule in found]
    profiles = {name: one.text for name, one in PROFILES.items()}
    printed = {"rules": facts, "problems": problems, "profiles": profiles}
    return show(options, printed, lambda width, paint: _table(facts, width, paint))


def _chosen(options: argparse.Namespace) -> tuple[list[Rule], list[str]]:
    from stepscope.alerts.rules.profiles import rules_of
    from stepscope.alerts.rules.rules_file import load_rules

    if options.rules:
        return load_rules(options.rules), []
    if options.profile:
        return rules_of({"alerting.profile": options.profile})
    return rules_of(alert_settings(options.config))


def _table(facts: Sequence[dict[str, Any]], width: int, paint: Paint) -> Iterator[str]:
    shape = [Column("rule"), Column("severity"), Column("when", narrowest=24), Column("for", optional=True)]
    rows: list[list[Cell | str]] = []
    for rule in facts:
        severity = str(rule.get("severity", ""))
        name = Cell(plain(rule.get("name", "")), "" if rule.get("enabled", True) else "dim")
        rows.append([name, Cell(severity, SEVERITIES.get(severity, "")), _when(rule), plain(rule.get("for") or "")])
    yield from table(shape, rows, width, paint)
    if not rows:
        yield "no rule applies"


def _when(rule: dict[str, Any]) -> str:
    if rule.get("when"):
        return plain(rule["when"])
    if rule.get("detect"):
        return plain(f"{rule['detect']} of {_joined(rule.get('metric'))}".removesuffix(" of "))
    return plain(f"event {_joined(rule.get('event'))}")


def _joined(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value or "")


def backtest(options: argparse.Namespace) -> int:
    """Replay old runs through rules."""
    from stepscope.alerts.rules.backtest import backtest as replay
    from stepscope.alerts.rules.profiles import PROFILES, rules_of
    from stepscope.alerts.rules.rules_file import load_rules

    is_profile = options.rules in PROFILES
    chosen = rules_of({"alerting.profile": options.rules})[0] if is_profile else load_rules(options.rules)
    incidents = {**{name: [] for name in options.healthy}, **_incidents(options.incident)}
    with progress("replaying", len(options.runs), "runs", options=options) as advance:
        facts = replay(chosen, _told(_labelled(options, incidents), advance), incidents)
    return show(options, facts, lambda width, paint: backtest_lines(facts, width, paint))


def _incidents(texts: Iterable[str]) -> dict[str, list[int]]:
    """Return the steps at which something was wrong, by run, from texts as RUN=STEP."""
    found: dict[str, list[int]] = {}
    for text in texts:
        name, _, step = text.rpartition("=")
        if not name or not step.isdecimal():
            raise UsageError(f"take the incident {text!r}", "it is not RUN=STEP", "write it as run-1=1200")
        found.setdefault(name, []).append(int(step))
    return found


def _labelled(options: argparse.Namespace, incidents: dict[str, list[int]]) -> Iterator[tuple[str, Any]]:
    """Yield the runs; the incidents of an argument, such as `latest`, become those of the runs that it names."""
    for argument in options.runs:
        for label, run in sources([argument], options.dir):
            if argument in incidents:
                incidents.setdefault(label, incidents[argument])
            yield label, run


def sources(arguments: Iterable[str], root: str | None) -> Iterator[tuple[str, Any]]:
    """Yield the runs that arguments name, each with its label: recorded runs, or files of other tools."""
    from stepscope.cli.named_run import say
    from stepscope.sources.groups import short_path
    from stepscope.sources.source import RUN, resolve_all

    for source in (source for argument in arguments for source in resolve_all(argument, root, say)):
        if source.kind == RUN:
            past = source.past()
            yield past.id, past
        else:
            yield from ((short_path(source.path), run) for run in source.imported())


def _told(found: Iterator[tuple[str, Any]], advance: Advance) -> Iterator[tuple[str, Any]]:
    """Yield the same runs, and report progress at the start of each and when the next is requested."""
    for label, run in found:
        advance(0, plain(label, 40))
        yield label, run
        advance()


def backtest_lines(facts: dict[str, Any], width: int, paint: Paint) -> Iterator[str]:
    """Yield the result of a backtest: each run, then each rule that fired."""
    shape = [Column("run", narrowest=16), Column("steps", right=True), Column("points", right=True)]
    shape += [Column("alerts", right=True), Column("missed", right=True), Column("first", narrowest=20)]
    rows: list[list[Cell | str]] = []
    for run in facts["runs"]:
        first = run["alerts"][0] if run["alerts"] else None
        told = "" if first is None else f"step {first['step']}: {first['text']}"
        missed = str(len(run["missed"])) if run["incidents"] else ""
        figures = [format_count(run["steps"]), format_count(run["points"]), format_count(len(run["alerts"])), missed]
        rows.append([plain(run["run"]), *figures, plain(told)])
    yield from table(shape, rows, width, paint)
    spoke = [row for row in facts["rules"] if row["fired"]]
    yield ""
    if not spoke:
        yield f"none of {len(facts['rules'])} rules would have fired"
        return
    shape = [Column("rule"), Column("fired", right=True), Column("false", right=True)]
    shape += [Column("false per 10 000 steps", right=True), Column("delay, steps", right=True)]
    yield from table(shape, [_rule_row(row) for row in spoke], width, paint)
    yield paint(f"{len(facts['rules']) - len(spoke)} other rules would not have fired", "dim")
    if any(run["incidents"] is None for run in facts["runs"]):
        ways = "name incidents (--incident RUN=STEP) and healthy runs (--healthy RUN)"
        yield paint(f"it is unknown which alerts were right: {ways}", "dim")


def _rule_row(row: dict[str, Any]) -> list[Cell | str]:
    rate = "" if row["false_per_10000_steps"] is None else f"{row['false_per_10000_steps']:.3g}"
    delay = "" if row["delay_steps"] is None else str(row["delay_steps"])
    false = "" if row["false"] is None else format_count(row["false"])
    return [plain(row["rule"]), format_count(row["fired"]), false, rate, delay]


def suggest(options: argparse.Namespace) -> int:
    """Print thresholds that healthy runs suggest."""
    from stepscope.alerts.rules.suggest import suggest as propose

    with progress("reading", len(options.runs), "runs", options=options) as advance:
        found = propose(_told(sources(options.runs, options.dir), advance))
    shape = [Column("setting"), Column("value", right=True), Column("why", narrowest=30)]
    rows = [[plain(row["key"]), f"{row['value']:g}", plain(row["reason"])] for row in found]
    nothing = ["these runs suggest nothing"]
    return show(options, {"suggestions": found}, lambda *page: table(shape, rows, *page) if rows else nothing)
