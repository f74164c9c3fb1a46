"""Dumps that torch itself wrote into a run, because a collective took too long; see `session/flight_recorder.py`.

They are the record of ranks that could not answer the watcher: native code held the interpreter's lock.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from stepscope.analysis.hang.record import FlightRecord
from stepscope.importers.flight_recorder import read_dumps
from stepscope.store.layout import RunFolder

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from stepscope.store.reader import Past


@dataclass(frozen=True)
class TorchDumps:
    """The dumps of some ranks of one attempt."""

    records: Mapping[int, FlightRecord] = field(default_factory=dict)
    since: float | None = None
    """When the first of them was written, in seconds since 1970; None without any."""
    cut: frozenset[int] = frozenset()
    """Ranks whose dump is not whole, or cannot be read."""
    problems: tuple[str, ...] = ()
    """What could not be used, one sentence each."""


def torch_dumps(past: Past, attempt: int, ranks: Iterable[int], since: float | None) -> TorchDumps:
    """Read the dumps of these ranks that were written at `since` (seconds since 1970) or later; None: all."""
    folder = RunFolder(past.path)
    written = {}
    for path in (folder.torch_dump(attempt, rank) for rank in ranks):
        try:
            moment = path.stat().st_mtime
        except OSError:  # torch wrote none
            continue
        if since is None or moment >= since:
            written[path] = moment
    found = read_dumps(list(written))
    records = {rank: FlightRecord.of(facts) for rank, facts in found.records.items()}
    first = min(written.values(), default=None) if records else None
    return TorchDumps(records, first, frozenset(found.cut), tuple(found.problems))
