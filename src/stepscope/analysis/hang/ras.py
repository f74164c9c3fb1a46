"""What NCCL's RAS says about a hang: which ranks have begun fewer collectives of a communicator than the others."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from stepscope.analysis.hang.evidence import RasCommunicator
from stepscope.analysis.hang.spelling import verb, who
from stepscope.analysis.hang.suspicion import (
    COLLECTIVE_STUCK,
    DEAD_RANK,
    DESYNCHRONISED,
    NEVER_ARRIVED,
    RAS,
    UNKNOWN,
    Suspicion,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from stepscope.analysis.hang.evidence import HangEvidence

RUNNING = "RUNNING"
MOST_SAID = 6


def by_ras(evidence: HangEvidence) -> Suspicion | None:
    """Return what RAS says; None without a report."""
    report = evidence.ras
    if report is None or not report.communicators:
        return None
    if report.before and not _stands(report.before, report.communicators):
        text = "the counts of collectives still grow"
        return Suspicion(RAS, UNKNOWN, (), (), text, [text], 0.2)
    found = [_judge(one) for one in report.communicators]
    sentences = [one.text for one in found if one.kind != UNKNOWN][:MOST_SAID]
    order = (DEAD_RANK, DESYNCHRONISED, NEVER_ARRIVED, COLLECTIVE_STUCK)
    told = sorted((one for one in found if one.kind in order), key=lambda one: (order.index(one.kind), len(one.ranks)))
    if not told:
        text = "all ranks of each communicator have begun the same collectives"
        kind = COLLECTIVE_STUCK if report.before else UNKNOWN
        return Suspicion(RAS, kind, (), (), text, [text], 0.3)
    first = told[0]
    sure = 0.6 if report.before else 0.5
    return Suspicion(RAS, first.kind, first.ranks, first.waiting, first.text, sentences, sure)


def _stands(before: Iterable[RasCommunicator], after: Iterable[RasCommunicator]) -> bool:
    """Return whether nothing has advanced between two readings, in any communicator that both know."""
    earlier = {one.name: one for one in before}
    return all(earlier[one.name].counts == one.counts for one in after if one.name in earlier)


def _judge(one: RasCommunicator) -> Suspicion:
    named = f"communicator {one.name[:18]}"
    known = tuple(sorted(one.counts))
    if one.dead or one.missing:
        gone = tuple(sorted({*one.dead, *one.missing}))
        kind, does = (DEAD_RANK, "ended") if one.dead else (NEVER_ARRIVED, "did not answer RAS")
        rest = tuple(rank for rank in known if rank not in gone)
        return Suspicion(RAS, kind, gone, rest, f"{who(gone)} of {named} {does}", [], 0.5)
    odd = tuple(rank for rank, status in one.status.items() if status and status.upper() != RUNNING)
    if odd:
        text = f"{who(odd)} of {named} {verb(odd, 'is', 'are')} not running but {one.status[odd[0]]}"
        return Suspicion(RAS, NEVER_ARRIVED, odd, tuple(rank for rank in known if rank not in odd), text, [], 0.5)
    totals = {rank: sum(counts.values()) for rank, counts in one.counts.items()}
    if len(set(totals.values())) > 1:
        least = min(totals.values())
        late = tuple(rank for rank in known if totals[rank] == least)
        rest = tuple(rank for rank in known if rank not in late)
        text = f"{who(late)} of {named} {verb(late, 'has', 'have')} begun {least} collectives, the others up to "
        return Suspicion(RAS, NEVER_ARRIVED, late, rest, text + str(max(totals.values())), [], 0.5)
    kinds = Counter(tuple(sorted(counts.items())) for counts in one.counts.values())
    if len(kinds) > 1:
        usual = kinds.most_common(1)[0][0]
        late = tuple(rank for rank in known if tuple(sorted(one.counts[rank].items())) != usual)
        text = f"{who(late)} of {named} {verb(late, 'has', 'have')} begun other collectives than the others"
        return Suspicion(RAS, DESYNCHRONISED, late, tuple(rank for rank in known if rank not in late), text, [], 0.5)
    return Suspicion(RAS)
