"""Collects the evidence of a hang on this node, and lets one watcher of the run judge it.

Each watcher writes what its own ranks do into its events, once its ranks stand still or those of another node do: it
reads that from the files of the other nodes, and only while one of its own ranks waits. The watcher of the lowest rank
that lives judges, in a child, and writes the verdict as an event, which the alert, the page and the terminal show.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from stepscope.core.events import HANG_VERDICT
from stepscope.store.states import read_nodes
from stepscope.watcher.judging import Judging
from stepscope.watcher.ras import RasQuestion
from stepscope.watcher.stall import HUNG, STALLED

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from stepscope.core.clock import Pair
    from stepscope.store.layout import RunFolder
    from stepscope.store.states import NodeState
    from stepscope.watcher.journal import Journal
    from stepscope.watcher.ranks import WatchedRank

LOOK_AFTER, LOOK_EVERY = 5.0, 3.0
"""Seconds that a rank must have waited before the files of other nodes are read, and between two such readings."""
JUDGE_AT, JUDGE_EVERY = (2.0, 5.0, 9.0, 15.0, 30.0, 60.0), 60.0
"""Seconds after the first stall at which the run is judged, and between two judgements after the last of them."""
CHANGE_AFTER = 1.0
"""Seconds after a change of a rank's state at which the run is judged, too."""
ASK_AGAIN = 4
"""The judgement with which all ranks are asked for their stacks again."""
FRESH = 5.0
"""Seconds for which the stacks of a rank are not asked for again."""
NO_HANG = "none"
OVER = {"verdict": NO_HANG, "text": "The ranks move again.", "ranks": [], "waiting": []}
STANDING = (STALLED, HUNG)


class HangWatch:
    """The hang of one run as one node sees it."""

    def __init__(
        self,
        folder: RunFolder,
        node: str,
        ranks: Collection[WatchedRank],
        journal: Journal,
        beat: Callable[[NodeState, Pair], None],
    ) -> None:
        """Collect nothing yet; `ranks` always holds the live ranks of this node, `beat` writes a node's file."""
        self._folder, self._node, self._ranks, self._beat = folder, node, ranks, beat
        self._judging, self._ras = Judging(folder.path, journal), RasQuestion()
        self._world_size: int | None = None
        self._since: float | None = None
        """When the hang was first seen (monotonic seconds); None while there is none."""
        self._why = ""
        self._judgements = 0
        self._judge_at = self._look_at = 0.0
        self._is_elsewhere = ""
        """Which rank of another node stood still when the files were read last."""
        self._shown: dict[str, Any] | None = None
        """The verdict that the last event holds."""

    def is_of_many(self) -> bool:
        """Return whether the run has several ranks, so that a verdict on all follows when one stands still."""
        if len(self._ranks) > 1:
            return True
        if self._world_size is None:
            self._world_size = _world_size(self._folder)
        return self._world_size > 1

    def poll(self, pair: Pair) -> None:
        """Do what is due; takes microseconds while the ranks of this node move."""
        now = pair.monotonic_ns / 1e9
        standing = self._note_states(pair)
        waits = any(rank.guard.stalls.quiet(pair.monotonic_ns) > LOOK_AFTER for rank in self._ranks)
        elsewhere = self._elsewhere(now) if waits or self._since is not None else ""
        if self._since is None:
            why = f"rank {standing[0].number} stands still" if standing else elsewhere
            if why and self._ranks and self.is_of_many():
                self._begin(why, now)
        elif not standing and not elsewhere:
            self._end(pair)
        if self._since is not None:
            self._judge(self._since, pair, now)

    def _note_states(self, pair: Pair) -> list[WatchedRank]:
        """Write which ranks stand still into the node's file, for the other watchers; return these ranks."""
        changed: list[NodeState] = []
        for rank in self._ranks:
            state = rank.guard.stalls.state
            stall = state if state in STANDING else ""
            if rank.state.stall != stall:
                rank.state.stall = stall
                changed.append(rank.node)
        if changed:
            self._beat(changed[-1], pair)
            self._judge_at = min(self._judge_at, pair.monotonic_ns / 1e9 + CHANGE_AFTER)
        return [rank for rank in self._ranks if rank.state.stall]

    def _elsewhere(self, now: float) -> str:
        """Return which rank of another node stands still; "" for none."""
        if now >= self._look_at:
            self._look_at = now + LOOK_EVERY
            found = (
                f"rank {number} on {node.node} stands still"
                for node in read_nodes(self._folder)[0]
                for number, state in node.ranks.items()
                if node.node != self._node and state.stall and state.state == "running"
            )
            self._is_elsewhere = next(found, "")
        return self._is_elsewhere

    def _begin(self, why: str, now: float) -> None:
        self._since, self._why, self._judgements, self._judge_at = now, why, 0, now + JUDGE_AT[0]
        self._ask(why, now)

    def _ask(self, why: str, now: float) -> None:
        if self._leads():  # one of the run is enough: the service knows all ranks
            self._ras.ask([rank.guard.trainee.pid for rank in self._ranks if rank.guard.trainee], now)
        for rank in self._ranks:
            seen = rank.guard.seen
            if seen is None or now - seen > FRESH:
                rank.guard.request(why)

    def _end(self, pair: Pair) -> None:
        self._since = None
        self.close()
        self._show(OVER, pair)

    def _judge(self, since: float, pair: Pair, now: float) -> None:
        report, verdict = self._ras.poll(now), self._judging.poll(now)
        if report is not None:
            self._write(report, pair)
            self._judge_at = now
        if verdict is not None:
            self._show(verdict, pair)
        if now < self._judge_at or self._judging.busy:
            return
        self._judgements += 1
        self._judge_at = next((since + at for at in JUDGE_AT if since + at > now), now + JUDGE_EVERY)
        if self._judgements == ASK_AGAIN:
            self._ask(f"{self._why}, still", now)
        if self._leads():
            self._judging.start(now)

    def _leads(self) -> bool:
        """Return whether the lowest rank that lives is on this node."""
        living = [
            (number, node.node)
            for node in read_nodes(self._folder)[0]
            for number, state in node.ranks.items()
            if state.state == "running"
        ]
        return not living or min(living)[1] == self._node

    def _show(self, verdict: dict[str, Any], pair: Pair) -> None:
        """Write a verdict as an event if it says something new."""
        is_over = verdict["verdict"] == NO_HANG
        if (is_over and self._shown is None) or (self._shown is not None and _said(self._shown) == _said(verdict)):
            return
        self._write({"kind": HANG_VERDICT, **verdict}, pair)
        self._shown = None if is_over else verdict

    def _write(self, event: dict[str, Any], pair: Pair) -> None:
        for rank in list(self._ranks)[:1]:
            rank.drain.write_events([event], rank.drain.own.rank, pair, sync=True)

    def close(self) -> None:
        """End what is under way."""
        self._judging.close()
        self._ras.close()


def _said(verdict: Mapping[str, Any]) -> tuple[object, ...]:
    """Return what a verdict says, without the seconds in its text, which grow."""
    return verdict.get("verdict"), verdict.get("ranks"), re.sub(r"[\d.]+ (ms|s|min|h)\b", "", str(verdict.get("text")))


def _world_size(folder: RunFolder) -> int:
    try:
        found = json.loads(folder.run_file.read_bytes()).get("world_size")
    except (OSError, ValueError, AttributeError):
        return 1
    return found if isinstance(found, int) else 1
