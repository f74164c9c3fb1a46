"""The table of formats that a run can be exported to. Importing it loads no writer: help and errors stay quick."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from stepscope.exporters.files.selection import ExportedMetric
    from stepscope.store.reader import Past

    Writer = Callable[[Past, Sequence[ExportedMetric], Any], None]

STREAM, FILE, FOLDER = "stream", "file", "folder"


@dataclass(frozen=True)
class ExportFormat:
    """A format: its name, suffix and purpose, and its writers."""

    name: str
    suffix: str
    help: str
    write: Writer
    target: str = STREAM
    """What `write` takes: a binary stream, the path of an empty or missing file, or that of an empty folder."""
    write_wide: Writer | None = None
    """Writes one row per step and one column per metric to a stream; None if the format has no such form."""


def _of(module: str, name: str) -> Writer:
    """Return a writer that is loaded when it is first used."""

    def write(past: Past, metrics: Sequence[ExportedMetric], target: Any) -> None:
        getattr(importlib.import_module(f"stepscope.exporters.{module}"), name)(past, metrics, target)

    return write


_CSV, _CSV_WIDE = _of("files.csv", "write_long"), _of("files.csv", "write_wide")
_PARQUET, _ARROW = _of("files.columnar", "write_parquet"), _of("files.columnar", "write_arrow")
_TABLE = (
    ExportFormat("csv", ".csv", "one line per point", _CSV, write_wide=_CSV_WIDE),
    ExportFormat("json", ".json", "one document: run, metrics, points, events", _of("files.json", "write")),
    ExportFormat("jsonl", ".jsonl", "one JSON object per point", _of("files.json", "write_lines")),
    ExportFormat("console", ".log", "what the ranks printed, one line each", _of("files.console_log", "write")),
    ExportFormat("grafana", ".json", "a dashboard of the run over Prometheus", _of("prometheus.grafana", "write")),
    ExportFormat("parquet", ".parquet", "the columns of the SQL view points", _PARQUET, FILE),
    ExportFormat("arrow", ".arrow", "an Arrow file (Feather), needs pyarrow", _ARROW, FILE),
    ExportFormat(
        "tensorboard", "", "event files in a folder, for TensorBoard", _of("tensorboard.export", "write"), FOLDER
    ),
)
FORMATS: dict[str, ExportFormat] = {form.name: form for form in _TABLE}
