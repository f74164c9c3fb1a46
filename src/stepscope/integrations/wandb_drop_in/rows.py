"""What a script hands to `wandb.log`, sorted: numbers, media, distributions, and everything else."""

from __future__ import annotations

import numbers
from typing import Any, NamedTuple

from stepscope.integrations.wandb_drop_in.media import Image, LoggedHistogram, LoggedTable, Media, Plotly, size_facts
from stepscope.integrations.wandb_drop_in.unknown import NOTICES, Unknown
from stepscope.recorder.device import on_device

DEEPEST = 16
"""Levels of nested dicts."""
FEW = 32
"""Elements of an array up to which W&B keeps it as a list, and beyond which as a histogram."""


class SortedRow(NamedTuple):
    """The values of one call, each under its flat name."""

    numbers: dict[str, Any]
    media: dict[str, Any]
    histograms: dict[str, Any]
    """Arrays of many values on the host, and W&B's own histograms."""
    rest: dict[str, Any]
    """Text, lists and other objects."""


def sort_row(data: Any) -> SortedRow:
    """Flatten nested dicts and sort their values; what is no mapping is reported, and gives an empty row."""
    found = SortedRow({}, {}, {}, {})
    with NOTICES.shield("log", "log a row", "pass a dict of names and values"):
        _sort(dict(data), "", found, 0)
    return found


def _sort(data: dict[Any, Any], prefix: str, found: SortedRow, depth: int) -> None:
    if depth > DEEPEST:
        NOTICES.say("deep", f"wandb.log: values more than {DEEPEST} levels below a name are left out; log flat dicts")
        return
    for key, value in data.items():
        with NOTICES.shield("value", "log a value", "the others of its row are recorded"):
            name = f"{prefix}{key}"
            if isinstance(value, dict):
                _sort(value, f"{name}.", found, depth + 1)
            else:
                _part_of(value, found)[name] = value


def _part_of(value: Any, found: SortedRow) -> dict[str, Any]:
    """Return the part of a sorted row that a value belongs to; no tensor is read."""
    if isinstance(value, (LoggedHistogram, Media, LoggedTable)):
        return found.histograms if isinstance(value, LoggedHistogram) else found.media
    if value is None or isinstance(value, (str, bytes, Unknown)):
        return found.rest
    if isinstance(value, numbers.Number):
        return found.rest if isinstance(value, complex) else found.numbers
    shape = getattr(value, "shape", None)
    if shape is not None and hasattr(value, "dtype"):
        return _part_of_array(value, shape, found)
    if isinstance(value, (list, tuple)) and value and isinstance(value[0], (Media, LoggedTable)):
        return found.media
    if _library(value) in {"matplotlib", "plotly", "PIL", "pandas", "bokeh"}:
        return found.media
    return found.rest


def _part_of_array(value: Any, shape: Any, found: SortedRow) -> dict[str, Any]:
    count = 1
    for length in shape:
        count *= int(length)
    if count == 1:
        return found.numbers
    if on_device(value):
        return found.media
    return found.rest if count <= FEW else found.histograms


def _library(value: Any) -> str:
    return str(type(value).__module__).partition(".")[0]


def media_facts(value: Any) -> dict[str, Any]:
    """Return what an event says of a value in the part `media`."""
    if isinstance(value, (list, tuple)):
        parts = [media_facts(item) for item in value]
        sizes = [part["size_bytes"] for part in parts if "size_bytes" in part]
        return {**parts[0], "items": len(parts), **({"size_bytes": sum(sizes)} if sizes else {})}
    if isinstance(value, (Media, LoggedTable)):
        return {"kind": value.kind, **value.describe()}
    library = _library(value)
    if library == "pandas":
        return {"kind": LoggedTable.kind, **LoggedTable(dataframe=value).describe()}
    if library == "PIL":
        return {"kind": Image.kind, **Image(value).describe()}
    if library in {"matplotlib", "plotly", "bokeh"}:
        return {"kind": Plotly.kind}
    return {"kind": "array", "shape": [int(length) for length in value.shape], **size_facts(value)}
