"""SQL over all runs: the views points, runs and events, on a connection that can read them and nothing else.

DuckDB's `allowed_paths` lets a query write those files too (a `WITH x AS (COPY … TO …)` counts as a SELECT), so the
plan of every query is checked before it runs.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import duckdb

from stepscope.core.errors import StepscopeError, UsageError
from stepscope.core.names import REPLACEMENT, UNSAFE
from stepscope.store import parquet
from stepscope.store.catalog import runs, runs_root
from stepscope.store.shelf import EVENTS, POINTS, RELISTS, RUNS, Shelf, copy_points, fill_events, fill_points, fill_runs
from stepscope.store.sql_text import quoted

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence
    from pathlib import Path

    from typing_extensions import Self

    from stepscope.store.catalog import RunInfo
    from stepscope.store.shelf import AnyRun

VIEWS = {"points": POINTS, "runs": RUNS, "events": EVENTS}
"""Each view and its columns with their types."""

MEMORY = "2GB"
"""Memory limit of a query; it never spills to disk."""

_WRITES = {"COPY", "INSERT", "UPDATE", "DELETE", "MERGE", "CREATE", "DROP", "ALTER", "ATTACH", "DETACH", "LOAD"}
_WRITES |= {"EXPORT", "EXECUTE", "REGISTER", "DEREGISTER", "DESTROY"}
_EXPLAIN = re.compile(r"\s*EXPLAIN\b(?:\s+ANALYZE\b)?(?:\s*\((?:\s*(?:ANALYZE|FORMAT\s+\w+)\s*,?)+\))?", re.IGNORECASE)
_READ_ONLY = "BEGIN TRANSACTION READ ONLY"
_WITH_ZONE = "TIMESTAMP WITH TIME ZONE"
_BATCH = 2048


@dataclass(frozen=True)
class QueryResult:
    """The result of a query: names and types of its columns, and an iterator over its rows."""

    columns: list[str]
    types: list[str]
    rows: Iterator[tuple[Any, ...]]


class Database:
    """The views of some runs as of its opening, on a locked connection. A context manager; one query at a time."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, problems: Sequence[str]) -> None:
        self._connection = connection
        self.problems = list(problems)
        """What could not be read, and why."""

    def query(self, text: str) -> QueryResult:
        """Run one SELECT (or DESCRIBE, SHOW, SUMMARIZE, EXPLAIN); another call ends the previous result.

        Raises UsageError if it is another statement or invalid, StepscopeError if it is valid but failed.
        """
        text = text.encode("utf-8", "replace").decode()
        with contextlib.suppress(duckdb.Error):  # there is none before the first query
            self._connection.execute("ROLLBACK")
        try:
            self._connection.execute(_READ_ONLY)
            statement = self._checked(text)
            self._connection.execute(text)
            if any(str(column[1]) == _WITH_ZONE for column in self._connection.description):
                self._connection.execute(_without_zones(statement, self._connection.description))
            columns = self._connection.description
        except duckdb.Error as error:
            raise _complaint(error) from error
        names, types = ([str(column[at]) for column in columns] for at in (0, 1))
        return QueryResult(_distinct(names), types, self._rows())

    def close(self) -> None:
        """Release everything."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def _checked(self, text: str) -> str:
        """Return the only statement of a text, if all it does is read."""
        inner = text[match.end() :] if (match := _EXPLAIN.match(text)) else text
        statements = self._connection.extract_statements(inner)
        if len(statements) != 1:
            raise _refusal(f"it has {len(statements)} statements", "give one SELECT")
        kind = statements[0].type.name
        if kind == "MULTI":
            raise _refusal(
                "a PIVOT that finds its columns itself writes", "name them: PIVOT … ON name IN ('loss', 'lr')"
            )
        if kind != "SELECT":
            raise _refusal(f"{kind} is not allowed", "give one SELECT; `stepscope export` writes files")
        plan = self._connection.execute(f"EXPLAIN (FORMAT json) {inner}").fetchall()
        forbidden = sorted({name for _, tree in plan for name in _operators(json.loads(tree)) if _writes(name)})
        if forbidden:
            raise _refusal(f"{forbidden[0]} is not allowed in a SELECT", "leave that part out: a query only reads")
        return statements[0].query.rstrip("; \t\r\n")

    def _rows(self) -> Iterator[tuple[Any, ...]]:
        try:
            while batch := self._connection.fetchmany(_BATCH):
                yield from batch
        except duckdb.Error as error:
            raise _complaint(error) from error


def connect(
    root: str | os.PathLike[str] | None = None,
    views: Collection[str] = tuple(VIEWS),
    threads: int | None = None,
    memory: str = MEMORY,
) -> Database:
    """Open the views over all runs below a folder, as they are now.

    Only `views` are filled; a query on another one fails with an explanation. `threads` is the maximum number of cores
    per query (None: all, at most 4), `memory` DuckDB's limit; nothing is spilled to disk. Raises StepscopeError if
    there is no such folder.
    """
    base = runs_root(root)
    if not base.is_dir():
        remedy = "record a run first, or give the folder that holds your runs with --dir"
        raise StepscopeError(f"read the runs in {base}", "there is no such folder", remedy)
    for attempt in range(RELISTS):
        try:
            return _open(runs(base), views, threads or min(4, os.cpu_count() or 1), memory)
        except (FileNotFoundError, duckdb.IOException) as error:
            if attempt == RELISTS - 1:
                raise StepscopeError(f"read the runs in {base}", error, "try again") from error
    raise AssertionError


def query(root: str | os.PathLike[str] | None, text: str) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Return the columns and all rows of one query over the runs below a folder. Raises StepscopeError."""
    with connect(root, mentioned(text)) as database:
        answer = database.query(text)
        return answer.columns, list(answer.rows)


