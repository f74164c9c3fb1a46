"""What SQL reads: the intact sealed files, and tables of everything that DuckDB must not read itself."""

from __future__ import annotations

import contextlib
import json
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np

from stepscope.core.errors import StepscopeError
from stepscope.core.ring import NO_STEP
from stepscope.core.strict_json import strict, word
from stepscope.store.checksum import Checked
from stepscope.store.events import read_events
from stepscope.store.layout import RunFolder, Writer
from stepscope.store.meta import read_meta
from stepscope.store.points import NO_NS, Points, distinct
from stepscope.store.sealed import read_points
from stepscope.store.snapshot import take_snapshot
from stepscope.store.sql_text import quoted
from stepscope.store.states import read_nodes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import duckdb
    from numpy.typing import NDArray

    from stepscope.store.catalog import RunInfo
    from stepscope.store.checksum import SealedUnit
    from stepscope.store.reader import Past

    AnyRun = RunInfo | Past


def _typed(columns: str) -> dict[str, str]:
    """Return the columns of a view with their types, as SQL declares them."""
    return dict(column.split() for column in columns.split(", "))


_WHOSE = "run VARCHAR, project VARCHAR"
POINTS = _typed(
    f"{_WHOSE}, name VARCHAR, rank INTEGER, attempt INTEGER, seq BIGINT, step BIGINT, time TIMESTAMP, value DOUBLE, "
    "ns BIGINT"
)
RUNS = _typed(
    f"{_WHOSE}, name VARCHAR, state VARCHAR, cause VARCHAR, created TIMESTAMP, duration DOUBLE, step BIGINT, "
    "path VARCHAR, config VARCHAR"
)
EVENTS = _typed(f"{_WHOSE}, time TIMESTAMP, kind VARCHAR, rank INTEGER, attempt INTEGER, step BIGINT, data VARCHAR")

RELISTS = 5
"""How often to list again when files are merged or deleted during a read."""

_LATEST = 9 * 10**18
"""Maximum distance from 1970 in microseconds that DuckDB can represent."""
_MOMENT = f'CASE WHEN "time" BETWEEN -{_LATEST} AND {_LATEST} THEN make_timestamp("time") END'
_SEALED = (
    f"""name, rank, attempt, seq, step, {_MOMENT} AS "time", coalesce(value, ns / 1e9, 'nan'::DOUBLE) AS value, ns"""
)
_LOOSE = f"""rank, attempt, seq, nullif(step, {NO_STEP}) AS step, {_MOMENT} AS "time", bits::BIT::DOUBLE AS value,
    nullif(ns, {NO_NS}) AS ns"""
_CHECKED = Checked(65_536)
_OPTIONS = "FORMAT parquet, CODEC zstd, PARQUET_VERSION v2, ROW_GROUP_SIZE 98304, USE_TMP_FILE false"
_NUMBERS = {"rank": 2**31, "attempt": 2**31, "step": 2**63}
"""Integer columns of events, and the bound of their size."""


class Shelf:
    """The points of some runs at one time: files that DuckDB reads, and points that it is given.

    We read units that are not fully intact, which leaves out the damaged parts, and tails.
    """

    def __init__(self, runs: Sequence[AnyRun]) -> None:
        """List the files, verify their checksums, and read what DuckDB must not.

        Raises FileNotFoundError if a file disappears meanwhile: list again.
        """
        self.runs = list(runs)
        self.files: list[tuple[Path, int, bool]] = []
        """Each file, the index of its run, and whether another file may hold the same rows."""
        self.loose: list[tuple[int, bool, Points]] = []
        self._problems: dict[str, None] = {}
        for index, run in enumerate(self.runs):
            self._add(index, RunFolder(run.path))
        self.files.sort(key=lambda entry: entry[2])  # grouped by kind: DuckDB numbers files from 0

    @property
    def paths(self) -> list[Path]:
        """The files."""
        return [path for path, _, _ in self.files]

    @property
    def problems(self) -> list[str]:
        """What could not be read."""
        return list(self._problems)

    def _add(self, index: int, folder: RunFolder) -> None:
        snapshot = take_snapshot(folder)
        self._note(snapshot.problems)
        twice = _may_repeat(folder, snapshot.units)
        damaged = []
        for unit in snapshot.units:
            if _intact(unit):
                self.files.append((unit.path, index, twice))
            else:
                damaged.append(unit)
        parts = [snapshot.tails] if len(snapshot.tails) else []
        if damaged:
            points, problems = read_points(damaged, checked=_CHECKED)
            self._note([str(problem) for problem in problems])
            parts.append(points)
        if parts:
            self.loose.append((index, twice, distinct(Points.concat(parts))))

    def _note(self, problems: Sequence[str]) -> None:
        self._problems.update(dict.fromkeys(problems))


def problems_of(run: AnyRun) -> list[str]:
    """Return which points of a run cannot be read."""
    for _ in range(RELISTS):
        with contextlib.suppress(FileNotFoundError):  # merged since they were listed: list again
            return Shelf([run]).problems
    return [f"{run.path}: its files were merged or removed while they were compared"]


