"""Who waits for whom in which collective, by the flight recorders of all ranks: follow the waits to their roots.

A rank waits in its oldest operation that is not complete. It waits for the ranks that have not entered that operation;
these may wait in a collective of another group themselves. The ranks at the end of all waits are the cause.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from stepscope.analysis.hang.operation import GLOO
from stepscope.analysis.hang.record_table import GroupKey, RecordTable
from stepscope.analysis.hang.spelling import verb, who
from stepscope.analysis.hang.stacks import place_of
from stepscope.analysis.hang.stopped import stopped_short
from stepscope.analysis.hang.suspicion import (
    COLLECTIVE_STUCK,
    DEAD_RANK,
    DESYNCHRONISED,
    FLIGHT_RECORDER,
    NEVER_ARRIVED,
    UNKNOWN,
    Suspicion,
)
from stepscope.analysis.hang.transfers import passed_by_another, transferred

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from stepscope.analysis.hang.evidence import HangEvidence
    from stepscope.analysis.hang.operation import RecordedOp
    from stepscope.analysis.hang.record import FlightRecord

MOST_SAID = 6
"""Sentences of evidence."""
MANY_LOST = 0.25
"""Share of ranks without a record above which a missing record says nothing about its rank."""
MOST_PEERS = 3
"""Ranks of a batch of sends and receives that are named."""
HISTORY = 3
"""Collectives before a mismatch that are compared with earlier ones."""
NO_RECORD, HOST, DEVICE, STUCK, MISMATCH, LOOP = "no_record", "host", "device", "stuck", "mismatch", "loop"
"""Why a wait ends at a rank: no record of it; it has not called; its device lags; all are in; they differ; a circle."""
SHORT = "short"
"""It waits, too, but its process has stopped: its peers, which wait for the same, have called more."""
UNCLEAR = "unclear"
"""Its record is cut: it may wait as well."""
PROVEN = (HOST, SHORT, DEVICE)
"""What the record of a rank itself proves."""
SEND, RECEIVE = "send", "recv"

OPPOSITE = {SEND: RECEIVE, RECEIVE: SEND}


class Gathering(NamedTuple):
    """Who is in one collective."""

    differs: bool
    """Whether its ranks call different operations."""
    missing: frozenset[int]
    idle: frozenset[int]
    """Ranks whose device has not begun it, though that of others has."""
    earlier: frozenset[int]
    """Ranks that have called it, and still stand in an operation before it."""
    unclear: frozenset[int]
    """Ranks of which it is unknown whether they have called it."""


@dataclass
class Waits:
    """The waits of all ranks."""

    table: RecordTable
    sends: bool = True
    """Whether a rank may wait in a send."""
    blocking: dict[int, RecordedOp] = field(default_factory=dict)
    """The operation in which each rank waits."""
    edges: dict[int, set[int]] = field(default_factory=dict)
    """For whom each rank waits; none for a rank at the end."""
    ends: dict[int, str] = field(default_factory=dict)
    """Why the wait ends at a rank."""
    gatherings: dict[tuple[GroupKey, int], Gathering] = field(default_factory=dict)
    """What is known of the collectives in which ranks wait."""
    lagging: dict[int, int] = field(default_factory=dict)
    """Ranks whose device has not completed what others have: with how many operations."""


def by_recorder(evidence: HangEvidence) -> Suspicion | None:
    """Return what the flight recorders say; None without any."""
    records = {rank.rank: rank.record for rank in evidence.ranks if rank.record is not None}
    if not records:
        return None
    return judge_records(records, evidence.world_size, evidence.cut)


def judge_records(
    records: Mapping[int, FlightRecord], world_size: int | None = None, cut: Collection[int] = ()
) -> Suspicion:
    """Return the cause of a hang by the records of its ranks; `world_size` is the number of ranks, if known.

    Of the ranks in `cut`, the record is not whole, or cannot be read.
    """
    table = RecordTable.of(records, world_size, cut)
    waits = follow(table)
    if not waits.blocking and not waits.lagging:
        text = f"{who(records)} completed all collectives that {verb(records, 'it', 'they')} began"
        lost = table.lost()
        text += f"; {who(lost)} left no record" if lost else ""
        return Suspicion(FLIGHT_RECORDER, UNKNOWN, (), (), text, [text], 0.2)
    if set(waits.ends.values()) == {LOOP}:  # a rank need not stand in a send: it may only wait to be received
        waits = min((waits, follow(table, sends=False)), key=lambda one: set(one.ends.values()) <= {LOOP})
    causes = _chosen(waits)
    kinds = Counter(waits.ends[rank] for rank in causes)
    kind = kinds.most_common(1)[0][0] if kinds else STUCK
    waiting = tuple(sorted(rank for rank in waits.blocking if rank not in causes))
    if kind in (MISMATCH, LOOP):
        return _desynchronised(waits, causes, waiting)
    if kind == STUCK:
        return _stuck(waits, causes)
    return _missing(waits, causes, waiting)


def follow(table: RecordTable, *, sends: bool = True) -> Waits:
    """Return in what each rank waits, and for whom; without `sends`, nobody waits in a send."""
    waits = Waits(table, sends)
    for rank in table.records:
        pending = [entry for entry in table.pending(rank) if sends or not _only_sends(entry)]
        if pending:
            waits.blocking[rank] = pending[0]
            late = sum(_is_late(table, rank, entry) for entry in pending) + _has_transferred(table, rank, pending[0])
            waits.lagging |= {rank: late} if late else {}
    if 2 * len(waits.lagging) > len(table.records):  # not so many devices at once: it is the network between them
        waits.lagging.clear()
    for rank in waits.lagging:
        del waits.blocking[rank]
    _find_ends(waits)
    return waits


def _is_late(table: RecordTable, rank: int, entry: RecordedOp) -> bool:
    """Return whether the device of a rank has not completed what others have; gloo has none, and waits for data."""
    return entry.backend != GLOO and table.done_elsewhere(rank, entry)


def _has_transferred(table: RecordTable, rank: int, entry: RecordedOp) -> bool:
    """Return the same of its sends and receives."""
    return entry.backend != GLOO and transferred(table, rank, entry)


def _find_ends(waits: Waits) -> None:
    """Find for whom each rank waits, and why waits end where they do."""
    for rank, entry in waits.blocking.items():
        waits.edges[rank], why = _waits_for(waits, rank, entry)
        if why:
            waits.ends[rank] = why
    for rank in {other for found in waits.edges.values() for other in found} - set(waits.blocking):
        waits.ends[rank] = _why_there(waits, rank)
    proven = dict.fromkeys(stopped_short(waits.table, waits.lagging), SHORT) | dict.fromkeys(waits.lagging, DEVICE)
    waits.ends |= {rank: why for rank, why in proven.items() if waits.ends.get(rank, STUCK) == STUCK}
    if not {MISMATCH, HOST, SHORT, NO_RECORD, DEVICE} & set(waits.ends.values()):
        _find_loops(waits)


def _why_there(waits: Waits, rank: int) -> str:
    """Return why a wait ends at a rank that does not wait itself."""
    if rank in waits.table.cut and not any(rank in found.missing for found in waits.gatherings.values()):
        return UNCLEAR
    if rank not in waits.table.records:
        return NO_RECORD
    return DEVICE if rank in waits.lagging else HOST


def _waits_for(waits: Waits, rank: int, entry: RecordedOp) -> tuple[set[int], str]:
    """Return for whom a rank waits; if for nobody, why."""
    table = waits.table
    if entry.is_p2p:
        return _waits_for_peers(waits, rank, entry)
    key = table.key(rank, entry)
    found = waits.gatherings.get((key, entry.collective))
    if found is None:
        found = waits.gatherings[key, entry.collective] = _gathering(waits, key, entry.collective)
    if found.differs:
        return set(), MISMATCH
    for others in (found.missing, found.idle if rank not in found.idle else (), found.earlier, found.unclear):
        if set(others) - {rank}:
            return set(others) - {rank}, ""
    return set(), DEVICE if rank in found.idle else STUCK


def _gathering(waits: Waits, key: GroupKey, collective: int) -> Gathering:
    table = waits.table
    absent = frozenset(rank for rank in key.ranks if not table.arrived(rank, key, collective))
    unclear = frozenset(rank for rank in absent if table.is_unclear(rank, key))
    at = {rank: of[collective] for rank, of in table.entries[key].items() if collective in of}
    idle = frozenset(rank for rank, entry in at.items() if not entry.is_started)
    earlier = frozenset(rank for rank in key.ranks if _is_before(waits, rank, key, collective))
    idle = idle if len(idle) < len(at) else frozenset()
    return Gathering(bool(odd(table, key, collective)), absent - unclear, idle, earlier, unclear)


def _waits_for_peers(waits: Waits, rank: int, entry: RecordedOp) -> tuple[set[int], str]:
    """Return for whom a rank waits in its sends and receives: peers that are not at the other end."""
    peers = waits.table.peers(rank, entry)
    wanted = {peer: {OPPOSITE[what] for what in own if waits.sends or what == RECEIVE} for peer, own in peers.items()}
    present = {peer: other for peer in wanted if (other := _other_end(waits, rank, peer, wanted[peer])) is not None}
    absent = {peer for peer, some in wanted.items() if some and peer not in present}
    if absent:
        return absent, ""
    return _at_both_ends(waits, rank, entry, present)


def _at_both_ends(
    waits: Waits, rank: int, entry: RecordedOp, present: Mapping[int, RecordedOp]
) -> tuple[set[int], str]:
    """Return for whom a rank waits whose peers are all at the other end.

    The device of one may not have begun, or a peer still waits for another in the same batch.
    """
    idle = {peer for peer, other in present.items() if entry.is_started and not other.is_started}
    partly = {peer for peer, other in present.items() if set(waits.table.peers(peer, other)) - {rank}}
    if idle or partly:
        return idle or partly, ""
    is_idle = not entry.is_started and any(other.is_started for other in present.values())
    return set(), DEVICE if is_idle else STUCK


def _other_end(waits: Waits, rank: int, peer: int, wanted: set[str]) -> RecordedOp | None:
    """Return the operation in which a peer waits, if that is the other end of what a rank waits for."""
    other = waits.blocking.get(peer)
    if other is None or not other.is_p2p or not wanted:
        return None
    return other if wanted <= waits.table.peers(peer, other).get(rank, set()) else None


def _only_sends(entry: RecordedOp) -> bool:
    return entry.is_p2p and all(name.startswith(SEND) for name in entry.transfers)


def _is_before(waits: Waits, rank: int, key: GroupKey, collective: int) -> bool:
    """Return whether a rank that has enqueued a collective still stands in an operation before it."""
    if rank in waits.lagging:
        return True
    own = waits.blocking.get(rank)
    same = waits.table.entries[key].get(rank, {}).get(collective)
    return own is not None and same is not None and own.number < same.number


def odd(table: RecordTable, key: GroupKey, collective: int) -> tuple[int, ...]:
    """Return the ranks whose operation differs from that of the most at one place of a group; () if all agree.

    If as many do this as that, it is the ranks that never did so before after the same collectives.
    """
    rows = {rank: of[collective] for rank, of in table.entries.get(key, {}).items() if collective in of}
    shapes = Counter(entry.shape for entry in rows.values())
    if len(shapes) < 2:
        return ()
    (usual, most), (_, second) = shapes.most_common(2)
    if most > second:
        return tuple(sorted(rank for rank, entry in rows.items() if entry.shape != usual))
    fresh = [rank for rank in rows if not _did_before(table.entries[key][rank], collective)]
    return tuple(sorted(fresh)) if 0 < len(fresh) < len(rows) else tuple(sorted(rows))


def _did_before(rows: Mapping[int, RecordedOp], collective: int) -> bool:
    """Return whether a rank has done the same operation before, after the same ones."""
    tail = [rows[at].shape for at in range(collective - HISTORY, collective + 1) if at in rows]
    ordered = [rows[at].shape for at in sorted(rows) if at < collective]
    return any(ordered[at : at + len(tail)] == tail for at in range(len(ordered) - len(tail) + 1))


def _find_loops(waits: Waits) -> None:
    """Mark ranks that wait for each other in a circle which no wait leaves."""
    reach = {rank: _reached(waits, rank) for rank in waits.edges if waits.edges[rank]}
    for rank, found in reach.items():
        if rank in found and all(rank in reach.get(other, ()) for other in found):
            waits.ends[rank] = LOOP
    loop = {rank: waits.blocking[rank] for rank, why in waits.ends.items() if why == LOOP}
    transfers = all(entry.is_p2p for entry in loop.values())
    # Others ran the same sends and receives: it is no fault of the program, but of a device that stands.
    if transfers and any(passed_by_another(waits.table, rank, entry) for rank, entry in loop.items()):
        waits.ends |= dict.fromkeys(loop, STUCK)


def _reached(waits: Waits, rank: int) -> set[int]:
    found: set[int] = set()
    todo = list(waits.edges.get(rank, ()))
    while todo:
        other = todo.pop()
        if other not in found:
            found.add(other)
            todo += waits.edges.get(other, ())
    return found


def _chosen(waits: Waits) -> tuple[int, ...]:
    """Return the ranks that are the cause, among those at the end of a wait."""
    by_kind: dict[str, list[int]] = {}
    for rank, why in waits.ends.items():
        by_kind.setdefault(why, []).append(rank)
    proven = [rank for why in PROVEN for rank in by_kind.get(why, [])]
    if len(proven) > 1 and waits.ends.get(0) == SHORT:  # only the first rank logs: it waits for what it prints
        proven.remove(0)
    rest = (by_kind.get(why, []) for why in (LOOP, NO_RECORD, UNCLEAR, STUCK))
    for found in (by_kind.get(MISMATCH, []), [*proven, *_gone(waits, by_kind.get(NO_RECORD, []))], *rest):
        if found:
            return tuple(sorted(found))
    return ()


def _gone(waits: Waits, lost: list[int]) -> list[int]:
    """Return the ranks that have probably ended, as they left no record.

    A record may just be lost. So others must wait for one of them, which nothing else explains; then the other ranks
    without a record have ended, too.
    """
    everybody = waits.table.lost() or lost
    if len(everybody) > max(1, MANY_LOST * (len(waits.table.records) + len(everybody))):
        return []
    gone = set(everybody) - _excused(waits, everybody)
    for rank in waits.edges:
        ends = {other: waits.ends[other] for other in _reached(waits, rank) if other in waits.ends}
        if set(ends.values()) == {NO_RECORD} and gone & ends.keys():
            waits.ends |= dict.fromkeys(gone, NO_RECORD)
            return sorted(gone)
    return []


def _excused(waits: Waits, lost: Collection[int]) -> set[int]:
    """Return the ranks without a record that may wait themselves, in a collective that a proven cause holds up."""
    proven = {rank for rank, why in waits.ends.items() if why in PROVEN}
    held = proven | {rank for rank in waits.edges if proven & _reached(waits, rank)}
    groups = [set(key.ranks) for key in {key for key, _ in waits.gatherings} if held & set(key.ranks)]
    return {rank for rank in lost if any(rank in members for members in groups)}


def _where(waits: Waits, rank: int) -> str:
    """Return the operation in which a rank waits as text, with its group."""
    entry = waits.blocking[rank]
    key = waits.table.key(rank, entry)
    if entry.is_p2p:
        transfers = [
            f"{what} {'to' if what == SEND else 'from'} rank {peer}"
            for peer, own in list(waits.table.peers(rank, entry).items())[:MOST_PEERS]
            for what in sorted(own)
        ]
        return f"{' and '.join(transfers) or entry.name} in {key.said()}"
    return f"{entry.said()}, number {entry.collective} of {key.said()}"


def _called(entry: RecordedOp) -> str:
    """Return an operation as text, with the line of the user's code that called it, if that is recorded."""
    place = place_of(entry.frames)
    return f"{entry.said()} at {place}" if place else entry.said()


