"""Print a script that completes commands, options, values and runs in bash, zsh or fish.

At the tab key the script asks `stepscope` itself, so it knows every command, option and run. A prefix of a run's name
completes to the ids of runs with that name.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from stepscope.cli.command import FINE, add_shared
from stepscope.cli.parser import COMMANDS, build_parser, subcommands
from stepscope.core.errors import StepscopeError, UsageError
from stepscope.core.terminal_text import plain

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

FILES, FOLDERS, RUNS = "@files", "@folders", "@runs"
"""Kinds of values. A shell completes files and folders itself; such a word instead of candidates asks it to."""
KINDS = {
    **dict.fromkeys(("RUN", "A", "B"), RUNS),
    **dict.fromkeys(("FILE", "F", "PATH", "RULES", "SCRIPT [ARGUMENT ...]"), FILES),
    **dict.fromkeys(("ROOT", "DIR", "FOLDER", "D"), FOLDERS),
}
"""Kind of a value, by its placeholder in the help."""
MOST = 200
"""Maximum runs that are offered."""

Candidates = list[tuple[str, str]]
"""Words that fit at the cursor, each with a description."""
SCRIPTS = {
    "bash": """\
_stepscope() {
  local IFS=$'\\n' word=${COMP_WORDS[COMP_CWORD]}
  [[ $word == '=' ]] && word=''
  COMPREPLY=($(stepscope completion --words "${COMP_WORDS[@]:1:COMP_CWORD-1}" "$word" 2>/dev/null | cut -f1))
  case ${COMPREPLY[0]} in
    @files) compopt -o filenames 2>/dev/null; COMPREPLY=($(compgen -f -- "$word")) ;;
    @folders) compopt -o filenames 2>/dev/null; COMPREPLY=($(compgen -d -- "$word")) ;;
  esac
}
complete -F _stepscope stepscope
""",
    "zsh": """\
_stepscope() {
  emulate -L zsh
  local -a found
  found=("${(@f)$(stepscope completion --words "${(@)words[2,CURRENT]}" 2>/dev/null)}")
  case ${found[1]%%$'\\t'*} in
    '') return 1 ;;
    @files) compset -P '--*='; _files ;;
    @folders) compset -P '--*='; _files -/ ;;
    *) found=("${(@)found//:/\\\\:}"); found=("${(@)found/$'\\t'/:}"); _describe stepscope found -U ;;
  esac
}
if [[ -n ${functions[compdef]} ]]; then
  compdef _stepscope stepscope
else
  autoload -Uz compinit && compinit && compdef _stepscope stepscope
fi
""",
    "fish": """\
function __stepscope
    set -l word (commandline -ct)
    set -l option (string match -r -- '^--[^=]+=' "$word")
    set -l value (string replace -- "$option" '' "$word")
    set -l found (stepscope completion --words (commandline -opc)[2..] "$word" 2>/dev/null)
    switch "$found[1]"
        case '@files*'
            printf "$option%s\\n" (__fish_complete_path "$value")
        case '@folders*'
            printf "$option%s\\n" (__fish_complete_directories "$value")
        case '*'
            printf '%s\\n' $found
    end
