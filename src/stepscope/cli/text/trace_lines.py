"""Print the analysis of traces as text."""

from __future__ import annotations

import os
import textwrap
from typing import TYPE_CHECKING, Any

from stepscope.cli.text.diagnosis_lines import MARKS
from stepscope.cli.text.table import Cell, Column, table
from stepscope.cli.text.terminal import Paint, bar
from stepscope.core.numbers import format_count, format_duration
from stepscope.core.terminal_text import cut, plain

if TYPE_CHECKING:
    from collections.abc import Iterator

WINDOWS = {
    "gpu_events": "all device events",
    "profiler_steps": "the profiler's steps",
    "host_events": "all host events (no device in the trace)",
    "given": "as given",
}
SHARES = (
    ("compute", "compute_percent"),
    ("communication", "communication_percent"),
    ("copies", "memcpy_percent"),
    ("idle", "idle_percent"),
)
MOST_FINDINGS = 8
BAR = 20
SINGLE = 3
"""Up to this many ranks are printed one by one; more are a table."""


def lines(facts: dict[str, Any], width: int, paint: Paint, rows: int) -> Iterator[str]:
    """Yield everything, at most `rows` rows of each table."""
    ranks = facts["ranks"]
    if len(ranks) > 1:
        yield from _many(facts, width, paint)
    for rank in ranks if len(ranks) <= SINGLE and "comparison" not in facts else []:
        if len(ranks) > 1:
            yield ""
        yield from _rank(rank, width, paint, rows)
    if "comparison" in facts:
        yield from _comparison(facts["comparison"], width, paint, rows)
    if "perfetto" in facts:
        yield ""
        yield f"wrote {plain(facts['perfetto']['file'])}: {format_count(facts['perfetto']['events'])} events"


def _rank(rank: dict[str, Any], width: int, paint: Paint, rows: int) -> Iterator[str]:
    number = "" if rank["rank"] is None else f", rank {rank['rank']}"
    yield paint(cut(plain(os.path.basename(rank["file"])), width - 30), "bold") + number
    window, events = rank["window"], format_count(rank["events"])
    span = _time(window["end_us"] - window["start_us"])
    yield paint(f"  window: {WINDOWS[window['kind']]}, {span}, {events} events", "dim")
    yield from _shares(rank, paint)
    yield from _causes(rank, width, paint)
    yield from _findings(rank["findings"], width, paint)
    yield from _kernels(rank["kernels"][:rows], width, paint)
    yield from _operators(rank["operators"][:rows], width, paint)
    for note in rank["notes"]:
        yield paint(cut(f"  note: {plain(note)}", width), "dim")


def _shares(rank: dict[str, Any], paint: Paint) -> Iterator[str]:
    yield ""
    for label, key in SHARES if rank["idle_percent"] is not None else ():
        exposed = rank["exposed_communication_percent"] if label == "communication" and rank[key] else None
        rest = "" if exposed is None else f"{exposed:.1f} % with nothing computed"
        yield f"  {label:<14}{rank[key]:6.1f} %  {paint(bar(rank[key] / 100, BAR), 'cyan')}  {rest}".rstrip()
    if rank["dataloader_percent"] is not None:
        of = "the steps" if rank["dataloader_of"] == "profiler_steps" else "the host's time"
        yield f"  {'data loading':<14}{rank['dataloader_percent']:6.1f} %  of {of}"


def _causes(rank: dict[str, Any], width: int, paint: Paint) -> Iterator[str]:
    found = [cause for cause in rank["idle_causes"] if cause["percent"] >= 0.05]
    if found:
        yield from _title("Why the device is idle", paint)
        yield from (cut(f"  {one['percent']:5.1f} %  {one['means']}", width) for one in found)


