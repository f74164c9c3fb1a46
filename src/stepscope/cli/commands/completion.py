"""Print the script that completes commands, options, their values and runs in bash, zsh or fish.

The script is made of the very parser that reads the arguments, so it knows every command and option there is. Ids and
names of runs are looked up when they are asked for; a word that begins no id but a name gives the ids of that name.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from stepscope.cli.command import FINE, add_root
from stepscope.core.terminal_text import plain

if TYPE_CHECKING:
    import argparse
    from pathlib import Path

SHELLS = ("bash", "zsh", "fish")
MOST = 200
"""Runs that are offered."""


def prepare(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("shell", metavar="SHELL", nargs="?", choices=SHELLS, help=f"one of {', '.join(SHELLS)}")
    parser.add_argument("--runs", metavar="START", help="print the runs that begin so, with their names, and end")
    add_root(parser)


def run(options: argparse.Namespace) -> int:
    """Print the script, or runs."""
    if options.runs is not None:
        print("".join(f"{one}\t{text}\n" for one, text in matching(options.runs, options.dir)), end="")
        return FINE
    if options.shell is None:
        from stepscope.core.errors import UsageError

        raise UsageError("print a script for the shell", "no shell is named", f"name one of {', '.join(SHELLS)}")
    from stepscope.cli.completion_script import script
    from stepscope.cli.parser import build_parser

    sys.stdout.write(script(options.shell, build_parser()))
    return FINE


def matching(start: str, root: str | None) -> list[tuple[str, str]]:
    """Return ids of runs that begin so and their names, newest first; if there is none, of those whose name does.

    Reads no more than the names of folders and, of few runs, one small file each.
    """
    from stepscope.store.catalog import LATEST, run_folders, runs_root

    folders = sorted(run_folders(runs_root(root)), key=lambda path: path.name, reverse=True)
    found = [(LATEST, "the newest run")] if LATEST.startswith(start) else []
    found += [(path.name, _name(path)) for path in [one for one in folders if one.name.startswith(start)][:MOST]]
    if found or not start:
        return found
    named = ((path.name, _name(path)) for path in folders[:MOST])
    return [(one, name) for one, name in named if name.lower().startswith(start.lower())]


def _name(path: Path) -> str:
    from stepscope.core.errors import StepscopeError
    from stepscope.store.layout import RunFolder
    from stepscope.store.meta import read_meta

    try:
        return plain(read_meta(RunFolder(path)).get("name") or path.parent.name, 60)
    except (StepscopeError, OSError):
        return ""
