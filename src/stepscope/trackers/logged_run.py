"""What the trackers need of a run; a run of `stepscope.init` has it, and so may an object of the user's."""

from __future__ import annotations

from typing import Any, Protocol


class LoggedRun(Protocol):
    """Takes values of steps."""

    def log(self, values: dict[str, Any], *, step: int | None = None) -> object:
        """Record values at a step."""


class MonitoredRun(LoggedRun, Protocol):
    """A run that can also be ended."""

    def finish(self, error: BaseException | None = None) -> object:
        """End the run, as failed if there is an error."""
