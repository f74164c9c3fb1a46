"""Store a run that an importer has read as a run of ours: the same sealed files that a watcher writes."""

from __future__ import annotations

import json
import math
import os
import shutil
import time
import zlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from stepscope.core.errors import StepscopeError
from stepscope.core.identity import check_run_id
from stepscope.store.events import encode_event
from stepscope.store.labels import Labels, change_labels, make_labels
from stepscope.store.layout import FORMAT_VERSION, RunFolder, Writer
from stepscope.store.points import NO_NS, Points
from stepscope.store.sealed import write_sealed
from stepscope.store.states import NodeState, RankState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from stepscope.core.arrays import Floats, Integers
    from stepscope.importers.imported import Imported, ImportedSeries

NODE = "imported"
PORTION = 500_000
"""Approximate number of points per sealed file."""
SECOND = 1_000_000
EARLIEST = 1e8
"""Smaller times, in seconds, count from the start of the run (as dates they would lie before 1973)."""
LATEST = 2**62 // SECOND
STATES = ("finished", "interrupted", "failed", "killed", "oom-killed", "preempted", "lost")
ANY_FILE = ("events.out.tfevents", "metrics.csv", "metrics.jsonl", "trainer_state.json", "checkpoint-")
"""What file and folder names begin with that say nothing about a run."""
LABELS = ("tags", "notes", "group")
OWN_FACTS = ("id", "name", "project", "created", "state", "cause", "config", "events", *LABELS)
"""Facts that become facts of the run; all others are stored as facts of the source."""


@dataclass(frozen=True)
class StoredRun:
    """A run that was imported."""

    path: Path
    id: str
    project: str
    points: int
    metrics: int
    format: str
    source: str
    notes: tuple[str, ...]
    name: str = ""
    """For people."""
    existed: bool = False
    """Whether a run with this id and content existed, so that nothing was written."""


def store(
    run: Imported,
    root: Path,
    project: str = "",
    run_id: str | None = None,
    advance: Callable[[int], object] = lambda _points: None,
    *,
    is_dry: bool = False,
) -> StoredRun:
    """Write a run below `root`, completely or not at all. Raises StepscopeError if it has no points or its id is taken.

    Args:
        run: the imported run.
        root: folder that holds the runs.
        project: by default that of the source, else "imported".
        run_id: by default that of our own export, else made of its time and content.
        advance: called with the number of points after each write.
        is_dry: write nothing, only say what would be written.
    """
    count = sum(map(len, run.columns.values()))
    if not count:
        raise StepscopeError(f"import {run.path!r}", "there is no number in it", "give a file with metrics")
    base = _base(run)
    digest = _digest(run)
    started = time.strftime("%Y%m%d-%H%M%S", time.gmtime(max(0.0, base / SECOND)))
    chosen = check_run_id(run_id or run.facts.get("id") or f"{started}-{digest & 0xFFFF:04x}")
    home = project or str(run.facts.get("project") or "") or "imported"
    target = root / folder_name(home) / chosen
    name = str(run.facts.get("name") or name_of(run.path))
    found = StoredRun(target, chosen, home, count, len(run.columns), run.format, run.path, run.notes, name)
    if target.exists():
        return _existing(found, target, digest)
    if is_dry:
        return found
    draft = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        about = {"id": chosen, "name": name, "project": home, "digest": digest}
        _write(run, RunFolder(draft), base, about, advance)
        target.parent.mkdir(parents=True, exist_ok=True)
        draft.rename(target)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return found


def name_of(path: str) -> str:
    """Return a name for people: of the file, or of its folder if every run's file is called like that."""
    folder, name = os.path.split(os.path.normpath(path))
    while name.startswith(ANY_FILE) and os.path.basename(folder):
        folder, name = os.path.split(folder)
    above = os.path.basename(folder)
    return f"{above}/{name}" if name.startswith("version_") and above else name


def _existing(found: StoredRun, target: Path, digest: int) -> StoredRun:
    try:
        known = json.loads((target / "run.json").read_bytes()).get("imported", {}).get("digest")
    except (OSError, ValueError, AttributeError):
        known = None
    if known != digest:
        cause = f"another run {found.id} is in {target.parent}"
        raise StepscopeError(f"import {found.source!r}", cause, "give it an id with --id, or another --dir")
    return replace(found, existed=True)


def folder_name(project: str) -> str:
    """Return a project's name as the name of a folder."""
    return "".join(sign if sign.isalnum() or sign in "._- " else "_" for sign in project).strip(". ")[:100] or NODE


def _digest(run: Imported) -> int:
    value = 0
    for name in run.names():
        series = run.columns[name]
        value = zlib.crc32(name.encode("utf-8", "replace"), value)
        for column in (series.step, series.time, series.value, series.rank, series.attempt):
            value = zlib.crc32(np.ascontiguousarray(column).data, value)
    return value


def _base(run: Imported) -> int:
    """Return the start in microseconds since 1970: as recorded, from the first point, or from the age of the file."""
    created = run.facts.get("created")
    if isinstance(created, (int, float)) and not isinstance(created, bool) and EARLIEST < created < LATEST:
        return round(created * SECOND)
    times = [series.time[np.isfinite(series.time)] for series in run.columns.values()]
    known = np.concatenate(times) if times else np.empty(0)
    absolute = known[(known >= EARLIEST) & (known < LATEST)]
    if len(absolute):
        return round(float(absolute.min()) * SECOND)
    lasted = float(known.max()) if len(known) and known.max() < EARLIEST else 0.0
    try:
        changed = os.stat(run.path).st_mtime
    except OSError:
        changed = time.time()
    return round((changed - max(0.0, lasted)) * SECOND)


