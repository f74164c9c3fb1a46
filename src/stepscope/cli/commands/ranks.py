"""Show every rank of a run, the worst first: who is late and by how much, who ended, and where each one is.

A rank is late by its own time (its step without the phases in which it may wait for others) beyond the median of the
other ranks. The strip shows it over the whole run: the darker, the later. RUN is the folder of a run, its id or a
unique prefix of it, project/id, its display name, or 'latest'.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from stepscope.cli.command import FINE, add_shared, print_json
from stepscope.cli.named_run import open_run
from stepscope.cli.text.progress import progress
from stepscope.cli.text.terminal import Paint, columns
from stepscope.core.errors import UsageError
from stepscope.core.terminal_text import plain

if TYPE_CHECKING:
    from stepscope.sources.opened_run import OpenedRun

LIMIT = 20
STRIP = 24
"""Buckets of a strip."""
STEP = "step"
"""The default of --what: how late each rank is."""


def prepare(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    add_shared(parser, "run", "dir")
    text = "group the ranks: node, or a coordinate of the job such as data, tensor or pipeline"
    parser.add_argument("--by", metavar="GROUP", help=text)
    text = "what the strip shows: step (how late each rank is), or a phase or metric such as phase/forward"
    parser.add_argument("--what", metavar="METRIC", default=STEP, help=f"{text} (default: step)")
    text = "order of the ranks (default: late)"
    parser.add_argument("--sort", choices=("late", "rank", "state"), default="late", help=text)
    text = f"number of lines; 0 for all (default: {LIMIT})"
    parser.add_argument("--limit", metavar="N", type=int, default=LIMIT, help=text)
    text = "steps that figures and strip are from, such as 1000:2000 (default: the newest, and the whole run)"
    parser.add_argument("--steps", metavar="A:B", type=_span, help=text)
    text = "show one step: its phases in the latest rank, or in --rank, beside those of the median rank"
    parser.add_argument("--step", metavar="N", type=int, help=text)
    parser.add_argument("--rank", metavar="N", type=int, help="the rank that --step shows")
    add_shared(parser, "quiet", "json")


def run(options: argparse.Namespace) -> int:
    """Print the ranks."""
    if options.rank is not None and options.step is None:
        raise UsageError(f"show rank {options.rank}", "no step is given", "add --step N")
    past = open_run(options.run, options.dir)
    with progress(f"reading the ranks of {plain(options.run, 40)}", options=options):
        facts = _step(past, options) if options.step is not None else _every(past, options)
    if options.json:
        print_json(facts)
        return FINE
    from stepscope.cli.text.rank_lines import rank_lines, step_lines

    width, paint = columns(), Paint.of()
    print("\n".join(step_lines(facts, width, paint) if options.step is not None else rank_lines(facts, width, paint)))
    return FINE


def _every(past: OpenedRun, options: argparse.Namespace) -> dict[str, Any]:
    """Return what is printed about all ranks."""
    from stepscope.views.ranks import groups, map_view, ranks_view, sorted_rows

    if options.what != STEP and options.what not in past.names():
        past.series(options.what)  # which says what is wrong with the name
    facts = ranks_view(past, options.steps)
    if options.by is not None and options.by not in facts["dimensions"]:
        known = ", ".join(facts["dimensions"]) or "nothing: there is one node and no coordinate"
        raise UsageError(f"group by {options.by!r}", f"the ranks of this run differ in {known}", "name one of these")
    facts["rows"] = sorted_rows(facts["rows"], options.sort)
    facts["what"] = options.what
    if options.by is not None:
        facts["groups"] = groups(facts["rows"], options.by)
    lines = facts["groups"] if options.by is not None else facts["rows"]
    facts["more"] = max(0, len(lines) - options.limit) if options.limit > 0 else 0
    del lines[len(lines) - facts["more"] :]
    if options.by is not None:
        del facts["rows"]
    facts["map"] = map_view(past, options.what, options.steps, STRIP)
    return facts


def _step(past: OpenedRun, options: argparse.Namespace) -> dict[str, Any]:
    """Return what is printed about one step."""
    from stepscope.views.ranks import step_view

    facts = step_view(past, (options.step, options.step), options.rank)
    if facts["step_seconds"] is None:
        who = "no rank" if options.rank is None else f"rank {options.rank} has not"
        cause = f"{who} recorded it" if options.rank is None else f"{who} recorded it in the newest attempt"
        raise UsageError(f"show step {options.step}", cause, "`stepscope ranks RUN` shows which steps there are")
    return facts


def _span(text: str) -> tuple[int, int]:
    """Return the ends of a range of steps, such as 1000:2000."""
    first, colon, last = text.partition(":")
    if not (colon and first.isdecimal() and last.isdecimal() and int(first) <= int(last)):
        raise argparse.ArgumentTypeError(f"{text!r} is no range of steps such as 1000:2000")
    return int(first), int(last)
