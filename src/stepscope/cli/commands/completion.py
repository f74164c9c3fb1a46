"""Print a script that completes commands, options, values and runs in bash, zsh or fish.

At the tab key the script asks `stepscope` itself, so it knows every command, option and run. A prefix of a run's name
completes to the ids of runs with that name.
"""

from __future__ import annotations

import argparse

from stepscope.cli.command import FINE, add_root
from stepscope.core.errors import UsageError

SHELLS = ("bash", "zsh", "fish")


def prepare(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("shell", metavar="SHELL", nargs="?", choices=SHELLS, help=f"one of {', '.join(SHELLS)}")
    parser.add_argument("--runs", metavar="START", help="print the runs with this prefix and their names")
    parser.add_argument("--words", metavar="WORD", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    add_root(parser)


def run(options: argparse.Namespace) -> int:
    """Print the script, or candidates."""
    from stepscope.cli.completion import SCRIPTS, candidates, matching_runs

    if options.words:
        print("".join(f"{word}\t{text}\n" for word, text in candidates(options.words)), end="")
    elif options.runs is not None:
        print("".join(f"{one}\t{text}\n" for one, text in matching_runs(options.runs, options.dir)), end="")
    elif options.shell is None:
        raise UsageError("print a script for the shell", "no shell is named", f"name one of {', '.join(SHELLS)}")
    else:
        print(SCRIPTS[options.shell], end="")
    return FINE
