"""Phases that may last: while one is open, the watcher must not mistake the missing steps for a hang."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepscope.core.ring import LONG_PHASES, WORD_PHASE
from stepscope.recorder.hotpath import Phase

if TYPE_CHECKING:
    from stepscope.recorder.hotpath import Recorder


class LongPhase(Phase):
    """A phase that is published in the ring's header while it lasts."""

    __slots__ = ("_before", "_number")

    def __init__(self, recorder: Recorder, name: str) -> None:
        """Create a phase whose name is in LONG_PHASES."""
        super().__init__(recorder, name)
        self._number = LONG_PHASES[name]
        self._before: list[int] = []

    def __enter__(self) -> None:
        """Open the phase; a nested one hides it until it ends."""
        super().__enter__()
        words = self._recorder._words
        self._before.append(words[WORD_PHASE])
        words[WORD_PHASE] = self._number

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self._recorder._words[WORD_PHASE] = self._before.pop() if self._before else 0
        super().__exit__()


def make_phase(recorder: Recorder, name: str) -> Phase:
    """Return the context of a phase of this name."""
    return LongPhase(recorder, name) if name in LONG_PHASES else Phase(recorder, name)
