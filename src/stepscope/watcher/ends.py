"""Records how ranks end, and whether they hang."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepscope.core import ring
from stepscope.watcher.rank_guard import STACK_KINDS, earlier

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from stepscope.core.clock import Pair
    from stepscope.store.layout import RunFolder
    from stepscope.store.states import NodeState
    from stepscope.watcher.death import RankEnd
    from stepscope.watcher.journal import Journal
    from stepscope.watcher.ranks import WatchedRank

REFINE_SECONDS = 5.0
"""Seconds for which an unexplained end is checked again."""
GPU_BUSY = 0.02
"""Share of time above which a GPU's memory is busy and so it works. A hung collective only shows utilization."""


class Ends:
    """The ends of all ranks of a node."""

    def __init__(
        self, folder: RunFolder, latest: Callable[[], Mapping[str, float]], beat: Callable[[NodeState, Pair], None]
    ) -> None:
        """Write into `folder`; `latest` returns the last machine samples, `beat` writes a node's file."""
        self._folder, self._latest, self._beat = folder, latest, beat
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
        error = rank.last_error(self._folder) if state == ring.STATE_FAILED else ""
        after = earlier(rank.node.ranks, rank.number, pair.wall_ns // 1000)
        end = rank.guard.end(pair.monotonic_ns, state, error, after, finally_=finally_)
        if end is not None:
            rank.state.lost, rank.state.refused = rank.stream.lost, words[ring.WORD_REFUSED]
            rank.state.ended = pair.wall_ns // 1000
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

    def check_progress(self, rank: WatchedRank, all_ranks: Collection[WatchedRank], pair: Pair) -> None:
        """Check whether a rank hangs; if it stalls, request the stacks of all other ranks, too."""
        for event in rank.watch(pair, gpu_busy=self._gpu_busy):
            facts = event | rank.circumstances(self._latest()) if event["kind"] in STACK_KINDS else event
            rank.drain.write_events([facts], rank.number, pair, sync=True)
            if event["kind"] == "stalled":
                for other in all_ranks:
                    if other is not rank:
                        other.guard.request(f"rank {rank.number} stands still")
