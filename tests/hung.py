"""A run of several ranks that hangs: what its watchers wrote while one rank slept and the others waited for it."""

from __future__ import annotations

from bench.drawn_hang import events_of, micros, record, write
from stepscope.store.layout import RunFolder
from stepscope.store.reader import Past
from tests.exporters.recorded import CREATED
from tests.fleet import fleet

__all__ = ["AT", "hung_fleet", "micros", "moves_again", "record", "verdict", "write"]

AT = CREATED / 1e6 + 60
"""When the ranks stood still, in seconds since 1970."""


def hung_fleet(root, cause=1, judged=True, run="run-1"):
    """Make a job of 4 ranks on 2 nodes of which all wait for one; `judged`: its watchers came to a verdict."""
    past = fleet(root, run=run, stall="hung")
    folder = past.path / "events"
    events = [event for rank in range(4) for event in events_of(rank, 4, AT, is_cause=rank == cause)]
    if judged:
        events.append(verdict(cause))
    write(folder, events)
    return Past(RunFolder(past.path))


def verdict(cause=1):
    """Return the verdict as the event that a watcher writes."""
    rest = [rank for rank in range(4) if rank != cause]
    shows = {"steps": ["no step ended on ranks 0-3 for 12 s"], "stacks": [f"rank {cause} sleeps at data.py:41"]}
    said = {"verdict": "never_arrived", "ranks": [cause], "waiting": rest, "confidence": 0.99, "evidence": shows}
    text, remedy = f"Rank {cause} never entered all_reduce: it sleeps at data.py:41.", "look at the line"
    place = {"time": micros(AT + 2), "rank": -1, "attempt": 0}
    return {"kind": "hang_verdict", **place, "text": text, "remedy": remedy, **said}


def moves_again():
    """Return the verdict that ends it."""
    text = "The ranks move again."
    return {"kind": "hang_verdict", "time": micros(AT + 9), "rank": -1, "attempt": 0, "verdict": "none", "text": text}
