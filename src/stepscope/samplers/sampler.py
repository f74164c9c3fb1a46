"""The interface of a sampler: one source of machine metrics, called periodically by the watcher."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pathlib import Path

    from stepscope.core.vocabulary import Metric


class Sampler(Protocol):
    """One source. Values are in base units, under the names that `metrics` declares."""

    name: str
    metrics: tuple[Metric, ...]
    """Every metric it can provide; a `*` in a name stands for one instance."""

    def sample(self, now: int) -> dict[str, float]:
        """Return the current values; `now` is monotonic time in ns.

        Values that the machine does not provide are left out. A failing source raises OSError or ValueError.
        """
        ...

    def absent(self) -> dict[str, str]:
        """Return what this source cannot provide here, with reason and remedy."""
        ...

    def events(self) -> list[dict[str, object]]:
        """Return the events since the last call, each with its `kind`."""
        ...


class Rates:
    """Turn growing counters into rates per second; the first sample of a counter yields none."""

    def __init__(self) -> None:
        """Start without history."""
        self._before: dict[str, tuple[int, float]] = {}

    def of(self, name: str, total: float, now: int) -> float | None:
        """Return the growth of counter `name` per second since the last call; None at first and after a reset.

        Args:
            name: which counter.
            total: its current value.
            now: monotonic time in ns.
        """
        before = self._before.get(name)
        self._before[name] = (now, total)
        if before is None or now <= before[0] or total < before[1]:
            return None
        return (total - before[1]) * 1e9 / (now - before[0])


def read_text(path: Path, limit: int = 1 << 20) -> str:
    """Return the start of a kernel file, at most `limit` bytes."""
    with path.open("rb") as file:
        return file.read(limit).decode("utf-8", "replace")
