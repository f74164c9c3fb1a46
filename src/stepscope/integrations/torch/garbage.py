"""Pauses of the garbage collector: a long collection is a phase of the step it interrupts."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

from stepscope.recorder import automatic

if TYPE_CHECKING:
    from stepscope.integrations.torch.timeline import Timeline

OLDEST = 2
"""Generation whose collections take long enough to matter: younger ones take microseconds."""


class Garbage:
    """The collector's callback, which charges long collections to `timeline`."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._charge = timeline.charge(automatic.GARBAGE)
        self._begun = False

    def attach(self) -> None:
        """Install it."""
        gc.callbacks.append(self._collect)

    def detach(self) -> None:
        """Remove it."""
        if self._collect in gc.callbacks:
            gc.callbacks.remove(self._collect)

    def _collect(self, moment: str, facts: dict[str, Any]) -> None:
        if facts["generation"] < OLDEST:
            return
        if moment == "start":
            timeline = self._timeline
            self._begun = timeline.active and not timeline.quiet and self._charge.begin()
        elif self._begun:
            self._begun = False
            self._charge.end()
