"""A table that grows row by row and column by column: what the machine did in one epoch, as CSV."""

from __future__ import annotations

import csv
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

FIRST = ("time", "step")
"""Columns of every table: seconds since 1970 UTC, and the step of the training."""
MOST = 10_000
"""Maximum older tables of one name that are kept."""


class ResourceTable:
    """One CSV file, created with the first row. Rows are not buffered; a missing value is an empty cell."""

    def __init__(self, path: Path, *, resume: bool = False) -> None:
        """Prepare to write `path`; to `resume` is to append to an existing file, which is otherwise renamed."""
        self.path = path
        self._resume = resume
        self._columns: list[str] = []
        self.rows = 0
        """Rows written."""

    def add(self, row: Mapping[str, float]) -> None:
        """Append a row. Raises OSError if that fails."""
        new = [name for name in row if name not in self._columns]
        if not self._columns:
            self._begin(new)
        elif new:
            self._widen(new)
        with self.path.open("a", newline="", encoding="utf-8") as file:
            csv.writer(file).writerow([_text(name, row.get(name)) for name in self._columns])
        self.rows += 1

    def _begin(self, names: list[str]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if self.path.exists():
            if self._resume:
                with self.path.open(newline="", encoding="utf-8") as file:
                    self._columns = next(csv.reader(file), [])
                if self._columns:
                    self._widen([name for name in names if name not in self._columns])
                    return
            else:
                self._keep_old()
        self._columns = [*FIRST, *sorted(set(names) - set(FIRST))]
        with self.path.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerow(self._columns)

    def _keep_old(self) -> None:
        """Rename the table of an earlier training."""
        for number in range(1, MOST):
            kept = self.path.with_name(f"{self.path.stem}.{number}{self.path.suffix}")
            if not kept.exists():
                self.path.rename(kept)
                return

    def _widen(self, names: list[str]) -> None:
        """Add columns: a GPU that answers late has none in the first rows."""
        if not names:
            return
        self._columns += sorted(names)
        draft = self.path.with_suffix(".tmp")
        with self.path.open(newline="", encoding="utf-8") as old, draft.open("w", newline="", encoding="utf-8") as new:
            rows, writer = csv.reader(old), csv.writer(new)
            next(rows, None)
            writer.writerow(self._columns)
            for row in rows:
                writer.writerow([*row, *[""] * (len(self._columns) - len(row))])
        os.replace(draft, self.path)


def _text(name: str, value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.3f}" if name == "time" else f"{value:.9g}"
