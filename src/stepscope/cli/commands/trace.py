"""Show where the device's time went in profiler traces, and why.

FILE is a Chrome trace, as PyTorch's profiler writes it (.json, .json.gz), an archive (.tar.gz, .zip) or a folder of
traces; several files are the ranks of one job. All shares refer to the printed window: by default from the first to the
last event of the device.
"""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any

from stepscope.cli.command import FAILED, FINE, add_shared, show
from stepscope.cli.text.progress import progress
from stepscope.core.errors import UsageError
from stepscope.core.terminal_text import plain_lines
from stepscope.sources.traces import TraceOptions, analyse, expand

if TYPE_CHECKING:
    import argparse

    from stepscope.core.trace import Trace

SHOWN = 10
"""Rows of the tables for people; --json has 20."""


def prepare(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("files", metavar="FILE", nargs="+", help="a trace, an archive of traces, or a folder")
    text = (
        "gpu (all device events), steps (the profiler's steps), or START:END in µs as the trace counts (default: gpu)"
    )
    parser.add_argument("--window", metavar="WINDOW", default="gpu", help=text)
    parser.add_argument("--top", metavar="N", type=int, help="rows of the tables of kernels and operators; 0: all")
    text = "compare two traces: the first is before, the second after"
    parser.add_argument("--compare", action="store_true", help=text)
    add_shared(parser, "quiet", "json")
    parser.add_argument("--html", metavar="F", help="write an HTML page, one file that works offline")
    text = "write the interesting part as a small trace for ui.perfetto.dev"
    parser.add_argument("--perfetto", metavar="F", help=text)
    parser.add_argument("--force", action="store_true", help="write over files that exist")


def run(options: argparse.Namespace) -> int:
    """Print the analysis of the traces."""
    _check(options)
    write = functools.partial(_perfetto, options=options) if options.perfetto else None
    wanted = TraceOptions(options.window, _rows(options), compare=options.compare, after=write)
    reading = functools.partial(progress, "reading", unit="bytes", options=options)
    facts = analyse(expand(options.files), wanted, reading)
    for failure in facts.get("failed", ()):
        print(f"stepscope: {plain_lines(failure['error'])}", file=sys.stderr)
    if not facts["ranks"]:
        return FAILED
    if options.html:
        _page(facts, options)
    for rank in facts["ranks"]:
        rank.pop("timeline", None)  # the page's picture
    from stepscope.cli.text.trace_lines import lines

    show(options, facts, lambda width, paint: lines(facts, width, paint, options.top or SHOWN))
    return FAILED if "failed" in facts else FINE


def _check(options: argparse.Namespace) -> None:
    """Refuse contradictory options before anything is read."""
    if options.compare and len(options.files) != 2:
        raise UsageError("compare traces", f"{len(options.files)} given", "give two files: before and after")
    if options.window not in {"gpu", "steps"}:
        try:
            start, colon, end = options.window.partition(":")
            numbers = [float(part) for part in (start, end) if part.strip()]
        except ValueError:
            numbers, colon = [], ""
        if not colon or any(number != number for number in numbers):  # noqa: PLR0124 - NaN differs from itself
            cause = f"'{options.window}' is not a window"
            raise UsageError("choose the window", cause, "give gpu, steps or START:END in µs")


def _rows(options: argparse.Namespace) -> int | None:
    if options.top is None:
        return 20
    return options.top if options.top > 0 else None


def _perfetto(trace: Trace, window: str, *, options: argparse.Namespace) -> dict[str, Any]:
    from stepscope.analysis.trace.summary import choose_window
    from stepscope.exporters.files.perfetto import interesting, write_perfetto

    part = interesting(trace) if window == "gpu" else choose_window(trace, window)
    count = write_perfetto(trace, options.perfetto, part, force=options.force)
    return {"file": options.perfetto, "events": count, "window": part.facts(trace.origin)}


def _page(facts: dict[str, Any], options: argparse.Namespace) -> None:
    from stepscope.exporters.files.output import open_output
    from stepscope.reports.trace_page import page

    text = page({"many_ranks": None, "comparison": None, **facts})
    with open_output(options.html, force=options.force) as stream:
        stream.write(text.encode())
