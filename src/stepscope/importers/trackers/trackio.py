"""Trackio: its SQLite database per project, of every age, the Parquet files beside it, and fragments not yet in it.

A run that stands in several of these is one run: its points are taken once.
"""

from __future__ import annotations

import math
import os
from collections import defaultdict
from dataclasses import replace
from datetime import datetime
from itertools import chain
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from stepscope.core.ring import NO_STEP
from stepscope.importers import parquet
from stepscope.importers.imported import COLUMNS, Imported, ImportedSeries
from stepscope.importers.rows import values
from stepscope.importers.run_builder import ImportFormat, RunBuilders
from stepscope.importers.source import FileHead, goes_on, json_value
from stepscope.importers.trackers.growing import GrowingFile, start_of
from stepscope.importers.trackers.json_text import REFUSED, decoded
from stepscope.importers.trackers.sqlite import MAGIC, columns, has_tables, look, new_rows, text
from stepscope.importers.words import moment, whole

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from stepscope.importers.run_builder import RunBuilder

    Owner = tuple[bytes | str | None, bytes | str | None]
    """Id and name of a run; those of Trackio before 0.24 had no id."""
    Waiting = defaultdict[str, tuple[list[float], list[int], list[float]]]
    """Values, steps and times by metric."""

METRIC = ("run_id", "run_name", "step", "timestamp", "metrics")
STRUCTURE = {"id", "run_id", "run_name", "step", "timestamp", "log_id", "space_id", "metrics", "config", "created_at"}
"""Columns of the Parquet files that are no metrics and no settings."""
ABOUT = {"_Username": "user", "_Group": "group"}
"""Settings that Trackio adds itself, and the facts that they are."""
KINDS = {"metric", "system_metric", "alert"}
INBOX = "inbox"
MACHINE = "system/"
"""Begins the names of system metrics."""
MOST_FRAGMENTS = 100_000
"""Maximum fragments read of a folder."""
_flat = msgspec.json.Decoder(dict[str, float])


def recognises(head: FileHead) -> bool:
    """Return whether a file is a database, a Parquet export or a fragment of Trackio."""
    if head.data.startswith(parquet.MAGIC):
        return {"timestamp", "run_name", "step"} <= {*parquet.columns(head)}
    if head.data.startswith(MAGIC):
        return has_tables(head, {"metrics": METRIC[1:]})
    first = json_value(next(iter(head.first_lines(1)), ""))
    return isinstance(first, dict) and first.get("kind") in KINDS and {"v", "project", "run"} <= {*first}


def owns_folder(folder: str, names: Collection[str]) -> bool:
    """Return whether a folder is an inbox: folders of writers with numbered fragments."""
    return os.path.basename(folder) == INBOX and bool(names) and next(_fragments(folder), None) is not None


def fill_all(path: str, runs: RunBuilders) -> None:
    """Read the runs in a database, a Parquet export with those beside it, a fragment or an inbox."""
    found = _LoggedRows(runs, os.path.splitext(os.path.basename(path))[0])
    if os.path.isdir(path):
        _read_inbox(path, found)
        return
    start = start_of(path, 16)
    if start.startswith(parquet.MAGIC):
        _read_parquet(path, found)
    elif start.lstrip().startswith(b"{"):
        _read_fragment(path, found, set())
    else:
        look(path, _Database(found).read, runs)


