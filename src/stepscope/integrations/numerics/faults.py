"""What goes wrong in a measurement stays there: it is told once, and the measurement ends if it goes on."""

from __future__ import annotations

from typing import Any

from stepscope.core.errors import in_words

MOST = 3
"""Failures after which a measurement is given up."""


class Faults:
    """Count the failures of one kind of measurement."""

    def __init__(self, run: Any, what: str) -> None:
        """Tell them as events of `run`; `what` names the measurement."""
        self._run, self._what = run, what
        self.count = 0

    @property
    def over(self) -> bool:
        """Say whether the measurement is given up."""
        return self.count >= MOST

    def add(self, error: BaseException) -> None:
        """Count a failure; the first is told, and so is the last."""
        self.count += 1
        if self.count in {1, MOST}:
            self._run.own_event(
                "measurement_failed",
                what=self._what,
                given_up=self.over,
                cause=in_words(error, 500),
                remedy="the training is not affected; report this with the versions of torch and stepscope",
            )
