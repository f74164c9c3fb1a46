"""Sends and receives that the other end has completed: a rank that still waits in one is held up by its own device."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stepscope.analysis.hang.operation import RecordedOp
    from stepscope.analysis.hang.record_table import GroupKey, RecordTable

PAIR = 2


def transferred(table: RecordTable, rank: int, entry: RecordedOp) -> bool:
    """Return whether the other ends of the oldest operation in which a rank waits have all completed it."""
    peers = table.peers(rank, entry)
    return bool(peers) and all(
        peer in table.records
        and peer != rank
        and (_by_number(table, rank, peer, entry) or _by_later(table, rank, peer, entry))
        for peer in peers
    )


def _by_number(table: RecordTable, rank: int, peer: int, entry: RecordedOp) -> bool:
    """Return whether the counters of a group of two say so: both ends give the same number to what they exchange."""
    key = table.key(rank, entry)
    if len(key.ranks) != PAIR or entry.p2p <= entry.collective:  # the status holds the last number of either kind
        return False
    if any(table.key(peer, other) == key and other.p2p == entry.p2p for other in table.done(peer) if other.is_p2p):
        return True
    status = table.records[peer].status.get(table.numbers.get((peer, key), -1))
    return status is not None and status.completed >= entry.p2p


def _by_later(table: RecordTable, rank: int, peer: int, entry: RecordedOp) -> bool:
    """Return whether the other end has called a collective that the rank called after it, and so was there before."""
    if any(rank in table.peers(peer, other) for other in table.pending(peer) if other.is_p2p):
        return False
    later = [other for other in table.pending(rank) if not other.is_p2p and other.number > entry.number]
    places = [(table.key(rank, other), other.collective) for other in later]
    return any(peer in key.ranks and table.enqueued(peer, key) >= collective for key, collective in places)


def passed_by_another(table: RecordTable, rank: int, entry: RecordedOp) -> bool:
    """Return whether a rank at the same place of another group of the kind has gone beyond the same operation."""
    key = table.key(rank, entry)
    return any(
        other.is_p2p and other.p2p > entry.p2p and _is_sibling(key, rank, table.key(one, other), one)
        for one, record in table.records.items()
        for other in record.entries
    )


def _is_sibling(key: GroupKey, rank: int, other: GroupKey, one: int) -> bool:
    is_like = other != key and (other.kind, len(other.ranks)) == (key.kind, len(key.ranks))
    return is_like and one in other.ranks and other.ranks.index(one) == key.ranks.index(rank)