def _said(waits: Waits) -> list[str]:
    """Return one sentence for each operation in which ranks wait, the one with most ranks first."""
    grouped: dict[str, list[int]] = {}
    for rank in waits.blocking:
        grouped.setdefault(_where(waits, rank), []).append(rank)
    ordered = sorted(grouped.items(), key=lambda one: -len(one[1]))
    said = [f"{who(ranks)} {verb(ranks, 'waits', 'wait')} in {where}" for where, ranks in ordered[:MOST_SAID]]
    rest = [rank for _, ranks in ordered[MOST_SAID:] for rank in ranks]
    if rest:
        said.append(f"{who(rest)} {verb(rest, 'waits', 'wait')} in {len(ordered) - MOST_SAID} other places")
    for rank, count in sorted(waits.lagging.items())[:MOST_SAID]:
        said.append(f"rank {rank} has not completed {count} operations that other ranks have completed")
    lost = sorted(rank for rank, why in waits.ends.items() if why == NO_RECORD)
    if lost:
        said.append(f"{who(lost)} left no record")
    if waits.table.cut:
        said.append(f"the record of {who(sorted(waits.table.cut))} is not whole: what is missing there says nothing")
    return said


def _missing(waits: Waits, causes: tuple[int, ...], waiting: tuple[int, ...]) -> Suspicion:
    """Return the ranks that others wait for, and that do not wait themselves."""
    direct = [rank for rank, found in waits.edges.items() if found & set(causes)]
    sentences = _said(waits)
    lost = [rank for rank in causes if waits.ends[rank] == NO_RECORD]
    kind = DEAD_RANK if len(lost) == len(causes) else NEVER_ARRIVED
    text = "; ".join([*_never_came(waits, causes, direct), *_besides(waits, causes)])
    if {waits.ends[rank] for rank in causes} == {UNCLEAR}:
        text += ", as far as a record shows that is not whole"
        return Suspicion(FLIGHT_RECORDER, kind, causes, waiting, text, sentences, 0.4)
    sure = 0.75 if lost else 0.8 if any(waits.ends[rank] == SHORT for rank in causes) else 0.85
    return Suspicion(FLIGHT_RECORDER, kind, causes, waiting, text, sentences, sure)


