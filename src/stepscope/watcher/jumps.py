"""Jumps of the wall clock, as events of the run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepscope.core.clock import Pair, jumps

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from stepscope.store.drain import Drain
    from stepscope.watcher.journal import Journal


class Jumps:
    """Detects jumps of the wall clock between two ticks."""

    def __init__(self, journal: Journal) -> None:
        """Start without a past."""
        self._journal = journal
        self._pair: Pair | None = None

    def check(self, pair: Pair, drains: Callable[[], Iterable[Drain]]) -> None:
        """Write a jump since the last call into every run file that is open."""
        found = jumps([self._pair, pair]) if self._pair else []
        self._pair = pair
        for jump in found:
            for drain in drains():
                try:
                    drain.write_events([{"kind": "clock_jump", "seconds": jump.seconds}], drain.own.rank, pair)
                except OSError as error:
                    self._journal.note(f"cannot write an event: {error}; the clock jump is not recorded")
