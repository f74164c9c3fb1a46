"""What a script hands to a tracker: numbers, nested dicts, tensors, and things that are kept as events only."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from stepscope.recorder.device import on_device

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

MOST_DEPTH = 20
"""Levels of nested dicts beyond which values are left out."""
_PYTHONS = frozenset((float, int, bool))
KINDS = {
    **dict.fromkeys(("str", "Text", "Markdown"), "text"),
    **dict.fromkeys(("Image", "PngImageFile", "JpegImageFile"), "image"),
    **dict.fromkeys(("Table", "JoinedTable", "PartitionedTable", "DataFrame", "Dataframe"), "table"),
    **dict.fromkeys(("Figure", "Plotly", "CustomChart", "Visualize", "ECharts", "Echarts"), "figure"),
    **dict.fromkeys(("Histogram", "Distribution"), "histogram"),
    **dict.fromkeys(("Audio", "Video", "Html", "Object3D", "Molecule", "Artifact", "File"), ""),
}
"""Kind of an event by the class of what was logged; empty: the class's own name in lower case."""


def flat(values: Mapping[Any, Any], joint: str = ".", above: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Yield the items of nested dicts, with their keys joined."""
    for key, value in values.items():
        name = f"{above}{key}"
        if isinstance(value, dict) and depth < MOST_DEPTH:
            yield from flat(value, joint, f"{name}{joint}", depth + 1)
        else:
            yield name, value


def host_number(value: Any) -> Any:
    """Return a number that is in this process's memory, as one that holds on to nothing; None for anything else."""
    kind = type(value)
    if kind in _PYTHONS:
        return value
    if not hasattr(kind, "dtype") or count_of(value) != 1 or on_device(value):
        return None
    number = value.item()
    return number if type(number) in _PYTHONS else None


def device_scalar(value: Any) -> bool:
    """Return whether this is a single number on a device."""
    return hasattr(type(value), "dtype") and on_device(value) and count_of(value) == 1


def count_of(value: Any) -> int:
    """Return how many elements a tensor or an array has; never reads it."""
    count = value.numel() if hasattr(value, "numel") else value.size
    return count if isinstance(count, int) else 0


def describe(value: Any, kind: str = "") -> dict[str, Any] | None:
    """Return the kind of something logged, and its size in bytes where it is known; None if it is an array on the host.

    A histogram that is there as bins and counts is returned whole.
    """
    is_list = isinstance(value, (list, tuple)) and bool(value)
    first = value[0] if is_list else value
    kind = kind or _kind_of(first)
    if kind == "array" and not is_list and not on_device(value):
        return None
    if kind == "histogram" and hasattr(first, "bins") and hasattr(first, "histogram"):
        return {"kind": kind, **_histogram(first)}
    sizes = [size_of(one) for one in (value if is_list else (value,))]
    found: dict[str, Any] = {"kind": kind, "items": len(sizes)} if is_list else {"kind": kind}
    return found if None in sizes else found | {"size_bytes": sum(filter(None, sizes))}


def _histogram(value: Any) -> dict[str, Any]:
    counts, edges = [int(one) for one in value.histogram], [float(one) for one in value.bins]
    return {"edges": edges, "counts": counts, "count": sum(counts), "nonfinite": 0}


def _kind_of(value: Any) -> str:
    name = type(value).__name__
    if hasattr(type(value), "dtype"):
        return "array"
    return KINDS.get(name, "object") or name.lower()


def size_of(value: Any) -> int | None:
    """Return the bytes of something, if its object says so or it is the path of a file; else None."""
    if isinstance(value, str):
        return len(value.encode(errors="replace"))
    if isinstance(value, os.PathLike):
        return os.path.getsize(value) if os.path.isfile(value) else None
    for name in ("nbytes", "_size", "size"):  # arrays; media and artifacts of W&B
        size = getattr(value, name, None)
        if isinstance(size, int) and not isinstance(size, bool):
            return size
    return None
