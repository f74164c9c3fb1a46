"""The argument parser: commands grouped by purpose, examples, and readable errors."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import re
import sys
import textwrap
from difflib import get_close_matches
from typing import TYPE_CHECKING, NoReturn, cast

from stepscope.cli.command import USAGE
from stepscope.cli.examples import shown
from stepscope.cli.text.terminal import columns
from stepscope.core.terminal_text import plain_lines
from stepscope.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from stepscope.cli.command import Command

GROUPS: dict[str, tuple[str, ...]] = {
    "get started": ("demo", "doctor"),
    "record a training": ("run", "profile"),
    "watch a training live": ("top", "serve", "monitor", "alerts"),
    "look at runs": ("runs", "show", "report", "sql"),
    "find out why a run is slow or failing": ("diagnose", "trace", "ledger"),
    "compare runs and stop regressions": ("compare", "baseline"),
    "exchange data with other tools": ("export", "import"),
    "maintain": ("gc", "completion"),
}
"""Every command, by purpose."""
COMMANDS = tuple(name for names in GROUPS.values() for name in names)
MODULES = {"import": "imports"}
"""Commands whose module cannot have their name."""

DESCRIPTION = "Watch machine-learning training: what each step does and costs, and why a run is slow or failing."
EPILOG = """\
RUN is the folder of a run, its id or a unique prefix of it, project/id, its display name, or 'latest'.
Exit codes: 0 success, 1 failure, 2 wrong usage, 3 a gate failed.

  stepscope demo                       see it work in a minute
  stepscope run train.py               record a training
  stepscope COMMAND --help             help and examples of a command"""
WIDTH = 12
_CHOICE = re.compile(r"invalid choice: '(.*)' \(choose from (.*)\)", re.DOTALL)
_UNKNOWN = re.compile(r"unrecognized arguments: (?:.* )?(--?[\w-]+)")


class Parser(argparse.ArgumentParser):
    """A parser with errors in our form: cannot do what, why, and what to do."""

    chosen = ""
    """The requested command, if it exists."""

    def error(self, message: str) -> NoReturn:
        """Print the error and exit with code 2."""
        own = next((one for words, one in commands_of(self) if words == (self.chosen,)), self)
        own.print_usage(sys.stderr)
        name = f"{self.prog} {self.chosen}".rstrip()
        cause, meant = _meant(message, list(own._option_string_actions))  # noqa: SLF001 - as below
        remedy = f"see `{name} --help`" if meant is None else f"did you mean {meant!r}? see `{name} --help`"
        self.exit(USAGE, f"stepscope: cannot run `{name}`: {plain_lines(cause)}; {remedy}\n")


def _meant(message: str, options: list[str]) -> tuple[str, str | None]:
    """Return the error and the closest valid word; the list of choices is dropped where there is one."""
    found, unknown = _CHOICE.search(message), _UNKNOWN.search(message)
    if found is not None:
        choices = [word.strip(" '") for word in found[2].split(",")]
        near = get_close_matches(found[1], choices, 1)
        return (message.replace(f" (choose from {found[2]})", ""), near[0]) if near else (message, None)
    near = get_close_matches(unknown[1], options, 1) if unknown is not None else []
    return message, near[0] if near else None


class ProgramParser(Parser):
    """The top-level parser, whose help groups the commands."""

    def format_help(self) -> str:
        """Return usage, commands by purpose, options and epilog."""
        formatter = self._get_formatter()
        formatter.add_usage(self.usage, self._actions, self._mutually_exclusive_groups)
        lines = [formatter.format_help(), f"{self.description}\n", *self._listed(), "options:"]
        lines += ["  -h, --help  show this help", "  --version   show the version", "", f"{self.epilog}"]
        return "\n".join(lines) + "\n"

    def _listed(self) -> Iterator[str]:
        _, helps = subcommands(self)
        for title, names in GROUPS.items():
            rows = [_row(name, helps[name]) for name in names if name in helps]
            yield from [f"{title}:", *rows, ""] if rows else []


def _row(name: str, text: str) -> str:
    indent = " " * (WIDTH + 2)
    return textwrap.fill(text, columns(), initial_indent=f"  {name:<{WIDTH}}", subsequent_indent=indent)


def subcommands(parser: argparse.ArgumentParser) -> tuple[dict[str, argparse.ArgumentParser], dict[str, str]]:
    """Return the parsers of the commands below a parser, and their one line of help, each by name."""
    for action in parser._actions:  # noqa: SLF001 - argparse has no other way to look at a tree
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            helps = {pseudo.dest: str(pseudo.help or "") for pseudo in action._choices_actions}  # noqa: SLF001
            return action.choices, helps
    return {}, {}


def commands_of(
    parser: argparse.ArgumentParser, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], argparse.ArgumentParser]]:
    """Yield every command and action below a parser with its words; the program itself has no words."""
    yield path, parser
    for name, own in subcommands(parser)[0].items():
        yield from commands_of(own, (*path, name))


def build_parser(names: Iterable[str] = COMMANDS) -> ProgramParser:
    """Return the parser with these commands; a command without a module is left out."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = ProgramParser("stepscope", description=DESCRIPTION, epilog=EPILOG, formatter_class=raw)
    parser.add_argument("--version", action="version", version=f"stepscope {__version__}")
    parser.set_defaults(command=None)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", dest="command", parser_class=Parser)
    for name in names:
        place = f"stepscope.cli.commands.{MODULES.get(name, name)}"
        if importlib.util.find_spec(place) is None:
            continue
        module = cast("Command", importlib.import_module(place))
        text = (module.__doc__ or "").strip()
        own = commands.add_parser(name, help=text.partition("\n")[0].rstrip("."), description=text, formatter_class=raw)
        module.prepare(own)
        own.set_defaults(run_command=module.run)
    for words, each in commands_of(parser):
        if words:
            each.epilog, each.formatter_class = shown(" ".join(words)), raw
    return parser
