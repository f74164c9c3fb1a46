"""Send a run to sinks from outside: what a sender does beside a trainer, for all nodes of the run and from any command.

Rows that a sender of the run is sending are left to it: the lock of each sink's state says who sends.
"""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING

from stepscope.exporters.sinks.news import NewsDesk
from stepscope.exporters.sinks.table import kind_of
from stepscope.store.sinks import DENIED, WAITING, hold
from stepscope.store.states import overall, read_nodes
from stepscope.watcher.sender import NodeEnd, Sender, new_lane
from stepscope.watcher.verdict import verdict_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from stepscope.exporters.sinks.address import SinkAddress
    from stepscope.exporters.sinks.lane import SinkLane
    from stepscope.store.layout import RunFolder

FAREWELL = 3.0
"""Seconds that the lanes have for the end of their current call, and for closing their sinks."""


class Tee:
    """A run on its way to some sinks."""

    def __init__(
        self,
        folder: RunFolder,
        addresses: Sequence[SinkAddress],
        note: Callable[[str], None],
        page: str = "",
        *,
        once: bool = False,
    ) -> None:
        """Start nothing yet; `page` is the address of the page's server, with `once` only what is there now is sent."""
        self._folder, self._addresses, self._note, self._page, self._once = folder, addresses, note, page, once
        self._sender = Sender(note)
        self._known: set[tuple[str, str]] = set()
        self._locks: list[int] = []
        self.busy: set[str] = set()
        """Sinks that another process sends to."""

    def look(self) -> None:
        """Begin to send the rows of nodes that were not known yet."""
        spans = [*self._folder.all_tails(), *self._folder.all_units()]
        for node in sorted({span.writer.node for span in spans}):
            for address in self._addresses:
                if (address.key, node) not in self._known:
                    self._known.add((address.key, node))
                    self._begin(node, address)

    def _begin(self, node: str, address: SinkAddress) -> None:
        desk = NewsDesk(self._folder, node, self._page, partial(verdict_of, self._folder.path, self._note))
        if not kind_of(address.scheme).takes_all_nodes and not desk.is_first():
            return
        lock = hold(self._folder, address.key, node)
        if lock is None:
            self.busy.add(address.name)
            return
        self._locks.append(lock)
        is_over = (lambda: True) if self._once else NodeEnd(self._folder, desk.is_over, self._note)
        self._sender.add(new_lane(self._folder, node, address, desk, is_over))

    def lanes(self) -> list[SinkLane]:
        """Return the lanes that this process serves."""
        return list(self._sender.lanes)

    def is_done(self) -> bool:
        """Return whether every sink has everything of a run that has ended, or of what is there."""
        has_rows = bool(self._sender.lanes) or self._once or overall(read_nodes(self._folder)[0])[0] != "running"
        return has_rows and self._sender.is_done()

    def stuck(self, now: float, patience: float) -> list[SinkLane]:
        """Return the lanes whose sink denies us, or has not answered for `patience` seconds; `now` is unix time."""
        return [
            lane
            for lane in self.lanes()
            if lane.state.state == DENIED or (lane.state.state == WAITING and now - lane.state.since > patience)
        ]

    def close(self) -> None:
        """End the lanes, and let go of the locks; a call that hangs is left to the end of the process."""
        self._sender.stop(FAREWELL)
        for lock in self._locks:
            os.close(lock)
        self._locks.clear()
