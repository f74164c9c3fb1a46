"""The errors in what one rank printed: tracebacks with their chain of exceptions, and known single lines."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from stepscope.analysis.first_error.known import (
    ARGUMENTS,
    COLLECTIVE_FILES,
    FAULTS,
    INCIDENTAL,
    NOISE,
    PRIMARY,
    SECONDARY,
    SIGN,
    WEAK,
    Known,
    meaning_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from stepscope.core.console_line import ConsoleLine

COLOURS = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
PREFIX = re.compile(r"^(?:\[(?:rank|default)?\d{1,6}\]: ?|\d{1,6}: |\(\w+ pid=\d+(?:, ip=[\d.]+)?\) )")
"""What torch, torchrun, srun and Ray put before each line of a rank."""
TRACEBACK = re.compile(
    r"^\s*(?:[+|]\s*)*(?:Exception Group |Original )?Traceback \(most recent call last\):\s*$"
    r"|^\s*[╭┌+][─-]* ?Traceback \(most recent call last\) ?[─-]*[╮┐+]\s*$"  # as rich draws it
)
FRAME = re.compile(r'^[\s>]+File "([^"]+)", line (\d+)|^\s*[│|] (\S+):(\d+) in ')
BOX = ("│", "╰", "└", "+--")
"""How lines begin that rich draws around the frames."""
GROUP = re.compile(r"^(?: {2,}[|](?: |$))")
"""How Python begins the lines of an exception group."""
MEMBER = re.compile(r"^\s*\+-[+-]-{3,}")
"""What stands before each exception of a group."""
IN_ONE_LINE = re.compile(r"Traceback \(most recent call last\):(?:\\+n)(.*)")
"""A traceback inside a line, such as JSON, with its line feeds as `\\n`."""
LINE_FEED = re.compile(r"\\+n")
GLOG = re.compile(r"^\[[EFWI]\d{4} [\d:.]+ [^\]]*\] (?:\[(?:PG ID|Rank) [^\]]*\] )*\s*")
"""What torch's C++ code puts before a message."""
EXCEPTION = re.compile(r"^((?:(?:[A-Za-z_]\w*|<locals>)\.)*([A-Za-z_]\w*))(?:: ?(.*))?$")
NAMED = re.compile(r"(?:Error|Exception|Interrupt|Exit|Empty|Full|Iteration|Timeout|Failure|Warning|Group)$")
CAUSE = "The above exception was the direct cause of the following exception:"
CONTEXT = "During handling of the above exception, another exception occurred:"
QUICK = re.compile(
    r"[Ee]rr|rror|Fault|fault|[Tt]ime|Trace|Abort|abort|Xid|ssert|[Ss]ignal|SIG|space|quota|memory|Bus|[Cc]onn|alloc"
    r"|stuck|terminate called|is lost|fallen off|_STATUS_|ibv_|IBV_"
)
"""Cheap sign that a line may matter; most lines have none of it."""
AFTER = ("[", "Fatal Python", "Exception ignored ", "Exception in thread ")
"""How lines begin that never continue the text of an exception."""
HANDLED = "handled"
"""Kind of an exception that a program often catches, before it lost the others."""
MOST_FRAMES, MORE_TEXT, MOST_CHAIN = 2000, 6, 20
MOST_TEXT = 500
"""Characters of a line that are looked at."""


class Raised(NamedTuple):
    """One exception of a chain: its text, where it was raised, and whether the next one names it as its cause."""

    text: str
    place: str = ""
    file: str = ""
    is_cause: bool = True
    more: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Return the name of the exception's class without its module."""
        return self.text.partition(":")[0].rpartition(".")[2]


@dataclass(frozen=True)
class Report:
    """One error that a rank reported; `first` and `last` are the positions of its lines."""

    time: float
    first: int
    last: int
    chain: tuple[Raised, ...]
    role: str
    kind: str
    means: str
    text: str
    """The exception or line that tells most."""
    step: int | None = None


class _Row(NamedTuple):
    at: int
    line: ConsoleLine
    text: str


def plain_text(text: str) -> str:
    """Return a line without colours and without the prefix of its rank."""
    if "\x1b" in text:
        text = COLOURS.sub("", text)
    return PREFIX.sub("", text[: MOST_TEXT * 4], count=1)[:MOST_TEXT]


def reports_of(lines: Sequence[ConsoleLine]) -> list[Report]:
    """Return the errors in the lines of one rank and attempt, in their order."""
    found: list[Report] = []
    for stream in sorted({line.stream for line in lines}):
        rows = [_Row(at, line, plain_text(line.text)) for at, line in enumerate(lines) if line.stream == stream]
        found += _reports(rows)
    return sorted(found, key=lambda one: one.first)


def _reports(rows: Sequence[_Row]) -> Iterator[Report]:
    at, seen, before = 0, set[str](), ""
    while at < len(rows):
        row = rows[at]
        if TRACEBACK.match(row.text):
            chain, end = _traceback(rows, at)
            found = judged(chain, row.line.time, row.at, rows[end - 1].at, row.line.step)
            if found is not None and not before.startswith("Exception ignored "):
                yield replace(found, role=WEAK) if _only_a_thread(before, found) else found
            at = end
        elif (told := _in_one_line(row)) is not None:
            yield told
            at += 1
        else:
            known = meaning_of(row.text) if QUICK.search(row.text) and SIGN.search(row.text) else None
            if known is not None and known.role != NOISE and known.means not in seen:
                seen.add(known.means)
                link = Raised(GLOG.sub("", row.text).strip() or row.text.strip())
                yield Report(row.line.time, row.at, row.at, (link,), *known[:3], link.text, row.line.step)
            at += 1
        before = row.text