def fill_points(connection: duckdb.DuckDBPyConnection, shelf: Shelf) -> None:
    """Create the view `points`, in which a row that two files may hold appears once.

    Raises duckdb.IOException if a file is gone.
    """
    indexes = np.array([index for _, index, _ in shelf.files], np.int64)
    _table(connection, "files", {"file": np.arange(len(indexes)), "source": indexes}, "file, source")
    sources = {"source": np.arange(len(shelf.runs)), **_who(shelf.runs)}
    _table(connection, "sources", sources, "source, run::VARCHAR AS run, project::VARCHAR AS project")
    points = Points.concat([part for _, _, part in shelf.loose])
    lengths = [len(part) for _, _, part in shelf.loose]
    loose = {
        "source": np.repeat(np.array([index for index, _, _ in shelf.loose], np.int64), lengths),
        "twice": np.repeat(np.array([twice for _, twice, _ in shelf.loose], bool), lengths),
        # Floats are passed as integers: DuckDB turns a numpy NaN into NULL.
        "bits": points.value.view(np.int64),
        **{key: getattr(points, key) for key in ("name", "rank", "attempt", "seq", "step", "time", "ns")},
    }
    _table(connection, "loose", loose, f"source, twice, name AS code, {_LOOSE}")
    names = {"code": np.arange(len(points.names)), "name": _texts(points.names)}
    _table(connection, "names", names, "code, name::VARCHAR AS name")
    columns = ", ".join(f'"{column}"' for column in POINTS)
    view = _source(shelf, columns, again=False)
    if any(twice for _, _, twice in shelf.files) or any(twice for _, twice, _ in shelf.loose):
        key = "run, project, name, rank, attempt, seq"
        rows = _source(shelf, columns, again=True)
        view += f" UNION ALL SELECT DISTINCT ON ({key}) {columns} FROM ({rows})"  # noqa: S608 (our words)
    connection.execute(f"CREATE VIEW points AS {view}")


def _source(shelf: Shelf, columns: str, *, again: bool) -> str:
    """Return the rows of runs in which two files may hold the same row, or of the other runs."""
    numbers = [number for number, (_, _, twice) in enumerate(shelf.files) if twice == again]
    text = (
        f"SELECT {columns} FROM internal.loose JOIN internal.names USING (code) "  # noqa: S608 (our words)
        f"JOIN internal.sources USING (source) WHERE twice = {again}"
    )
    if not numbers:
        return text
    listed = ", ".join(quoted(shelf.files[number][0]) for number in numbers)
    return (
        f"{text} UNION ALL SELECT {columns} FROM (SELECT file_index::BIGINT + {numbers[0]} AS file, {_SEALED} "  # noqa: S608 (quoted)
        f"FROM read_parquet([{listed}], hive_partitioning = false)) "
        "JOIN internal.files USING (file) JOIN internal.sources USING (source)"
    )


def fill_runs(connection: duckdb.DuckDBPyConnection, infos: Sequence[RunInfo]) -> None:
    """Create the view `runs`."""
    columns = {
        **_who(infos),
        **{key: _texts([getattr(info, key) for info in infos]) for key in ("name", "state", "cause", "path")},
        "created": np.array([round(info.created * 1e6) for info in infos], np.int64),
        "duration": np.array([np.nan if info.duration is None else info.duration for info in infos], np.float64),
        "step": np.array([NO_STEP if info.step is None else info.step for info in infos], np.int64),
        "config": _texts([_config(info) for info in infos]),
    }
    taken = {"created": "make_timestamp(created)", "step": f"nullif(step, {NO_STEP})", "cause": "nullif(cause, '')"}
    _filled(connection, "runs", RUNS, columns, taken)


def fill_events(connection: duckdb.DuckDBPyConnection, infos: Sequence[RunInfo]) -> list[str]:
    """Create the view `events`; return what could not be read."""
    found: list[tuple[RunInfo, dict[str, Any]]] = []
    problems: list[str] = []
    for info in infos:
        events, wrong = read_events(RunFolder(info.path))
        found += [(info, event) for event in events]
        problems += [f"{info.path / 'events'}: {problem}" for problem in wrong]
    events = [event for _, event in found]
    whole = {key: np.array([_whole(key, event) for event in events], np.int64) for key in _NUMBERS}
    columns = {
        **_who([info for info, _ in found]),
        "time": np.array([round(event["time"] * 1e6) for event in events], np.int64),
        "kind": _texts([event.get("kind") for event in events]),
        **whole,
        "data": _texts([_data(event) for event in events]),
    }
    taken = {"time": _MOMENT, **{key: f"nullif({key}, {NO_STEP})" for key in whole}}
    _filled(connection, "events", EVENTS, columns, taken)
    return problems


