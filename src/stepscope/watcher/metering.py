"""What recording and watching cost, as ordinary metrics of the run."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from stepscope.core import ring

if TYPE_CHECKING:
    from stepscope.store.drain import Drain
    from stepscope.watcher.ranks import Rank


def recorder_cost(rank: Rank) -> dict[str, float]:
    """Return the figures of one rank's recorder, and reset its largest lag."""
    words = rank.stream.reader.words()
    calls = words[ring.WORD_CALLS]
    suffix = "" if rank.stream.identity.rank == 0 else f"/rank{rank.stream.identity.rank}"
    values = {
        "rows_total": float(rank.state.rows),
        "bytes_total": float(rank.bytes),
        "drops_total": float(rank.stream.lost),
        "refused_total": float(words[ring.WORD_REFUSED]),
        "drain_lag_seconds": rank.lag,
        "ring_fill_ratio": min(1.0, (words[ring.WORD_HEAD] - rank.stream.cursor) / rank.stream.reader.capacity),
    }
    if calls:
        values["log_seconds"] = words[ring.WORD_CALL_NS] / calls / 1e9
    rank.state.lost, rank.state.refused = rank.stream.lost, words[ring.WORD_REFUSED]
    rank.lag = 0.0
    return {f"stepscope/{name}{suffix}": value for name, value in values.items()}


class WatcherCost:
    """The cost of the watcher itself."""

    def __init__(self) -> None:
        """Start without a past: a share of time needs two readings."""
        self._spent: tuple[float, float] | None = None

    def read(self, drain: Drain, now: float) -> dict[str, float]:
        """Return processor and memory, and bytes not sealed yet; `now` is monotonic, in seconds."""
        spent = time.process_time()
        before, self._spent = self._spent, (now, spent)
        values = {"stepscope/tail_bytes": float(drain.file.size if drain.file else 0)}
        if before is not None and now > before[0]:
            values["stepscope/watcher_cpu_ratio"] = (spent - before[1]) / (now - before[0])
        memory = resident_bytes()
        return values if memory is None else values | {"stepscope/watcher_memory_bytes": float(memory)}


def resident_bytes(statm: str = "/proc/self/statm") -> int | None:
    """Return the resident memory of this process in bytes; None where the system does not report it."""
    try:
        with open(statm, "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return None
