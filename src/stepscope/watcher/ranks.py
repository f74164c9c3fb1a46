"""One rank as its watcher sees it: its ring, its files, and the trainer behind it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from stepscope.core import ring
from stepscope.core.events import is_users
from stepscope.core.records import NO_STEP, first_head, heads, last_sequence
from stepscope.store.events import read_events
from stepscope.store.states import NodeState, RankState
from stepscope.watcher.steps import RankSteps

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stepscope.core.clock import Pair
    from stepscope.core.feed import Feed
    from stepscope.store.drain import Drain, Stream
    from stepscope.store.layout import RunFolder
    from stepscope.watcher.death import End
    from stepscope.watcher.rank_guard import RankGuard

BATCHES, BATCH_BYTES = 8, 1 << 20
"""Reads of one ring in one tick at most, so that one fast rank neither starves the others nor fills our memory."""
CALM = 256
"""A ring of which less than one part in this many was written between two checks is checked half as often."""
WRITTEN = (ring.WORD_PHASE + 1) * 8
"""Bytes of a ring's header that its trainer writes; our own follow."""

MOST_SAMPLES = 64
"""Values of the machine that an event keeps."""


class Gap:
    """The time in which nobody watched a ring: its watcher was killed, and another one goes on."""

    def __init__(self, stream: Stream) -> None:
        """Read the last heartbeat, before anything is drained and before the ring gets a new one."""
        self._last, self._lost = stream.reader.words()[ring.WORD_HEARTBEAT], stream.lost

    def event(self, stream: Stream, now: int) -> dict[str, Any] | None:
        """Return the event of this gap, once the first rows were drained; None without a watcher before us.

        `now` is monotonic, in ns.
        """
        if not self._last:
            return None
        seconds = round(max(0, now - self._last) / 1e9, 3)
        return {"kind": "watcher_restarted", "seconds": seconds, "lost_rows": stream.lost - self._lost}