class _LoggedRows:
    """Rows that were read and wait to be added, so that many points are added at once."""

    def __init__(self, runs: RunBuilders, project: str) -> None:
        self.runs, self.project = runs, project
        self.waiting: dict[Owner, tuple[RunBuilder, Waiting]] = {}

    def add(self, owner: Owner, step: Any, stamp: Any, metrics: Any) -> None:
        """Take in one row of a run; `metrics` is a mapping or its JSON text."""
        found = self.waiting.get(owner)
        run, series = self._new(owner) if found is None else found
        time = _time(stamp)
        if type(step) is not int:
            step = whole(step)
        for name, value in _numbers(run, metrics):
            points = series[name]
            points[0].append(value)
            points[1].append(NO_STEP if step is None else step)
            points[2].append(time)

    def _new(self, owner: Owner) -> tuple[RunBuilder, Waiting]:
        run_id, name = map(text, owner)
        run = self.runs.of(run_id or name)
        run.facts |= {"run_id": run_id or name, "name": name or run_id, "project": self.project}
        found = self.waiting[owner] = run, defaultdict(lambda: ([], [], []))
        return found

    def configure(self, owner: Owner, config: Any, created: Any = None) -> None:
        """Take in the configuration of a run that has points; it is a mapping or its JSON text."""
        config = decoded(config) if isinstance(config, (bytes, str)) else config
        if owner not in self.waiting or not isinstance(config, dict):
            return
        began = moment(config.get("_Created") or text(created))
        facts = {ABOUT[key]: value for key, value in config.items() if key in ABOUT and value}
        own = {key: value for key, value in config.items() if key not in ABOUT and key != "_Created"}
        run, _ = self.waiting[owner]
        run.facts |= {**facts, "config": own, **({"created": began} if math.isfinite(began) else {})}

    def flush(self) -> None:
        """Add the rows that wait to their runs."""
        for run, series in self.waiting.values():
            for name, (value, step, time) in series.items():
                arrays = np.array(value, np.float64), np.array(step, np.int64), np.array(time, np.float64)
                run.extend(name, *arrays)
            series.clear()


def _numbers(run: RunBuilder, metrics: Any) -> Iterable[tuple[str, float]]:
    """Return the names and numbers of a row; most rows are one flat object."""
    if isinstance(metrics, (bytes, str)):
        try:
            return _flat.decode(metrics).items()
        except REFUSED:
            metrics = decoded(metrics)
    if isinstance(metrics, dict):
        return values(metrics, run.not_a_number)
    run.note("rows that are no JSON objects, left out")
    return ()


class _Database:
    """A database that may grow while it is followed."""

    def __init__(self, rows: _LoggedRows) -> None:
        self.rows = rows
        self.last = self.last_system = -(2**63)

    def read(self, database: sqlite3.Connection) -> None:
        """Read what is new; configurations may change, and are read again."""
        for batch in new_rows(database, "metrics", METRIC, self.last):
            for _, run_id, name, step, stamp, metrics in batch:
                self.rows.add((run_id, name), step, stamp, metrics)
            self.last = batch[-1][0]
            self.rows.flush()
        for batch in new_rows(
            database, "system_metrics", ("run_id", "run_name", "timestamp", "metrics"), self.last_system
        ):
            for _, run_id, name, stamp, metrics in batch:
                self.rows.add((run_id, name), None, stamp, _of_machine(metrics))
            self.last_system = batch[-1][0]
            self.rows.flush()
        for batch in new_rows(database, "configs", ("run_id", "run_name", "config", "created_at")):
            for _, run_id, name, config, created in batch:
                self.rows.configure((run_id, name), config, created)
        for table in ("alerts", "traces"):
            if columns(database, table):
                (count,) = database.execute(f'SELECT count(*) FROM "{table}"').fetchone()  # noqa: S608 - our own names
                if count:
                    self.rows.runs.note(f"{table}, left out: {count}")


def _time(stamp: Any) -> float:
    """Return a time in seconds since 1970; Trackio writes ISO 8601 with a zone, and once wrote it without."""
    stamp = stamp.decode("ascii", "replace") if isinstance(stamp, bytes) else stamp
    try:
        found = datetime.fromisoformat(stamp)
    except (TypeError, ValueError):
        return moment(stamp)
    return found.timestamp() if found.tzinfo is not None else moment(stamp)


def _of_machine(metrics: Any) -> Any:
    found = decoded(metrics) if isinstance(metrics, (bytes, str)) else metrics
    return {f"{MACHINE}{name}": value for name, value in found.items()} if isinstance(found, dict) else found


def _read_parquet(path: str, rows: _LoggedRows) -> None:
    """Read the metrics of a project, and its system metrics and configurations in the files beside it."""
    stem = os.path.splitext(path)[0]
    for row in _table(path):
        rows.add(_owner(row), row.get("step"), row.get("timestamp"), _content(row, "metrics"))
    if os.path.isfile(f"{stem}_system.parquet"):
        for row in _table(f"{stem}_system.parquet"):
            rows.add(_owner(row), None, row.get("timestamp"), _of_machine(_content(row, "metrics")))
    rows.flush()
    if os.path.isfile(f"{stem}_configs.parquet"):
        for row in _table(f"{stem}_configs.parquet"):
            rows.configure(_owner(row), _content(row, "config"), row.get("created_at"))


