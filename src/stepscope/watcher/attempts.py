"""The files that a watcher writes for each attempt of its run: a tail, the node's state, the machine's description."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from stepscope.core.clock import boot_id, jumps, read_pair
from stepscope.store.drain import SEAL_BYTES, Drain, OwnRows
from stepscope.store.layout import Writer
from stepscope.store.machine import MachineDescription
from stepscope.store.states import NodeState

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from stepscope.core.clock import Clock, Pair
    from stepscope.store.drain import Stream
    from stepscope.store.layout import RunFolder
    from stepscope.watcher.ranks import WatchedRank
    from stepscope.watcher.sampling import Sampling
    from stepscope.watcher.sealing import Sealing


class Attempts:
    """A drain and a node's state for each attempt that this watcher has met."""

    def __init__(
        self,
        folder: RunFolder,
        node: str,
        sealing: Sealing,
        ranks: Mapping[Path, WatchedRank],
        seal_bytes: int = SEAL_BYTES,
        clock: Clock | None = None,
    ) -> None:
        """Open nothing yet; `ranks` always holds the live ranks, tails of `seal_bytes` are sealed even in a burst.

        With a `clock`, a heartbeat has the time at which it is written: a tick may have waited for its disk before.
        """
        self._folder, self._node, self._sealing, self._ranks = folder, node, sealing, ranks
        self._seal_bytes, self._clock = seal_bytes, clock
        self._found: dict[int, tuple[Drain, NodeState]] = {}
        self._opened: dict[tuple[int, int], float] = {}
        self._pair: Pair | None = None
        self.described: dict[Writer, MachineDescription] = {}
        """The machine files as they were last written."""

    def of(
        self, stream: Stream, now: int, heard: Callable[[list[dict[str, Any]], int, int], None]
    ) -> tuple[Drain, NodeState]:
        """Return the tail and the node's state of a stream's attempt; `heard` is called with every event written.

        The sequence of the watcher's own rows begins at `now` (monotonic ns).
        """
        attempt = stream.identity.attempt
        if attempt not in self._found:
            writer = Writer(self._node, attempt)
            try:
                node = NodeState.load(self._folder.node_file(writer))
            except (OSError, ValueError, TypeError):
                node = NodeState(self._node, attempt)
            node.ended, node.wrong = False, ""
            drain = Drain(self._folder, writer, OwnRows(-1 - stream.identity.node_rank, now))
            drain.heard, drain.closed = heard, partial(self._sealing.add, writer)
            drain.seal_bytes = self._seal_bytes
            self._found[attempt] = drain, node
        return self._found[attempt]

    def drains(self) -> list[Drain]:
        """Return all tails, in the order of their attempts."""
        return [drain for _, (drain, _) in sorted(self._found.items())]

    def live(self) -> list[Drain]:
        """Return the tails of attempts that have a live rank."""
        attempts = {rank.stream.identity.attempt for rank in self._ranks.values()}
        return [drain for attempt, (drain, _) in self._found.items() if attempt in attempts]

    def seal(self, drain: Drain) -> None:
        """Queue a tail for sealing; the next row begins another."""
        number = drain.rotate()
        if number is not None:
            self._sealing.add(drain.writer, number)

    def seal_full(self, now: float, most_bytes: int, most_seconds: float) -> None:
        """Seal live tails that have `most_bytes` or have been open for `most_seconds`; `now` is monotonic."""
        for drain in self.live():
            if drain.file is None:
                continue
            opened = self._opened.setdefault((drain.writer.attempt, drain.number), now)
            if drain.record_bytes >= most_bytes or now - opened >= most_seconds:
                self.seal(drain)

    def beat(self, node: NodeState, pair: Pair) -> None:
        """Write a node's file with a new heartbeat."""
        node.counter += 1
        pair = pair if self._clock is None else read_pair(self._clock)
        node.time, node.monotonic_ns, node.boot_id = pair.wall_ns // 1000, pair.monotonic_ns, boot_id()
        node.save(self._folder)

    def beat_all(self, pair: Pair) -> None:
        """Write the node's files of all attempts that have not ended."""
        for _, node in self._found.values():
            if not node.ended:
                self.beat(node, pair)

    def describe(self, sampling: Sampling) -> None:
        """Write the machine's description of live attempts where it has changed; nothing without a source."""
        if not sampling.samplers:
            return
        absent = sampling.absent()
        for writer in (drain.writer for drain in self.live()):
            machine = MachineDescription(writer.node, writer.attempt, sampling.metrics, absent, sampling.devices())
            if self.described.get(writer) != machine:
                machine.save(self._folder)
                self.described[writer] = machine

    def note_jumps(self, pair: Pair, note: Callable[[str], None]) -> None:
        """Write a jump of the wall clock since the last call into every live tail."""
        found = jumps([self._pair, pair]) if self._pair else []
        self._pair = pair
        for jump in found:
            for drain in self.live():
                try:
                    drain.write_events([{"kind": "clock_jump", "seconds": jump.seconds}], drain.own.rank, pair)
                except OSError as error:
                    note(f"cannot write an event: {error}; the clock jump is not recorded")

    def conclude(self, wrong: str, pair: Pair, note: Callable[[str], None]) -> None:
        """Record which critical alert was firing when the last attempt ended, if any."""
        _, node = self._found[max(self._found)] if self._found else (None, None)
        if node is None or node.wrong == wrong:
            return
        node.wrong = wrong
        try:
            self.beat(node, pair)
        except OSError as error:
            note(f"cannot record what was wrong at the end: {error}; see the alerts of the run")

    def close_lost_tails(self) -> tuple[bool, bool]:
        """Close tails that were deleted or replaced; return whether there were any, and whether one still exists."""
        lost = there = False
        for drain, _ in self._found.values():
            if drain.file is None:
                continue
            if drain.file.gone():
                drain.file.close()
                drain.file, lost = None, True
            else:
                there = True
        return lost, there
