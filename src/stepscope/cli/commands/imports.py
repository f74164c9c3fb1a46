"""Import runs of other tools, or exported runs, as runs of Stepscope.

PATH is a file, or a folder to search; the format is detected from the content (docs/howto/importers.md lists them). An
export of `stepscope export` is restored bit for bit. A run that exists already is not imported again. What cannot be
read is listed with the reason, and the rest is kept.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from stepscope.cli.command import FAILED, FINE, add_shared, print_json
from stepscope.cli.named_run import say
from stepscope.cli.text.progress import progress
from stepscope.core.errors import StepscopeError, UsageError
from stepscope.core.numbers import format_count, format_items, format_value
from stepscope.core.terminal_text import plain

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from stepscope.importers.formats import Batch, Survey
    from stepscope.importers.imported import Imported
    from stepscope.sources.imported_run import StoredRun

MOST_NOTES = 10
"""Most notes that are shown for one run."""
MOST_PROBLEMS = 20
"""Most problems that are shown; JSON has all."""
PORTION = 16 << 20
"""Approximate bytes of the files that one child reads: starting a child for each of many small files takes long."""


def prepare(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("path", metavar="PATH", help="file or folder to read")
    add_shared(parser, "dir")
    parser.add_argument("--format", metavar="FORMAT", help="format, if it cannot be detected")
    text = "project of the runs (default: as in the source, else imported)"
    parser.add_argument("--project", metavar="NAME", default="", help=text)
    parser.add_argument("--name", metavar="NAME", help="name of the run")
    parser.add_argument("--id", metavar="ID", help="id of the run (default: as exported, or made of time and content)")
    parser.add_argument("--dry-run", action="store_true", help="list the runs, import nothing")
    add_shared(parser, "quiet", "json")


def run(options: argparse.Namespace) -> int:
    """Read and store, a few files at a time."""
    from stepscope.importers.formats import nothing_in
    from stepscope.importers.transfer import survey
    from stepscope.store.catalog import runs_root
    from stepscope.store.known_roots import note_root

    with progress(f"searching {plain(options.path, 40)}", options=options):
        found = survey(options.path, options.format)
    if not found.batches and not found.problems:
        raise nothing_in(options.path)
    root = runs_root(options.dir)
    work = FolderImport(options, root, list(found.problems))
    total = sum(batch.size for batch in found.batches)
    title = "reading" if options.dry_run else "importing"
    with progress(title, total, "bytes", options=options) as advance:
        for portion in portions(found.batches):
            work.take(portion)
            advance(sum(batch.size for batch in portion), plain(portion[-1].paths[-1], 40))
    if not work.stored and work.problems and len(found.batches) < 2:
        raise work.problems[0]
    if work.stored and not options.dry_run:
        note_root(root)
    work.tell(found)
    return FINE if work.stored else FAILED


def portions(batches: Sequence[Batch]) -> Iterator[list[Batch]]:
    """Yield the batches, small ones together."""
    waiting: list[Batch] = []
    for batch in batches:
        waiting.append(batch)
        if sum(each.size for each in waiting) >= PORTION:
            yield waiting
            waiting = []
    if waiting:
        yield waiting


class FolderImport:
    """The runs that were imported, or would be, and what could not be read."""

    def __init__(self, options: argparse.Namespace, root: Path, problems: list[StepscopeError]) -> None:
        self._options, self._root = options, root
        self.stored: list[StoredRun] = []
        self.problems = problems

    def take(self, portion: Sequence[Batch]) -> None:
        """Read some files, and store their runs."""
        from stepscope.importers.transfer import read_batches

        found, problems = read_batches(portion)
        self.problems += problems
        options = self._options
        if (options.id or options.name) and len(found) + len(self.stored) > 1:
            cause = f"there are {len(found) + len(self.stored)} runs in it"
            remedy = "leave --id and --name out, or give one file"
            raise UsageError(f"import {options.path!r} under one name", cause, remedy)
        for one in found:
            try:
                self._store(one)
            except StepscopeError as error:
                self.problems.append(error)

    def _store(self, run: Imported) -> None:
        from stepscope.sources.imported_run import store

        options = self._options
        named = replace(run, facts={**run.facts, "name": options.name}) if options.name else run
        self.stored.append(store(named, self._root, options.project, options.id, is_dry=options.dry_run))

    def tell(self, found: Survey) -> None:
        """Print what was imported, and what was not."""
        if self._options.json:
            problems = [str(error) for error in self.problems]
            facts = {"runs": [_facts(one) for one in self.stored], "problems": problems, "other_files": found.others}
            print_json({**facts, "dry_run": self._options.dry_run})
            return
        for one in self.stored:
            print(_line(one))
            print(f"  {plain(str(one.path))}" if not self._options.dry_run else f"  from {plain(one.source)}")
            for note in one.notes[:MOST_NOTES]:
                say(f"{one.id}: {note}")
        for error in self.problems[:MOST_PROBLEMS]:
            say(str(error))
        if len(self.problems) > MOST_PROBLEMS:
            say(f"and {len(self.problems) - MOST_PROBLEMS} more that cannot be read; --json lists them")
        if len(self.stored) + len(self.problems) > 1 or self._options.dry_run:
            print(self._summary(found))

    def _summary(self, found: Survey) -> str:
        old = sum(one.existed for one in self.stored)
        verb = "would be imported" if self._options.dry_run else "imported"
        parts = [f"{format_items(len(self.stored) - old, 'run')} {verb}"]
        parts += [f"{old} there already"] if old else []
        parts += [f"{len(self.problems)} could not be read"] if self.problems else []
        parts += [f"{format_items(found.others, 'file')} of other kinds"] if found.others else []
        size = format_value(sum(batch.size for batch in found.batches), "bytes")
        return f"{', '.join(parts)}, from {size} in {plain(self._options.path)}"


def _facts(stored: StoredRun) -> dict[str, Any]:
    return {**stored.__dict__, "path": str(stored.path), "notes": list(stored.notes)}


def _line(one: StoredRun) -> str:
    count = f"{format_count(one.points)} points of {format_items(one.metrics, 'metric')}"
    verb = "was there already" if one.existed else count
    return f"{one.id}  {plain(one.name, 60)} ({one.format}): {verb}"
