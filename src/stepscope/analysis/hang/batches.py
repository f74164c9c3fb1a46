"""Operations that torch ran as one: a batch of sends and receives, or coalesced collectives.

torch records each operation of a batch, which then stays `scheduled` for ever, and after them one named `coalesced`
that tells what became of all. A dump of active operations alone leaves the last one out once it is complete. Here a
batch becomes one operation.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from stepscope.analysis.hang.operation import GroupStatus, RecordedOp

COALESCED = "coalesced"
MOST_PARTS = 64
"""Operations of a batch that are kept."""
MOST_LATE = 8
"""Sends and receives that may wait while a later one of their group is complete; if there are more, they are the parts
of batches, and long over."""


def merged(entries: Iterable[RecordedOp], status: Mapping[int, GroupStatus]) -> list[RecordedOp]:
    """Return the operations of one rank, oldest first, each batch as one; `status` is by the number of the group."""
    known = list(entries)
    by_group: dict[tuple[str, str, int], list[RecordedOp]] = {}
    for entry in known:
        by_group.setdefault((entry.group, entry.description, entry.group_number), []).append(entry)
    after = max((entry.number for entry in known), default=0) + (not any(entry.is_done for entry in known))
    found: list[RecordedOp] = []
    groups = [(own, status.get(number)) for (_, _, number), own in by_group.items()]
    is_batched = _leaves_gaps(known) or any(map(_is_stale, groups))
    for own, counters in groups:
        found += _of_group(own, after, after + 1 if is_batched else _last_over(own, counters))
    return sorted(found, key=lambda entry: entry.number)


def _of_group(entries: list[RecordedOp], after: int, over: int) -> list[RecordedOp]:
    """Return the operations of one group.

    Batches without an end before the operation `after` are complete, and single sends and receives before `over`.
    """
    found = []
    for _, same in groupby(_kinds(entries), _place):
        batch = list(same)
        one = batch[0] if len(batch) == 1 else _one(batch)
        limit = after if len(batch) > 1 else over if one.is_p2p else -1
        # The end of a batch is recorded before anything else: it is missing because it is complete.
        if batch[-1].name != COALESCED and one.number < limit:
            one = replace(one, is_done=True, is_started=True)
        found.append(one)
    return found


def _last_over(entries: list[RecordedOp], status: GroupStatus | None) -> int:
    """Return before which operation of a group single sends and receives are complete, if they were batches of one."""
    ends = max((entry.number for entry in entries if entry.name == COALESCED), default=-1)
    if status is None or not _counts_transfers(entries):
        return ends
    late = [entry for entry in entries if not entry.is_done and 0 < entry.p2p <= status.completed]
    return max(ends, late[-1].number + 1) if len(late) > MOST_LATE else ends


def _counts_transfers(entries: list[RecordedOp]) -> bool:
    """Return whether the counters of a group are those of sends and receives; otherwise they mix both kinds."""
    return all(entry.is_p2p for entry in entries)


def _is_stale(group: tuple[list[RecordedOp], GroupStatus | None]) -> bool:
    """Return whether the counters call an operation complete that does not say so itself: it was a batch of one."""
    entries, status = group
    if status is None or not _counts_transfers(entries):
        return False
    return any(0 < entry.p2p == status.completed and not entry.is_done for entry in entries if entry.name != COALESCED)


def _leaves_gaps(entries: list[RecordedOp]) -> bool:
    """Return whether a dump of active operations lacks the record after each send and receive that stands alone.

    Then these were batches of one, and what is missing is their end, which is complete. A batch whose end is missing
    shows it, too: a rank that batches some of its sends and receives batches all of them.
    """
    if any(entry.is_done for entry in entries):
        return False
    numbers = {entry.number for entry in entries}
    ends = {entry.number for entry in entries if entry.name == COALESCED}
    transfers = [entry for entry in entries if entry.is_p2p and entry.p2p > 0 and entry.name != COALESCED]
    last = {(entry.group, entry.p2p): entry.number for entry in transfers}
    followed = {number + 1 for number in last.values()} - ends
    if len(last) < len(transfers):
        return not followed & numbers
    return len(followed) > 1 and not followed & numbers and max(followed) <= max(numbers)


def _kinds(entries: list[RecordedOp]) -> Iterator[RecordedOp]:
    """Yield operations; old formats do not tell that the end of a batch of sends and receives belongs to them."""
    before = None
    for entry in entries:
        ends = entry.name == COALESCED and before is not None and before.is_p2p and not entry.is_p2p
        is_same = before is not None and (entry.p2p, entry.collective) == (before.p2p, before.collective)
        before = replace(entry, is_p2p=True) if ends and is_same else entry
        yield before


def _place(entry: RecordedOp) -> tuple[bool, int]:
    """Return what the operations of a batch have in common: its number in their group."""
    return entry.is_p2p, entry.p2p if entry.is_p2p else entry.collective


def _one(batch: list[RecordedOp]) -> RecordedOp:
    """Return a batch as one operation, with the state of the last."""
    parts, last = [entry for entry in batch if entry.name != COALESCED][:MOST_PARTS], batch[-1]
    if not parts:
        return last
    names = tuple(entry.name for entry in parts)
    return replace(
        last,
        name=names[0],
        parts=names,
        sizes=tuple(size for entry in parts for size in entry.sizes),
        dtypes=tuple(kind for entry in parts for kind in entry.dtypes),
        frames=last.frames or parts[0].frames,
    )