def _never_came(waits: Waits, causes: tuple[int, ...], direct: list[int]) -> list[str]:
    """Return where ranks are missing, or their devices; `direct` are the ranks that wait for them."""
    if not direct:
        return []
    first = min(direct, key=lambda rank: (-len(waits.edges[rank] & set(causes)), waits.blocking[rank].created, rank))
    inside = [rank for rank in direct if _where(waits, rank) == _where(waits, first)]
    entry, where = waits.blocking[first], _where(waits, first)
    place = place_of(entry.frames)
    wait = f"{who(inside)} {verb(inside, 'waits', 'wait')}"
    at, here = f" at {place}" if place else "", waits.edges[first] & set(causes)
    if entry.is_p2p:  # it has another name at the other end
        return [f"{who(here)} never came to the other end: {wait} in {where}{at}"]
    key = waits.table.key(first, entry)
    called = {rank for rank in here if waits.table.arrived(rank, key, entry.collective)}
    begun = verb(called, "its device has", "their devices have")
    if called == here:
        return [f"{who(called)} called {where}, but {begun} not begun it: {wait}{at}"]
    said = [f"{who(here - called)} never entered {where}, in which {wait}{at}"]
    return [*said, f"{who(called)} called it, but {begun} not begun it"] if called else said


def _besides(waits: Waits, causes: tuple[int, ...]) -> list[str]:
    """Return what else the records show of the ranks that are the cause, and who else may be it."""
    found: dict[str, list[int]] = {}
    for rank in causes:
        found.setdefault(waits.ends[rank], []).append(rank)
    late = [rank for rank in found.get(DEVICE, ()) if rank in waits.lagging]
    short, lost = found.get(SHORT, []), found.get(NO_RECORD, [])
    maybe = [rank for rank, why in waits.ends.items() if why == NO_RECORD and rank not in causes]
    logs = [0] if waits.ends.get(0) == SHORT and 0 not in causes else []
    parts = (
        (late, f"the {verb(late, 'device', 'devices')} of {{}} did not even complete what others have completed"),
        (short, f"{{}} {verb(short, 'has', 'have')} not called what {verb(short, 'its', 'their')} peers called since"),
        (lost, f"{{}} left no record: {verb(lost, 'it has', 'they have')} probably ended"),
        (maybe, "{} left no record, and may be a cause, too"),
        (logs, "{} has called less than its peers: it waits for what it logs, or is a cause, too"),
    )
    return [text.format(who(ranks)) for ranks, text in parts if ranks]


