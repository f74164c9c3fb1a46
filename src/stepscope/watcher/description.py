"""Describes the samples of a run and what its machine cannot measure; written whenever that changes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepscope.store.machine import Machine

if TYPE_CHECKING:
    from collections.abc import Iterable

    from stepscope.store.drain import Drain
    from stepscope.store.layout import RunFolder, Writer
    from stepscope.watcher.sampling import Sampling


class Description:
    """The machine file of each attempt, and its current content."""

    def __init__(self, folder: RunFolder) -> None:
        """Describe the machine in this run; nothing is written yet."""
        self._folder = folder
        self._written: dict[Writer, Machine] = {}

    def renew(self, sampling: Sampling, drains: Iterable[Drain]) -> None:
        """Write the files that changed since the last call; nothing without a source to describe."""
        if not sampling.samplers:
            return
        absent = sampling.absent()
        for writer in (drain.writer for drain in drains):
            machine = Machine(writer.node, writer.attempt, sampling.metrics, absent, sampling.devices())
            if self._written.get(writer) != machine:
                machine.save(self._folder)
                self._written[writer] = machine
