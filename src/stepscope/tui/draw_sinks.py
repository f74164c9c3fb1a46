"""The sinks of a run: one line for the overview, a table for the machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stepscope.core.numbers import format_count, format_duration, format_items
from stepscope.core.terminal_text import cut, plain
from stepscope.tui.frame import box, fitted, left, length, right
from stepscope.views.sinks import KEEPS_UP, TONES, behind_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from stepscope.tui.frame import Line

STYLES = {"good": "good", "go": "info", "warn": "warn", "bad": "bad"}
NAME, STATE, BEHIND, SENT, REFUSED = 14, 13, 24, 11, 7
"""Columns of the table."""
WIDE = 110
"""Columns from which on a reason stands beside its sink, not below."""
LEAST_REASON = 24
"""Columns below which a reason is left out of the line."""


def sink_line(sinks: Sequence[Mapping[str, Any]], width: int) -> Line:
    """Return all sinks on one line, the worst first, and its reason where there is room; those left out are counted."""
    ordered = _by_need(sinks)
    line: Line = [(" sinks", "dim")]
    for place, sink in enumerate(ordered):
        is_late = sink["behind_rows"] and sink["state"] != KEEPS_UP
        late = f" {format_duration(sink['behind_seconds'])} behind" if is_late else ""
        part = [(f"  {plain(sink['name'], NAME)} ", "bold"), (sink["state"], STYLES[sink["tone"]]), (late, "")]
        more = f"  and {len(sinks) - place} more"
        rest = len(more) if place < len(sinks) - 1 else 0
        if place and length(line) + length(part) + rest > width:
            line.append((more, "dim"))
            break
        line += part
    why = plain(ordered[0]["why"])
    if why and width - length(line) >= LEAST_REASON:
        line.append((cut(f"   {why}", width - length(line)), "dim"))
    return fitted(line, width)


def sink_box(sinks: Sequence[Mapping[str, Any]], width: int, height: int) -> list[Line]:
    """Return the sinks as a table, the worst first, with the reason of those that take nothing."""
    titles = f" {left('name', NAME)} {left('state', STATE)} {right('behind', BEHIND)} {right('sent', SENT)}"
    rows: list[Line] = [[(f"{titles} {right('refused', REFUSED)}", "dim")]]
    for sink in _by_need(sinks):
        line: Line = [(f" {left(plain(sink['name']), NAME)} ", "bold")]
        line.append((f"{left(sink['state'], STATE)} ", STYLES[sink["tone"]]))
        line.append((f"{right(behind_text(sink), BEHIND)} {right(format_count(sink['sent_rows']), SENT)} ", ""))
        line.append((right(format_count(sink["refused_rows"]), REFUSED), "bad" if sink["refused_rows"] else ""))
        reason: Line = [(f"   {plain(sink['why'] or sink['address'])}", "dim")]
        rows += [[*line, *reason]] if width >= WIDE else [line, reason] if sink["why"] else [line]
    end: Line = [(format_items(len(sinks), "sink"), "dim")]
    return box([("sinks", "title")], rows, width, min(height, len(rows) + 2), end)


def _by_need(sinks: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return sorted(sinks, key=lambda sink: list(TONES).index(sink["state"]))
