"""The columns of an nvidia-smi CSV log: by its header or, without one, by units, order and values."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from stepscope.importers.words import parsed, scaled

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

QUERIES = {
    "utilization_ratio": ("utilization.gpu",),
    "memory_utilization_ratio": ("utilization.memory",),
    "memory_used_bytes": ("memory.used",),
    "memory_free_bytes": ("memory.free",),
    "memory_total_bytes": ("memory.total",),
    "temperature_celsius": ("temperature.gpu",),
    "memory_temperature_celsius": ("temperature.memory",),
    "power_watts": ("power.draw", "power.draw.instant", "power.draw.average"),
    "power_limit_watts": ("power.limit", "enforced.power.limit"),
    "fan_ratio": ("fan.speed",),
    "sm_clock_hertz": ("clocks.sm", "clocks.current.sm"),
    "graphics_clock_hertz": ("clocks.gr", "clocks.current.graphics"),
    "memory_clock_hertz": ("clocks.mem", "clocks.current.memory"),
}
"""Metrics and their queries."""
METRICS = {query: metric for metric, queries in QUERIES.items() for query in queries}
TEXTS = {"timestamp", "name", "gpu_name", "driver_version", "pstate", "count", "vbios_version", "compute_mode"}
IDENTITIES = ("index", "uuid", "gpu_uuid", "pci.bus_id", "gpu_bus_id", "serial", "gpu_serial")
"""Queries that identify a GPU, the simplest first."""
UNITS = {"%": 0.01, "MiB": 2.0**20, "KiB": 2.0**10, "GiB": 2.0**30, "W": 1.0, "mW": 1e-3, "MHz": 1e6, "C": 1.0, "": 1.0}
ABSENT = {
    *("", "N/A", "[N/A]", "[Not Supported]", "[Unknown Error]", "ERR!", "[GPU is lost]", "[Insufficient Permissions]"),
}
HEADING = re.compile(r"\s*([a-z][\w.]*)\s*(?:\[([^\]]*)\])?\s*")
CELL = re.compile(r"([-+]?[\d.]+)\s*(%|[KMG]iB|m?W|MHz|C)?")
SHAPES = {
    "timestamp": re.compile(r"\d{4}/\d\d/\d\d "),
    "uuid": re.compile(r"GPU-"),
    "pci.bus_id": re.compile(r"[0-9A-Fa-f]{4,8}:[0-9A-Fa-f:.]+$"),
    "name": re.compile(r".*[A-Za-z]{3}"),
}
"""What the texts of a column without a header look like."""


@dataclass(frozen=True)
class QueryColumn:
    """One column of a log: what was asked of nvidia-smi."""

    query: str
    """As nvidia-smi's help names it; empty if unknown."""
    unit: str = ""
    """Unit of the cells that have none."""

    @property
    def metric(self) -> str:
        """Name of the metric, without the GPU."""
        return METRICS.get(self.query, self.query.replace(".", "_"))

    def value(self, cell: str) -> float | None:
        """Return a cell in its base unit; None if it is absent or not a measurement."""
        if not self.query or self.query in TEXTS or self.query in IDENTITIES:
            return None
        found = CELL.fullmatch(cell)
        figure = parsed(found[1]) if found else None
        return scaled(figure, UNITS.get(found[2] or self.unit, 1.0)) if found and figure is not None else None


def header(line: str) -> list[QueryColumn] | None:
    """Return the columns that a line names, or None if it is not an nvidia-smi header."""
    found = [HEADING.fullmatch(cell) for cell in line.removeprefix("\ufeff").split(",")]
    columns = [QueryColumn(each[1], (each[2] or "").strip()) for each in found if each is not None]
    if len(columns) < len(found) or not any(column.query in METRICS for column in columns):
        return None
    return columns


