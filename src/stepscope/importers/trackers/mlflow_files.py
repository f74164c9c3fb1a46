"""MLflow's file store (`mlruns/<experiment>/<run>/`): one folder per run, with a file per metric, parameter and tag."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from stepscope.core.errors import StepscopeError
from stepscope.core.yaml_text import read_file
from stepscope.importers.run_builder import MOST_NAMES, ImportFormat, RunBuilder
from stepscope.importers.source import goes_on, unreadable
from stepscope.importers.trackers.growing import GrowingFile, start_of
from stepscope.importers.trackers.mlflow_facts import STATES, tag_facts, written
from stepscope.importers.words import number

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

META, TRASH = "meta.yaml", ".trash"
MOST_TEXT = 2**16
"""Maximum bytes of a parameter or tag; the rest is cut."""


def owns_folder(folder: str, names: Collection[str]) -> bool:
    """Return whether a folder is a run, or the place for deleted ones."""
    if META in names and "metrics" in names:
        about = b"\n" + start_of(os.path.join(folder, META))
        return b"\nrun_id:" in about or b"\nrun_uuid:" in about
    return os.path.basename(folder) == TRASH and bool(names)


def fill(path: str, run: RunBuilder) -> None:
    """Read the metrics of a run, in the order in which they were logged, with its parameters and tags.

    Raises:
        StepscopeError: it was deleted.
    """
    if os.path.basename(path) == TRASH:
        raise unreadable(path, "its runs were deleted in MLflow", "restore them there first")
    metrics: dict[str, GrowingFile] = {}
    while True:
        run.facts = _facts(path, run)
        for name, file in _files(os.path.join(path, "metrics")):
            for lines in metrics.setdefault(name, GrowingFile(file)).new_lines(run.note):
                _add_lines(run, name, lines)
        if not goes_on():
            break
    for name, metric in metrics.items():
        if metric.is_cut:
            run.leave_out("last lines that are cut (the run was being written or was killed)", name)


def _files(folder: str) -> Iterator[tuple[str, str]]:
    """Yield key and path of every file; a key with slashes is a file in folders."""
    left = MOST_NAMES
    for place, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            file = os.path.join(place, name)
            left -= 1
            if left >= 0 and os.path.isfile(file):
                yield os.path.relpath(file, folder).replace(os.sep, "/"), file


def _texts(folder: str) -> dict[str, str]:
    return {key: start_of(file, MOST_TEXT).decode("utf-8", "replace") for key, file in _files(folder)}


def _facts(path: str, run: RunBuilder) -> dict[str, Any]:
    about = _meta(path, run)
    experiment = _meta(os.path.dirname(os.path.abspath(path)), run)
    if "deleted" in {about.get("lifecycle_stage"), experiment.get("lifecycle_stage")}:
        raise unreadable(path, "the run was deleted in MLflow", "restore it there first")
    created, ended = number(about.get("start_time")), number(about.get("end_time"))
    found = {
        "run_id": about.get("run_id", about.get("run_uuid")),
        "name": about.get("run_name", about.get("name")),
        "user": about.get("user_id"),
        "project": experiment.get("name"),
        "state": STATES.get(str(about.get("status"))),
        "created": created / 1e3 if created else None,
        "ended": ended / 1e3 if ended else None,
        **tag_facts(_texts(os.path.join(path, "tags"))),
    }
    config = {key: written(value) for key, value in _texts(os.path.join(path, "params")).items()}
    return {key: value for key, value in found.items() if value not in (None, "")} | {"config": config}


def _meta(folder: str, run: RunBuilder) -> dict[str, object]:
    file = Path(folder, META)
    try:
        return read_file(file).data if file.exists() else {}
    except StepscopeError as error:
        run.note(str(error))
        return {}


def _add_lines(run: RunBuilder, name: str, lines: list[bytes]) -> None:
    points = [point for line in lines if (point := _point(line)) is not None]
    if len(points) < len(lines):
        run.leave_out("lines that are no points", name, len(lines) - len(points))
    if points:
        time, value, step = zip(*points, strict=True)
        run.extend(name, np.array(value, np.float64), np.array(step, np.int64), np.array(time, np.float64) / 1e3)


def _point(line: bytes) -> tuple[float, float, int] | None:
    """Return time in ms, value and step of a line; early MLflow wrote no step, newer ones may add a dataset."""
    fields = line.split()
    try:
        step = int(fields[2]) if len(fields) in {3, 5} else 0
        return (float(fields[0]), float(fields[1]), step) if len(fields) in {2, 3, 5} and abs(step) < 2**63 else None
    except ValueError:
        return None


FORMAT = ImportFormat(
    "mlflow_files",
    "run folder of MLflow's file store (mlruns)",
    fill=fill,
    owns_folder=owns_folder,
    empty=("the run has no metric", "check whether it was logged to another store"),
)
