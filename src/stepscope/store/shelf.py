"""What SQL reads: the sealed files that are intact, and tables of everything that DuckDB may not read itself."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np

from stepscope.core.errors import StepscopeError
from stepscope.store.checksum import Checked
from stepscope.store.events import read_events
from stepscope.store.layout import RunFolder, Writer
from stepscope.store.meta import read_meta
from stepscope.store.points import NO_NS, NO_STEP, Points, distinct
from stepscope.store.sealed import read_points
from stepscope.store.snapshot import take_snapshot
from stepscope.store.states import read_nodes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import duckdb
    from numpy.typing import NDArray

    from stepscope.store.catalog import RunInfo
    from stepscope.store.sealed import Sealed

POINTS = {
    "run": "VARCHAR",
    "project": "VARCHAR",
    "name": "VARCHAR",
    "rank": "INTEGER",
    "attempt": "INTEGER",
    "seq": "BIGINT",
    "step": "BIGINT",
    "time": "TIMESTAMP",
    "value": "DOUBLE",
    "ns": "BIGINT",
}
RUNS = {
    "run": "VARCHAR",
    "project": "VARCHAR",
    "name": "VARCHAR",
    "state": "VARCHAR",
    "cause": "VARCHAR",
    "created": "TIMESTAMP",
    "duration": "DOUBLE",
    "step": "BIGINT",
    "path": "VARCHAR",
    "config": "VARCHAR",
}
EVENTS = {
    "run": "VARCHAR",
    "project": "VARCHAR",
    "time": "TIMESTAMP",
    "kind": "VARCHAR",
    "rank": "INTEGER",
    "attempt": "INTEGER",
    "step": "BIGINT",
    "data": "VARCHAR",
}

_LATEST = 9 * 10**18
"""Microseconds from 1970 beyond which DuckDB has no time."""
_TIME = f'CASE WHEN "time" BETWEEN -{_LATEST} AND {_LATEST} THEN make_timestamp("time") END AS "time"'
_SEALED = f"""name, rank, attempt, seq, step, {_TIME}, coalesce(value, ns / 1e9, 'nan'::DOUBLE) AS value, ns"""
_LOOSE = f"""name, rank, attempt, seq, nullif(step, {NO_STEP}) AS step, {_TIME}, bits::BIT::DOUBLE AS value,
    nullif(ns, {NO_NS}) AS ns"""
_CHECKED = Checked(65_536)


class Shelf:
    """The points of some runs at one moment: files for DuckDB to read, and points that it must be given.

    A unit that is not wholly as it was written is read by us, which leaves out what is damaged, and so are tails.
    """

    def __init__(self, infos: Sequence[RunInfo], *, read_points: bool = True) -> None:
        """List the files, compare them with their checksums, and read what DuckDB may not.

        Raises:
            FileNotFoundError: a file went away; look again.
        """
        self.infos = list(infos)
        self.files: list[tuple[Path, int, bool]] = []
        """Each file, the index of its run, and whether its rows may stand in another file too."""
        self.loose: list[tuple[int, bool, Points]] = []
        self._problems: dict[str, None] = {}
        for index, info in enumerate(self.infos if read_points else ()):
            if info.state != "broken":
                self._add(index, RunFolder(info.path))

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


def fill_points(connection: duckdb.DuckDBPyConnection, shelf: Shelf) -> None:
    """Make the view `points`; a row that two files may hold appears once.

    Raises:
        duckdb.IOException: a file is gone.
    """
    _table(connection, "runs_of_files", _files_columns(shelf), "file, run::VARCHAR AS run, project::VARCHAR AS project")
    _table(connection, "loose", _loose_columns(shelf), "source::VARCHAR AS run, project::VARCHAR AS project, twice, "
           f"name::VARCHAR AS {_LOOSE}")
    columns = ", ".join(f'"{column}"' for column in POINTS)
    once, twice = (_source(shelf, columns, again=again) for again in (False, True))
    if twice:
        once = f"{once} UNION ALL SELECT DISTINCT ON (run, project, name, rank, attempt, seq) {columns} FROM ({twice})"  # noqa: S608 (our words)
    connection.execute(f"CREATE VIEW points AS {once}")


def _source(shelf: Shelf, columns: str, *, again: bool) -> str:
    """Return the rows that do, or do not, come from runs in which two files may hold one row."""
    files = [(number, path) for number, (path, _, twice) in enumerate(shelf.files) if twice == again]
    parts = []
    if files:
        first = files[0][0]  # the files of one kind stand together
        listed = ", ".join(quoted(path) for _, path in files)
        parts.append(
            f"SELECT {columns} FROM (SELECT file_index::BIGINT + {first} AS file, {_SEALED} "  # noqa: S608 (quoted)
            f"FROM read_parquet([{listed}], hive_partitioning = false)) JOIN internal.runs_of_files USING (file)"
        )
    if not again or any(twice for _, twice, _ in shelf.loose):
        parts.append(f"SELECT {columns} FROM internal.loose WHERE twice = {again}")  # noqa: S608 (our words)
    return " UNION ALL ".join(parts)
