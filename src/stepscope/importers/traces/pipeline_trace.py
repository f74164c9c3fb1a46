"""Read the operations of a pipelined training from a Parquet file: step, replica, stage, kind, start and duration.

The columns are those of ByteDance's StragglerAnalysis: step, dp_rank, stage, optype, seq_id, start_ts, duration.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np

from stepscope.core.errors import StepscopeError

if TYPE_CHECKING:
    from numpy.typing import NDArray

COLUMNS = ("step", "dp_rank", "stage", "optype", "seq_id", "start_ts", "duration")
VIRTUAL = ("gmc", "mb_id")
"""Columns for virtual stages: the part of the model, and the micro-batch, of a pass; a trace may lack them."""
MORE = ("mc", "rank")
"""Part of the model within its stage, and number of the worker; a trace may lack each."""
MOST_BYTES, MOST_ROWS = 1 << 30, 5_000_000


def read_operations(path: str) -> dict[str, NDArray[Any]] | None:
    """Return the columns of a file of operations; None if it is not Parquet, or has other columns.

    Raises:
        StepscopeError: it is one, but too large or damaged.
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
            names = (*COLUMNS, *(VIRTUAL if set(VIRTUAL) <= there else ()), *(one for one in MORE if one in there))
            query = f"SELECT {', '.join(names)} FROM read_parquet(?) LIMIT {MOST_ROWS + 1}"  # noqa: S608 - constants
            found = connection.execute(query, [path]).fetchnumpy()
        except duckdb.Error as error:
            raise StepscopeError(what, str(error).splitlines()[0], "check that the file is whole") from error
    if len(found["step"]) > MOST_ROWS:
        raise StepscopeError(what, f"it has more than {MOST_ROWS} operations", "cut it to some steps")
    return {name: np.ma.getdata(found[name]) for name in names}
