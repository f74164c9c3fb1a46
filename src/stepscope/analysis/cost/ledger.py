"""The ledger of a run: every second of every attempt belongs to one class, and the classes sum to the wall clock.

An attempt's time is cut at the ends of its steps. Inside a step the phases say how the time was spent; before the first
step an attempt starts; work that was lost with a crash is *redone*; between two attempts the run restarts. Ranks are
classified one by one, and the ledger of the run is the mean over them, so that it sums to the wall clock and, times the
number of ranks, to the time that was paid for.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from stepscope.core.ring import NO_STEP

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from stepscope.core.arrays import Floats, Integers, Mask


CLASSES = {
    "productive": "forward, backward, optimizer, communication, and the rest of the step",
    "data": "waiting for the next batch",
    "copy": "moving the batch to the device",
    "checkpoint": "saving checkpoints",
    "evaluation": "evaluating the model",
    "compile": "compiling the model",
    "stall": "standing still, as the watcher saw it",
    "restart": "from the end of an attempt to the first step of the next",
    "redone": "work that was lost with a crash, and was or has to be done again",
    "start": "before the first step of the first attempt",
    "other": "logging, garbage collection, and time outside the steps",
    "away": "between two attempts that are far apart: it is unknown whether the machine was reserved",
    "unknown": "what the source of an imported run does not tell: it has logged nothing about this time",
}
"""Every class with its definition, in the order of the ledger."""
WASTE = ("data", "copy", "stall", "restart", "redone", "start", "other")
"""Classes that a better run would have less of. Checkpoints, evaluation and compiling are the price of the result."""
UNPAID = ("away",)
"""Classes that cost nothing."""
PHASES = {
    **{name: name for name in ("data", "copy", "checkpoint", "evaluation", "compile")},
    **dict.fromkeys(("logging", "gc"), "other"),
}
"""Class of a phase; of any other phase it is `productive`."""
RARE = ("checkpoint", "evaluation", "compile")
"""Phases in which the watcher does not report silence as a stall, and which a step without measured phases has not."""
LONGEST_RESTART = 1800.0
"""Seconds between two attempts beyond which the run was away: schedulers and `torchrun` restart within minutes."""
JITTER = 1e-3
"""Seconds between two steps that do not count as a gap: clock changes and rounding."""
_AT = {name: place for place, name in enumerate(CLASSES)}
_FINE = ("finished", "running")


@dataclass(frozen=True)
class Attempt:
    """One rank in one attempt, as it was recorded. Times in seconds since 1970."""

    number: int
    rank: int
    started: float
    ended: float
    """Its end, or its last sign of life while it runs."""
    state: str = "finished"
    """finished, running, or how else it ended."""
    end: Floats = field(default_factory=lambda: np.empty(0))
    """When each step ended."""
    seconds: Floats = field(default_factory=lambda: np.empty(0))
    """How long each step took."""
    step: Integers = field(default_factory=lambda: np.empty(0, np.int64))
    phases: Mapping[str, Floats] = field(default_factory=dict)
    """Seconds of each phase in each step, by the phase's name; NaN in a step whose phases were not measured."""
    stalls: Sequence[tuple[float, float]] = ()
    """From when to when it stood still."""
    outside: str = "other"
    """Class of the time outside steps; `unknown` if it was not recorded completely."""

    @property
    def steps(self) -> int:
        """Spans that are steps, without those that another tool logged beside them, such as evaluations."""
        return len(self.end) if self.outside == "other" else int((self.step != NO_STEP).sum())


@dataclass(frozen=True)
class Spans:
    """One rank in one attempt, cut into spans of time, in any order, with how each was spent."""

    number: int
    rank: int
    begin: Floats
    end: Floats
    table: Floats
    """Seconds by span (row) and class (column, in the order of CLASSES); a row sums to its span."""


