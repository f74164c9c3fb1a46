"""The suspects: for each rank the error that it ended with, with its time on one common clock."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from stepscope.analysis.first_error.evidence import EndedRank, ErrorEvidence, Skew
from stepscope.analysis.first_error.known import NOISE, PRIMARY, SECONDARY, TOLD, WEAK
from stepscope.analysis.first_error.report import COLOURS, HANDLED, MOST_TEXT, Raised, Report, judged, reports_of
from stepscope.core.console_line import ConsoleLine
from stepscope.core.endings import NATIVE, end_words

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


WENT_ON_STEPS, WENT_ON_SECONDS = 2, 30.0
"""A rank that makes so many steps after an error, or prints for so long, has survived it."""
AT_ONCE = 2.0
"""Seconds within which a fault that is printed second may explain what is printed first."""
UNKNOWN_CLOCK = 60.0
"""Seconds by which the clock of a node may be wrong that is not among those that are known."""
WHOLE_MESSAGE = re.compile(r"0x[0-9a-fA-F]+|\d+")
MOST_LINES = 20
GENTLE = ("SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1", "SIGUSR2", "exit code 143", "exit code 130")


@dataclass(frozen=True)
class Suspect:
    """The error that a rank ended with. `time` is on the clock of rank 0's node, wrong by at most `spread` seconds."""

    rank: int
    node: str
    time: float | None
    spread: float
    role: str
    kind: str
    text: str
    means: str
    chain: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()
    step: int | None = None
    is_end: bool = False
    """Whether only the end of the rank is known, not what it printed."""
    is_guess: bool = False
    """Whether the rank said nothing: its text goes on behind its name, as in "rank 3 reported no error"."""

    @property
    def signature(self) -> str:
        """Return the text without numbers: equal for the same error of several ranks."""
        return f"{self.kind}: {WHOLE_MESSAGE.sub('#', self.text)[:200]}"

    @property
    def when(self) -> float:
        """Return the time; infinite if it is unknown."""
        return float("inf") if self.time is None else self.time

    def is_before(self, other: Suspect) -> bool:
        """Return whether this came first for certain: by more than both clocks may be wrong."""
        if self.time is None:
            return False
        apart = self.spread + other.spread if self.node != other.node else 0.0
        return self.time + apart < other.when


def suspects_of(evidence: ErrorEvidence) -> list[Suspect]:
    """Return at most one suspect of each rank, in the order of their ranks."""
    ends = {end.rank: end for end in evidence.ends}
    events: dict[int, list[Mapping[str, Any]]] = {}
    for event in evidence.errors:
        events.setdefault(int(event.get("rank") or 0), []).append(event)
    unknown = Skew(0.0, UNKNOWN_CLOCK if evidence.skews else 0.0)
    found = []
    for rank in sorted(one for one in {*ends, *events, *evidence.lines} if one >= 0):
        lines, end = evidence.lines.get(rank, ()), ends.get(rank, EndedRank(rank))
        if lines and not end.node:
            end = replace(end, node=lines[0].node)
        skew = evidence.skews.get(end.node, unknown)
        found.append(_suspect(rank, lines, end, events.get(rank, ()), skew, are_told=bool(events)))
    return [one for one in found if one is not None]


def _suspect(
    rank: int,
    lines: Sequence[ConsoleLine],
    end: EndedRank,
    events: Sequence[Mapping[str, Any]],
    skew: Skew,
    *,
    are_told: bool,
) -> Suspect | None:
    if end.state == "finished":
        return None
    at_end = _of_end(end, skew, lines)
    told = [one for event in events if (one := _of_event(event)) is not None]
    reports = _uncaught(_fatal(reports_of(lines), lines, end), told, at_end, end.ended if are_told else None)
    printed = {report.text for report in reports}
    told = [one for one in told if one.text not in printed]
    fatal = _first(sorted([*reports, *told], key=lambda one: one.time))
    if fatal is None or (at_end is not None and at_end.role == PRIMARY != fatal.role and _is_own(at_end)):
        return at_end
    return Suspect(
        *(rank, end.node, fatal.time - skew.seconds, skew.spread_seconds),
        *(fatal.role, fatal.kind, fatal.text, fatal.means),
        tuple(raised.text for raised in fatal.chain),
        _shown(lines, fatal) or _told_lines(fatal),
        end.step if fatal.step is None else fatal.step,
    )


def _is_own(end: Suspect) -> bool:
    """Return whether an end explains consequences that were printed before: memory ran out, or a native fault."""
    return end.kind == "host_memory" or ("SIGSEGV" in end.text or "SIGBUS" in end.text)


def _fatal(reports: list[Report], lines: Sequence[ConsoleLine], end: EndedRank) -> list[Report]:
    """Return the errors after which the rank did not go on."""
    steps = [*(line.step for line in lines), end.step]
    last_step = max((step for step in steps if step is not None), default=None)
    reported = {at for report in reports for at in range(report.first, report.last + 1)}
    ordinary = (at for at in range(len(lines) - 1, -1, -1) if lines[at].stream != "err" and at not in reported)
    last_word = next((lines[at].time for at in ordinary), 0.0)

    def went_on(report: Report) -> bool:
        if report.step is not None and last_step is not None:
            return last_step - report.step >= WENT_ON_STEPS
        return last_word - report.time > WENT_ON_SECONDS

    return [report for report in reports if report.role != NOISE and not went_on(report)]


