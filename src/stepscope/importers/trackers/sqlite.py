"""SQLite databases of other tools: read-only, with no trust in their schema.

Nothing is written beside a database, and its writer never waits for us: each batch of rows is a transaction of its own.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import sqlite3
import tempfile
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from stepscope.importers.source import AT_END, BROKEN, MOST_BYTES, FileHead, goes_on, opened, unreadable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from stepscope.importers.run_builder import RunBuilders

MAGIC = b"SQLite format 3\x00"
BATCH = 20_000
"""Rows read at once; a writer may have to wait that long, which is some 20 ms."""
LIMIT_LENGTH = 0
"""SQLite's number of the limit for one value."""
MOST_CELL = 16 * 2**20
"""Maximum bytes of one value; a longer one ends the reading."""
MOST_WORK = 200_000_000
"""Maximum instructions of SQLite's machine for one statement; a batch takes a million."""
WAIT_SECONDS, FOLLOWED_WAIT_SECONDS = 5.0, 0.05
"""How long to wait for a lock: a followed database is tried again at the next look."""
DAMAGE = (sqlite3.Error, UnicodeDecodeError, MemoryError)
"""What SQLite raises for a damaged file: its message may quote bytes that are no text, a length may be absurd."""
WAL_MODE = b"\x02"
"""Byte 18 of a database that has a write-ahead log."""


def look(path: str, read: Callable[[sqlite3.Connection], None], runs: RunBuilders) -> None:
    """Call `read` with a connection: once, or again and again while the database is followed.

    Raises:
        StepscopeError: it is locked, or damaged before any run could be read.
    """
    while True:
        locked = False
        try:
            with connected(path) as connection:
                read(connection)
        except DAMAGE as error:
            locked = "locked" in str(error)
            damage = f"the database is damaged ({error})"
            if not locked and not any(run.columns for run in runs.by_key.values()):
                raise unreadable(path, damage, "check whether it was cut, or give a backup of it") from error
            if not locked:
                runs.note(f"{damage}: what follows is not read")
        if goes_on():
            continue
        if locked:
            raise unreadable(path, "another program keeps the database locked", "try again when it has ended")
        return


@contextmanager
def connected(path: str) -> Iterator[sqlite3.Connection]:
    """Open a database for reading; texts come as bytes.

    A private copy is read where SQLite would have to write beside the original, and of a packed file.
    """
    with contextlib.ExitStack() as stack:
        connection = None
        mode = _mode(path)
        if mode:
            try:
                connection = _open(path, mode)
            except sqlite3.OperationalError as error:
                if "locked" in str(error):
                    raise
        if connection is None:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="stepscope-"))
            connection = _open(_copy(path, folder), "rw")
        stack.enter_context(contextlib.closing(connection))
        yield connection


def _mode(path: str) -> str:
    """Return how to open a database; empty if only a copy can be read without a change beside it."""
    with opened(path) as stream:
        if isinstance(stream, gzip.GzipFile):
            return ""
        start = stream.read(20)
    if start[18:19] != WAL_MODE:
        return "ro"
    if not os.path.exists(f"{path}-wal"):
        return "ro&immutable=1"  # nobody has it open; a plain connection would leave two files beside it
    return "ro" if os.path.exists(f"{path}-shm") else ""


def _open(path: str, mode: str) -> sqlite3.Connection:
    wait = WAIT_SECONDS if AT_END.get(None) is None else FOLLOWED_WAIT_SECONDS
    place = f"file:{quote(os.path.abspath(path))}?mode={mode}"
    connection = sqlite3.connect(place, uri=True, timeout=wait, isolation_level=None)
    try:
        connection.text_factory = bytes
        if hasattr(connection, "setlimit"):  # Python 3.11
            connection.setlimit(LIMIT_LENGTH, MOST_CELL)
        connection.set_progress_handler(lambda: 1, MOST_WORK)
        for setting in ("trusted_schema = OFF", "query_only = ON", "cell_size_check = ON", "mmap_size = 0"):
            connection.execute(f"PRAGMA {setting}")
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except DAMAGE:
        connection.close()
        raise
    return connection


def _copy(path: str, folder: str) -> str:
    """Copy a database with its log or journal, and return where the copy is."""
    copy = os.path.join(folder, "database")
    left = MOST_BYTES
    for ending in ("", "-wal", "-journal"):
        if ending and not os.path.exists(path + ending):
            continue
        try:
            with opened(path + ending) as source, open(copy + ending, "wb") as target:
                while piece := source.read(2**20):
                    left -= len(piece)
                    if left < 0:
                        raise unreadable(path, f"it is larger than {MOST_BYTES >> 30} GiB", "close its writer first")
                    target.write(piece)
        except BROKEN as error:
            raise unreadable(path, f"the packed file is damaged ({error})", "unpack it yourself") from error
    return copy


def columns(connection: sqlite3.Connection, table: str) -> set[str]:
    """Return the stored columns of a table: none of a view or a virtual table, and no computed one."""
    found = connection.execute("SELECT rootpage FROM sqlite_master WHERE type = 'table' AND name = ?", (table,))
    if not any(page for (page,) in found):
        return set()
    return {text(row[1]) for row in connection.execute(f'PRAGMA table_xinfo("{table}")') if row[6] == 0}


def has_tables(head: FileHead, wanted: dict[str, Sequence[str]]) -> bool:
    """Return whether a file is a database with these tables and columns."""
    if not head.data.startswith(MAGIC):
        return False
    try:
        with connected(head.path) as connection:
            return all(columns(connection, table).issuperset(needed) for table, needed in wanted.items())
    except DAMAGE as error:
        if "locked" in str(error):
            raise unreadable(head.path, "another program keeps the database locked", "try again later") from error
        raise unreadable(head.path, f"the database is damaged ({error})", "check whether it was cut") from error


def new_rows(
    connection: sqlite3.Connection, table: str, wanted: Sequence[str], after: int = -(2**63)
) -> Iterator[list[tuple[Any, ...]]]:
    """Yield the rows past a row number in batches: the row number, and the wanted columns (None if absent)."""
    known = columns(connection, table)
    names = ", ".join(f'"{name}"' if name in known else "NULL" for name in wanted)
    query = f'SELECT rowid, {names} FROM "{table}" NOT INDEXED WHERE rowid > ? ORDER BY rowid LIMIT {BATCH}'  # noqa: S608 - our own names
    while known:
        rows = connection.execute(query, (after,)).fetchall()
        if not rows or not isinstance(rows[-1][0], int) or rows[-1][0] <= after:
            return
        yield rows
        after = rows[-1][0]


def text(value: Any) -> str:
    """Return a value as text; invalid UTF-8 is replaced."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else "" if value is None else str(value)