def _write(
    run: Imported, folder: RunFolder, base: int, about: dict[str, Any], advance: Callable[[int], object]
) -> None:
    folder.make()
    other_facts = {key: value for key, value in run.facts.items() if key not in OWN_FACTS}
    source = {"path": run.path, "format": run.format, "facts": other_facts, "notes": list(run.notes)}
    facts = {
        "format": FORMAT_VERSION,
        "id": about["id"],
        "name": about["name"],
        "project": about["project"],
        "created": max(0, base),
        "config": run.facts.get("config", run.facts.get("hparams")),
        "imported": {**source, "digest": about["digest"]},
    }
    folder.describe(facts)
    labels = make_labels(**{key: run.facts.get(key) or "" for key in LABELS})
    if labels != Labels():
        change_labels(folder, lambda _none: labels)
    nodes: dict[int, NodeState] = {}
    for attempt, number, points in _portions(run, base):
        writer = Writer(NODE, attempt)
        last = {str(rank): int(points.seq[points.rank == rank].max()) for rank in np.unique(points.rank).tolist()}
        write_sealed(folder.path / "metrics", folder.unit_stem(writer, number, number), points, last_seq=last)
        _note_ranks(nodes.setdefault(attempt, NodeState(NODE, attempt, ended=True)), points, run)
        advance(len(points))
    for node in nodes.values():
        node.save(folder)
    _write_events(run, folder, max(nodes))


def _note_ranks(node: NodeState, points: Points, run: Imported) -> None:
    """Record the progress of the ranks of an attempt; samples of a machine alone belong to rank 0."""
    state, cause, is_inferred = _end(run.facts)
    ranks = [rank for rank in np.unique(points.rank).tolist() if rank >= 0]
    for rank in ranks or ([] if node.ranks else [0]):
        part = points.select(points.rank == rank) if ranks else points
        known = node.ranks.setdefault(rank, RankState(state, cause, started=int(part.time.min()), inferred=is_inferred))
        known.rows += len(part)
        steps = part.step[part.step >= 0]
        known.step = max(int(steps.max()), known.step or 0) if len(steps) else known.step
        known.started = min(known.started, int(part.time.min()))
        known.ended = max(known.ended or 0, int(part.time.max()))
    node.time = max(node.time, int(points.time.max()))


def _end(facts: dict[str, Any]) -> tuple[str, str, bool]:
    """Return how a run ended, why, and whether that is inferred, because its source does not know."""
    state = facts.get("state")
    if state in STATES:
        return state, str(facts.get("cause") or ""), False
    return ("lost", "its source says that it was running", True) if state == "running" else ("finished", "", True)


def _portions(run: Imported, base: int) -> Iterator[tuple[int, int, Points]]:
    """Yield attempt, number and points of each part, small enough for one file."""
    attempts = sorted({int(one) for series in run.columns.values() for one in np.unique(series.attempt)})
    for attempt in attempts:
        number, waiting, size = 0, [], 0
        for name in run.names():
            series = run.columns[name]
            if (series.attempt == attempt).any():
                waiting.append(_points(name, series, attempt, base))
                size += len(waiting[-1])
            if size >= PORTION:
                yield attempt, number, Points.concat(waiting)
                number, waiting, size = number + 1, [], 0
        if waiting:
            yield attempt, number, Points.concat(waiting)


def _points(name: str, series: ImportedSeries, attempt: int, base: int) -> Points:
    chosen = np.flatnonzero(series.attempt == attempt)
    codes, attempts = np.zeros(len(chosen), np.int32), np.full(len(chosen), attempt, np.int32)
    rank, step, value = series.rank[chosen], series.step[chosen], series.value[chosen]
    seq = _counted(rank) if series.seq is None else series.seq[chosen]
    time_us, unknown = _microseconds(series.time[chosen], base), np.full(len(chosen), NO_NS, np.int64)
    return Points([name], codes, rank, attempts, seq, step, time_us, value, unknown)


def _counted(rank: NDArray[np.int32]) -> Integers:
    """Return the index of each point among the points of its rank."""
    found = np.empty(len(rank), np.int64)
    for one in np.unique(rank):
        mine = rank == one
        found[mine] = np.arange(np.count_nonzero(mine))
    return found


def _microseconds(seconds: Floats, base: int) -> Integers:
    """Return times in microseconds since 1970; a small time counts from the start, an unknown time is the start."""
    with np.errstate(invalid="ignore"):
        relative = np.abs(seconds) < EARLIEST
        wrong = ~np.isfinite(seconds) | (np.abs(seconds) >= LATEST)
    found = np.rint(np.where(wrong, 0.0, seconds) * SECOND).astype(np.int64)
    return np.where(wrong, base, np.where(relative, base + found, found))


def _write_events(run: Imported, folder: RunFolder, attempt: int) -> None:
    lines = [
        encode_event({**event, "time": round(event["time"] * SECOND)})
        for event in run.facts.get("events") or []
        if isinstance(event, dict) and math.isfinite(event.get("time", math.nan))
    ]
    folder.events_file(Writer(NODE, attempt)).write_bytes(b"".join(lines))
