"""Write a run as an Arrow IPC file (Feather) or as one Parquet file, for pandas, polars, R, DuckDB and Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepscope.core.errors import UsageError
from stepscope.core.ring import NO_STEP
from stepscope.exporters.files.portions import chunks, portions
from stepscope.store import sql

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from stepscope.exporters.files.selection import ExportedMetric
    from stepscope.store.reader import Past

CHUNK = 1 << 17
"""Rows of a batch at most."""
MEMORY = "200MB"
"""What DuckDB may hold while it sorts; more goes to the disk beside the file. Ten million points took no longer so."""


def write_arrow(past: Past, metrics: Sequence[ExportedMetric], path: Path) -> None:
    """Write one row per point, ordered by name, rank, attempt and seq; a missing step is null.

    The columns are name (text), rank and attempt (int32), seq and step (int64), time (microseconds, UTC) and value
    (double); the metadata of the schema name the run.

    Raises:
        UsageError: pyarrow is not installed.
    """
    try:
        import pyarrow as pa  # type: ignore[import-untyped, unused-ignore]
    except ImportError:
        remedy = "pip install pyarrow, or use --format parquet"
        raise UsageError("export arrow", "pyarrow is not installed", remedy) from None
    columns = {
        "name": pa.string(),
        "rank": pa.int32(),
        "attempt": pa.int32(),
        "seq": pa.int64(),
        "step": pa.int64(),
        "time": pa.timestamp("us", "UTC"),
        "value": pa.float64(),
    }
    schema = pa.schema(
        [pa.field(name, kind, nullable=name == "step") for name, kind in columns.items()],
        {"stepscope": "1", "run": past.id, "project": past.project, "run_name": past.name},
    )
    with path.open("wb") as stream, pa.ipc.new_file(stream, schema) as writer:
        for metric, points in chunks(portions(past, metrics), CHUNK):
            text = metric.written.encode("utf-8", "replace").decode()
            arrays = [
                pa.repeat(pa.scalar(text, pa.string()), len(points)),
                *(pa.array(getattr(points, name), columns[name]) for name in ("rank", "attempt", "seq")),
                pa.array(points.step, columns["step"], mask=points.step == NO_STEP),
                pa.array(points.time.astype("datetime64[us]")).cast(columns["time"]),
                pa.array(points.value, columns["value"]),
            ]
            writer.write_batch(pa.record_batch(arrays, schema=schema))


def write_parquet(past: Past, metrics: Sequence[ExportedMetric], path: Path) -> None:
    """Write one row per point, with the columns of the SQL view `points`, ordered by name, rank, attempt and seq.

    Raises:
        StepscopeError: it cannot be written.
    """
    sql.write_parquet(past, path, metrics, MEMORY)