def _table(path: str) -> Iterator[dict[str, Any]]:
    with parquet.connected(path) as (connection, place):
        found = connection.execute("FROM read_parquet($1)", [place])
        names = [str(name) for name, *_ in found.description]
        while batch := found.fetchmany(parquet.BATCH):
            for row in batch:
                yield dict(zip(names, row, strict=True))


def _owner(row: Mapping[str, Any]) -> Owner:
    return text(row.get("run_id")), text(row.get("run_name"))


def _content(row: Mapping[str, Any], column: str) -> Any:
    """Return what a row holds: its JSON text, or its columns, of which those of other rows are empty."""
    if isinstance(row.get(column), (bytes, str)):
        return row[column]
    return {name: value for name, value in row.items() if name not in STRUCTURE and value is not None}


def _fragments(inbox: str) -> Iterator[str]:
    for place, folders, names in os.walk(inbox):
        folders.sort()
        for name in sorted(names):
            if name.endswith(".jsonl") and name[:-6].isdigit():
                yield os.path.join(place, name)


def _read_inbox(folder: str, rows: _LoggedRows) -> None:
    """Read all fragments; each is written at once, so that a new one is a new file."""
    known: set[str] = set()
    logged: set[str] = set()
    while True:
        for path in _fragments(folder):
            if path not in known and len(known) < MOST_FRAGMENTS:
                known.add(path)
                _read_fragment(path, rows, logged)
        if not goes_on():
            return


def _read_fragment(path: str, rows: _LoggedRows, logged: set[str]) -> None:
    """Read the records of a fragment, except those with an id that was logged already."""
    configs: dict[Owner, Any] = {}
    for line in chain.from_iterable(GrowingFile(path).new_lines(rows.runs.note)):
        record = decoded(line)
        if not isinstance(record, dict) or record.get("kind") not in KINDS - {"alert"}:
            if line.strip():
                rows.runs.note("records that are no metrics, left out")
            continue
        log_id = record.get("log_id")
        if isinstance(log_id, str) and log_id in logged:
            continue
        logged.add(str(log_id))
        owner: Owner = text(record.get("run_id")), text(record.get("run"))
        rows.project = text(record.get("project"))
        metrics = record.get("metrics")
        of_machine = record["kind"] == "system_metric"
        rows.add(owner, record.get("step"), record.get("timestamp"), _of_machine(metrics) if of_machine else metrics)
        if record.get("config"):
            configs[owner] = record["config"]
    rows.flush()
    for owner, config in configs.items():
        rows.configure(owner, config)


def unite(runs: Sequence[Imported]) -> list[Imported]:
    """Return each run once: the largest part that a source has of it, and the points that only others have."""
    found: dict[str, list[Imported]] = defaultdict(list)
    for run in runs:
        found[str(run.facts.get("run_id") or run.path)].append(run)
    return [_united(sorted(some, key=_points, reverse=True)) for some in found.values()]


def _points(run: Imported) -> int:
    return sum(map(len, run.columns.values()))


def _united(parts: Sequence[Imported]) -> Imported:
    first, *others = parts
    series = dict(first.columns)
    for other in others:
        for name, more in other.columns.items():
            series[name] = _with_new(series[name], more) if name in series else more
    facts: dict[str, Any] = {}
    for part in reversed(parts):
        facts |= {key: value for key, value in part.facts.items() if value}
    notes = tuple(dict.fromkeys(chain.from_iterable(part.notes for part in parts)))
    return replace(first, columns=series, facts=facts, notes=notes)


def _with_new(series: ImportedSeries, more: ImportedSeries) -> ImportedSeries:
    """Return a series with the points of another that it does not have; a point is its step, time and value."""
    new = ~np.isin(_identities(more), _identities(series))
    both = (np.concatenate([getattr(series, name), getattr(more, name)[new]]) for name in COLUMNS)
    return ImportedSeries(series.name, *both) if new.any() else series


def _identities(series: ImportedSeries) -> Any:
    parts = [series.step, series.time.view(np.int64), series.value.view(np.int64)]
    return np.ascontiguousarray(np.stack(parts, axis=1)).view("V24").ravel()


FORMAT = ImportFormat(
    "trackio",
    "Trackio's database, its Parquet export, or its inbox of fragments",
    recognises,
    fill_all=fill_all,
    empty=("no run in it has a number", "check whether the runs were logged to another folder"),
    owns_folder=owns_folder,
    unite=unite,
)
