"""Runs as one Parquet file with the columns of the SQL view `points`, for pandas, polars, DuckDB and Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepscope.store.shelf import Source
from stepscope.store.sql import write_parquet

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from stepscope.exporters.files.selection import Metric
    from stepscope.store.reader import Past

MEMORY = "200MB"
"""What DuckDB may hold while it sorts; more goes to the disk beside the file. Ten million points took no longer so."""


def write(past: Past, metrics: Sequence[Metric], path: Path) -> None:
    """Write a row a point, in order of name, rank, attempt and seq.

    Raises:
        StepscopeError: it cannot be written.
    """
    write_parquet(Source(past.path, past.id, past.project), path, metrics, MEMORY)
