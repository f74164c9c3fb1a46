"""What commands that send a run to sinks share: their options, their progress, and what they print at the end."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.cli.command import FAILED, FINE, print_json
from stepscope.cli.named_run import say
from stepscope.cli.text.terminal import columns
from stepscope.core.errors import StepscopeError, UsageError
from stepscope.core.numbers import format_duration, format_items
from stepscope.core.terminal_text import plain

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from stepscope.exporters.sinks.address import SinkAddress
    from stepscope.exporters.sinks.lane import SinkLane
    from stepscope.watcher.tee import Tee

LOOK_EVERY = 0.2
"""Seconds between two looks at the sinks."""


def add_sink_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that say where to send which metrics under which names."""
    add = parser.add_argument
    add("--to", metavar="URL", action="append", help="a sink; may be given several times")
    add("--prefix", metavar="TEXT", default="", help="with --to: written before each name")


def chosen(options: argparse.Namespace) -> tuple[list[SinkAddress], str]:
    """Return the sinks of the command line, else those of the configuration, and the address of the page."""
    from stepscope.core.config import discover, load_or_default
    from stepscope.exporters.sinks.address import SETTING, address_of, sinks_of
    from stepscope.exporters.sinks.table import new_sink

    config = load_or_default(discover(Path.cwd(), os.environ), environ=os.environ)
    page = str(config.get("alerting.page_url") or "")
    metrics = [name for text in getattr(options, "metrics", None) or () for name in map(str.strip, text.split(","))]
    if options.to:
        found = {}
        for url in options.to:
            address = address_of(url, metrics=metrics, prefix=options.prefix)
            new_sink(address, os.environ)  # says at once what is wrong with the address; connects to nothing
            found[address.key] = address
        return list(found.values()), page
    addresses, problems = sinks_of({SETTING: config.get(SETTING)})
    for problem in problems:
        say(problem)
    if not addresses:
        remedy = "name one with --to, such as mlflow+http://localhost:5000, or list them in exporters.sinks"
        raise UsageError("send the run", "no sink is given", remedy)
    return addresses, page


def check_served(tee: Tee) -> None:
    """Raise StepscopeError if other processes already send to every sink."""
    if tee.busy and not tee.lanes():
        cause = f"another process sends it to {', '.join(sorted(tee.busy))} already"
        raise StepscopeError("send the run", cause, "`stepscope show` says how far it is")


class SinkScreen:
    """Shows on a terminal how far each sink is, in one line."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._is_shown = not (options.quiet or options.json) and sys.stderr.isatty()
        self._reported: dict[str, str] = {}
        self._width, self._shown = 0, 0.0

    def update(self, tee: Tee) -> None:
        """Show the present state, and report what a sink says once."""
        for lane in tee.lanes():
            if lane.state.why and self._reported.get(lane.address.key) != lane.state.why:
                self.clear()
                say(f"{lane.address.name}: {lane.state.why}; trying again")
            self._reported[lane.address.key] = lane.state.why
        now = time.monotonic()
        if self._is_shown and now - self._shown >= 1.0:
            self._shown = now
            text = plain(" · ".join(map(_progress, tee.lanes())))[: columns() - 1]
            print(f"\r{text.ljust(self._width)}", end="", flush=True, file=sys.stderr)
            self._width = len(text)

    def clear(self) -> None:
        """Remove the line."""
        if self._width:
            print(f"\r{' ' * self._width}\r", end="", flush=True, file=sys.stderr)
            self._width = 0


def _progress(lane: SinkLane) -> str:
    state = lane.state
    behind = f", {format_duration(state.behind_seconds)} behind" if state.behind_rows else ""
    return f"{lane.address.name}: {format_items(state.sent_rows, 'row')} sent{behind}"


def conclude(lanes: Sequence[SinkLane], options: argparse.Namespace) -> int:
    """Print what each sink has, and return the exit code."""
    facts = [_facts(lane) for lane in lanes]
    if options.json:
        print_json({"sinks": facts})
    elif not options.quiet:
        for fact in facts:
            refused = f", {fact['refused_rows']} refused (see {fact['refused_file']})" if fact["refused_rows"] else ""
            link = f"  {fact['link']}" if fact["link"] else ""
            print(plain(f"{fact['name']}: {format_items(fact['sent_rows'], 'row')} sent{refused}{link}"))
    return FINE if all(lane.is_done for lane in lanes) else FAILED


def _facts(lane: SinkLane) -> dict[str, Any]:
    state = lane.state
    kept = ("name", "kind", "address", "node", "state", "why", "sent_rows", "refused_rows", "merged_points")
    link = state.known.get("link", "")
    refused = f"sinks/{state.key}/{state.node}.refused.jsonl"
    facts = {key: getattr(state, key) for key in (*kept, "behind_rows", "behind_seconds")}
    return {**facts, "link": link, "refused_file": refused if state.refused_rows else ""}
