"""The prefix of a log line: clock, date, level, logger, file, process and rank.

`14:10:55 | INFO | Mean reward: 0.2`, `2024-05-01 14:10:55,123 - trainer - INFO - step 3`, `[rank1]: step 3`,
`I0501 14:10:55.123456 140 train.py:88] step 3`, `(Worker pid=123) step 3`: none of it is a value of the training.
"""

from __future__ import annotations

import re

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
