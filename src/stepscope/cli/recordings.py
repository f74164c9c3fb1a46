"""Runs, groups of repeats, files of other tools and saved baselines, in the form that comparison takes."""

from __future__ import annotations

import glob
import itertools
import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.analysis.compare import baseline
from stepscope.analysis.compare.recording import Group, Points, Recording
from stepscope.cli.named_run import open_run
from stepscope.core.errors import StepscopeError, UsageError
from stepscope.store.catalog import runs_root
from stepscope.store.layout import RUN_FILE
from stepscope.views.recordings import category_of, curves_of, flat, of_past, planned_in, span_of, wanted

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from stepscope.cli.text.progress import Advance
    from stepscope.importers.imported import Imported

BASELINES = ".baselines"
"""Folder below the runs' root that holds saved baselines."""
SUFFIX = ".json"
MOST_BYTES = 256 * 2**20
"""Size of the largest baseline that is read."""
MOST_RUNS = 500
"""Runs of one group."""


def group_of(
    argument: str, root: str | None = None, asked: Collection[str] = (), advance: Advance | None = None
) -> Group:
    """Return the runs that an argument names.

    Args:
        argument: a run (folder, id, start of an id, latest), a folder of runs, a file or folder of another tool, a
            saved baseline, a pattern, or several of these with commas between.
        root: folder that holds the runs.
        asked: metrics that are wanted beside the usual ones.
        advance: told of each run that was read.

    Raises:
        StepscopeError: there is none, or it cannot be read.
    """
    parts = [part for part in argument.split(",") if part] if not os.path.exists(argument) else [argument]
    found: list[Recording] = []
    for run in itertools.islice((run for part in parts for run in _runs(part, root, asked)), MOST_RUNS + 1):
        found.append(run)
        if advance is not None:
            advance(1, run.label)
    if not found:
        raise UsageError(f"compare {argument!r}", "it names no run", "see `stepscope runs`")
    if len(found) > MOST_RUNS:
        raise UsageError(f"compare {argument!r}", f"it names more than {MOST_RUNS} runs", "name fewer")
    return Group(_label(argument), tuple(found))


def _label(argument: str) -> str:
    """Return a short name: of a path the last two parts."""
    parts = argument.rstrip("/").split("/")
    return "/".join(parts[-2:]) if len(parts) > 2 else argument.rstrip("/") or argument


def _runs(part: str, root: str | None, asked: Collection[str]) -> Iterator[Recording]:
    saved = find_baseline(part, root)
    if saved is not None:
        yield from read_baseline(saved).runs
    elif os.path.isfile(os.path.join(part, RUN_FILE)):
        yield of_past(open_run(part, root), asked)
    elif os.path.isdir(part):
        folders = _run_folders(Path(part))
        yield from (of_past(open_run(folder, root), asked) for folder in folders)
        if not folders:
            yield from _foreign(part, asked)
    elif os.path.exists(part):
        yield from _foreign(part, asked)
    elif glob.has_magic(part):
        yield from (run for path in sorted(glob.glob(part)) for run in _runs(path, root, asked))
    else:
        project = runs_root(root) / part
        folders = _run_folders(project) if os.sep not in part and project.is_dir() else []
        yield from (of_past(open_run(folder, root), asked) for folder in folders)
        if not folders:
            yield of_past(open_run(part, root), asked)


def _run_folders(folder: Path) -> list[Path]:
    """Return the runs in a folder, or in the folders of it, by name."""
    return sorted(path.parent for pattern in ("*", "*/*") for path in folder.glob(f"{pattern}/{RUN_FILE}"))


def _foreign(path: str, asked: Collection[str]) -> Iterator[Recording]:
    from stepscope.importers.transfer import read  # loads every reader

    return (of_imported(run, asked) for run in read(path))


def baseline_path(name: str, root: str | None = None) -> Path:
    """Return where a baseline of that name is saved.

    Raises:
        UsageError: the name cannot be that of a file.
    """
    if not re.fullmatch(r"[\w][\w.+-]{0,99}", name):
        raise UsageError(f"name a baseline {name!r}", "letters, digits, - _ . + are allowed", "choose another name")
    return runs_root(root) / BASELINES / f"{name}{SUFFIX}"


def find_baseline(text: str, root: str | None = None) -> Path | None:
    """Return the file of a baseline, by its path or its name; None if there is none."""
    path = Path(text)
    if path.suffix == SUFFIX and path.is_file():
        with path.open("rb") as file:
            return path if f'"{baseline.FORMAT}"'.encode() in file.read(200) else None
    if re.fullmatch(r"[\w][\w.+-]{0,99}", text) and not path.exists():
        saved = baseline_path(text, root)
        return saved if saved.is_file() else None
    return None


def read_baseline(path: Path) -> Group:
    """Return the runs of a saved baseline.

    Raises:
        StepscopeError: it cannot be read.
    """
    what = f"read baseline {path}"
    try:
        if path.stat().st_size > MOST_BYTES:
            raise StepscopeError(what, f"it is larger than {MOST_BYTES >> 20} MiB", "save it anew of fewer runs")
        return baseline.from_facts(json.loads(path.read_bytes()))
    except (OSError, ValueError, RecursionError) as error:
        raise StepscopeError(what, error, "save it anew: stepscope baseline save NAME RUN …") from error


def of_imported(run: Imported, asked: Collection[str] = ()) -> Recording:
    """Return a run of another tool."""
    series: dict[str, Points] = {name: run.series(name) for name in run.names() if wanted(name, asked)}
    facts = {category_of(key): value for key, value in flat(run.facts) if value is not None}
    return Recording(_file_label(run.path), curves_of(series), facts, span_of(series), planned_in(facts))


def _file_label(path: str) -> str:
    name = os.path.basename(path)
    return name if len(name) <= 40 else f"{name[:18]}…{name[-18:]}"
