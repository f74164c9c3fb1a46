"""The table of formats that a run can be exported to. Importing it loads no writer: help and errors stay quick."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from stepscope.exporters.files.selection import Metric
    from stepscope.store.reader import Past

    Stream = Callable[[Past, Sequence[Metric], BinaryIO], None]
    File = Callable[[Past, Sequence[Metric], Path], None]


@dataclass(frozen=True)
class Format:
    """A format: its name, suffix and purpose, and its writers."""

    name: str
    suffix: str
    help: str
    write: Stream | None = None
    """Writes to a stream; None if the format needs a file."""
    write_file: File | None = None
    """Writes to an empty or missing file; None if a stream is enough."""
    write_folder: File | None = None
    """Writes files into an empty folder; None if one file is enough."""
    write_wide: Stream | None = None
    """Writes one row per step and one column per metric; None if the format has no such form."""


def _of(module: str, name: str) -> Callable[[Past, Sequence[Metric], Any], None]:
    """Return a writer that is loaded when it is first used."""

    def write(past: Past, metrics: Sequence[Metric], target: Any) -> None:
        getattr(importlib.import_module(f"stepscope.exporters.{module}"), name)(past, metrics, target)

    return write


FORMATS: dict[str, Format] = {
    form.name: form
    for form in (
        Format(
            "csv",
            ".csv",
            "one line per point",
            write=_of("files.csv", "write_long"),
            write_wide=_of("files.csv_wide", "write"),
        ),
        Format("json", ".json", "one document: run, metrics, points, events", write=_of("files.json", "write")),
        Format("jsonl", ".jsonl", "one JSON object per point", write=_of("files.json", "write_lines")),
        Format("grafana", ".json", "a dashboard of the run over Prometheus", write=_of("prometheus.grafana", "write")),
        Format(
            "parquet",
            ".parquet",
            "the columns of the SQL view points",
            write_file=_of("files.columnar", "write_parquet"),
        ),
        Format(
            "arrow", ".arrow", "an Arrow file (Feather), needs pyarrow", write_file=_of("files.columnar", "write_arrow")
        ),
        Format(
            "tensorboard",
            "",
            "event files in a folder, for TensorBoard",
            write_folder=_of("tensorboard.export", "write"),
        ),
    )
}