def _stuck(waits: Waits, causes: tuple[int, ...]) -> Suspicion:
    """Judge a collective that all have entered, and few or none have left."""
    first = min(causes, key=lambda rank: (waits.blocking[rank].created, rank)) if causes else min(waits.blocking)
    entry = waits.blocking[first]
    key = waits.table.key(first, entry)
    sentences = _said(waits)
    everybody = tuple(sorted(waits.blocking))
    members = _members(waits, first)
    who_in = who(members) if entry.is_p2p else f"all {len(key.ranks)} ranks"
    left = [] if entry.is_p2p else [rank for rank in key.ranks if waits.table.is_done(rank, key, entry.collective)]
    out = f"only {who(left)} {verb(left, 'has', 'have')}" if left else "none has"
    text = f"{who_in} entered {_where(waits, first)}, and {out} left it: "
    text += "the network or the device of one of them does not work"
    places = dict.fromkeys(_where(waits, rank) for rank in causes if set(_members(waits, rank)).isdisjoint(members))
    text += "".join(f"; the same holds for {place}" for place in list(places)[:MOST_SAID])
    return Suspicion(FLIGHT_RECORDER, COLLECTIVE_STUCK, (), everybody, text, sentences, 0.7)


def _members(waits: Waits, rank: int) -> tuple[int, ...]:
    """Return the ranks that take part in the operation in which a rank waits."""
    entry = waits.blocking[rank]
    return (rank, *waits.table.peers(rank, entry)) if entry.is_p2p else waits.table.key(rank, entry).ranks