def copy_points(connection: duckdb.DuckDBPyConnection, target: Path, renamed: Sequence[tuple[str, str, float]]) -> None:
    """Write metrics from the view `points` to a Parquet file, ordered by name, rank, attempt and seq.

    `renamed` is each metric's recorded name, the name to write, and the factor for its values. Raises duckdb.Error if
    the file cannot be written.
    """
    columns = {
        "name": _texts([recorded for recorded, _, _ in renamed]),
        "written": _texts([written for _, written, _ in renamed]),
        "factor": np.array([factor for _, _, factor in renamed], np.float64),
    }
    _table(connection, "renamed", columns, "name::VARCHAR AS name, written::VARCHAR AS written, factor")
    chosen = {"name": "written", "value": "CASE WHEN factor = 1 THEN value ELSE value * factor END"}
    listed = ", ".join(f'{chosen.get(column, column)} AS "{column}"' for column in POINTS)
    rows = f"SELECT {listed} FROM points JOIN internal.renamed USING (name) ORDER BY written, rank, attempt, seq"  # noqa: S608
    connection.execute(f"COPY ({rows}) TO {quoted(target)} ({_OPTIONS})")


def strict_json(value: Any) -> str:
    """Return a value as JSON; NaN and infinities become the texts "NaN", "Infinity" and "-Infinity", as in run.json."""
    return json.dumps(strict(value, word), separators=(",", ":"), allow_nan=False)


def _who(infos: Sequence[AnyRun]) -> dict[str, NDArray[Any]]:
    return {"run": _texts([info.id for info in infos]), "project": _texts([info.project for info in infos])}


def _config(info: RunInfo) -> str | None:
    try:
        config = read_meta(RunFolder(info.path)).get("config")
    except StepscopeError:  # the view `runs` shows that it is broken, and why
        return None
    return None if config is None else strict_json(config)


def _data(event: Mapping[str, Any]) -> str:
    """Return the fields of an event beyond the columns, and those of the columns that are not integers."""
    kept = {key for key in _NUMBERS if event.get(key) in (None, NO_STEP) or _whole(key, event) != NO_STEP}
    return strict_json({key: value for key, value in event.items() if key not in kept | {"time", "kind"}})


def _whole(key: str, event: Mapping[str, Any]) -> int:
    value = event.get(key)
    return value if isinstance(value, int) and abs(value) < _NUMBERS[key] else NO_STEP


def _texts(values: Sequence[Any]) -> NDArray[Any]:
    """Return texts as DuckDB accepts them: invalid UTF-8 is replaced, None stays."""
    found = np.empty(len(values), object)
    for place, value in enumerate(values):
        found[place] = None if value is None else str(value).encode("utf-8", "replace").decode()
    return found


def _filled(
    connection: duckdb.DuckDBPyConnection,
    view: str,
    columns: Mapping[str, str],
    data: dict[str, NDArray[Any]],
    taken: Mapping[str, str],
) -> None:
    chosen = ", ".join(f'({taken.get(name, name)})::{kind} AS "{name}"' for name, kind in columns.items())
    _table(connection, view, data, chosen)
    connection.execute(f"CREATE VIEW {view} AS SELECT * FROM internal.{view}")  # noqa: S608 (our words)


def _table(connection: duckdb.DuckDBPyConnection, name: str, columns: dict[str, NDArray[Any]], chosen: str) -> None:
    """Copy columns into a table that only views read."""
    connection.register("given", columns)
    try:
        connection.execute(f"CREATE TABLE internal.{name} AS SELECT {chosen} FROM given")  # noqa: S608 (our words)
    finally:
        connection.unregister("given")


def _intact(unit: SealedUnit) -> bool:
    """Return whether every byte of a unit's points is intact."""
    if unit.sums is None:
        return False
    try:
        return _CHECKED.is_whole(unit.path, unit.sums.points)
    except FileNotFoundError:
        raise
    except OSError:  # it is then read group by group, and the damaged ones are reported
        return False


def _may_repeat(folder: RunFolder, units: Sequence[SealedUnit]) -> bool:
    """Return whether two watchers may have stored rows of one rank and attempt, so that some rows occur twice.

    That happens when a ring is salvaged under another boot id; a watcher itself never writes a row twice.
    """
    writers = {span.path: span.writer for span in [*folder.all_units(), *folder.all_tails()]}
    attempts = Counter(writer.attempt for writer in set(writers.values()))
    suspects = {writer for writer in writers.values() if attempts[writer.attempt] > 1}
    if not suspects:
        return False
    ranks = _ranks(folder, units, writers)
    held = Counter((writer.attempt, rank) for writer in suspects for rank in ranks[writer])
    return any(not ranks[writer] for writer in suspects) or any(count > 1 for count in held.values())


def _ranks(
    folder: RunFolder, units: Sequence[SealedUnit], writers: Mapping[Path, Writer]
) -> defaultdict[Writer, set[int]]:
    """Return the ranks whose rows each watcher holds, as far as known, without the watcher's own rows."""
    found: defaultdict[Writer, set[int]] = defaultdict(set)
    for node in read_nodes(folder)[0]:
        found[Writer(node.node, node.attempt)].update(rank for rank in node.ranks if rank >= 0)
    for unit in units:
        if unit.path in writers:
            found[writers[unit.path]].update(int(rank) for rank in unit.last_seq if int(rank) >= 0)
    return found
