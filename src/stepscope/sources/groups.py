"""Read groups of runs to compare: repeats of one training, from runs, files of other tools and baselines."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.analysis.compare.recording import Group, Recording
from stepscope.core.errors import UsageError
from stepscope.sources.baselines import read_baseline
from stepscope.sources.recording import of_imported, of_past
from stepscope.sources.source import BASELINE, RUN, RunSource, resolve_all

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

MOST_RUNS = 500
"""Runs of one group."""


def group_of(
    argument: str,
    root: str | None = None,
    asked: Collection[str] = (),
    advance: Callable[[float, str], object] | None = None,
    notify: Callable[[str], object] | None = None,
) -> Group:
    """Return the runs that an argument names.

    Args:
        argument: a run (folder, id, start of an id, latest), a folder of runs, a file or folder of another tool, a
            saved baseline, a pattern, or several of these separated by commas.
        root: folder that holds the runs.
        asked: metrics to read in addition to the usual ones.
        advance: called with 1 and a label after each run that was read.
        notify: called with the note of a run whose choice is not obvious.

    Raises:
        StepscopeError: there is no such run, or it cannot be read.
    """
    runs: list[Recording] = []
    found = (run for source in resolve_all(argument, root, notify) for run in recordings(source, asked))
    for run in itertools.islice(found, MOST_RUNS + 1):
        runs.append(run)
        if advance is not None:
            advance(1, run.label)
    if not runs:
        raise UsageError(f"compare {argument!r}", "it names no run", "see `stepscope runs`")
    if len(runs) > MOST_RUNS:
        raise UsageError(f"compare {argument!r}", f"it names more than {MOST_RUNS} runs", "name fewer")
    return Group(short_path(argument), tuple(runs))


def recordings(source: RunSource, asked: Collection[str] = ()) -> Iterator[Recording]:
    """Yield the runs of a source in the form that comparison takes."""
    if source.kind == BASELINE:
        yield from read_baseline(Path(source.path)).runs
    elif source.kind == RUN:
        yield of_past(source.past(), asked)
    else:
        yield from (of_imported(run, asked) for run in source.imported())


def short_path(argument: str) -> str:
    """Return the last two parts of a path."""
    parts = argument.rstrip("/").split("/")
    return "/".join(parts[-2:]) if len(parts) > 2 else argument.rstrip("/") or argument
