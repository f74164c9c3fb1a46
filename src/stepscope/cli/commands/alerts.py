"""Show the alerts of a run, answer them, and try rules and channels out before they are needed.

  stepscope alerts list [RUN]                what fires now, and whether people were told
  stepscope alerts history RUN               every alert there was, with each change of its state
  stepscope alerts ack RUN ALERT             somebody cares for it; ALERT is an id or the name of a rule
  stepscope alerts silence RUN RULE          tell nobody for a while; `gpu_*` is every rule of that beginning
  stepscope alerts rules                     the rules that apply here
  stepscope alerts check                     whether rules are right, and channels would take a message
  stepscope alerts test                      send a test message over every channel
  stepscope alerts backtest RULES RUN...     what rules would have found in old runs, ours or imported
  stepscope alerts suggest RUN...            thresholds that healthy runs suggest

Without RUN it is the latest run. Exit code 1 if a check or a test failed.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from stepscope.cli.command import add_json, add_root, add_run
from stepscope.cli.text.progress import add_quiet
from stepscope.core.kinds import parse_duration

if TYPE_CHECKING:
    from collections.abc import Callable

LATEST = "latest"


def prepare(parser: argparse.ArgumentParser) -> None:
    """Add the actions and their options."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    listed = actions.add_parser("list", help="what fires now, and whether people were told")
    listed.add_argument("run", metavar="RUN", nargs="?", default=LATEST, help="the run (default: the latest)")
    listed.add_argument("--all", action="store_true", help="resolved alerts, too")
    history = actions.add_parser("history", help="every alert there was")
    acknowledge = actions.add_parser("ack", help="say that somebody cares for an alert")
    silence = actions.add_parser("silence", help="tell nobody of a rule for a while")
    for own in (history, acknowledge, silence):
        add_run(own)
    acknowledge.add_argument("alert", metavar="ALERT", help="id of an alert, or the name of a rule")
    silence.add_argument("rule", metavar="RULE", help="name of a rule; * stands for anything")
    silence.add_argument(
        "--for", dest="span", metavar="TIME", type=_seconds, default=3600.0, help="such as 30m or 2h (default: 1h)"
    )
    silence.add_argument("--lift", action="store_true", help="end a silence")
    for own in (acknowledge, silence):
        own.add_argument("--by", metavar="NAME", default="", help="who does (default: this user)")
    rules = actions.add_parser("rules", help="the rules that apply here")
    rules.add_argument("rules", metavar="RULES", nargs="?", help="a file of rules instead of the configuration")
    rules.add_argument("--profile", metavar="NAME", help="the rules of a profile instead")
    check = actions.add_parser("check", help="whether rules are right, and channels would take a message")
    check.add_argument("rules", metavar="RULES", nargs="?", help="a file of rules to look at, too")
    check.add_argument("--offline", action="store_true", help="connect to nobody")
    test = actions.add_parser("test", help="send a test message over every channel")
    test.add_argument("--channel", metavar="NAME", help="over this one only")
    backtest = actions.add_parser("backtest", help="what rules would have found in old runs")
    backtest.add_argument("rules", metavar="RULES", help="a file of rules, or the name of a profile")
    backtest.add_argument("runs", metavar="RUN", nargs="+", help="runs, or files that `stepscope compare` reads")
    text = "where something was wrong; other alerts of that run are false alarms; may be given several times"
    backtest.add_argument("--incident", metavar="RUN=STEP", action="append", default=[], help=text)
    text = "a run that went well: all its alerts are false alarms; may be given several times"
    backtest.add_argument("--healthy", metavar="RUN", action="append", default=[], help=text)
    suggest = actions.add_parser("suggest", help="thresholds that healthy runs suggest")
    suggest.add_argument("runs", metavar="RUN", nargs="+", help="healthy runs")
    for own in (backtest, suggest):
        add_quiet(own)
    for own in (listed, history, acknowledge, silence, backtest, suggest):
        add_root(own)
    for own in (rules, check, test):
        own.add_argument("--config", metavar="FILE", help="a configuration beside stepscope.yaml")
    for own in (listed, history, acknowledge, silence, rules, check, test, backtest, suggest):
        add_json(own)


def _seconds(text: str) -> float:
    try:
        return parse_duration(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no time: {error}") from None


def run(options: argparse.Namespace) -> int:
    """Do what was asked for."""
    return _action(options.action)(options)


def _action(name: str) -> Callable[[argparse.Namespace], int]:
    """Return what does it; only its own modules are loaded."""
    if name in {"list", "history", "ack", "silence"}:
        from stepscope.cli.commands import alerts_state

        return {
            "list": alerts_state.listed,
            "history": alerts_state.history,
            "ack": alerts_state.acknowledge,
            "silence": alerts_state.silence,
        }[name]
    if name in {"check", "test"}:
        from stepscope.cli.commands import alerts_channels

        return {"check": alerts_channels.check, "test": alerts_channels.trial}[name]
    from stepscope.cli.commands import alerts_rules

    return {"rules": alerts_rules.rules, "backtest": alerts_rules.backtest, "suggest": alerts_rules.suggest}[name]
