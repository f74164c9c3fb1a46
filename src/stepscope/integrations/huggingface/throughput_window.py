"""Samples and tokens by the time they took, over the steps since the last look; pauses do not count."""

from __future__ import annotations

from time import monotonic_ns
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


class ThroughputWindow:
    """Count until it is asked, then begin anew."""

    def __init__(self, clock: Callable[[], int] = monotonic_ns) -> None:
        """Begin now; `clock` is monotonic, in ns."""
        self._clock = clock
        self._begin()

    def _begin(self) -> None:
        self._begun, self._paused, self._paused_at = self._clock(), 0, 0
        self.samples, self.uncounted, self.steps = 0, 0, 0
        self.tokens: Any = None
        """Padding left out; a tensor, if they lie on a device."""

    def add(self, samples: int | None, tokens: Any) -> None:
        """Count a step; None where it is not known."""
        self.steps += 1
        if samples is None:
            self.uncounted += 1
        else:
            self.samples += samples
        if tokens is not None:
            self.tokens = tokens if self.tokens is None else self.tokens + tokens

    def pause(self) -> None:
        """Stop the clock: what follows is no training."""
        self._paused_at = self._paused_at or self._clock()

    def go_on(self) -> None:
        """Let the clock run again."""
        if self._paused_at:
            self._paused += self._clock() - self._paused_at
            self._paused_at = 0

    def take(self) -> dict[str, Any]:
        """Return the rates, those that can be told, and begin anew. Reads nothing from a device."""
        seconds = (self._clock() - self._begun - self._paused) / 1e9
        found: dict[str, Any] = {}
        if self.steps and seconds > 0:
            found["steps_per_second"] = self.steps / seconds
            if not self.uncounted:
                found["samples_per_second"] = self.samples / seconds
            if self.tokens is not None:
                found["tokens_per_second"] = self.tokens / seconds
        self._begin()
        return found
