"""Generate shell completion scripts from the argparse tree."""

from __future__ import annotations

import argparse
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stepscope.cli.parser import commands_of, subparsers

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

RUNS, FILES, FOLDERS, NOTHING = "runs", "files", "folders", ""
KINDS = {
    **dict.fromkeys(("RUN", "A", "B"), RUNS),
    **dict.fromkeys(("FILE", "F", "PATH", "RULES", "SCRIPT [ARGUMENT ...]"), FILES),
    **dict.fromkeys(("ROOT", "DIR", "FOLDER", "D"), FOLDERS),
}
"""Kind of a value, by its placeholder in the help."""


@dataclass(frozen=True)
class Value:
    """The candidates for one argument: fixed words, or a kind that the shell looks up."""

    words: tuple[str, ...] = ()
    kind: str = NOTHING


@dataclass(frozen=True)
class Option:
    """An option: its spellings, its help, and its value if it takes one."""

    spellings: tuple[str, ...]
    text: str
    value: Value | None


@dataclass(frozen=True)
class Place:
    """A command or action, and the words that may follow it."""

    words: tuple[str, ...]
    actions: dict[str, str]
    """Its subcommands, with their help."""
    options: tuple[Option, ...]
    operands: tuple[Value, ...]
    """Its positional arguments in order; the last may be repeated."""


def script(shell: str, parser: argparse.ArgumentParser) -> str:
    """Return the script for a shell."""
    makers = {"bash": _bash, "zsh": _zsh, "fish": _fish}
    return "\n".join([f"# Completion of stepscope for {shell}", *makers[shell](list(places(parser)))]) + "\n"


def places(parser: argparse.ArgumentParser) -> Iterator[Place]:
    """Yield the program, its commands and their actions."""
    for words, own in commands_of(parser):
        actions = {name: text for group in subparsers(own) for name, text in group.items()}
        options, operands = [], []
        for action in own._actions:  # noqa: SLF001 - argparse has no other way to look at a tree
            if isinstance(action, argparse._SubParsersAction) or action.help == argparse.SUPPRESS:  # noqa: SLF001
                continue
            value = None if action.nargs == 0 else _value(action)
            if action.option_strings:
                options.append(Option(tuple(action.option_strings), _text(action.help), value))
            elif value is not None:
                operands.append(value)
        yield Place(words, actions, tuple(options), tuple(operands))


def _value(action: argparse.Action) -> Value:
    if action.choices is not None:
        return Value(words=tuple(map(str, action.choices)))
    return Value(kind=KINDS.get(str(action.metavar or action.dest.upper()), NOTHING))


def _text(words: str | None) -> str:
    """Return help on one line, without characters that are special in a shell."""
    return re.sub(r"[^\w .,;/+=-]+", "", (words or "").replace("%%", "%")).partition(";")[0].strip()[:70]


def _quoted(words: Sequence[str]) -> str:
    return "'" + " ".join(words).replace("'", "'\\''") + "'"


def _what(value: Value) -> str:
    return _quoted(value.words) if value.words else f"'@{value.kind}'"


def _cases(found: Sequence[Place]) -> Iterator[str]:
    """Yield the part that bash and zsh share: the words of each command, and the value of each option."""
    yield "_stepscope_facts() {"
    yield '  case "$1" in'
    for place in found:
        names = [name for option in place.options for name in option.spellings]
        operands = " ".join(_what(value) for value in place.operands)
        yield f"    {_quoted(place.words)}) _actions={_quoted(list(place.actions))} _options={_quoted(names)}"
        yield f"      _operands=({operands}) ;;"
    yield "    *) return 1 ;;"
    yield "  esac"
    yield "}"
    yield "_stepscope_value() {"
    yield '  case "$1 $2" in'
    for place in found:
        for option in place.options:
            if option.value is not None:
                keys = "|".join(_quoted([*place.words, name]) for name in option.spellings)
                yield f"    {keys}) _value={_what(option.value)} ;;"
    yield "    *) return 1 ;;"
    yield "  esac"
    yield "}"


WALK = """\
# Finds the command before the cursor, the number of its operands so far, and its --dir.
_stepscope_walk() {
  _path='' _count=0 _root='' _value=''
  _stepscope_facts '' || return
  local word skip=''
  for word in "$@"; do
    if [[ -n $skip ]]; then
      [[ $word == '=' ]] && continue
      [[ $skip == --dir ]] && _root=$word
      skip=''
    elif [[ $word == --*=* ]]; then
      [[ $word == --dir=* ]] && _root=${word#--dir=}
    elif [[ $word == -* ]]; then
      _stepscope_value "$_path" "$word" && skip=$word
    elif [[ -n $_actions && " $_actions " == *" $word "* ]]; then
      _path="${_path:+$_path }$word"
      _stepscope_facts "$_path"
      _count=0
    else
      _count=$((_count + 1))
    fi
  done
  _last=$skip
}
# Finds the candidates for the word at the cursor.
_stepscope_choose() {
  if [[ -n $_last ]]; then
    _stepscope_value "$_path" "$_last"
    what=$_value
  elif [[ $1 == -* ]]; then
    what=$_options
  elif [[ -n $_actions ]]; then
    what=$_actions
  elif [[ ${#_operands[@]} -gt 0 ]]; then
    [[ $_count -ge ${#_operands[@]} ]] && _count=$((${#_operands[@]} - 1))
    what="${_operands[@]:$_count:1}"
  fi
}
_stepscope_runs() {
  if [[ -n $_root ]]; then
    stepscope completion --runs "$1" --dir "$_root" 2>/dev/null
  else
    stepscope completion --runs "$1" 2>/dev/null
  fi
}"""