def inferred(rows: Sequence[Sequence[str]]) -> list[QueryColumn] | None:
    """Return the columns of rows without a header; None if no cell has a unit."""
    width = Counter(map(len, rows)).most_common(1)[0][0] if rows else 0
    cells = [[row[index] for row in rows if len(row) == width] for index in range(width)]
    units = [_unit(column) for column in cells]
    if not any(units):
        return None
    figures = [_figures(column) for column in cells]
    percent, clocks, powers, memories = (
        [index for index, each in enumerate(units) if each == unit] for unit in ("%", "MHz", "W", "MiB")
    )
    busy = figures[percent[0]] if percent else None
    known = {
        **dict(zip(percent, ("utilization.gpu", "utilization.memory", "fan.speed"), strict=False)),
        **dict(zip(clocks, ("clocks.sm", "clocks.mem"), strict=False)),
        **_powers(powers, figures),
        **_memories(memories, figures, busy),
    }
    queries = [known.get(index, "") for index in range(width)]
    _fill_plain(queries, cells, units, figures)
    return [QueryColumn(query) for query in queries]


def _unit(cells: Sequence[str]) -> str:
    found = [match[2] or "" for cell in cells if (match := CELL.fullmatch(cell)) is not None]
    return max(set(found), key=found.count) if found else ""


def _figures(cells: Sequence[str]) -> NDArray[np.float64]:
    """Return the numbers of a column; NaN for a cell that is not one."""
    found = (CELL.fullmatch(cell) for cell in cells)
    figures = (parsed(each[1]) if each else None for each in found)
    return np.array([np.nan if figure is None else figure for figure in figures], np.float64)


def _constant(figures: NDArray[np.float64]) -> bool:
    known = figures[np.isfinite(figures)]
    return len(known) == 0 or bool(known.min() == known.max())


def _powers(places: Sequence[int], figures: Sequence[NDArray[np.float64]]) -> dict[int, str]:
    """Distinguish the draw from its limit: the limit is constant."""
    if len(places) >= 2 and _constant(figures[places[0]]) and not _constant(figures[places[1]]):
        places = [places[1], places[0]]
    return dict(zip(places, ("power.draw", "power.limit"), strict=False))


def _memories(
    places: Sequence[int], figures: Sequence[NDArray[np.float64]], busy: NDArray[np.float64] | None
) -> dict[int, str]:
    """Distinguish used, free and total: the total is constant, used and free sum to it, and used rises with load."""
    if len(places) == 1:
        return {places[0]: "memory.used"}
    found: dict[int, str] = {}
    parts = list(places)
    largest = max(places, key=lambda place: np.nanmean(np.nan_to_num(figures[place])), default=0)
    if len(parts) == 3 or (len(parts) == 2 and _constant(figures[largest]) and not _sums(*(figures[i] for i in parts))):
        found[largest] = "memory.total"
        parts.remove(largest)
    if len(parts) == 2 and busy is not None and _together(figures[parts[1]], busy) > _together(figures[parts[0]], busy):
        parts.reverse()
    return found | dict(zip(parts, ("memory.used", "memory.free"), strict=False))


def _sums(first: NDArray[np.float64], second: NDArray[np.float64]) -> bool:
    """Return whether two columns sum to one value while each of them changes."""
    return _constant(first + second) and not _constant(first)


def _together(one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    """Return the correlation of two columns; 0 if one is constant or unknown."""
    known = np.isfinite(one) & np.isfinite(other)
    if known.sum() < 3 or _constant(one[known]) or _constant(other[known]):
        return 0.0
    with np.errstate(all="ignore"):
        return float(np.corrcoef(one[known], other[known])[0, 1])


def _fill_plain(
    queries: list[str], cells: Sequence[Sequence[str]], units: Sequence[str], figures: Sequence[NDArray[np.float64]]
) -> None:
    """Identify the columns without a unit: time, identity, index and temperature."""
    temperatures = iter(("temperature.gpu", "temperature.memory"))
    for index, column in enumerate(cells):
        if queries[index] or units[index] or not column:
            continue
        known = figures[index][np.isfinite(figures[index])]
        leads = not any(units[:index])
        if len(known) == 0:
            queries[index] = next((query for query, shape in SHAPES.items() if shape.match(column[0])), "")
        elif leads and known.max() < 16:
            queries[index] = "index"
        elif known.min() >= 5 and known.max() <= 130:
            queries[index] = next(temperatures, "")