@dataclass(frozen=True)
class Ledger:
    """Where the time of a run went."""

    wall_seconds: float
    """From the first start to the last end."""
    seconds: dict[str, float]
    """Seconds of the wall clock by class, the mean over the ranks; they sum to `wall_seconds`."""
    attempts: tuple[dict[str, Any], ...]
    """Each attempt: number, when it began, its seconds, ranks, state, and its seconds by class."""
    ranks: int
    """Most ranks of one attempt."""
    steps: int = 0
    """Steps of all ranks and attempts; without steps the productive time is unknown."""
    spans: tuple[Spans, ...] = ()

    @property
    def paid_seconds(self) -> float:
        """Seconds of the wall clock for which the machine was held."""
        return self.wall_seconds - sum(self.seconds[name] for name in UNPAID)

    @property
    def goodput_ratio(self) -> float | None:
        """Productive time as a share of the time for which the machine was held; None if no step is known."""
        return self.share("productive") if self.steps else None

    @property
    def wasted(self) -> dict[str, float]:
        """Seconds of the classes that a better run would have less of, the most first."""
        found = {name: self.seconds[name] for name in WASTE if self.seconds[name] > 0 and self.steps}
        return dict(sorted(found.items(), key=lambda item: -item[1]))

    def share(self, name: str) -> float | None:
        """Return the share of a class in the time for which the machine was held."""
        paid = self.paid_seconds
        return self.seconds[name] / paid if paid > 0 else None

    def facts(self) -> dict[str, Any]:
        """Return the fields as plain values."""
        return {
            "wall_seconds": self.wall_seconds,
            "paid_seconds": self.paid_seconds,
            "goodput_ratio": self.goodput_ratio,
            "ranks": self.ranks,
            "steps": self.steps,
            "seconds": self.seconds,
            "attempts": list(self.attempts),
        }


def charge(attempts: Sequence[Attempt]) -> Ledger:
    """Return the ledger of a run from all ranks of all its attempts, in any order."""
    groups = _in_order(attempts)
    lost = _lost_from(groups)
    steps = sum(one.steps for group in groups for one in group)
    start = "start" if steps else "other"
    total, spans, facts = np.zeros(len(CLASSES)), [], []
    edge = origin = min((one.started for one in groups[0]), default=0.0) if groups else 0.0
    for place, group in enumerate(groups):
        finish = max(edge, *(one.ended for one in group))
        waited = _waited(groups[place - 1], edge, group) if place else ""
        found = [_classify(one, (edge, finish), "restart" if place else start, waited, lost[place]) for one in group]
        own = np.mean([one.table.sum(axis=0) for one in found], axis=0)
        facts.append(_facts(group, edge, finish, own))
        spans += found
        total += own
        edge = finish
    ranks = max(map(len, groups), default=0)
    return Ledger(edge - origin, _named(total), tuple(facts), ranks, steps, tuple(spans))


def _in_order(attempts: Sequence[Attempt]) -> list[list[Attempt]]:
    """Return the ranks of each attempt, the attempts in the order in which they began."""
    groups: dict[int, list[Attempt]] = {}
    for one in attempts:
        if np.isfinite(one.started) and np.isfinite(one.ended):
            groups.setdefault(one.number, []).append(one)
    return sorted(groups.values(), key=lambda group: min(one.started for one in group))


def _named(totals: Floats) -> dict[str, float]:
    return dict(zip(CLASSES, totals.tolist(), strict=True))


def _facts(group: Sequence[Attempt], begin: float, end: float, own: Floats) -> dict[str, Any]:
    bad = [one.state for one in sorted(group, key=lambda one: one.ended) if one.state not in _FINE]
    return {
        "attempt": group[0].number,
        "began": begin,
        "seconds": end - begin,
        "ranks": len(group),
        "state": bad[0] if bad else group[0].state,
        "classes": _named(own),
    }


def _lost_from(groups: Sequence[Sequence[Attempt]]) -> list[int | None]:
    """Return, for each attempt, the step from which its work was lost: where a later attempt resumed; None if none.

    An attempt that ended well has lost nothing, whatever was started after it.
    """
    found: list[int | None] = []
    first: int | None = None
    for group in reversed(groups):
        crashed = any(one.state not in _FINE for one in group)
        found.append(first if crashed else None)
        steps = [int(one.step[one.step != NO_STEP].min()) for one in group if (one.step != NO_STEP).any()]
        first = min([*steps, *([] if first is None else [first])], default=None)
    return found[::-1]


def _waited(before: Sequence[Attempt], edge: float, group: Sequence[Attempt]) -> str:
    """Return the class of the time between two attempts."""
    gap = min(one.started for one in group) - edge
    ended_well = all(one.state == "finished" for one in before)
    return "away" if gap > LONGEST_RESTART or ended_well else "restart"


