"""A comparison of runs for pull requests: Markdown to read, JUnit XML for the checks."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape, quoteattr

from stepscope.analysis.compare.gate import FAILED, NOT_JUDGED, PASSED, UNDECIDED
from stepscope.core.names import REPLACEMENT, UNSAFE
from stepscope.core.numbers import format_change, format_value
from stepscope.reports.report_markdown import table, text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from stepscope.analysis.compare.comparison import Compared, Comparison
    from stepscope.analysis.compare.difference import Difference
    from stepscope.analysis.compare.gate import Judgement

MARKS = {PASSED: "passed", FAILED: "**failed**", UNDECIDED: "undecided", NOT_JUDGED: "**not judged**"}


def value(number: float | None, unit: str) -> str:
    """Return a value for a table whose row names the unit."""
    return re.sub(r" ?(?:samples|tokens|steps)/s$", "/s", format_value(number, unit))


def interval(found: Difference) -> str:
    """Return the interval of a ratio."""
    return "" if found.low is None else f"{format_change(found.low).removesuffix(' %')} to {format_change(found.high)}"


def markdown(comparisons: Sequence[Comparison], *, strict: bool = False) -> str:
    """Return comparisons of B and others with A as a Markdown page; with `strict` an undecided gate fails."""
    return "".join(f"{part}\n\n" for comparison in comparisons for part in _paragraphs(comparison, strict=strict))


def _paragraphs(comparison: Comparison, *, strict: bool) -> Iterator[str]:
    yield f"### {text(comparison.b)} beside {text(comparison.a)}"
    gates = comparison.gates
    if gates:
        stopped = [item for item in gates if item.stops(strict=strict)]
        yield f"**{len(stopped)} of {len(gates)} gates not passed**" if stopped else "**All gates passed**"
        judged = [[text(item.gate), MARKS[item.result], text(item.why, 2000)] for item in gates]
        yield table(["gate", "result", "why"], judged, "   ")
    titles = ["quantity", "A", "B", "difference", "interval", "verdict"]
    yield table(titles, [_row(item) for item in comparison.quantities], " nnnn ")
    if comparison.findings:
        yield "\n".join(f"- {text(item.text, 2000)}" for item in comparison.findings)


def _row(item: Compared) -> list[str]:
    found = item.found
    values = (value(number, item.unit) for number in (found.a, found.b))
    return [text(item.quantity), *values, format_change(found.ratio), interval(found), found.verdict]


def junit(comparisons: Sequence[Comparison], *, strict: bool = False) -> str:
    """Return the gates as JUnit XML: one suite per comparison, one case per gate; arguments as in `markdown`."""
    suites = "".join(_suite(comparison, strict=strict) for comparison in comparisons)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n<testsuites name="stepscope compare">\n{suites}</testsuites>\n'


def _suite(comparison: Comparison, *, strict: bool) -> str:
    gates = comparison.gates
    failed = sum(item.result == FAILED or (strict and item.result == UNDECIDED) for item in gates)
    errors = sum(item.result == NOT_JUDGED for item in gates)
    skipped = sum(item.result == UNDECIDED for item in gates) if not strict else 0
    counts = f'tests="{len(gates)}" failures="{failed}" errors="{errors}" skipped="{skipped}"'
    name = _attribute(f"{comparison.b} beside {comparison.a}")
    cases = "".join(_case(item, name, strict=strict) for item in gates)
    found = [(item.quantity, item.found) for item in comparison.quantities]
    rows = (f"{name}: {format_change(one.ratio)} [{interval(one)}] {one.verdict} ({one.why})" for name, one in found)
    listing = escape("".join(f"{UNSAFE.sub(REPLACEMENT, row)}\n" for row in rows))
    return f"  <testsuite name={name} {counts}>\n{cases}    <system-out>{listing}</system-out>\n  </testsuite>\n"


def _case(item: Judgement, suite: str, *, strict: bool) -> str:
    why = _attribute(item.why)
    tag = {FAILED: "failure", NOT_JUDGED: "error", UNDECIDED: "failure" if strict else "skipped"}.get(item.result)
    inside = f"<{tag} message={why}/>" if tag else ""
    return f"    <testcase classname={suite} name={_attribute(item.gate)}>{inside}</testcase>\n"


def _attribute(value: str) -> str:
    return quoteattr(UNSAFE.sub(REPLACEMENT, " ".join(value.split())))
