"""Points and blocks as Parquet: the queries that DuckDB writes and reads them with.

This module trusts the files; `sealed` verifies them first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import duckdb
import numpy as np

from stepscope.core.ring import NO_STEP
from stepscope.store import pyramid
from stepscope.store.points import NO_NS, Points, columns_of, in_order
from stepscope.store.pyramid import COLUMNS, LEVELS, Blocks
from stepscope.store.sql_text import quoted

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

_OPTIONS = "FORMAT parquet, CODEC zstd, PARQUET_VERSION v2, WRITE_BLOOM_FILTER false, USE_TMP_FILE false"
_POINTS_PER_GROUP = 98_304  # below 100 000, and a multiple of 2048: DuckDB rounds up to one
_BLOCKS_PER_GROUP = 16_384

_STORED_POINTS = f"""name::VARCHAR AS name, rank, attempt, seq, nullif(step, {NO_STEP}) AS step, "time",
    CASE WHEN ns = {NO_NS} THEN bits::BIT::DOUBLE END AS value, nullif(ns, {NO_NS}) AS ns"""
_VALUES = f"""seq, coalesce(step, {NO_STEP}) AS step, "time",
    coalesce(value, ns / 1e9, 'nan'::DOUBLE) AS value, coalesce(ns, {NO_NS}) AS ns"""
_POINTS = f"rank, attempt, {_VALUES}"
_SERIES = ("file", "name", "rank", "attempt", "count", "low", "high", "row")
_FLOATS = ("min", "max", "mean", "last")
_BLOCKS = ", ".join(
    f'coalesce("{column}", \'nan\'::DOUBLE) AS "{column}"' if column in _FLOATS else f'"{column}"'
    for column in COLUMNS
    if column != "name"
)


def connect(threads: int = 1, memory: str = "1GB", writable: Sequence[Path] | None = None) -> duckdb.DuckDBPyConnection:
    """Return a connection that loads nothing, spills nothing and sees no Python variable.

    Creating one takes 20 ms, so frequent readers keep one per thread. `threads` is the maximum number of cores,
    `memory` DuckDB's own limit. If `writable` is given, the connection can open only these files.
    """
    settings: dict[str, str | bool | int | float | list[str]] = {
        "threads": threads,
        "memory_limit": memory,
        "temp_directory": "",
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
        "python_enable_replacements": False,
    }
    connection = duckdb.connect(":memory:", config=settings)
    connection.execute("SET enable_progress_bar = false")  # it would appear on stdout after two seconds
    if writable is not None:
        connection.execute(f"SET allowed_paths = [{', '.join(map(quoted, writable))}]")
        connection.execute("SET enable_external_access = false")
        connection.execute("SET lock_configuration = true")
    return connection


def write_points(connection: duckdb.DuckDBPyConnection, path: Path, points: Points, copy: Callable[..., None]) -> None:
    """Write points, sorted and with a sorted table of names, to an empty file; `copy` runs the query (`Disk.copy`)."""
    # Floats are passed as integers: DuckDB turns a numpy NaN into NULL, and an empty column of names into one of NULL.
    columns = {
        "name": np.array(points.names or [""], dtype=object)[points.name],
        **{key: getattr(points, key) for key in ("rank", "attempt", "seq", "step", "time", "ns")},
        "bits": points.value.view(np.int64),
    }
    nans = points.value[np.isnan(points.value)].view(np.int64)
    # A dictionary merges all NaN; without dictionaries each keeps its bits. Two kinds of NaN in one unit are rare.
    dictionary = ", DICTIONARY_SIZE_LIMIT 0" if len(nans) and nans.min() != nans.max() else ""
    options = f"{_OPTIONS}, ROW_GROUP_SIZE {_POINTS_PER_GROUP}{dictionary}"
    query = f"COPY (SELECT {_STORED_POINTS} FROM p) TO {quoted(path)} ({options})"  # noqa: S608 (quoted)
    _write(connection, columns, query, copy)


def pyramid_columns(points: Points) -> dict[str, NDArray[Any]]:
    """Return the stored form of the pyramid of sorted points, coarsest level first; short series have none."""
    short = pyramid.short_series(points)
    points = points.select(~short) if short.any() else points
    return joined_columns([level_columns(points, level) for level in reversed(LEVELS)])


def level_columns(points: Points, level: int) -> dict[str, NDArray[Any]]:
    """Return the stored form of one pyramid level of sorted points."""
    columns = pyramid.packed(pyramid.build(points, level))
    columns["name"] = np.array(points.names or [""], dtype=object)[columns["name"]]
    columns["level"] = np.full(len(columns["name"]), level, dtype=np.int16)
    return columns


def joined_columns(parts: Sequence[dict[str, NDArray[Any]]]) -> dict[str, NDArray[Any]]:
    """Return the columns of several parts as one, in the given order."""
    return {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}


def write_blocks(
    connection: duckdb.DuckDBPyConnection, path: Path, columns: dict[str, NDArray[Any]], copy: Callable[..., None]
) -> None:
    """Write a pyramid returned by `pyramid_columns`."""
    options = f"{_OPTIONS}, ROW_GROUP_SIZE {_BLOCKS_PER_GROUP}"
    query = f"COPY (SELECT * REPLACE (name::VARCHAR AS name) FROM p) TO {quoted(path)} ({options})"  # noqa: S608 (quoted)
    _write(connection, columns, query, copy)


@dataclass(frozen=True, slots=True)
class Selection:
    """What to read: blocks of the pyramid if a level is given, else points. A filter of None selects everything."""

    names: Collection[str] | None = None
    ranks: Collection[int] | None = None
    attempts: Collection[int] | None = None
    step_range: tuple[int, int] | None = None
    """First and last step, inclusive: of points, which must have a step, or of blocks that overlap the range."""
    level: int | None = None
    time_range: tuple[int, int] | None = None
    """First and last time in microseconds since 1970 UTC, inclusive: of points, or of blocks that overlap the range."""
    hole: tuple[int, int] | None = None
    """First and last of a subrange to leave out, inclusive; for points only."""
    seq_range: tuple[int, int] | None = None
    """First and last sequence, inclusive; for points only."""

    def conditions(self, names: int) -> list[str]:
        """Return the SQL conditions; the parameters of this many names start at $2."""
        found = [
            f"{column} IN ({', '.join(str(int(value)) for value in values) or 'NULL'})"
            for column, values in (("rank", self.ranks), ("attempt", self.attempts))
            if values is not None
        ]
        if self.level is not None:
            found.append(f"level = {int(self.level)}")
            if self.step_range is not None:  # as `pyramid.packed` stores them
                first, last = map(int, self.step_range)
                low, high = "first_step - low_step", "first_step + last_step + high_step"
                found.append(f"coalesce(try({low} <= {last} AND {high} >= {first}), true)")
        else:
            ranges = (("step", self.step_range), ('"time"', self.time_range))
            found += [self._within(key, ends) for key, ends in ranges if ends is not None]
            if self.seq_range is not None:
                found.append(f"seq BETWEEN {int(self.seq_range[0])} AND {int(self.seq_range[1])}")
        if self.names is not None:
            found.append(f"name IN ({', '.join(f'${index + 2}' for index in range(names))})")
        return found

    def _within(self, key: str, ends: tuple[int, int]) -> str:
        parts = [ends] if self.hole is None else [(ends[0], self.hole[0] - 1), (self.hole[1] + 1, ends[1])]
        # Not NOT BETWEEN: DuckDB would read every column of the hole before leaving it out.
        return f"({' OR '.join(f'{key} BETWEEN {int(first)} AND {int(last)}' for first, last in parts)})"


EVERYTHING = Selection()


@dataclass(frozen=True, slots=True)
class Fetched:
    """The columns that were read, and the index of the file of each entry."""

    names: list[str]
    file: NDArray[np.int64]
    columns: dict[str, NDArray[Any]]

    def points(self) -> Points:
        """Return the columns as points."""
        return Points(self.names, **self.columns)

    def blocks(self) -> Blocks:
        """Return the columns as blocks."""
        return pyramid.unpacked(self.names, self.columns)

    def by_file(self) -> Iterator[tuple[int, Points]]:
        """Return the points of each file, in order."""
        points = self.points()
        for file in np.unique(self.file):
            yield int(file), in_order(points.select(self.file == file))


def fetch(
    connection: duckdb.DuckDBPyConnection, selection: Selection, files: Sequence[Path], names: list[str]
) -> Fetched:
    """Read a selection from files; raise duckdb.Error if one is missing or malformed.

    `names` is a sorted table of every name that may occur.
    """
    if not files or not names:
        return Fetched(names, np.empty(0, np.int64), _nothing(selection))
    wanted = [] if selection.names is None else [name for name in names if name in selection.names]
    conditions = selection.conditions(len(wanted))
    code = _name_code(connection, names)
    text = (
        f"SELECT file_index AS file, {code} AS name, {_POINTS if selection.level is None else _BLOCKS} "  # noqa: S608 (our words and integers)
        f"FROM read_parquet($1, hive_partitioning = false) WHERE {' AND '.join(conditions) or 'true'}"
    )
    columns = connection.execute(text, [[str(path) for path in files], *wanted]).fetchnumpy()
    found = {key: np.ma.getdata(column) for key, column in columns.items()}
    found["name"] = found["name"].astype(np.int32)
    return Fetched(names, found.pop("file").astype(np.int64), found)


def join(parts: Sequence[Fetched], selection: Selection) -> Fetched:
    """Return several results of one selection as one."""
    names = sorted({name for part in parts for name in part.names})
    place = {name: index for index, name in enumerate(names)}
    columns = {key: np.concatenate([part.columns[key] for part in parts]) for key in _nothing(selection)}
    codes = [np.array([place[name] for name in part.names], np.int32)[part.columns["name"]] for part in parts]
    return Fetched(names, np.concatenate([part.file for part in parts]), columns | {"name": np.concatenate(codes)})


def survey(connection: duckdb.DuckDBPyConnection, path: Path) -> tuple[dict[str, int], dict[str, int], int, int]:
    """Scan a file of points; return points by name, highest seq by rank, first and last time. Raises duckdb.Error."""
    source = "FROM read_parquet($1, hive_partitioning = false)"
    names = connection.execute(f"SELECT name, count(*) {source} GROUP BY name ORDER BY name", [[str(path)]]).fetchall()
    seqs = connection.execute(f"SELECT rank, max(seq) {source} GROUP BY rank", [[str(path)]]).fetchall()
    times = connection.execute(f'SELECT min("time"), max("time") {source}', [[str(path)]]).fetchall()
    first, last = times[0]
    return dict(names), {str(rank): seq for rank, seq in seqs}, first or 0, last or 0


def series_of(
    connection: duckdb.DuckDBPyConnection, files: Sequence[Path], names: list[str]
) -> dict[str, NDArray[np.int64]]:
    """Scan files; return the series of each, ordered by file, name, rank and attempt.

    Columns: file, name (index into `names`), rank, attempt, count, low and high seq, and its first row in the file.
    Raises duckdb.Error if a file is missing or malformed.
    """
    if not names:
        return {key: np.empty(0, np.int64) for key in _SERIES}
    facts = "count(*) AS count, min(seq) AS low, max(seq) AS high, min(file_row_number) AS row"
    text = (
        f"SELECT * REPLACE ({_name_code(connection, names)} AS name) FROM ("  # noqa: S608 (our words)
        f"SELECT file_index AS file, name, rank, attempt, {facts} "
        "FROM read_parquet($1, hive_partitioning = false) GROUP BY ALL)"
    )
    columns = connection.execute(text, [[str(path) for path in files]]).fetchnumpy()
    found = {key: np.ma.getdata(columns[key]).astype(np.int64) for key in _SERIES}
    order = np.lexsort([found[key] for key in ("attempt", "rank", "name", "file")])
    return {key: column[order] for key, column in found.items()}


def rows_of(
    connection: duckdb.DuckDBPyConnection, files: Sequence[Path], rows: tuple[int, int] | None = None
) -> dict[str, NDArray[Any]]:
    """Return seq, step, time, value, ns and row of all rows of files, or of a range, in file order.

    Raises duckdb.Error if a file is missing or malformed.
    """
    condition = "true" if rows is None else f"file_row_number BETWEEN {int(rows[0])} AND {int(rows[1]) - 1}"
    text = (
        f"SELECT {_VALUES}, file_row_number AS row "  # noqa: S608 (our words and integers)
        f"FROM read_parquet($1, hive_partitioning = false) WHERE {condition}"
    )
    columns = connection.execute(text, [[str(path) for path in files]]).fetchnumpy()
    return {key: np.ma.getdata(column) for key, column in columns.items()}


def _name_code(connection: duckdb.DuckDBPyConnection, names: list[str]) -> str:
    """Return the SQL for a name's index in the table, and register the table with the connection."""
    if len(names) == 1:
        return "0"
    connection.execute("CREATE OR REPLACE TEMP TYPE sealed_name AS ENUM (SELECT unnest($1::VARCHAR[]))", [names])
    return "enum_code(name::sealed_name)"


def _write(
    connection: duckdb.DuckDBPyConnection, columns: dict[str, NDArray[Any]], query: str, copy: Callable[..., None]
) -> None:
    connection.register("p", columns)
    try:
        copy(connection, query)
    finally:
        connection.unregister("p")


def _nothing(selection: Selection) -> dict[str, NDArray[Any]]:
    if selection.level is not None:
        return pyramid.packed(Blocks.empty())
    return {key: getattr(Points.empty(), key) for key in columns_of(Points)}
