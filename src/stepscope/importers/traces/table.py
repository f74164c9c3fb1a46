"""Columns that are filled, thinned in place and returned without a copy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from stepscope.core.trace import Sparse

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Column = NDArray[Any]
    Rare = dict[str, tuple[Column, Column]]
    """Rare columns by argument: rows, values."""

SPARE = 1 << 20
"""Room for rows beyond the limit: one batch more than may be kept."""


class Table:
    """Columns of equal length, and rare columns beside them."""

    def __init__(self, most: int) -> None:
        """Start empty; about this many rows will be kept."""
        self.most = most
        self.columns: dict[str, Column] = {}
        self.count = 0
        self.rare: dict[str, list[tuple[Column, Column]]] = {}

    def __len__(self) -> int:
        """Return the number of rows."""
        return self.count

    def add(self, columns: dict[str, Column], rare: Rare) -> None:
        """Append rows."""
        fresh = len(columns["start"])
        for key, column in columns.items():
            self._room(key, column.dtype, self.count + fresh)[self.count : self.count + fresh] = column
        for key, (rows, values) in rare.items():
            self.rare.setdefault(key, []).append(((rows + self.count).astype(np.int32), values))
        self.count += fresh

    def _room(self, key: str, dtype: Any, size: int) -> Column:
        """Return a column with room for this many rows of a type. Unused room takes only address space."""
        held = self.columns.get(key)
        if held is not None and size <= len(held) and dtype.itemsize <= held.dtype.itemsize:
            return held
        wider = dtype if held is None or dtype.itemsize > held.dtype.itemsize else held.dtype
        larger = np.empty(max(size, self.most + SPARE), wider)
        if held is not None:
            larger[: self.count] = held[: self.count]
        self.columns[key] = larger
        return larger

    def view(self, key: str) -> Column:
        """Return a column as it is."""
        return self.columns[key][: self.count] if key in self.columns else np.zeros(0, np.int64)

    def keep(self, kept: NDArray[np.bool_]) -> None:
        """Drop all other rows."""
        size = int(kept.sum())
        for column in self.columns.values():
            column[:size] = column[: self.count][kept]
        place = np.cumsum(kept, dtype=np.int32) - 1
        for key, parts in self.rare.items():
            self.rare[key] = [(place[rows[own]], values[own]) for rows, values in parts if (own := kept[rows]).any()]
        self.count = size

    def take(self, key: str) -> Column:
        """Return a column and release it."""
        column = self.columns.pop(key, np.zeros(0, np.int64))
        column.resize(self.count, refcheck=False)
        return column

    def sparse(self) -> dict[str, Sparse]:
        """Return the rare columns and release them."""
        found = {}
        while self.rare:
            key, parts = self.rare.popitem()
            if parts:
                rows = np.concatenate([rows for rows, _ in parts])
                found[key] = Sparse(rows, np.concatenate([values for _, values in parts]))
        return found
