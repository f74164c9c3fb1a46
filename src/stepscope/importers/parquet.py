"""Parquet files of other tools and of our own exports, read by DuckDB with one thread and little memory."""

from __future__ import annotations

import os
import tempfile
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

from stepscope.core.errors import StepscopeError
from stepscope.importers.source import FileHead, unreadable

if TYPE_CHECKING:
    from collections.abc import Iterator

    import duckdb

MAGIC = b"PAR1"
BATCH = 1 << 16
"""Rows read at once."""
WILDCARDS = "*?["


@cache
def _database(_process: int) -> duckdb.DuckDBPyConnection:
    """Return the database of this process; a new one takes ten times as long as the head of a file."""
    import duckdb

    return duckdb.connect(config={"threads": "1", "memory_limit": "512MB"})


@contextmanager
def connected(path: str, remedy: str = "check the file") -> Iterator[tuple[duckdb.DuckDBPyConnection, str]]:
    """Yield a connection, and the path to give to `read_parquet`; an error of DuckDB names the file."""
    import duckdb

    with tempfile.TemporaryDirectory(prefix="stepscope-") as folder:
        place = path
        if any(sign in path for sign in WILDCARDS):  # DuckDB would take it for a pattern
            place = os.path.join(folder, "file.parquet")
            os.symlink(os.path.abspath(path), place)
        try:
            with _database(os.getpid()).cursor() as connection:
                connection.execute("SET enable_progress_bar = false")  # it would appear on stdout after two seconds
                yield connection, place
        except (duckdb.Error, RuntimeError, UnicodeError) as error:  # the others for text that is no UTF-8
            if isinstance(error, (duckdb.FatalException, duckdb.InternalException)):
                _database.cache_clear()  # it refuses everything from now on
            cause = str(error).partition("\n")[0]
            raise unreadable(path, f"it is no Parquet file of points ({cause})", remedy) from error


def columns(head: FileHead) -> list[str]:
    """Return the names of a file's columns; none if it is not a whole Parquet file."""
    if not head.data.startswith(MAGIC):
        return []
    try:
        with connected(head.path) as (connection, place):
            return [str(name) for name, *_ in connection.execute("FROM read_parquet($1) LIMIT 0", [place]).description]
    except StepscopeError:
        return []


def rows(path: str, query: str, remedy: str = "check the file") -> Iterator[list[tuple[Any, ...]]]:
    """Yield the result of a query over a file in batches; `$1` stands for its path."""
    with connected(path, remedy) as (connection, place):
        found = connection.execute(query, [place])
        while batch := found.fetchmany(BATCH):
            yield batch
