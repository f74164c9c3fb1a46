"""The interface of a sampler: one source of machine metrics, called periodically by the watcher."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stepscope.core.vocabulary import Metric


class Sampler(ABC):
    """One source. Values are in base units, under the names that `metrics` declares."""

    name: str
    metrics: tuple[Metric, ...]
    """Every metric it can provide; a `*` in a name stands for one instance."""
    _events: tuple[dict[str, object], ...] = ()
    """What happened since the last call of `events`."""

    @abstractmethod
    def sample(self, now: int) -> dict[str, float]:
        """Return the current values; `now` is monotonic time in ns.

        Values that the machine does not provide are left out. A failing source raises OSError or ValueError.
        """

    @abstractmethod
    def absent(self) -> dict[str, str]:
        """Return what this source cannot provide here, with reason and remedy."""

    def events(self) -> list[dict[str, object]]:
        """Return the events since the last call, each with its `kind`; most sources have none."""
        found, self._events = self._events, ()
        return list(found)
