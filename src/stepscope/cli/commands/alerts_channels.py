"""Check rules and channels, and send a test message."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.alerts.actions import actions_of, commands_of
from stepscope.alerts.delivery.channel import APPRISE, Channel, channels_of
from stepscope.cli.command import FAILED, FINE, show
from stepscope.cli.named_run import say
from stepscope.core.config import discover, load
from stepscope.core.errors import StepscopeError
from stepscope.core.terminal_text import plain

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from stepscope.alerts.rules.rule import Rule
    from stepscope.cli.text.terminal import Paint


def alert_settings(config_file: str | None) -> dict[str, Any]:
    """Return the alerting settings of the configuration, by path.

    Raises:
        UsageError: the configuration cannot be read.
    """
    config = load(discover(Path.cwd(), os.environ, config_file), environ=os.environ)
    return {path: config.get(path) for path in config.sources if path.startswith(("alerting.", "watcher.analysis."))}


def check(options: argparse.Namespace) -> int:
    """Check that rules are valid and that channels accept messages."""
    from stepscope.alerts.rules.profiles import rules_of
    from stepscope.alerts.rules.rules_file import load_rules

    settings = alert_settings(options.config)
    rules, problems = rules_of(settings)
    if options.rules:
        try:
            rules = [*rules, *load_rules(options.rules)]
        except StepscopeError as error:
            problems.append(str(error))
    channels, wrong = channels_of(settings)
    commands, others = commands_of(settings)
    problems += [*wrong, *others, *_action_problems(rules, commands)]
    found = [] if options.offline else list(_probed(channels, settings))
    is_fine = not problems and not any(row["why"] for row in found)
    facts = {"rules": len(rules), "problems": problems, "channels": found or [_named(one) for one in channels]}
    show(options, {**facts, "fine": is_fine}, lambda _, paint: _lines(rules, channels, problems, found, paint))
    return FINE if is_fine else FAILED


def _action_problems(rules: list[Rule], commands: dict[str, Any]) -> list[str]:
    found = []
    for rule in rules:
        try:
            actions = actions_of(rule.actions)
        except StepscopeError as error:
            found.append(f"rule {rule.name}: {error}")
            continue
        names = [str(action.options["command"]) for action in actions if action.kind == "run"]
        found += [
            f"rule {rule.name}: alerting.commands has no {name!r}; add it" for name in names if name not in commands
        ]
    return found


def _named(channel: Channel) -> dict[str, Any]:
    return {"channel": channel.name, "kind": channel.kind, "severity": channel.severity}


def _probed(channels: list[Channel], settings: dict[str, Any]) -> Iterator[dict[str, Any]]:
    from stepscope.alerts.delivery.allowed_addresses import guard_this_process
    from stepscope.alerts.delivery.probe import insecure, probe

    guard_this_process(settings)
    for channel in channels:
        yield {**_named(channel), "why": probe(channel, os.environ), "remark": insecure(channel)}


def _lines(
    rules: list[Rule], channels: list[Channel], problems: list[str], found: list[dict[str, Any]], paint: Paint
) -> Iterator[str]:
    for problem in problems:
        yield paint(plain(problem), "red")
    yield f"{len(rules)} rules"
    if not channels:
        yield "no channel: alerts are kept in the run, and no notification is sent; see docs/howto/notification.md"
    for row in found:
        if row["why"]:
            yield paint(f"{plain(row['channel'])}: {plain(row['why'])}", "red")
        else:
            remark = f" ({plain(row['remark'])})" if row["remark"] else ""
            yield paint(f"{plain(row['channel'])}: ready", "green") + remark
    if channels and not found:
        yield f"{len(channels)} channels, not asked"


def trial(options: argparse.Namespace) -> int:
    """Send one test message over every channel now."""
    from stepscope.alerts.delivery.allowed_addresses import guard_this_process
    from stepscope.alerts.delivery.message import Message, MessageSubject, trial_event
    from stepscope.alerts.delivery.notifier import deliver

    settings = alert_settings(options.config)
    channels, problems = channels_of(settings)
    for problem in problems:
        say(problem)
    channels = [one for one in channels if options.channel in {None, one.name}]
    if not channels:
        cause = f"there is no channel {options.channel!r}" if options.channel else "alerting.channels is empty"
        raise StepscopeError("send a test", cause, "add one: see docs/howto/notification.md")
    guard_this_process(settings)
    if any(channel.kind == APPRISE for channel in channels):
        from stepscope.alerts.delivery.apprise_channel import prepare_this_process

        prepare_this_process()
    name = os.urandom(6).hex()
    subject = MessageSubject("stepscope alerts test", page=str(settings.get("alerting.page_url") or ""))
    message = Message(f"test_{name}", subject, [trial_event(time.time(), name)])
    outcomes = [(one.name, deliver(one, message)) for one in channels]
    found = [{"channel": name, "sent": outcome.ok, "why": outcome.why} for name, outcome in outcomes]
    show(options, {"channels": found}, lambda _, paint: [_verdict(row, paint) for row in found])
    return FINE if all(row["sent"] for row in found) else FAILED


def _verdict(row: dict[str, Any], paint: Paint) -> str:
    verdict = paint("sent", "green") if row["sent"] else paint(f"not sent: {plain(row['why'])}", "red")
    return f"{plain(row['channel'])}: {verdict}"
