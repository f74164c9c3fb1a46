"""Points that are decoded in any order, put in order again when they go to a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from stepscope.core.arrays import Floats, Integers
    from stepscope.importers.run_builder import RunBuilder


class GatheredPoints:
    """Points of many metrics; each has a place of its own, which increases along the file."""

    def __init__(self) -> None:
        self._codes: dict[str, int] = {}
        self._columns: list[tuple[Integers, Integers, Integers, Floats, Floats]] = []
        """Place, number of the name, step, time and value of some points."""
        self._single: list[tuple[int, int, int, float, float]] = []

    def code(self, name: str) -> int:
        """Return the number of a name."""
        return self._codes.setdefault(name, len(self._codes))

    def add_columns(self, place: Integers, code: Integers, step: Integers, time: Floats, value: Floats) -> None:
        """Add many points, with the numbers of their names."""
        self._columns.append((place, code, step, time, value))

    def add(self, place: int, name: str, step: int, time: float, value: float) -> None:
        """Add one point."""
        self._single.append((place, self.code(name), step, time, value))

    def move_to(self, run: RunBuilder, restarts: Sequence[int] = (), attempt: int = 0) -> int:
        """Add all points to a run in their order; return the attempt after the last of `restarts`, which are places.

        A restart before the first point of a run is its start.
        """
        singly = [tuple(map(np.array, zip(*self._single, strict=True)))] if self._single else []
        parts: list[tuple[NDArray[Any], ...]] = [*self._columns, *singly]
        if not parts:
            return attempt + (len(restarts) if run.columns else 0)
        place, code, step, time, value = map(np.concatenate, zip(*parts, strict=True))
        first = place.min()
        counted = np.array([one for one in restarts if run.columns or one > first], np.int64)
        attempts = attempt + np.searchsorted(counted, place, "right")
        order = np.lexsort((place, code))
        cuts = np.flatnonzero(np.diff(code[order]) | np.diff(attempts[order])) + 1
        names = list(self._codes)
        for part in sorted(np.split(order, cuts), key=lambda part: int(place[part[0]])):
            name, own_attempt = names[code[part[0]]], int(attempts[part[0]])
            run.extend(name, value[part], step[part], time[part], attempt=own_attempt)
        return attempt + len(counted)
