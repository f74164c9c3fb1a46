"""The ranks of a node as their watcher sees them: ring, files, the trainer behind each, and how it ends."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from stepscope.core import ring
from stepscope.core.endings import SOURCE_ENDED
from stepscope.core.events import is_users
from stepscope.core.records import NO_STEP, first_head, heads, last_sequence
from stepscope.store.events import read_events
from stepscope.store.states import NodeState, RankState
from stepscope.watcher.rank_guard import STACK_KINDS, STACKS, earlier
from stepscope.watcher.steps import StepTracker

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from stepscope.core.clock import Pair
    from stepscope.core.feed import Feed
    from stepscope.store.drain import Drain, Stream
    from stepscope.store.layout import RunFolder
    from stepscope.watcher.death import RankEnd
    from stepscope.watcher.journal import Journal
    from stepscope.watcher.rank_guard import RankGuard

BATCHES, BATCH_BYTES = 8, 1 << 20
"""Maximum reads of one ring in one tick: one fast rank must neither starve the others nor fill our memory."""
CALM = 256
"""A ring is checked half as often if less than one part in this many of it was written between two checks."""
WRITTEN = (ring.WORD_PHASE + 1) * 8
"""Bytes of a ring's header that its trainer writes; the watcher's follow."""
MOST_SAMPLES = 64
"""Machine samples that an event keeps."""
REFINE_SECONDS = 5.0
"""Seconds for which an unexplained end is checked again."""
GPU_BUSY = 0.02
"""Share of time above which a GPU's memory is busy and so it works. A hung collective only shows utilization."""


