"""Lines of a program's log: the message behind the prefix, and lines that hold only a name and a number.

The prefix has clock, date, level, logger, file, process and rank, none of which is a value of the training:
`14:10:55 | INFO | Mean reward: 0.2`, `2024-05-01 14:10:55,123 - trainer - INFO - step 3`, `[rank1]: step 3`,
`I0501 14:10:55.123456 140 train.py:88] step 3`, `(Worker pid=123) step 3`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from stepscope.importers.source import at_end, lines
from stepscope.importers.words import parsed, plain, scaled

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stepscope.importers.run_builder import RunBuilder

CLOCK = r"\d{1,2}:\d\d:\d\d(?:[.,]\d{1,9})?(?:\s?[AP]M)?"
DATE = r"\d{4}[-/.]\d\d[-/.]\d\d"
ZONE = r"(?:Z|\s?[-+]\d\d:?\d\d|\s?UTC)"
LEVEL = r"(?:TRACE|DEBUG|INFO|NOTICE|SUCCESS|WARN|WARNING|ERROR|CRITICAL|FATAL)"
_EDGE = r"(?:\s{0,8}(?:\||:|>>?|-(?=\s))\s{0,8}|\s{1,20}|$)"
"""Separator between two parts."""
_STAMP = rf"(?:{DATE}[T ]{CLOCK}{ZONE}?|{DATE}(?=\s)|{CLOCK}{ZONE}?(?![\w.:/<]))"
PARTS = re.compile(
    r"\s{0,20}(?:"
    rf"\[\s?{_STAMP}(?:,\s?\d{{1,6}})?\s?\]{_EDGE}?"
    rf"|{_STAMP}{_EDGE}"
    rf"|\[\s?{LEVEL}\s?(?:\|[\w./-]{{1,80}}:\d{{1,6}})?\]{_EDGE}?|<{LEVEL}>{_EDGE}?"
    rf"|{LEVEL}:[\w.]{{1,60}}:\s{{0,4}}|{LEVEL}\b{_EDGE}|\[[\w.]{{1,60}}\](?=\[{LEVEL}\])"
    rf"|[\w.]{{1,60}}:\w{{1,60}}:\d{{1,6}}\s-\s"
    rf"|[A-Z][a-z]{{2}}\s{{1,2}}\d{{1,2}}\s{CLOCK}\s[\w.-]{{1,60}}\s(?:[\w./-]{{1,60}}\[\d{{1,10}}\]:\s)?"
    rf"|[IWEF]\d{{4}}\s{CLOCK}\s{{1,8}}\d{{1,10}}\s[\w./-]{{1,80}}:\d{{1,6}}\]{_EDGE}?"
    rf"|\[[\w./-]{{1,80}}:\d{{1,6}}(?::\w{{1,60}})?\]{_EDGE}?|[\w/-]{{1,80}}\.py:\d{{1,6}}{_EDGE}"
    rf"|\((?:[\w.]{{1,60}}\s)?pid=\d{{1,10}}(?:,\s?ip=[\w.:]{{1,45}})?\){_EDGE}?"
    r"|(?P<rank>\[(?:rank|default|rank:|RANK)\s?\d{1,6}\]:?|(?:rank|RANK)[\s=:]?\d{1,6}\s{0,4}[|:\]>]|\d{1,6}:(?=\s))\s{0,8}"
    rf"|(?<=-\s)[A-Za-z_][\w.]{{0,60}}\s{{1,4}}-\s(?=\s{{0,4}}(?:{LEVEL}\b|\S))"
    r")"
)
"""One part; parts are removed as long as one matches."""
TRAILING = re.compile(r"\s{2,200}[\w/-]{1,80}\.py:\d{1,6}\s*$")
"""The file and line that `rich` writes at the end."""
MOST_PARTS = 8
FIGURE = re.compile(
    r"\W{0,12}([A-Za-z][A-Za-z0-9 _/()-]{1,60}?)\s{0,20}[:=][:=\s]{0,20}"
    r"([-+]?[\d.]{1,30}(?:[eE][-+]?\d{1,3})?)(%?)(?:\s{0,4}\(.{0,80}\))?\s{0,20}"
)
"""A line that holds only a name and a number."""
LEAST_TIMES = 2
"""Number of steps at which a value must occur to be a metric and not a setting."""


class LoggedStep(NamedTuple):
    """The step that a value belongs to."""

    step: int
    rank: int
    attempt: int


def messages(path: str, run: RunBuilder, most: int) -> Iterator[tuple[str, int | None]]:
    """Yield `without_prefix` of each line of a file; lines of more than `most` characters are left out."""
    for line in lines(path, run.note):
        if len(line) > most:
            run.note(f"lines longer than {most} characters, left out")
        else:
            yield without_prefix(line)


def without_prefix(line: str) -> tuple[str, int | None]:
    """Return the message of a log line, and the rank in its prefix; None if it names none."""
    at, rank = 0, None
    for _ in range(MOST_PARTS):
        found = PARTS.match(line, at)
        if found is None or found.end() == at:
            break
        if found["rank"]:
            rank = int(re.sub(r"\D", "", found["rank"]))
        at = found.end()
    return TRAILING.sub("", line[at:]), rank


def figure_in(line: str) -> tuple[str, float] | None:
    """Return the name and number in a line, or None; a percentage becomes a ratio."""
    found = FIGURE.fullmatch(line)
    value = parsed(found[2]) if found is not None else None
    if found is None or value is None:
        return None
    return plain(found[1]), scaled(value, 0.01 if found[3] else 1.0)


class Figures:
    """Values that are held back until it is known whether they occur at several steps."""

    def __init__(self, run: RunBuilder) -> None:
        """Start empty; call `finish` when all lines are read."""
        self._run = run
        self._found: defaultdict[str, list[tuple[float, LoggedStep]]] = defaultdict(list)
        self._metrics: set[str] = set()
        """Names whose values were added before."""
        at_end(self._add_metrics)

    def add(self, line: str, at: LoggedStep) -> bool:
        """Keep the value in a line; return False if there is none."""
        figure = figure_in(line)
        if figure is not None:
            self._found[figure[0]].append((figure[1], at))
        return figure is not None

    def finish(self) -> None:
        """Turn values of several steps into metrics; one of a single step is a summary, or chance."""
        self._add_metrics()
        for name, found in self._found.items():
            known = name in self._run.columns
            what = "figures that the line of their step tells too" if known else "figures of one step only"
            self._run.leave_out(what, name, len(found))

    def _add_metrics(self) -> None:
        for name, found in list(self._found.items()):
            is_new = name not in self._run.columns and len({at.step for _, at in found}) >= LEAST_TIMES
            if is_new or name in self._metrics:
                self._metrics.add(name)
                for value, at in self._found.pop(name):
                    self._run.add(name, value, at.step, rank=at.rank, attempt=at.attempt)
