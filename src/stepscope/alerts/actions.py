"""Parse and check the actions of a rule other than notifications.

`checkpoint` writes a flag file that the training may look for, `stop` sets `run.should_stop`, `profile` profiles the
next steps, `sample` samples the machine more often for a while, and `run` starts a command. A rule only names the
command; the local configuration defines it under `alerting.commands`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from stepscope.core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

CHECKPOINT, STOP, PROFILE, SAMPLE, RUN = KINDS = ("checkpoint", "stop", "profile", "sample", "run")
FLAG = "checkpoint-requested.json"
"""Name of the flag file in the run's folder."""
PROFILE_STEPS = 20
SAMPLE_INTERVAL, SAMPLE_SECONDS = 0.2, 60.0
"""Seconds between two samples, and for how many seconds."""
COMMAND_SECONDS = 60.0
MAX_WORDS = 100
OPTIONS: dict[str, dict[str, tuple[float, float]]] = {
    PROFILE: {"steps": (1, 10_000)},
    SAMPLE: {"interval": (0.05, 60.0), "seconds": (1.0, 3600.0)},
}
"""Options of an action, with the lowest and highest value of each."""


@dataclass(frozen=True)
class Action:
    """An action that is taken when an alert begins to fire."""

    kind: str
    options: Mapping[str, Any] = field(default_factory=dict)
    """Steps of a profile; interval and seconds of sampling; the name of a command."""


@dataclass(frozen=True)
class ActionCommand:
    """A program of the local configuration."""

    name: str
    words: tuple[str, ...]
    seconds: float = COMMAND_SECONDS
    """Time after which it is killed."""


def actions_of(data: object) -> tuple[Action, ...]:
    """Return the actions of a rule; UsageError if one is unknown or invalid."""
    items = data if isinstance(data, (list, tuple)) else [] if data is None else [data]
    return tuple(_action(item) for item in items)


def _action(item: object) -> Action:
    if isinstance(item, Action):
        return item
    kind: object = item
    options: object = {}
    if isinstance(item, dict) and len(item) == 1:
        kind, options = next(iter(item.items()))
    if isinstance(kind, str) and kind.startswith("run:"):
        kind, options = RUN, kind.removeprefix("run:").strip()
    if kind not in KINDS:
        what = f"use action {str(item)[:60]!r}"
        raise UsageError(what, "there is no such action", f"known are {', '.join(KINDS)}")
    if kind == RUN:
        if not isinstance(options, str) or not options:
            raise UsageError("use action 'run'", "it names no command", "name one of alerting.commands")
        return Action(RUN, {"command": options})
    return Action(str(kind), _options(str(kind), options))


def _options(kind: str, given: object) -> dict[str, Any]:
    known = OPTIONS.get(kind, {})
    if given in (None, {}):
        return {}
    if isinstance(given, (int, float)) and not isinstance(given, bool) and kind == PROFILE:
        given = {"steps": given}
    what = f"use action {kind!r}"
    if not isinstance(given, dict) or set(given) - set(known):
        raise UsageError(what, "it has unknown options", f"known are {', '.join(known) or 'none'}")
    for name, value in given.items():
        low, high = known[name]
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
            raise UsageError(what, f"{name} is not a number from {low} to {high}", "give one, or leave it out")
    return {name: int(value) if name == "steps" else float(value) for name, value in given.items()}


def commands_of(settings: Mapping[str, Any]) -> tuple[dict[str, ActionCommand], list[str]]:
    """Return the commands of `alerting.commands` by name, and its problems as sentences.

    Each is a mapping: `name`, `command` (a list of words, no shell), and optionally `seconds` after which it is killed.
    """
    found: dict[str, ActionCommand] = {}
    problems: list[str] = []
    for number, item in enumerate(settings.get("alerting.commands") or (), 1):
        try:
            command = _command(item, number)
        except UsageError as error:
            problems.append(str(error))
        else:
            found[command.name] = command
    return found, problems


def _command(item: object, number: int) -> ActionCommand:
    what = f"use command {number} of alerting.commands"
    facts = dict(item) if isinstance(item, dict) else {}
    name, words, seconds = facts.get("name"), facts.get("command"), facts.get("seconds", COMMAND_SECONDS)
    if not isinstance(name, str) or not name or set(facts) - {"name", "command", "seconds"}:
        raise UsageError(what, "it is no command", "give name, command and optionally seconds")
    is_list = isinstance(words, (list, tuple)) and 0 < len(words) <= MAX_WORDS
    if not is_list or not all(isinstance(word, str) and word for word in words or ()):
        raise UsageError(what, "its command is no list of words", 'write it as ["sbatch", "--requeue", "job.sh"]')
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 < seconds <= 3600:
        raise UsageError(what, "its seconds are no number from 0 to 3600", "give one, or leave it out")
    return ActionCommand(name, tuple(words or ()), float(seconds))
