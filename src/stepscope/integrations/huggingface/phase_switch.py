"""Phases that follow each other: where a framework tells only of beginnings, one ends where the next begins."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


class PhaseSwitch:
    """At most one open phase of a run."""

    def __init__(self, phase: Callable[[str], Any]) -> None:
        """Open phases by `phase`."""
        self._phase = phase
        self.name: str | None = None
        """The open one."""

    def to(self, name: str | None) -> None:
        """Close the open phase, and open another; None: only close."""
        if name == self.name:
            return
        before, self.name = self.name, None
        if before is not None:
            self._phase(before).__exit__(None, None, None)
        if name is not None:
            self._phase(name).__enter__()
            self.name = name
