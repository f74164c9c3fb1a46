"""Runs as an Arrow IPC file (Feather), for pandas, polars, R and whatever maps files into memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stepscope.core.errors import UsageError
from stepscope.core.ring import NO_STEP
from stepscope.exporters.files.portions import chunks, portions

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from stepscope.exporters.files.selection import Metric
    from stepscope.store.points import Points
    from stepscope.store.reader import Past

CHUNK = 1 << 17
"""Rows of a batch at most."""


def write(past: Past, metrics: Sequence[Metric], path: Path) -> None:
    """Write a row a point, in order of name, rank, attempt and seq; a point without a step has the step null.

    The columns are name (text), rank and attempt (int32), seq and step (int64), time (microseconds, UTC) and value
    (double); the metadata of the schema say which run it is.

    Raises:
        UsageError: pyarrow is not installed.
    """
    try:
        import pyarrow as pa  # type: ignore[import-untyped, unused-ignore]
    except ImportError:
        remedy = "pip install pyarrow, or take --format parquet"
        raise UsageError("export arrow", "the package pyarrow is not there", remedy) from None
    schema = pa.schema(
        [
            pa.field("name", pa.string(), nullable=False),
            pa.field("rank", pa.int32(), nullable=False),
            pa.field("attempt", pa.int32(), nullable=False),
            pa.field("seq", pa.int64(), nullable=False),
            pa.field("step", pa.int64()),
            pa.field("time", pa.timestamp("us", "UTC"), nullable=False),
            pa.field("value", pa.float64(), nullable=False),
        ],
        {"stepscope": "1", "run": past.id, "project": past.project, "run_name": past.name},
    )
    with path.open("wb") as stream, pa.ipc.new_file(stream, schema) as writer:
        for metric, points in chunks(portions(past, metrics), CHUNK):
            writer.write_batch(_batch(pa, schema, metric.written, points))


def _batch(pa: Any, schema: Any, name: str, points: Points) -> Any:
    text = name.encode("utf-8", "replace").decode()
    columns = [
        pa.repeat(pa.scalar(text, pa.string()), len(points)),
        pa.array(points.rank, pa.int32()),
        pa.array(points.attempt, pa.int32()),
        pa.array(points.seq, pa.int64()),
        pa.array(points.step, pa.int64(), mask=points.step == NO_STEP),
        pa.array(points.time.astype("datetime64[us]")).cast(pa.timestamp("us", "UTC")),
        pa.array(points.value, pa.float64()),
    ]
    return pa.record_batch(columns, schema=schema)
