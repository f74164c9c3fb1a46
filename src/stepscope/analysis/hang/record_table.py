"""The flight recorders of all ranks side by side: who is in which group, and how far each rank is in it."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from stepscope.analysis.hang.operation import GLOO
from stepscope.analysis.hang.spelling import who

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from stepscope.analysis.hang.operation import GroupStatus, RecordedOp
    from stepscope.analysis.hang.record import FlightRecord

DEFAULT = "default_pg"
UNDESCRIBED = ("", "undefined")
_PEER = re.compile(r"^(?:send|recv) (\d{1,9})(?:->|<-)(\d{1,9})")


class GroupKey(NamedTuple):
    """One process group of the job; the same name may be another group on other ranks, so its ranks belong to it."""

    name: str
    ranks: tuple[int, ...]
    description: str = ""

    @property
    def kind(self) -> str:
        """What the groups at the same place of other ranks have in common, as far as it is described."""
        return self.name if self.description in UNDESCRIBED else self.description

    def said(self) -> str:
        """Return the group as text."""
        if self.description == DEFAULT:
            return "the default group"
        return f"{self.kind} ({who(self.ranks)})"


@dataclass
class RecordTable:
    """All records, matched by group."""

    records: Mapping[int, FlightRecord]
    entries: dict[GroupKey, dict[int, dict[int, RecordedOp]]] = field(default_factory=dict)
    """By group, rank and number of the collective."""
    keys: dict[tuple[int, str, str], GroupKey] = field(default_factory=dict)
    """By rank, and name and description of the group there."""
    has_p2p: set[GroupKey] = field(default_factory=set)
    """Groups in which any rank has sent or received, ever: their status counts both kinds."""
    furthest: dict[tuple[int, GroupKey], int] = field(default_factory=dict)
    """The last collective of a group that each rank has enqueued, once that was asked."""
    passed: dict[tuple[int, GroupKey], int] = field(default_factory=dict)
    """The last collective of a group that each rank had enqueued before a send or receive."""
    left: dict[tuple[GroupKey, int, tuple[object, ...]], bool] = field(default_factory=dict)
    """Whether any rank has left a collective of this shape, once that was asked."""
    numbers: dict[tuple[int, GroupKey], int] = field(default_factory=dict)
    """The number of a group in a rank's process."""

    cut: Collection[int] = ()
    """Ranks whose record is not whole, or cannot be read."""

    @classmethod
    def of(
        cls, records: Mapping[int, FlightRecord], world_size: int | None = None, cut: Collection[int] = ()
    ) -> RecordTable:
        """Match the records of a job; `world_size` is its number of ranks, if known."""
        table = cls(records, cut=cut)
        inferred: dict[tuple[str, str], set[int]] = defaultdict(set)
        for rank, record in records.items():
            for entry in record.entries:
                inferred[entry.group, entry.description].add(rank)
        for rank, record in records.items():
            configured = {group.name: group for group in record.groups if group.ranks}
            for group in configured.values():
                key = GroupKey(group.name, tuple(sorted(group.ranks)), group.description)
                table.keys[rank, group.name, group.description] = key
            for name, description in {(entry.group, entry.description) for entry in record.entries}:
                if (rank, name, description) in table.keys:
                    continue
                own = configured.get(name)
                ranks = set(own.ranks) if own else inferred[name, description]
                if description == DEFAULT and not own:
                    ranks = ranks | set(records) | set(range(world_size or 0))
                table.keys[rank, name, description] = GroupKey(name, tuple(sorted(ranks)), description)
            table._add(rank, record)
        return table

    def _add(self, rank: int, record: FlightRecord) -> None:
        for entry in record.entries:
            key = self.key(rank, entry)
            self.numbers[rank, key] = entry.group_number
            if entry.is_p2p or entry.p2p > 0:
                self.has_p2p.add(key)
            if entry.is_p2p:
                self.passed[rank, key] = max(entry.collective, self.passed.get((rank, key), 0))
            else:
                self.entries.setdefault(key, {}).setdefault(rank, {})[entry.collective] = entry
        # A group without entries: torch numbers the groups of a process in the order of their names.
        named = {key for (of, _, _), key in self.keys.items() if of == rank}
        is_known = len(named) == len(record.status) or (rank in self.cut and len(named) > len(record.status))
        if is_known and all(key.name.isdecimal() for key in named):  # of a cut record, the first are there
            ordered = zip(sorted(named, key=lambda key: int(key.name)), sorted(record.status), strict=False)
            guessed = {(rank, key): number for key, number in ordered}
            if all(self.numbers.get(where, number) == number for where, number in guessed.items()):
                self.numbers |= guessed

    def key(self, rank: int, entry: RecordedOp) -> GroupKey:
        """Return the group of an entry of a rank."""
        return self.keys[rank, entry.group, entry.description]

    def status(self, rank: int, key: GroupKey) -> GroupStatus | None:
        """Return how far a rank is in a group by its own counters; None if they do not say."""
        record = self.records.get(rank)
        if record is None or key in self.has_p2p or any(entry.backend == GLOO for entry in record.entries[-1:]):
            return None
        return record.status.get(self.numbers.get((rank, key), -1))

    def arrived(self, rank: int, key: GroupKey, collective: int) -> bool:
        """Return whether a rank has enqueued a collective, or a later one of the same group."""
        return self.enqueued(rank, key) >= collective

    def is_unclear(self, rank: int, key: GroupKey) -> bool:
        """Return whether the record of a rank does not say which collectives of a group it has not enqueued."""
        return rank in self.cut and self.status(rank, key) is None

    def enqueued(self, rank: int, key: GroupKey) -> int:
        """Return the number of the last collective of a group that a rank has enqueued; 0 if none is known."""
        known = self.furthest.get((rank, key))
        if known is None:
            status = self.status(rank, key)
            rows = self.entries.get(key, {}).get(rank, {})
            known = max(*rows, status.enqueued if status else 0, self.passed.get((rank, key), 0))
            self.furthest[rank, key] = known
        return known

    def is_done(self, rank: int, key: GroupKey, collective: int) -> bool:
        """Return whether a rank is known to have completed a collective."""
        entry = self.entries.get(key, {}).get(rank, {}).get(collective)
        if entry is not None:
            return entry.is_done
        status = self.status(rank, key)
        if status is not None:
            return status.completed >= collective
        # Dumps may hold only what is not complete; and what the ring has overwritten is long over.
        return any(number > collective for number in self.entries.get(key, {}).get(rank, ()))

    def done_elsewhere(self, rank: int, entry: RecordedOp) -> bool:
        """Return whether another rank has left a collective that nobody leaves before all have entered."""
        key, shape = self.key(rank, entry), entry.shape
        if not entry.is_symmetric:
            return False
        known = self.left.get((key, entry.collective, shape))
        if known is None:  # `rank` itself has not left it, so it need not be left out
            known = not entry.is_pairwise or all(self.arrived(other, key, entry.collective) for other in key.ranks)
            known = known and any(self._has_left(other, key, entry.collective, shape) for other in key.ranks)
            known = known or self._is_left_behind(rank, entry, key)
            self.left[key, entry.collective, shape] = known
        return known

    def lost(self) -> tuple[int, ...]:
        """Return the ranks that are in a group, and left no record."""
        everybody = {rank for key in set(self.keys.values()) for rank in key.ranks}
        return tuple(sorted(everybody - {*self.records, *self.cut}))

    def _has_left(self, rank: int, key: GroupKey, collective: int, shape: tuple[object, ...]) -> bool:
        same = self.entries.get(key, {}).get(rank, {}).get(collective)
        return (same is None or same.shape == shape) and self.is_done(rank, key, collective)

    def _is_left_behind(self, rank: int, entry: RecordedOp, key: GroupKey) -> bool:
        """Return whether a rank alone is in a collective: all others have called one that it called after that."""
        if key not in self.has_p2p or any(
            entry.collective in of for one, of in self.entries[key].items() if one != rank
        ):
            return False
        others = set(key.ranks) - {rank}
        for later in self.pending(rank):
            if later.number > entry.number and not later.is_p2p:
                group = self.key(rank, later)
                others -= {one for one in group.ranks if self.arrived(one, group, later.collective)}
        return not others and len(key.ranks) > 1

    def peers(self, rank: int, entry: RecordedOp) -> dict[int, set[str]]:
        """Return the ranks at the other ends of the sends and receives of an operation: what it does with each."""
        # The config lists the ranks of a group in its order, which is that of the numbers in the name.
        record = self.records[rank]
        ordered = next((one.ranks for one in record.groups if one.name == entry.group and one.ranks), None)
        found: dict[int, set[str]] = {}
        if ordered is None and entry.description not in (DEFAULT, *UNDESCRIBED):
            return found  # which numbers its ranks have is unknown
        for name in entry.transfers:
            match = _PEER.match(name)
            number = int(match[2]) if match is not None else -1
            if number >= 0 and (ordered is None or number < len(ordered)):
                found.setdefault(number if ordered is None else ordered[number], set()).add(name[:4])
        return found

    def pending(self, rank: int) -> list[RecordedOp]:
        """Return the operations of a rank that are not complete, oldest first."""
        record = self.records.get(rank)
        return [entry for entry in record.entries if not entry.is_done] if record else []

    def done(self, rank: int) -> list[RecordedOp]:
        """Return the operations of a rank that are complete, as far as its record still holds them."""
        return [entry for entry in self.records[rank].entries if entry.is_done]
