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

METRICS = {
    "utilization.gpu": "utilization_ratio",
    "utilization.memory": "memory_utilization_ratio",
    "memory.used": "memory_used_bytes",
    "memory.free": "memory_free_bytes",
    "memory.total": "memory_total_bytes",
    "temperature.gpu": "temperature_celsius",
    "temperature.memory": "memory_temperature_celsius",
    "power.draw": "power_watts",
    "power.draw.instant": "power_watts",
    "power.draw.average": "power_watts",
    "power.limit": "power_limit_watts",
    "enforced.power.limit": "power_limit_watts",
    "fan.speed": "fan_ratio",
    "clocks.sm": "sm_clock_hertz",
    "clocks.current.sm": "sm_clock_hertz",
    "clocks.gr": "graphics_clock_hertz",
    "clocks.current.graphics": "graphics_clock_hertz",
    "clocks.mem": "memory_clock_hertz",
    "clocks.current.memory": "memory_clock_hertz",
}
"""Queries and their metrics."""
TEXTS = {"timestamp", "name", "gpu_name", "driver_version", "pstate", "count", "vbios_version", "compute_mode"}
IDENTITIES = ("index", "uuid", "gpu_uuid", "pci.bus_id", "gpu_bus_id", "serial", "gpu_serial")
"""Queries that identify a GPU, the simplest first."""
UNITS = {"%": 0.01, "MiB": 2.0**20, "KiB": 2.0**10, "GiB": 2.0**30, "W": 1.0, "mW": 1e-3, "MHz": 1e6, "C": 1.0, "": 1.0}
ABSENT = {
    "",
    "N/A",
    "[N/A]",
    "[Not Supported]",
    "[Unknown Error]",
    "ERR!",
    "[GPU is lost]",
    "[Insufficient Permissions]",
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
class Column:
    """One column of a log."""

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
        found = (
            CELL.fullmatch(cell) if self.query and self.query not in TEXTS and self.query not in IDENTITIES else None
        )
        figure = parsed(found[1]) if found else None
        if found is None or figure is None:
            return None
        return scaled(figure, UNITS.get(found[2] or self.unit, 1.0))


def header(line: str) -> list[Column] | None:
    """Return the columns that a line names, or None if it is not an nvidia-smi header."""
    found = [HEADING.fullmatch(cell) for cell in line.removeprefix("\ufeff").split(",")]
    columns = [Column(each[1], (each[2] or "").strip()) for each in found if each is not None]
    if len(columns) < len(found) or not any(column.query in METRICS for column in columns):
        return None
    return columns


def inferred(rows: Sequence[Sequence[str]]) -> list[Column] | None:
    """Return the columns of rows without a header; None if no cell has a unit."""
    width = Counter(map(len, rows)).most_common(1)[0][0] if rows else 0
    cells = [[row[index] for row in rows if len(row) == width] for index in range(width)]
    units = [_unit(column) for column in cells]
    figures = [_figures(column) for column in cells]
    queries = ["" for _ in cells]
    if not any(units):
        return None
    for unit, order in (
        ("%", ("utilization.gpu", "utilization.memory", "fan.speed")),
        ("MHz", ("clocks.sm", "clocks.mem")),
    ):
        for index, query in zip(_where(units, unit), order, strict=False):
            queries[index] = query
    for index, query in _powers(_where(units, "W"), figures):
        queries[index] = query
    busy = figures[_where(units, "%")[0]] if _where(units, "%") else None
    for index, query in _memories(_where(units, "MiB"), figures, busy):
        queries[index] = query
    _fill_plain(queries, cells, units, figures)
    return [Column(query) for query in queries]


def _unit(cells: Sequence[str]) -> str:
    """Return the unit that most cells of a column have."""
    found = [match[2] or "" for cell in cells if (match := CELL.fullmatch(cell)) is not None]
    return max(set(found), key=found.count) if found else ""


def _figures(cells: Sequence[str]) -> NDArray[np.float64]:
    """Return the numbers of a column; NaN for a cell that is not one."""
    found = (CELL.fullmatch(cell) for cell in cells)
    figures = (parsed(each[1]) if each else None for each in found)
    return np.array([np.nan if figure is None else figure for figure in figures], np.float64)


def _where(units: Sequence[str], unit: str) -> list[int]:
    return [index for index, each in enumerate(units) if each == unit]


def _constant(figures: NDArray[np.float64]) -> bool:
    known = figures[np.isfinite(figures)]
    return len(known) == 0 or bool(known.min() == known.max())


def _powers(places: Sequence[int], figures: Sequence[NDArray[np.float64]]) -> list[tuple[int, str]]:
    """Distinguish the draw from its limit: the limit is constant."""
    if len(places) >= 2 and _constant(figures[places[0]]) and not _constant(figures[places[1]]):
        places = [places[1], places[0]]
    return list(zip(places, ("power.draw", "power.limit"), strict=False))


def _memories(
    places: Sequence[int], figures: Sequence[NDArray[np.float64]], busy: NDArray[np.float64] | None
) -> list[tuple[int, str]]:
    """Distinguish used, free and total: the total is constant, used and free sum to it, and used rises with load."""
    if len(places) == 1:
        return [(places[0], "memory.used")]
    found = []
    parts = list(places)
    largest = max(places, key=lambda place: np.nanmean(np.nan_to_num(figures[place])), default=0)
    if len(parts) == 3 or (len(parts) == 2 and _constant(figures[largest]) and not _sums(figures, parts)):
        found.append((largest, "memory.total"))
        parts.remove(largest)
    if len(parts) == 2 and busy is not None and _together(figures[parts[1]], busy) > _together(figures[parts[0]], busy):
        parts.reverse()
    return found + list(zip(parts, ("memory.used", "memory.free"), strict=False))


def _sums(figures: Sequence[NDArray[np.float64]], places: Sequence[int]) -> bool:
    """Return whether two columns sum to one value while each of them changes."""
    first, second = (figures[place] for place in places)
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