def _findings(findings: list[dict[str, Any]], width: int, paint: Paint) -> Iterator[str]:
    if findings:
        yield from _title("Findings", paint)
    for finding in findings[:MOST_FINDINGS]:
        mark, style = MARKS[finding["severity"]]
        for number, line in enumerate(textwrap.wrap(plain(finding["text"]), width - 5) or [""]):
            yield f"  {paint(mark if not number else '  '[: len(mark)], style)} {line}"
        if finding["remedy"]:
            yield from (paint(f"     {line}", "dim") for line in textwrap.wrap(plain(finding["remedy"]), width - 5))
    if len(findings) > MOST_FINDINGS:
        yield paint(f"  and {len(findings) - MOST_FINDINGS} more; --json has them", "dim")


def _kernels(found: list[dict[str, Any]], width: int, paint: Paint) -> Iterator[str]:
    if not found:
        return
    yield from _title("Kernels", paint)
    shape = [Column("name", narrowest=20), Column("family", optional=True), Column("calls", right=True)]
    shape += [Column("total", right=True), Column("mean", right=True, optional=True), Column("share", right=True)]
    rows = []
    for one in found:
        times = [_time(one[key]) for key in ("total_us", "mean_us")]
        rows.append([plain(one["name"]), one["family"], format_count(one["calls"]), *times, f"{one['percent']:.1f} %"])
    yield from table(shape, rows, width, paint, 2)


def _operators(found: list[dict[str, Any]], width: int, paint: Paint) -> Iterator[str]:
    if not found:
        return
    yield from _title("Operators", paint)
    titles = ("calls", "self", "total", "device")
    shape = [Column("name", narrowest=20), *(Column(title, right=True) for title in titles)]
    times = ("self_us", "total_us", "device_us")
    rows = [[plain(one["name"]), format_count(one["calls"]), *(_time(one[key]) for key in times)] for one in found]
    yield from table(shape, rows, width, paint, 2)


def _many(facts: dict[str, Any], width: int, paint: Paint) -> Iterator[str]:
    """Yield one row per rank and their comparison."""
    yield paint(f"{len(facts['ranks'])} traces", "bold")
    keys = ("idle", "compute", "communication", "exposed_communication", "memcpy", "dataloader")
    titles = ("idle", "compute", "comm.", "exposed", "copies", "data")
    shape = [Column("rank", right=True), Column("file", narrowest=12, optional=True), Column("window", right=True)]
    shape += [Column(f"{title} %", right=True) for title in titles]
    rows: list[list[Cell | str]] = []
    for rank in facts["ranks"]:
        window = rank["window"]["end_us"] - rank["window"]["start_us"]
        shares = [_percent(rank[f"{key}_percent"]) for key in keys]
        name = plain(os.path.basename(rank["file"]))
        rows.append(["-" if rank["rank"] is None else str(rank["rank"]), name, _time(window), *shares])
    rows.sort(key=lambda row: int(str(row[0])) if str(row[0]).isdecimal() else 1 << 30)
    yield from table(shape, rows, width, paint, 2)
    if "many_ranks" in facts:
        yield from _findings(facts["many_ranks"]["findings"], width, paint)


def _comparison(facts: dict[str, Any], width: int, paint: Paint, rows: int) -> Iterator[str]:
    """Yield the changes from the first to the second trace."""
    yield from _title(f"Comparison, per {facts['per']}", paint)
    yield f"  {_time(facts['before_us'])} before, {_time(facts['after_us'])} after: {_signed(facts['difference_us'])}"
    shape = [Column("what", narrowest=20), Column("kind", optional=True)]
    shape += [Column("change"), Column("difference", right=True)]
    changed = [part for part in facts["parts"] if part["change"] != "same"][:rows]
    cells = [[plain(one["name"]), one["kind"], one["change"], _signed(one["difference_us"])] for one in changed]
    if cells:
        yield from table(shape, cells, width, paint, 2)
    yield from _findings(facts["findings"], width, paint)


def _title(text: str, paint: Paint) -> Iterator[str]:
    yield ""
    yield paint(text, "bold")


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _signed(microseconds: float) -> str:
    return ("+" if microseconds >= 0 else "-") + _time(abs(microseconds))


def _time(microseconds: float) -> str:
    return format_duration(microseconds / 1e6)
