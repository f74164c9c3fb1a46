"""What NCCL's RAS says about a hang: which ranks have begun fewer collectives of a communicator than the others."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from stepscope.analysis.hang.ras_report import RUNNING
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

    from stepscope.analysis.hang.evidence import HangEvidence, RasCommunicator

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
    return _gone(one) or _behind(one) or Suspicion(RAS)


def _rest(one: RasCommunicator, ranks: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(sorted(set(one.counts) - set(ranks)))


def _named(one: RasCommunicator) -> str:
    return f"communicator {one.name[:18]}".strip()


def _gone(one: RasCommunicator) -> Suspicion | None:
    """Judge ranks that RAS misses, or that do not run."""
    gone = tuple(sorted({*one.dead, *one.missing}))
    if gone:
        kind, does = (DEAD_RANK, "ended") if one.dead else (NEVER_ARRIVED, "did not answer RAS")
        return Suspicion(RAS, kind, gone, _rest(one, gone), f"{who(gone)} of {_named(one)} {does}", [], 0.5)
    odd = tuple(rank for rank, status in one.status.items() if status and status.upper() != RUNNING)
    if not odd or len(odd) == len(one.counts):
        return None
    text = f"{who(odd)} of {_named(one)} {verb(odd, 'is', 'are')} not running but {one.status[odd[0]]}"
    return Suspicion(RAS, NEVER_ARRIVED, odd, _rest(one, odd), text, [], 0.5)


def _behind(one: RasCommunicator) -> Suspicion | None:
    """Judge ranks that have begun fewer collectives than the others, or others."""
    totals = {rank: sum(counts.values()) for rank, counts in one.counts.items()}
    if len(set(totals.values())) > 1:
        least, most = min(totals.values()), max(totals.values())
        late = tuple(sorted(rank for rank, total in totals.items() if total == least))
        text = f"{who(late)} of {_named(one)} {verb(late, 'has', 'have')} begun {least} collectives, others {most}"
        return Suspicion(RAS, NEVER_ARRIVED, late, _rest(one, late), text, [], 0.5)
    kinds = Counter(tuple(sorted(counts.items())) for counts in one.counts.values())
    if len(kinds) < 2:
        return None
    usual = kinds.most_common(1)[0][0]
    late = tuple(sorted(rank for rank, counts in one.counts.items() if tuple(sorted(counts.items())) != usual))
    text = f"{who(late)} of {_named(one)} {verb(late, 'has', 'have')} begun other collectives than the rest"
    return Suspicion(RAS, DESYNCHRONISED, late, _rest(one, late), text, [], 0.5)
