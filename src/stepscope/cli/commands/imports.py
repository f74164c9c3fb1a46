"""Import runs of other tools, or exported runs, as runs of Stepscope.

PATH is a file, or a folder to search; the format is detected from the content (docs/howto/importers.md lists them). An
export of `stepscope export` is restored bit for bit. A run that exists already is not imported again.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from stepscope.cli.command import FINE, add_shared, print_json
from stepscope.cli.named_run import say
from stepscope.cli.text.progress import progress
from stepscope.core.errors import UsageError
from stepscope.core.terminal_text import plain

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from stepscope.sources.imported_run import StoredRun

MOST_NOTES = 10
"""Most notes that are shown for one run."""


def prepare(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("path", metavar="PATH", help="file or folder to read")
    add_shared(parser, "dir")
    parser.add_argument("--format", metavar="FORMAT", help="format, if it cannot be detected")
    parser.add_argument("--project", metavar="NAME", default="", help="project of the runs (default: imported)")
    parser.add_argument("--name", metavar="NAME", help="name of the run")
    parser.add_argument("--id", metavar="ID", help="id of the run (default: as exported, or made of time and content)")
    add_shared(parser, "quiet", "json")


def run(options: argparse.Namespace) -> int:
    """Read and store."""
    from stepscope.importers.transfer import read
    from stepscope.sources.imported_run import store
    from stepscope.store.catalog import runs_root
    from stepscope.store.known_roots import note_root

    with progress(f"reading {plain(options.path, 40)}", options=options):
        found = read(options.path, options.format)
    if len(found) > 1 and (options.id or options.name):
        what, cause = f"import {options.path!r} under one name", f"there are {len(found)} runs in it"
        raise UsageError(what, cause, "leave --id and --name out, or give one file")
    if options.name:
        found = [replace(one, facts={**one.facts, "name": options.name}) for one in found]
    root = runs_root(options.dir)
    total = sum(len(series) for one in found for series in one.columns.values())
    with progress("storing", total, "points", options=options) as advance:
        stored = [store(one, root, options.project, options.id, advance) for one in found]
    note_root(root)
    if options.json:
        print_json({"runs": [_facts(one) for one in stored]})
    else:
        _tell(stored)
    return FINE


def _facts(stored: StoredRun) -> dict[str, Any]:
    return {**stored.__dict__, "path": str(stored.path), "notes": list(stored.notes)}


def _tell(stored: Sequence[StoredRun]) -> None:
    for one in stored:
        verb = "was there already" if one.existed else f"{one.points} points of {one.metrics} metrics"
        print(f"{one.id}  {verb}, from {plain(one.source)} ({one.format})")
        print(f"  {plain(str(one.path))}")
        for note in one.notes[:MOST_NOTES]:
            say(f"{one.id}: {note}")
