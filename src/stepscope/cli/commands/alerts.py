"""Show and acknowledge alerts, mute rules, and test rules and channels.

  stepscope alerts list [RUN]                firing alerts, and whether notifications were sent
  stepscope alerts history RUN               every alert, with each change of its state
  stepscope alerts ack RUN ALERT             acknowledge an alert; ALERT is an id or the name of a rule
  stepscope alerts silence RUN RULE          mute a rule for a while; `gpu_*` means every rule with that prefix
  stepscope alerts rules                     the rules that apply here
  stepscope alerts check                     check that rules are valid and channels accept messages
  stepscope alerts test                      send a test message over every channel
  stepscope alerts backtest RULES RUN...     run rules on old runs, ours or imported
  stepscope alerts suggest RUN...            suggest thresholds from healthy runs

RUN defaults to the latest run. Exit code 1 if a check or a test failed.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from stepscope.cli.command import add_shared
from stepscope.core.kinds import parse_duration

if TYPE_CHECKING:
    from collections.abc import Callable

LATEST = "latest"
ACTIONS = {
    "list": "firing alerts, and whether notifications were sent",
    "history": "every alert of a run",
    "ack": "acknowledge an alert",
    "silence": "mute a rule for a while",
    "rules": "the rules that apply here",
    "check": "check that rules are valid and channels accept messages",
    "test": "send a test message over every channel",
    "backtest": "run rules on old runs",
    "suggest": "suggest thresholds from healthy runs",
}


def prepare(parser: argparse.ArgumentParser) -> None:
    """Add the actions and their options."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    made = [actions.add_parser(name, help=text) for name, text in ACTIONS.items()]
    listed, history, acknowledge, silence, rules, check, test, backtest, suggest = made
    listed.add_argument("run", metavar="RUN", nargs="?", default=LATEST, help="the run (default: the latest)")
    listed.add_argument("--all", action="store_true", help="also resolved alerts")
    for own in (history, acknowledge, silence):
        add_shared(own, "run")
    acknowledge.add_argument("alert", metavar="ALERT", help="id of an alert, or the name of a rule")
    silence.add_argument("rule", metavar="RULE", help="name of a rule; * stands for anything")
    text = "duration, such as 30m or 2h (default: 1h)"
    silence.add_argument("--for", dest="span", metavar="TIME", type=_seconds, default=3600.0, help=text)
    silence.add_argument("--lift", action="store_true", help="end a silence")
    for own in (acknowledge, silence):
        own.add_argument("--by", metavar="NAME", default="", help="name of the person (default: this user)")
    rules.add_argument("rules", metavar="RULES", nargs="?", help="a file of rules instead of the configuration")
    rules.add_argument("--profile", metavar="NAME", help="the rules of a profile instead")
    check.add_argument("rules", metavar="RULES", nargs="?", help="also check this file of rules")
    check.add_argument("--offline", action="store_true", help="make no connections")
    test.add_argument("--channel", metavar="NAME", help="only over this channel")
    backtest.add_argument("rules", metavar="RULES", help="a file of rules, or the name of a profile")
    backtest.add_argument("runs", metavar="RUN", nargs="+", help="runs, or files that `stepscope compare` reads")
    text = "step of a real incident; other alerts of that run are false alarms; may be repeated"
    backtest.add_argument("--incident", metavar="RUN=STEP", action="append", default=[], help=text)
    text = "a healthy run: all its alerts are false alarms; may be repeated"
    backtest.add_argument("--healthy", metavar="RUN", action="append", default=[], help=text)
    suggest.add_argument("runs", metavar="RUN", nargs="+", help="healthy runs")
    for own in (backtest, suggest):
        add_shared(own, "quiet")
    for own in (listed, history, acknowledge, silence, backtest, suggest):
        add_shared(own, "dir")
    for own in (rules, check, test):
        own.add_argument("--config", metavar="FILE", help="configuration in addition to stepscope.yaml")
    for own in made:
        add_shared(own, "json")


def _seconds(text: str) -> float:
    try:
        return parse_duration(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no time: {error}") from None


def run(options: argparse.Namespace) -> int:
    """Run the action."""
    return _action(options.action)(options)


def _action(name: str) -> Callable[[argparse.Namespace], int]:
    """Return the function of an action; only its modules are loaded."""
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