end
complete -c stepscope -f -a '(__stepscope)'
""",
}
"""What each shell runs at the tab key, by the name of the shell."""


def prepare(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("shell", metavar="SHELL", nargs="?", choices=list(SCRIPTS), help=f"one of {', '.join(SCRIPTS)}")
    parser.add_argument("--runs", metavar="START", help="print the runs with this prefix and their names")
    parser.add_argument("--words", metavar="WORD", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    add_shared(parser, "dir")


def run(options: argparse.Namespace) -> int:
    """Print the script, or candidates."""
    if options.words:
        print("".join(f"{word}\t{text}\n" for word, text in candidates(options.words)), end="")
    elif options.runs is not None:
        print("".join(f"{one}\t{text}\n" for one, text in matching_runs(options.runs, options.dir)), end="")
    elif options.shell is None:
        raise UsageError("print a script for the shell", "no shell is named", f"name one of {', '.join(SCRIPTS)}")
    else:
        print(SCRIPTS[options.shell], end="")
    return FINE


def candidates(words: Sequence[str]) -> Candidates:
    """Return the candidates for the last of the words that follow `stepscope` on a command line."""
    line = _Line(build_parser(words[:1] if len(words) > 1 and words[0] in COMMANDS else COMMANDS))
    *before, current = words
    for word in before:
        line.take(word)
    option, equals, start = current.partition("=")
    if current.startswith("--") and equals:
        line.take(option)
        return [(f"{option}={word}" if word[0] != "@" else word, text) for word, text in line.candidates(start)]
    return line.candidates(current)


class _Line:
    """The words of a command line so far: the command they name, and the argument that comes next."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        self._parser = parser
        self._option: argparse.Action | None = None
        self._operands = 0
        self._root: str | None = None

    def take(self, word: str) -> None:
        """Read the next word."""
        commands, _ = subcommands(self._parser)
        if word == "=":  # bash splits --dir=runs into three words
            return
        if self._option is not None:
            self._root = word if self._option.dest == "dir" else self._root
            self._option = None
        elif word.startswith("-"):
            name, equals, value = word.partition("=")
            option = self._parser._option_string_actions.get(name)  # noqa: SLF001 - argparse has no other way
            self._option = option if option is not None and option.nargs != 0 else None
            if equals:
                self.take(value)
        elif word in commands:
            self._parser, self._operands = commands[word], 0
        else:
            self._operands += 1

    def candidates(self, start: str) -> Candidates:
        """Return the candidates that begin with `start`."""
        _, commands = subcommands(self._parser)
        if self._option is not None:
            return self._values(self._option, start)
        if start.startswith("-"):
            options = self._parser._option_string_actions  # noqa: SLF001
            shown = {name: option.help for name, option in options.items() if option.help != argparse.SUPPRESS}
            return _fitting({name: (text or "").replace("%%", "%") for name, text in shown.items()}, start)
        if commands:
            return _fitting(commands, start)
        operands = self._parser._get_positional_actions()  # noqa: SLF001
        return self._values(operands[min(self._operands, len(operands) - 1)], start) if operands else []

    def _values(self, argument: argparse.Action, start: str) -> Candidates:
        if argument.choices is not None:
            return _fitting({str(choice): "" for choice in argument.choices}, start)
        kind = KINDS.get(str(argument.metavar or argument.dest.upper()))
        runs = matching_runs(start, self._root) if kind == RUNS else []
        return runs or ([(FILES if kind == RUNS else kind, "")] if kind else [])


def _fitting(described: dict[str, str], start: str) -> Candidates:
    return [(word, text) for word, text in described.items() if word.startswith(start)]


def matching_runs(start: str, root: str | None) -> Candidates:
    """Return ids and names of runs whose id, else whose name, starts with `start`; newest first.

    Reads only folder names and, for a few runs, one small file each.
    """
    from stepscope.store.catalog import LATEST, run_folders, runs_root  # loaded only where runs are completed

    folders = sorted(run_folders(runs_root(root)), key=lambda path: path.name, reverse=True)
    found = [(LATEST, "the newest run")] if LATEST.startswith(start) else []
    found += [(path.name, _name(path)) for path in [one for one in folders if one.name.startswith(start)][:MOST]]
    if found or not start:
        return found
    named = ((path.name, _name(path)) for path in folders[:MOST])
    return [(one, name) for one, name in named if name.lower().startswith(start.lower())]


def _name(path: Path) -> str:
    from stepscope.store.layout import RunFolder
    from stepscope.store.meta import read_meta

    try:
        return plain(read_meta(RunFolder(path)).get("name") or path.parent.name, 60)
    except (StepscopeError, OSError):
        return ""