def _in_one_line(row: _Row) -> Report | None:
    """Return the report of a traceback that a logger put into one line; None if there is none."""
    if "Traceback (most" not in row.line.text:
        return None
    found = IN_ONE_LINE.search(row.line.text)
    if found is None:
        return None
    text = found[1].replace('\\"', "\0").partition('"')[0].replace("\0", '"')  # up to the end of the quoted text
    inner = ["", *LINE_FEED.split(text)]
    chain, _ = _traceback([_Row(row.at, row.line, line[:MOST_TEXT]) for line in inner], 0)
    return judged(chain, row.line.time, row.at, row.at, row.line.step)


def _only_a_thread(before: str, report: Report) -> bool:
    return before.startswith("Exception in thread ") and report.role == PRIMARY


def _traceback(rows: Sequence[_Row], start: int) -> tuple[tuple[Raised, ...], int]:
    """Return the chain of a traceback, root first, and the position behind it."""
    chain: list[Raised] = []
    at = start
    while len(chain) < MOST_CHAIN:
        link, at = _link(rows, at + 1)
        member = at < len(rows) and MEMBER.match(rows[at].text) and at + 1 < len(rows)
        if member or (at < len(rows) and rows[at].text.startswith("Original Traceback")):
            inner, at = _link(rows, at + (2 if member else 1))
            chain.append(inner)
        chain.append(link)
        after = at
        while after < len(rows) and after < at + 3 and not rows[after].text.strip():
            after += 1
        sentence = rows[after].text.strip() if after < len(rows) else ""
        if sentence not in (CAUSE, CONTEXT):
            break
        following = next(
            (one for one in range(after + 1, min(after + 4, len(rows))) if TRACEBACK.match(rows[one].text)), 0
        )
        if not following:
            break
        chain[-1] = link._replace(is_cause=sentence == CAUSE)
        at = following
    return tuple(chain), max(at, start + 1)


def _link(rows: Sequence[_Row], at: int) -> tuple[Raised, int]:
    """Return the exception whose frames begin here, and the position behind its text.

    Other output of the same stream, such as a progress bar, may stand between the frames.
    """
    place, file, after_frame = "", "", False
    for here in range(at, min(at + MOST_FRAMES, len(rows))):
        text = GROUP.sub("", rows[here].text)
        frame = FRAME.match(text)
        if frame:
            file, line = frame[1] or frame[3], frame[2] or frame[4]
            place = f"{file}:{line}"
        if text[:1].isspace() or not text or text.startswith((*BOX, ">")):
            after_frame = bool(text)
            continue
        if TRACEBACK.match(text) and not text.startswith("Original"):
            return Raised("an error without text", place, file), here
        found = EXCEPTION.match(text)
        if found and _is_name(found[1], found[2], after_frame=after_frame):
            more = _more(rows, here + 1)
            return Raised(text.strip(), place, file, more=more), here + 1 + len(more)
        after_frame = False
    return Raised("an error whose text is missing", place, file), min(at + MOST_FRAMES, len(rows))


def _is_name(name: str, last: str, *, after_frame: bool) -> bool:
    """Return whether a word before a colon is the class of an exception: `struct.error` is, `loss` is not."""
    if last[0].isupper() or last[0] == "_":
        return after_frame or "." in name or NAMED.search(name) is not None
    return after_frame and ("." in name or last.endswith(("error", "exception")))


def _more(rows: Sequence[_Row], at: int) -> tuple[str, ...]:
    """Return the lines that continue the text of an exception."""
    found: list[str] = []
    for row in rows[at : at + MORE_TEXT]:
        if not row.text.strip() or TRACEBACK.match(row.text) or MEMBER.match(row.text) or row.text.startswith(AFTER):
            break
        found.append(row.text)
    return tuple(found)


def judged(chain: Sequence[Raised], time: float, first: int, last: int, step: int | None = None) -> Report | None:
    """Return the report of a chain of exceptions with its role; None if the chain is empty."""
    if not chain:
        return None
    known = [_known(link) for link in chain]
    role, kind, means, at = _role(chain, known)
    return Report(time, first, last, tuple(chain), role, kind, means, _telling_text(chain[at], kind), step)


def _telling_text(link: Raised, kind: str) -> str:
    """Return the text of an exception; if only a later line of it names the fault, with that line."""
    faults = [one for one in FAULTS if one.kind == kind]
    if any(one.pattern.search(link.text) for one in faults):
        return link.text
    named = (line for line in link.more if any(one.pattern.search(line) for one in faults))
    return next((f"{link.name}: {line.strip()}" for line in named), link.text)


def _known(link: Raised) -> Known | None:
    text = "\n".join(link.more)
    fault = next((one for one in FAULTS if one.kind != "import" and one.pattern.search(text)), None) if text else None
    return fault or meaning_of(link.text)


def _role(chain: Sequence[Raised], known: Sequence[Known | None]) -> tuple[str, str, str, int]:
    """Return role, kind, meaning, and the position of the exception that tells most."""
    for at, one in enumerate(known):
        if one is not None and one.role == PRIMARY:
            return PRIMARY, one.kind, one.means, at
    last = len(chain) - 1
    is_caught = last > 0 and not chain[0].is_cause and chain[0].name in INCIDENTAL
    for at in (0, last):
        one = known[at]
        if one is None or one.role != SECONDARY:
            continue
        if at == 0:
            return SECONDARY, one.kind, one.means, 0
        return WEAK, HANDLED if is_caught else "exception", "the program failed, and then lost the others", 0
    telling = last if is_caught else 0
    if any(part in chain[last].file for part in COLLECTIVE_FILES) and chain[last].name not in ARGUMENTS:
        return WEAK, "collective", "an exception inside communication, of its own or because of another rank", telling
    return PRIMARY, "exception", "the program raised an exception", telling