def _classify(one: Attempt, window: tuple[float, float], before: str, waited: str, lost: int | None) -> Spans:
    """Classify the time of one rank in the window of its attempt, which begins where the attempt before ended.

    Args:
        one: the rank.
        window: begin and end.
        before: class of the time before its first step.
        waited: class of the time before it was started; empty in the first attempt.
        lost: step from which its work was lost.
    """
    first, last = window
    before = before if one.outside == "other" else one.outside
    started, ended = (float(np.clip(moment, first, last)) for moment in (one.started, one.ended))
    order = np.argsort(one.end, kind="stable")
    end = np.clip(np.maximum.accumulate(_finite(one.end[order], started)), started, ended)
    previous = np.concatenate([[started], end[:-1]])[: len(end)]
    begin = np.clip(end - _finite(one.seconds[order]), previous, end)
    begin = np.where(begin - previous < JITTER, previous, begin)
    table = _steps(one, order, end - begin)
    apart = np.flatnonzero(begin > previous)
    gaps = np.zeros((len(apart), len(CLASSES)))
    gaps[np.arange(len(apart)), np.where(apart == 0, _AT[before], _AT[one.outside])] = (begin - previous)[apart]
    fine = one.state in _FINE
    outside = (
        (first, started, waited or before),
        # The step that a crash interrupted was lost.
        (end[-1], ended, one.outside if fine else "redone") if len(end) else (started, ended, before),
        (ended, last, one.outside if fine else "restart"),
    )
    rows = np.zeros((len(outside), len(CLASSES)))
    for row, (low, high, name) in zip(rows, outside, strict=True):
        row[_AT[name]] = high - low
    edges = np.array([edge[:2] for edge in outside])
    parts = [(begin, end, table), (previous[apart], begin[apart], gaps), (edges[:, 0], edges[:, 1], rows)]
    for since, until, part in parts:
        _stand_still(part, since, until, one.stalls)
    if lost is not None:
        _lose(table, (one.step[order] >= lost) & (one.step[order] != NO_STEP))
    begins, ends, whole = (np.concatenate([part[at] for part in parts]) for at in range(3))
    return Spans(one.number, one.rank, begins, ends, whole)


def _lose(table: Floats, gone: Mask) -> None:
    """Move the time of steps whose work was lost to its class; a stall in them stays one."""
    stalled = table[gone, _AT["stall"]]
    whole = table[gone].sum(axis=1)
    table[gone] = 0.0
    table[gone, _AT["stall"]], table[gone, _AT["redone"]] = stalled, whole - stalled


def _finite(values: Floats, instead: float = 0.0) -> Floats:
    return np.where(np.isfinite(values), values, instead)


def _steps(one: Attempt, order: NDArray[np.intp], lasted: Floats) -> Floats:
    """Return the seconds of each step by class; a row adds up to the step."""
    table = np.zeros((len(lasted), len(CLASSES)))
    for name, seconds in one.phases.items():
        table[:, _AT[PHASES.get(name, "productive")]] += np.maximum(0.0, _finite(seconds[order]))
    in_phases = table.sum(axis=1)
    measured = in_phases > 0
    rest = np.maximum(0.0, _finite(one.seconds[order]) - in_phases)
    table[:, _AT["productive"]] += np.where(measured, rest, 0.0)
    usual = table[measured].sum(axis=0)
    usual[[_AT[name] for name in RARE]] = 0.0
    if usual.sum() <= 0:
        usual[_AT["productive"]] = 1.0
    table[~measured] = usual
    # Not by the phases' own sum: clocks jump, and a phase of a foreign log may lie outside the step.
    shares: Floats = table / table.sum(axis=1)[:, None]  # first: the time by a tiny sum would overflow
    return shares * lasted[:, None]


def _stand_still(table: Floats, begin: Floats, end: Floats, stalls: Sequence[tuple[float, float]]) -> None:
    """Move the time of stalls to their class, from the class that has most of the span's time."""
    if not len(table):
        return
    from_ = [at for name, at in _AT.items() if name not in (*RARE, "stall", "away")]
    for first, last in merged(stalls):
        low, high = int(np.searchsorted(end, first, "right")), int(np.searchsorted(begin, last, "left"))
        for row in range(low, max(low, high)):
            most = from_[int(np.argmax(table[row, from_]))]
            taken = min(max(0.0, min(end[row], last) - max(begin[row], first)), table[row, most])
            table[row, most] -= taken
            table[row, _AT["stall"]] += taken


def merged(spans: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return spans of time in order, those that overlap as one."""
    found: list[tuple[float, float]] = []
    for first, last in sorted(span for span in spans if span[1] > span[0]):
        if found and first <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], last))
        else:
            found.append((first, last))
    return found


def stalls_of(events: Sequence[Mapping[str, Any]], ended: float) -> list[tuple[float, float]]:
    """Return from when to when one rank of one attempt stood still, from its events in order of time.

    A stall began at the last step before the watcher saw it, and lasts until it is over or the rank has ended.
    """
    found: list[tuple[float, float]] = []
    since: float | None = None
    for event in events:
        kind, moment = event.get("kind"), float(event.get("time", np.nan))
        if kind == "stalled" and since is None:
            since = moment - float(event.get("seconds") or 0.0)
        elif kind == "recovered" and since is not None:
            found.append((since, moment))
            since = None
    return found if since is None else [*found, (since, ended)]