def mentioned(text: str) -> list[str]:
    """Return the views whose name occurs in a query: only these have to be filled."""
    return [view for view in VIEWS if view in text.lower()]


def write_parquet(
    run: AnyRun, target: Path, renamed: Sequence[tuple[str, str, float]], memory: str = "1GB"
) -> list[str]:
    """Write metrics of one run to a Parquet file with the columns of `points`; return what was unreadable.

    The target is empty or missing; sorting spills beside it. `renamed` is as in `copy_points`, `memory` DuckDB's limit.
    Raises StepscopeError if there is no such run, or DuckDB could not write the file.
    """
    spill = target.with_name(f"{target.name}.spill")
    with contextlib.closing(parquet.connect(min(4, os.cpu_count() or 1), memory)) as connection:
        try:
            connection.execute(f"SET temp_directory = {quoted(spill)}")
            connection.execute("CREATE SCHEMA internal")
            shelf = Shelf([run])
            fill_points(connection, shelf)
            copy_points(connection, target, renamed)
        except duckdb.Error as error:
            what = f"write {target}"
            raise StepscopeError(what, _first_line(error), "make room there, or choose another place") from error
        except FileNotFoundError as error:
            raise StepscopeError(f"read {run.path}", error, "run it again: a file was merged or removed") from error
        finally:
            shutil.rmtree(spill, ignore_errors=True)
        return shelf.problems


def _open(infos: Sequence[RunInfo], views: Collection[str], threads: int, memory: str) -> Database:
    shelf = Shelf([info for info in infos if info.state != "broken"] if "points" in views else [])
    connection = parquet.connect(threads, memory)
    try:
        _lock(connection, shelf.paths)
        connection.execute("CREATE SCHEMA internal")
        fill_runs(connection, infos)
        if "points" in views:
            fill_points(connection, shelf)
        problems = fill_events(connection, infos) if "events" in views else []
        for view, columns in VIEWS.items():
            if view not in views and view != "runs":
                connection.execute(_unfilled(view, columns))
    except BaseException:
        connection.close()
        raise
    return Database(connection, [*shelf.problems, *problems])


def _lock(connection: duckdb.DuckDBPyConnection, files: Sequence[Path]) -> None:
    """Restrict the connection to these files, permanently."""
    # Without ICU this setting does not exist, and no conversion would need it.
    with contextlib.suppress(duckdb.CatalogException):
        connection.execute("SET TimeZone = 'UTC'")
    connection.execute("SET allow_community_extensions = false")
    if files:
        connection.execute(f"SET allowed_paths = [{', '.join(map(quoted, files))}]")
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")


def _unfilled(view: str, columns: dict[str, str]) -> str:
    """Return a view that has its columns and fails when it is read: an empty one would be a lie."""
    nothing = ", ".join(f'NULL::{kind} AS "{name}"' for name, kind in columns.items())
    return f"CREATE VIEW {view} AS SELECT {nothing} WHERE error('the view {view} was not asked for by name')"


def _operators(nodes: Sequence[dict[str, Any]]) -> Iterator[str]:
    for node in nodes:
        yield str(node["name"]).strip().upper()
        yield from _operators(node["children"])


def _writes(operator: str) -> bool:
    return not _WRITES.isdisjoint(re.split(r"\W+|_", operator))


def _without_zones(statement: str, description: Sequence[Sequence[Any]]) -> str:
    """Return the query with its times as UTC without a zone: DuckDB needs another package to return zones."""
    columns = [
        f"#{place}::TIMESTAMP AS {_identifier(column[0])}" if str(column[1]) == _WITH_ZONE else f"#{place}"
        for place, column in enumerate(description, 1)
    ]
    return f"SELECT {', '.join(columns)} FROM ({statement}\n)"  # noqa: S608 (the statement was checked)


def _identifier(name: object) -> str:
    return '"' + str(name).replace('"', '""') + '"'


def _distinct(names: list[str]) -> list[str]:
    """Return column names made unique: a, a becomes a, a_2."""
    taken: set[str] = set()
    for place, name in enumerate(names):
        number, new = 1, name
        while new in taken or (number > 1 and new in names):
            number += 1
            new = f"{name}_{number}"
        taken.add(new)
        names[place] = new
    return names


def _refusal(cause: str, remedy: str) -> UsageError:
    return UsageError("run the query", cause, remedy)


def _complaint(error: duckdb.Error) -> StepscopeError:
    """Return DuckDB's error in our form."""
    what, cause = "run the query", _first_line(error)
    if isinstance(error, duckdb.OutOfMemoryException):
        return StepscopeError(what, cause, "ask for fewer rows or columns, or aggregate them")
    if isinstance(error, duckdb.PermissionException):
        return UsageError(what, cause, "read from the views points, runs and events: nothing else can be opened")
    if isinstance(error, duckdb.IOException):
        return StepscopeError(what, cause, "run it again: a file was merged or removed meanwhile")
    return UsageError(what, cause, "correct it; `DESCRIBE points`, `runs` or `events` lists the columns of a view")


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    hint = next((f" {line}" for line in lines[1:] if line.startswith(("Did you mean", "Candidate bindings"))), "")
    return UNSAFE.sub(REPLACEMENT, (lines[0] if lines else type(error).__name__) + hint)