def _uncaught(
    reports: list[Report], told: Sequence[Report], at_end: Suspect | None, ended: float | None
) -> list[Report]:
    """Return the errors without those that the program caught and only logged, a while before it failed.

    `told` are those that it did not catch. If what ended it is a consequence, one that was caught may still count.
    """
    last = max(told, key=lambda one: one.time, default=None)
    if last is not None:
        ended, role = last.time, last.role
    elif ended is not None and at_end is not None and at_end.role == SECONDARY:
        role = SECONDARY
    else:
        return reports
    fatal = {link.text for one in told for link in one.chain}
    found = []
    for one in reports:
        is_logged = one.kind == "exception" and one.role == PRIMARY and one.time < ended - AT_ONCE
        if not is_logged or not fatal.isdisjoint(link.text for link in one.chain):
            found.append(one)
        elif role != PRIMARY:
            found.append(replace(one, role=WEAK, kind=HANDLED, means="the program caught it and went on"))
    return found


def _first(reports: Sequence[Report]) -> Report | None:
    """Return the error that the others of the same rank follow from."""
    if not reports:
        return None
    first = reports[0]
    close = [one for one in reports[1:] if one.time - first.time <= AT_ONCE]
    if first.role == SECONDARY:
        return next((one for one in close if one.role == PRIMARY and one.kind != "exception"), first)
    if first.role == WEAK:
        return next((one for one in close if one.role != WEAK), first)
    return first


def _of_event(event: Mapping[str, Any]) -> Report | None:
    """Return the report of an event with an exception; None if it has no text."""
    text, traceback = str(event.get("error") or ""), str(event.get("traceback") or "")
    time, step = float(event["time"]), event.get("step")
    lines = [ConsoleLine(time, 0, 0, "", at, "err", line) for at, line in enumerate(traceback.split("\n"))]
    for report in reports_of(lines):
        if report.chain and len(report.chain[0].text) > 0 and report.last > report.first:
            return Report(time, -1, -1, *_fields(report), step if isinstance(step, int) else None)
    found = judged((Raised(text),), time, -1, -1, step if isinstance(step, int) else None) if text else None
    return None if found is not None and found.role == NOISE else found


def _fields(report: Report) -> tuple[tuple[Raised, ...], str, str, str, str]:
    return report.chain, report.role, report.kind, report.means, report.text


def _of_end(end: EndedRank, skew: Skew, lines: Sequence[ConsoleLine]) -> Suspect | None:
    """Return the suspect of a rank that reported no error, by how it ended; None while it runs."""
    judgement = judge_end(end.state, end.cause)
    if judgement is None:
        return None
    time = None if end.ended is None or end.inferred else end.ended - skew.seconds
    return Suspect(
        *(end.rank, end.node, time, skew.spread_seconds, *judgement[:2], end_words(end.state, end.cause), judgement[2]),
        lines=_texts(lines),
        step=end.step,
        is_end=True,
    )


ENDS: tuple[tuple[tuple[str, ...], tuple[str, ...], tuple[str, str, str]], ...] = (
    ((), GENTLE, (SECONDARY, "launcher", TOLD)),
    (("preempted",), (), (SECONDARY, "launcher", TOLD)),
    (("interrupted",), (), (SECONDARY, "stopped", "a person stopped it")),
    (("oom-killed",), (), (PRIMARY, "host_memory", "the memory of the machine or container ran out")),
    ((), ("SIGABRT",), (WEAK, "native", "native code ended the program")),
    ((), NATIVE, (PRIMARY, "native", "native code failed")),
    ((), ("SIGKILL",), (WEAK, "killed", "SIGKILL ended it, which leaves no message")),
    (("lost", "killed"), (), (WEAK, "lost", "its process or its whole node was gone")),
)
"""States, and parts of a cause, with role, kind and meaning; the first row that fits counts."""


def judge_end(state: str, cause: str) -> tuple[str, str, str] | None:
    """Return role, kind and meaning of an end; None for one that is no error."""
    if state in ("finished", "running"):
        return None
    for states, signs, judgement in ENDS:
        if state in states or any(sign in cause for sign in signs):
            return judgement
    report = judged((Raised(cause),), 0.0, -1, -1) if cause and not cause.startswith("exit code") else None
    if report is not None and report.role != NOISE:
        return report.role, report.kind, report.means
    return WEAK, "exit", "it ended with an error code and no exception"


def _texts(lines: Sequence[ConsoleLine]) -> tuple[str, ...]:
    return tuple(COLOURS.sub("", line.text)[:MOST_TEXT] for line in lines[-MOST_LINES:])


def _shown(lines: Sequence[ConsoleLine], report: Report) -> tuple[str, ...]:
    """Return the 20 lines that end with the report; the last 20 if it is from an event."""
    return _texts(lines[: report.last + 1] if report.first >= 0 else lines)


def _told_lines(report: Report) -> tuple[str, ...]:
    """Return what an event says, for a rank whose console was not kept."""
    return tuple(
        text for link in report.chain for text in (f"  at {link.place}" if link.place else "", link.text) if text
    )