class Rank:
    """A stream, and the state of the trainer behind it."""

    def __init__(self, stream: Stream, drain: Drain, node: NodeState, guard: RankGuard) -> None:
        """Start with a rank that runs, before it gets our first sign of life."""
        self._gap: Gap | None = Gap(stream)
        self.stream, self.drain, self.node, self.guard = stream, drain, node, guard
        identity = stream.identity
        guard.at_prompt = bool(identity.extra.get("at_prompt"))
        before = node.ranks.get(identity.rank)
        self.state = before or RankState(pid=identity.pid, started=identity.wall_ns // 1000)
        node.ranks[identity.rank] = self.state
        self.lag, self.bytes = 0.0, 0
        self.steps = RankSteps(stream.table)
        self._saw_all = before is None
        """Whether no other watcher has drained this ring before."""
        self.words = stream.reader.words()
        """The header of its ring, as of the last check."""
        self.backlog = 0
        """Bytes that its trainer had written since the last move, as of the last check."""
        self._seen, self._was_quiet = b"", False
        self.alive = True
        """Whether its trainer held its ring at the last check."""
        self.told: End | None = None
        """The end that an event of the run describes."""
        self.better: End | None = None
        """A better judgement of its end that is to be written."""
        self._heard, self._next = 0, 0
        """Position in the ring, and sequence, of the first row that the feeds have not got."""

    @property
    def number(self) -> int:
        """Its rank."""
        return self.stream.identity.rank

    def phase(self) -> str:
        """Return the long phase that the trainer is in; empty if none."""
        number = self.words[ring.WORD_PHASE]
        return ring.PHASE_NAMES[number] if number < len(ring.PHASE_NAMES) else ""

    def is_quiet(self) -> bool:
        """Check its ring; return whether there is nothing to do before its process ends or time passes."""
        seen = os.pread(self.stream.fileno(), WRITTEN, 0)
        if seen != self._seen:  # as only a few of many ranks at a time
            self.words = self.stream.reader.words()
            goes_on = self.words[ring.WORD_STATE] == ring.STATE_RUNNING and self.guard.trainee is not None
            self.backlog = self.words[ring.WORD_HEAD] - self.stream.cursor
            self._was_quiet = goes_on and self.backlog <= 0
            self._seen = seen
        return self._was_quiet

    def is_calm(self) -> bool:
        """Return whether it goes on and writes so little that its ring would take many seconds to fill."""
        goes_on = self.words[ring.WORD_STATE] == ring.STATE_RUNNING
        return goes_on and self.backlog * CALM < self.stream.reader.capacity

    def writes(self, *, sure: bool) -> bool:
        """Return whether its trainer still holds its ring.

        Unless it must be `sure`, that is taken for granted of a process that is watched: its end wakes us. One that
        has released its ring and lives on, as after os.execv, is found by the occasional check that is `sure`.
        """
        is_watched = self.guard.trainee is not None and self.words[ring.WORD_STATE] == ring.STATE_RUNNING
        return self.stream.writer_alive() if sure or not is_watched else True

    def move(self, pair: Pair, feed: Feed) -> bool:
        """Move its rows to disk, and new ones to `feed`; return whether none is left."""
        self._seen, self.stream.is_behind = b"", False
        for _ in range(BATCHES):
            try:
                batch = self.drain.once(self.stream, pair, BATCH_BYTES)
            except OSError:
                self._look_on(feed)
                raise
            self._tell_gap(pair)
            self.state.rows = self.stream.expected - self.stream.lost
            size = sum(map(len, batch.pieces))
            if batch.pieces:
                self.bytes += size
                self.lag = max(self.lag, (pair.monotonic_ns - first_head(batch.pieces[0])[4]) / 1e9)
                self._hear(batch.pieces, batch.expected, feed)
            if not batch.rows or (size < BATCH_BYTES // 2 and self.stream.empty()):  # else more has come meanwhile
                return True
        self.stream.is_behind = True
        return False

    def _look_on(self, feed: Feed) -> None:
        """Pass on the rows that wait in the ring for a disk: the training goes on even if it cannot be recorded."""
        position = max(self._heard, self.stream.cursor)
        for _ in range(BATCHES):
            pieces, position = self.stream.reader.read(position, BATCH_BYTES)
            if not pieces:
                break
            self._hear([piece.data for piece in pieces], last_sequence(pieces[-1].data) + 1, feed)
        self._heard = position

    def _hear(self, pieces: list[bytes], following: int, feed: Feed) -> None:
        """Pass rows on, each once; `following` is the sequence after the last of them."""
        fresh = pieces if first_head(pieces[0])[3] >= self._next else _from(self._next, pieces)
        self._next = max(self._next, following)
        if fresh:
            self.steps.add(fresh)
            self.state.step = self.state.step if self.steps.newest is None else self.steps.newest
            self.state.steps = self.steps.count if self._saw_all else None
            self.state.step_seconds = self.steps.seconds if self._saw_all else None
            feed.rows(self.number, fresh, self.stream.table, checked=self.stream.reader.checked)

    def _tell_gap(self, pair: Pair) -> None:
        """Record, once, that another watcher was killed before us."""
        event = None if self._gap is None else self._gap.event(self.stream, pair.monotonic_ns)
        if event is not None:
            self.drain.write_events([event], self.number, pair)
        self._gap = None

    def watch(self, pair: Pair, *, gpu_busy: bool) -> list[dict[str, Any]]:
        """Check whether its steps go on; return events."""
        return self.guard.watch(pair, self.steps.moments(), self.phase(), gpu_busy=gpu_busy)

    def note_memory(self, latest: Mapping[str, float]) -> None:
        """Record how near to its memory limit it was, to explain an end that kills the watcher, too."""
        limit = latest.get("cgroup/memory_limit_bytes")
        used = latest.get("cgroup/memory_used_bytes") if limit else self.guard.rss
        self.state.memory = None if used is None else int(used)
        self.state.memory_limit = None if limit is None else int(limit)

    def circumstances(self, latest: Mapping[str, float]) -> dict[str, Any]:
        """Return the circumstances of an event that needs an explanation: last rows, open phase, last samples."""
        prefixes = ("cpu/usage", "memory/used_ratio", "swap/used", "disk/free", "gpu/", f"process/{self.number}/")
        samples = {name: value for name, value in latest.items() if name.startswith(prefixes)}
        return {
            "step": NO_STEP if self.state.step is None else self.state.step,
            "phase": self.phase(),
            "rows": self.steps.last_rows(),
            "samples": dict(list(samples.items())[:MOST_SAMPLES]),
        }

    def last_error(self, folder: RunFolder) -> str:
        """Return the exception that the trainer reported last, from the events just drained."""
        identity = self.stream.identity
        mine = [
            event
            for event in read_events(folder)[0]
            if event.get("rank") == identity.rank and event.get("attempt") == identity.attempt
        ]
        mine += self.stream.take(self.stream.reader.capacity).events  # those that could not be written
        found = [event for event in mine if event.get("kind") == "exception" and not is_users(event)]
        return str(found[-1].get("error", "")) if found else ""


def _from(sequence: int, pieces: list[bytes]) -> list[bytes]:
    """Return the records of `pieces` from a sequence on."""
    fresh = []
    for data in pieces:
        start = next((offset for offset, _, _, number, _, _ in heads(data) if number >= sequence), None)
        if start is not None:
            fresh.append(data[start:])
    return fresh
