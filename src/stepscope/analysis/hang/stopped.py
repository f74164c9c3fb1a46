"""Ranks whose process stopped, though they wait like others: they have not called what their peers called since.

A rank may enter what others wait in, and stop then. The processes of its peers, which run the same program and wait for
the same, went on until they had to wait for their devices: what they called since, the rank would have called, too.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from stepscope.analysis.hang.operation import RecordedOp
    from stepscope.analysis.hang.record_table import GroupKey, RecordTable

Place = tuple[object, ...]
"""One operation of a program, the same on all ranks that run it."""
NOISE = 10
"""Of so many operations that wait, a rank may be one behind: its process may have run on until a queue was full."""


def stopped_short(table: RecordTable, lagging: Collection[int]) -> tuple[int, ...]:
    """Return the ranks that have called only the first of what more of their peers have called, and wait in."""
    waits = {rank: table.pending(rank) for rank in table.records if rank not in lagging and rank not in table.cut}
    places = {rank: tuple(_place(table, rank, entry) for entry in pending) for rank, pending in waits.items()}
    by_places: dict[tuple[Place, ...], set[int]] = defaultdict(set)
    for rank, own in places.items():
        by_places[own].add(rank)
    if len(by_places) < 2:
        return ()
    peers = _peers(table)
    found = []
    for rank, own in places.items():
        equal = len(by_places[own] & peers[rank]) - (rank in peers[rank])
        further = [others & peers[rank] for longer, others in by_places.items() if _goes_on(own, longer)]
        ahead = [peer for others in further for peer in others if _passed(table, rank, peer, waits[peer][len(own) :])]
        if len(ahead) > equal:
            found.append(rank)
    return tuple(found)


def _place(table: RecordTable, rank: int, entry: RecordedOp) -> Place:
    if entry.is_p2p:
        return True, entry.description, entry.p2p, *sorted({name[:4] for name in entry.transfers})
    return False, table.key(rank, entry).kind, entry.collective, entry.name


def _goes_on(own: tuple[Place, ...], longer: tuple[Place, ...]) -> bool:
    """Return whether a program went on after what another one waits in, by more than chance."""
    return len(longer) - len(own) > len(longer) // NOISE and set(longer[: len(own)]) == set(own)


def _passed(table: RecordTable, rank: int, peer: int, later: list[RecordedOp]) -> bool:
    """Return whether a peer has entered a collective after what both wait in, and the rank nothing between.

    Of a rank that waits in nothing, its counters must prove it.
    """
    counts: dict[GroupKey, int] = defaultdict(int)
    for entry in later:
        key = table.key(peer, entry)
        if not entry.is_p2p and rank in key.ranks:
            counts[key] += 1
    unknown = {0} if table.pending(rank) else set()
    return bool(counts) and all(
        table.enqueued(rank, key) in {table.enqueued(peer, key) - count, *unknown} for key, count in counts.items()
    )


def _peers(table: RecordTable) -> dict[int, set[int]]:
    """Return the ranks that run the same program as each: those of its groups without other stages of a pipeline."""
    stages = dict(_stages(table))
    found: dict[int, set[int]] = defaultdict(set)
    for key in set(table.keys.values()):
        members = set(key.ranks) & set(table.records)
        if key in table.has_p2p or any(stages.get(rank, set()) & members for rank in members):
            continue
        for rank in members:
            found[rank] |= members
    return found


def _stages(table: RecordTable) -> Iterator[tuple[int, set[int]]]:
    """Yield the ranks with which each rank exchanges sends and receives."""
    for rank, record in table.records.items():
        others = {peer for entry in record.entries if entry.is_p2p for peer in table.peers(rank, entry)}
        for key in table.has_p2p:
            if rank in key.ranks and len(key.ranks) < len(table.records):
                others.update(key.ranks)
        yield rank, others - {rank}
