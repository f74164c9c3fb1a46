"""Read the operations of a pipelined training from a Parquet file: step, replica, stage, kind, start and duration.

The columns are those of ByteDance's StragglerAnalysis: step, dp_rank, stage, optype, seq_id, start_ts, duration.
"""

from __future__ import annotations

import glob
import os
from typing import TYPE_CHECKING, Any

import numpy as np

from stepscope.core.errors import StepscopeError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

COLUMNS = ("step", "dp_rank", "stage", "optype", "seq_id", "start_ts", "duration")
VIRTUAL = ("gmc", "mb_id")
"""Columns for virtual stages: the part of the model, and the micro-batch, of a pass; a trace may lack them."""
MORE = ("mc", "rank")
"""Part of the model within its stage, and number of the worker; a trace may lack each."""
TYPES = {"optype": "VARCHAR", "start_ts": "DOUBLE", "duration": "DOUBLE"}
"""Types of columns; all others are whole numbers."""
MOST_BYTES, MOST_ROWS = 1 << 30, 5_000_000


def traces_in(path: str) -> Iterator[tuple[str, dict[str, NDArray[Any]]]]:
    """Yield path and columns of a file of operations, or of each one in a folder.

    Raises:
        StepscopeError: a Parquet file is damaged, or of operations and cannot be read.
    """
    for one in sorted(glob.glob(f"{glob.escape(path)}/*.parquet")) if os.path.isdir(path) else [path]:
        columns = read_operations(one)
        if columns is not None:
            yield one, columns


def read_operations(path: str) -> dict[str, NDArray[Any]] | None:
    """Return the columns of a file of operations; None if it is not Parquet, or has other columns.

    A row without a value that it needs is left out, as if it was not recorded.

    Raises:
        StepscopeError: it is one, but too large, damaged, or without such a row.
    """
    if not path.endswith(".parquet") or not os.path.isfile(path):
        return None
    import duckdb  # takes 30 ms: most files are not of this kind

    what = f"read {path}"
    if os.path.getsize(path) > MOST_BYTES:
        raise StepscopeError(what, f"it is larger than {MOST_BYTES >> 20} MiB", "cut it to some steps")
    with duckdb.connect(config={"threads": 1, "autoinstall_known_extensions": False}) as connection:
        try:
            connection.execute("SET enable_progress_bar = false")  # it would appear on stdout after two seconds
            known = connection.execute("SELECT name FROM parquet_schema(?)", [path]).fetchall()
            there = {name for (name,) in known}
            if not set(COLUMNS) <= there:
                return None
            found = connection.execute(_query(there), [path]).fetchnumpy()
        except duckdb.Error as error:
            raise StepscopeError(what, str(error).splitlines()[0], "check that the file is whole") from error
    if len(found["step"]) > MOST_ROWS:
        raise StepscopeError(what, f"it has more than {MOST_ROWS} operations", "cut it to some steps")
    if not len(found["step"]):
        raise StepscopeError(what, "no row has all numbers of an operation", f"check its columns {', '.join(COLUMNS)}")
    return {name: np.ma.getdata(each) for name, each in found.items()}


def _query(there: set[str]) -> str:
    """Return the query of the rows that have all they need; what a row may lack is -1."""
    more = [one for one in (*(VIRTUAL if set(VIRTUAL) <= there else ()), *MORE) if one in there]
    needed = [f"TRY_CAST({one} AS {TYPES.get(one, 'BIGINT')}) AS {one}" for one in COLUMNS]
    asked = ", ".join([*needed, *(f"coalesce(TRY_CAST({one} AS BIGINT), -1) AS {one}" for one in more)])
    whole = " AND ".join(f"{one} IS NOT NULL" for one in COLUMNS)
    return f"SELECT * FROM (SELECT {asked} FROM read_parquet(?)) WHERE {whole} LIMIT {MOST_ROWS + 1}"  # noqa: S608 - constants
