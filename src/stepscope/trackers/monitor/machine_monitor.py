"""The base class of the monitors that sample the machine in a thread."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Self

    from stepscope.watcher.machine import MachineThread

SHORTEST = 0.1
"""Seconds between two samples, at least."""


class MachineMonitor:
    """Start, stop, `with`, and the newest sample."""

    def __init__(self, thread: MachineThread) -> None:
        """Prepare; nothing starts."""
        self._thread = thread

    @property
    def is_monitoring(self) -> bool:
        """Whether it samples, in this process."""
        return self._thread.running

    @property
    def absent(self) -> dict[str, str]:
        """Sources that this machine does not have, with reason and remedy."""
        return dict(self._thread.absent)

    @property
    def values(self) -> dict[str, float]:
        """Everything in the newest sample, in base units and by canonical name."""
        return dict(self._thread.latest.values) if self._thread.latest is not None else {}

    def start_monitoring(self) -> None:
        """Start to sample. A second start is harmless."""
        self._thread.start()

    def stop_monitoring(self) -> None:
        """Stop promptly and close what is open. The samples stay readable, and it can be started again."""
        self._thread.stop()

    def __enter__(self) -> Self:
        self.start_monitoring()
        return self

    def __exit__(self, *_exception: object) -> None:
        self.stop_monitoring()