def _desynchronised(waits: Waits, causes: tuple[int, ...], waiting: tuple[int, ...]) -> Suspicion:
    """Judge ranks in different collectives at the same place, or in collectives of different groups in a circle."""
    sentences = _said(waits)
    first = min(causes, key=lambda rank: (waits.blocking[rank].created, rank))
    if waits.ends[first] == LOOP:
        text = f"{who(causes)} wait for each other in different collectives: {'; '.join(sentences[:2])}"
        places = Counter(_where(waits, rank) for rank in causes)
        usual, most = places.most_common(1)[0]
        few = tuple(rank for rank in causes if _where(waits, rank) != usual) if most > len(causes) / 2 else causes
        others = tuple(sorted({*causes, *waiting} - set(few)))
        return Suspicion(FLIGHT_RECORDER, DESYNCHRONISED, few, others, text, sentences, 0.8)
    entry = waits.blocking[first]
    key = waits.table.key(first, entry)
    ranks = odd(waits.table, key, entry.collective)
    rows = {rank: of[entry.collective] for rank, of in waits.table.entries[key].items() if entry.collective in of}
    own, rest = rows[ranks[0]], next((rows[rank] for rank in rows if rows[rank].shape != rows[ranks[0]].shape), entry)
    text = f"{who(ranks)} {verb(ranks, 'is', 'are')} in {_called(own)}, the others in {_called(rest)}, both number "
    text += f"{entry.collective} of {key.said()}"
    everybody = tuple(sorted({*rows, *waiting} - set(ranks)))
    return Suspicion(FLIGHT_RECORDER, DESYNCHRONISED, ranks, everybody, text, [text, *sentences], 0.85)