BASH = """\
_stepscope_paths() {
  compopt -o filenames 2>/dev/null
  COMPREPLY=($(compgen "$1" -- "$2"))
}
_stepscope() {
  local _path _count _root _value _last _actions _options _operands what IFS=$' \\t\\n'
  local cur=${COMP_WORDS[COMP_CWORD]}
  [[ $cur == '=' ]] && cur=''
  _stepscope_walk "${COMP_WORDS[@]:1:COMP_CWORD-1}"
  _stepscope_choose "$cur"
  local IFS=$'\\n'
  case $what in
    @runs)
      COMPREPLY=($(_stepscope_runs "$cur" | cut -f1))
      [[ -n ${COMPREPLY[0]} ]] || _stepscope_paths -f "$cur"
      ;;
    @files) _stepscope_paths -f "$cur" ;;
    @folders) _stepscope_paths -d "$cur" ;;
    @|'') COMPREPLY=() ;;
    *) COMPREPLY=($(IFS=' '; compgen -W "$what" -- "$cur")) ;;
  esac
}
complete -F _stepscope stepscope"""


def _bash(found: Sequence[Place]) -> Iterator[str]:
    yield from _cases(found)
    yield WALK
    yield BASH


ZSH = """\
_stepscope() {
  emulate -L zsh
  local _path _count _root _value _last _actions _options what line
  local -a _operands found
  local cur=${words[CURRENT]}
  _stepscope_walk "${(@)words[2,CURRENT-1]}"
  if [[ $cur == --*=* ]]; then
    _stepscope_value "$_path" "${cur%%=*}" || return 1
    what=$_value
    compset -P '*='
    cur=${cur#*=}
  else
    _stepscope_choose "$cur"
  fi
  case $what in
    @runs)
      while IFS= read -r line; do found+=("${line//$'\\t'/:}"); done < <(_stepscope_runs "$cur")
      if (( ${#found} )); then _describe run found -U; else _files; fi
      ;;
    @files) _files ;;
    @folders) _files -/ ;;
    @|'') return 1 ;;
    *) compadd -- ${=what} ;;
  esac
}
if [[ -n ${functions[compdef]} ]]; then
  compdef _stepscope stepscope
else
  autoload -Uz compinit && compinit && compdef _stepscope stepscope
fi"""


def _zsh(found: Sequence[Place]) -> Iterator[str]:
    yield from _cases(found)
    yield WALK
    yield ZSH


FISH = """\
function __stepscope_at
    # True if the words before the cursor are this command and none of its subcommands.
    set -l words
    for word in (commandline -opc)[2..]
        string match -q -- '-*' $word; or set -a words $word
    end
    set -l wanted (string split -n ' ' -- $argv[1])
    test (count $words) -ge (count $wanted); or return 1
    for place in (seq (count $wanted))
        test "$words[$place]" = "$wanted[$place]"; or return 1
    end
    set -l next (math (count $wanted) + 1)
    test (count $words) -lt $next; and return 0
    not contains -- "$words[$next]" $argv[2..]
end
function __stepscope_runs
    set -l root
    set -l words (commandline -opc)
    for place in (seq 2 (count $words))
        test "$words[$place]" = --dir; and set root --dir $words[(math $place + 1)]
    end
    stepscope completion --runs (commandline -ct) $root 2>/dev/null
end
complete -c stepscope -f"""


def _fish(found: Sequence[Place]) -> Iterator[str]:
    yield FISH
    for place in found:
        at = f"__stepscope_at {_quoted(place.words)} {' '.join(place.actions)}".rstrip()
        head = f'complete -c stepscope -n "{at}"'
        for name, text in place.actions.items():
            yield f"{head} -a {name} -d {_quoted([_text(text)])}"
        for option in place.options:
            names = " ".join(f"-l {one[2:]}" if one.startswith("--") else f"-s {one[1:]}" for one in option.spellings)
            takes = "" if option.value is None else f" {_fish_value(option.value)}"
            yield f"{head} {names}{takes} -d {_quoted([option.text])}"
        for value in dict.fromkeys(place.operands):
            if value.words or value.kind:
                yield f"{head} {_fish_value(value, operand=True)}"


def _fish_value(value: Value, *, operand: bool = False) -> str:
    """Return the fish options that list the candidates of a value."""
    required = "" if operand else "-x "
    if value.words:
        return f"{required}-a {_quoted(value.words)}"
    lookups = {RUNS: "'(__stepscope_runs)'", FOLDERS: "'(__fish_complete_directories)'"}
    if value.kind in lookups:
        return f"{required}-a {lookups[value.kind]}"
    return "-F" if operand or value.kind == FILES else "-x"
