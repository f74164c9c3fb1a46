"""Print a script that completes commands, options, values and runs in bash, zsh or fish.

The script is generated from the argument parser, so it knows every command and option. Ids of runs are looked up while
you type; a prefix of a name completes to the ids of runs with that name.
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
"""Most runs that are offered."""


def prepare(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("shell", metavar="SHELL", nargs="?", choices=SHELLS, help=f"one of {', '.join(SHELLS)}")
    parser.add_argument("--runs", metavar="START", help="print the runs with this prefix and their names")
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
    """Return ids and names of runs whose id, else whose name, starts with `start`; newest first.

    Reads only folder names and, for a few runs, one small file each.
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