class WatchedRank:
    """A stream, and the state of the trainer behind it."""

    def __init__(self, stream: Stream, drain: Drain, node: NodeState, guard: RankGuard) -> None:
        """Start with a rank that runs, before its ring gets our first heartbeat."""
        self._watched_until, self._lost_before = stream.reader.words()[ring.WORD_HEARTBEAT], stream.lost
        """The last heartbeat of an earlier watcher (monotonic ns, 0 without one), and the rows lost until then."""
        self.stream, self.drain, self.node, self.guard = stream, drain, node, guard
        identity = stream.identity
        guard.at_prompt = bool(identity.extra.get("at_prompt"))
        before = node.ranks.get(identity.rank)
        self.state = before or RankState(pid=identity.pid, started=identity.wall_ns // 1000)
        node.ranks[identity.rank] = self.state
        self.lag, self.bytes = 0.0, 0
        self.steps = StepTracker(stream.table)
        self._saw_all = before is None
        """Whether no other watcher has drained this ring before us."""
        self.words = stream.reader.words()
        """The header of its ring at the last check."""
        self.backlog = 0
        """Bytes in its ring at the last check that were not drained."""
        self._seen, self._was_quiet = b"", False
        self.alive = True
        """Whether its trainer held its ring at the last check."""
        self.reported: RankEnd | None = None
        """The end that the last event reported."""
        self.better: RankEnd | None = None
        """A better verdict about its end, which is not written yet."""
        self._heard, self._next = 0, 0
        """Position in the ring, and sequence, of the first row that the feeds have not received."""

    @property
    def number(self) -> int:
        """Its rank."""
        return self.stream.identity.rank

    def phase(self) -> str:
        """Return the long phase that the trainer is in; empty if none."""
        number = self.words[ring.WORD_PHASE]
        return ring.PHASE_NAMES[number] if number < len(ring.PHASE_NAMES) else ""

    def is_quiet(self) -> bool:
        """Check its ring; return whether nothing is new in it."""
        seen = os.pread(self.stream.fileno(), WRITTEN, 0)
        if seen != self._seen:  # true for only a few of many ranks at a time
            self.words = self.stream.reader.words()
            goes_on = self.words[ring.WORD_STATE] == ring.STATE_RUNNING and self.guard.trainee is not None
            self.backlog = self.words[ring.WORD_HEAD] - self.stream.cursor
            self._was_quiet = goes_on and self.backlog <= 0
            self._seen = seen
        return self._was_quiet

    def is_calm(self) -> bool:
        """Return whether it runs and writes so little that its ring would take many seconds to fill."""
        goes_on = self.words[ring.WORD_STATE] == ring.STATE_RUNNING
        return goes_on and self.backlog * CALM < self.stream.reader.capacity

    def writes(self, *, sure: bool) -> bool:
        """Return whether its trainer still holds its ring.

        Unless it must be `sure`, that is assumed of a process that we watch, because its end wakes us. The occasional
        `sure` check finds a process that has released its ring and lives on, as after os.execv.
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
                self._pass_on_waiting(feed)
                raise
            self._note_gap(pair)
            self.state.rows = self.stream.expected - self.stream.lost
            size = sum(map(len, batch.pieces))
            if batch.pieces:
                self.bytes += size
                if not self.guard.is_followed:
                    self.lag = max(self.lag, (pair.monotonic_ns - first_head(batch.pieces[0])[4]) / 1e9)
                self._hear(batch.pieces, batch.expected, feed)
            if not batch.rows or (size < BATCH_BYTES // 2 and self.stream.empty()):  # otherwise more has come meanwhile
                return True
        self.stream.is_behind = True
        return False

    def _pass_on_waiting(self, feed: Feed) -> None:
        """Pass on the rows that wait in the ring for the disk: alerts and exporters work even if it is full."""
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

    def _note_gap(self, pair: Pair) -> None:
        """Record, once, for how long nobody watched the ring because an earlier watcher was killed."""
        if self._watched_until:
            seconds = round(max(0, pair.monotonic_ns - self._watched_until) / 1e9, 3)
            lost = self.stream.lost - self._lost_before
            event = {"kind": "watcher_restarted", "seconds": seconds, "lost_rows": lost}
            self.drain.write_events([event], self.number, pair)
        self._watched_until = 0

    def recorder_cost(self) -> dict[str, float]:
        """Return metrics of its recorder's cost, and reset the largest lag."""
        words, stream = self.stream.reader.words(), self.stream
        suffix = "" if self.number == 0 else f"/rank{self.number}"
        values = {
            "rows_total": float(self.state.rows),
            "bytes_total": float(self.bytes),
            "drops_total": float(stream.lost),
            "refused_total": float(words[ring.WORD_REFUSED]),
            "drain_lag_seconds": self.lag,
            "ring_fill_ratio": min(1.0, (words[ring.WORD_HEAD] - stream.cursor) / stream.reader.capacity),
        }
        if words[ring.WORD_CALLS]:
            values["log_seconds"] = words[ring.WORD_CALL_NS] / words[ring.WORD_CALLS] / 1e9
        self.state.lost, self.state.refused, self.lag = stream.lost, words[ring.WORD_REFUSED], 0.0
        return {f"stepscope/{name}{suffix}": value for name, value in values.items()}

    def note_memory(self, latest: Mapping[str, float]) -> None:
        """Record how close to its memory limit it is, to explain an end that also kills the watcher."""
        limit = latest.get("cgroup/memory_limit_bytes")
        used = latest.get("cgroup/memory_used_bytes") if limit else self.guard.rss
        self.state.memory = None if used is None else int(used)
        self.state.memory_limit = None if limit is None else int(limit)

    def circumstances(self, latest: Mapping[str, float]) -> dict[str, Any]:
        """Return the last rows, phase and machine samples, for an event that needs an explanation."""
        prefixes = ("cpu/usage", "memory/used_ratio", "swap/used", "disk/free", "gpu/", f"process/{self.number}/")
        samples = {name: value for name, value in latest.items() if name.startswith(prefixes)}
        return {
            "step": NO_STEP if self.state.step is None else self.state.step,
            "phase": self.phase(),
            "rows": self.steps.last_rows(),
            "samples": dict(list(samples.items())[:MOST_SAMPLES]),
        }

    def last_event(self, folder: RunFolder, kind: str) -> dict[str, Any] | None:
        """Return the last event of a kind that the trainer reported; None if there is none."""
        identity = self.stream.identity
        mine = [
            event
            for event in read_events(folder)[0]
            if event.get("rank") == identity.rank and event.get("attempt") == identity.attempt
        ]
        mine += self.stream.take(self.stream.reader.capacity).events  # events that could not be written
        found = [event for event in mine if event.get("kind") == kind and not is_users(event)]
        return found[-1] if found else None


def _moment(event: Mapping[str, Any] | None, key: str) -> int | None:
    """Return a time in an event in microseconds since 1970; None if it has none."""
    found = (event or {}).get(key)
    return round(found * 1e6) if isinstance(found, (int, float)) and 0 < found < 2**40 else None


def _from(sequence: int, pieces: list[bytes]) -> list[bytes]:
    """Return the records of `pieces` from a sequence on."""
    fresh = []
    for data in pieces:
        start = next((offset for offset, _, _, number, _, _ in heads(data) if number >= sequence), None)
        if start is not None:
            fresh.append(data[start:])
    return fresh


class Ends:
    """The ends of all ranks of a node."""

    def __init__(
        self,
        folder: RunFolder,
        latest: Callable[[], Mapping[str, float]],
        beat: Callable[[NodeState, Pair], None],
        is_of_many: Callable[[], bool] = lambda: False,
    ) -> None:
        """Write into `folder`; `latest` returns the last machine samples, `beat` writes a node's file.

        `is_of_many`: whether the run has several ranks, so that a verdict on all follows when one stands still.
        """
        self._folder, self._latest, self._beat, self._is_of_many = folder, latest, beat, is_of_many
        self._uncertain: list[tuple[WatchedRank, float]] = []
        self._gpu_busy = False

    def sampled(self) -> None:
        """Read new samples: a busy GPU is evidence against a hang."""
        self._gpu_busy = any(
            value > GPU_BUSY
            for name, value in self._latest().items()
            if name.startswith("gpu/") and name.endswith("/memory_busy_ratio")
        )

    def pending(self) -> bool:
        """Return whether more evidence about an end may still come."""
        return bool(self._uncertain)

    def find_end(self, rank: WatchedRank, pair: Pair, *, finally_: bool = False) -> RankEnd | None:
        """Return how a rank ended; None while more evidence may come soon, unless `finally_` is set."""
        words = rank.stream.reader.words()
        state = words[ring.WORD_STATE]
        if state == ring.STATE_EXITED and not words[ring.WORD_ENDED]:
            self._beat(rank.node, pair)  # all steps are recorded: its interpreter may exit, and show how it ended
            rank.stream.reader.set_word(ring.WORD_ENDED, 1)
        end: RankEnd | None
        event = None
        if rank.guard.is_followed:
            event = rank.last_event(self._folder, SOURCE_ENDED)
            end = rank.guard.end_of_source(event)
        else:
            failure = rank.last_event(self._folder, "exception") if state == ring.STATE_FAILED else None
            error = str((failure or {}).get("error", ""))
            after = earlier(rank.node.ranks, rank.number, pair.wall_ns // 1000)
            end = rank.guard.end(pair.monotonic_ns, state, error, after, finally_=finally_)
        if end is not None:
            rank.state.lost, rank.state.refused = rank.stream.lost, words[ring.WORD_REFUSED]
            rank.state.ended = _moment(event, "ended") or pair.wall_ns // 1000
        return end

    def conclude(self, rank: WatchedRank, end: RankEnd, pair: Pair) -> None:
        """Write an end, and keep checking one that is not certain."""
        self._write(rank, end, pair)
        if end.certain or rank.guard.trainee is None:
            rank.guard.close()
        else:
            self._uncertain.append((rank, pair.monotonic_ns / 1e9 + REFINE_SECONDS))

    def leave(self, rank: WatchedRank, pair: Pair, journal: Journal) -> None:
        """Record as much of the end as is possible in a run that cannot be written, and release the rank."""
        end = self.find_end(rank, pair, finally_=True)
        for write in (self._write_event, self._write_node):
            try:
                if end is not None:
                    write(rank, end, pair)
            except OSError as error:
                journal.note(f"cannot record how rank {rank.number} ended: {error}")
        rank.guard.close()
        rows = "" if rank.stream.empty() else f"its last rows wait in {rank.stream.path}, "
        journal.note(f"giving up on rank {rank.number}: its run cannot be written; {rows}`stepscope show` tries again")

    def _write(self, rank: WatchedRank, end: RankEnd, pair: Pair) -> None:
        """Write an end as an event, unless the rank simply finished, and into the node's file."""
        self._write_event(rank, end, pair)
        self._write_node(rank, end, pair)

    def _write_event(self, rank: WatchedRank, end: RankEnd, pair: Pair) -> None:
        if end.state != "finished" and rank.guard.end_evidence is not None and rank.reported != end:
            facts = end.event(rank.guard.end_evidence) | rank.circumstances(self._latest())
            rank.drain.write_events([facts], rank.number, pair, sync=True)
            rank.reported = end

    def _write_node(self, rank: WatchedRank, end: RankEnd, pair: Pair) -> None:
        rank.state.state, rank.state.cause, rank.state.inferred = end.state, end.cause, not end.certain
        rank.node.ended = all(other.state != "running" for other in rank.node.ranks.values())
        self._beat(rank.node, pair)

    def refine(self, pair: Pair) -> None:
        """Correct ends for which more evidence has come."""
        for rank, until in list(self._uncertain):
            is_late = pair.monotonic_ns / 1e9 > until
            better = rank.better = rank.guard.refine() or rank.better
            if better is None and not is_late:
                continue
            try:
                if better is not None:
                    self._write(rank, better, pair)
            except OSError:
                if not is_late:  # otherwise the end that was recorded before must do
                    raise
            self._uncertain.remove((rank, until))
            rank.guard.close()

    def check_progress(self, rank: WatchedRank, pair: Pair) -> None:
        """Check whether a rank hangs."""
        for event in rank.guard.watch(pair, rank.steps.take_times(), rank.phase(), gpu_busy=self._gpu_busy):
            facts = event
            if event["kind"] in STACK_KINDS:
                facts = event | rank.circumstances(self._latest())
                facts |= {"verdict_follows": True} if self._is_of_many() else {}
            elif event["kind"] == STACKS:
                step = NO_STEP if rank.state.step is None else rank.state.step
                facts = event | {"step": step, "phase": rank.phase()}
            rank.drain.write_events([facts], rank.number, pair, sync=True)
