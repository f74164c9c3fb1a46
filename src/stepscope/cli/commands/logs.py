"""Print what the ranks of a run printed: the lines of all ranks, in the order of time.

`stepscope run` keeps these lines (`recorder.console`), with the time, the rank and the step of each. Progress bars are
kept in their last state, and secrets are not kept. --since and --until take a step (120), an age (10m) or a time
(2026-11-18T22:10:00). PATTERN is plain text, or a regular expression between slashes: /loss.*nan/.
"""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from stepscope.analysis.first_error.judge import ranks_text
from stepscope.cli.command import FINE, add_shared, print_json
from stepscope.cli.named_run import open_run, say
from stepscope.cli.rank_list import rank_list
from stepscope.cli.text.number import whole
from stepscope.cli.text.terminal import Paint
from stepscope.core.console_text import for_terminal
from stepscope.core.errors import StepscopeError
from stepscope.core.numbers import format_items

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable

    from stepscope.core.console_line import ConsoleLine
    from stepscope.sources.opened_run import OpenedRun
    from stepscope.store.console import ConsoleAnswer, ConsoleQuery

LOOK_EVERY = 0.5
"""Seconds between two looks at a run that is followed."""
OPEN_EVERY = 10.0
"""Seconds between two states of a line without an end, such as a progress bar, in a run that is followed."""
FIRST_LINES = 10
"""Lines that --follow begins with."""
PAGE = 20_000
MOST_OBJECTS = 100_000
"""Maximum lines of --json."""


def prepare(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    add = parser.add_argument
    add_shared(parser, "run", "dir")
    add("--rank", metavar="RANKS", type=rank_list, help="only these ranks, such as 3 or 0,8-15")
    add("--attempt", metavar="N", type=whole(0), help="only this attempt")
    add("--grep", metavar="PATTERN", help="only lines with this text, or that match /expression/; case is ignored")
    add("--stream", choices=("err",), help="only standard error; on a terminal, lines that look like errors")
    add("--errors", action="store_true", help="only lines that look like errors")
    add("--since", metavar="WHEN", help="first step, age or time")
    add("--until", metavar="WHEN", help="last step, age or time")
    add("--last", "-n", metavar="N", type=whole(1), help="only the newest N lines")
    add("--follow", "-f", action="store_true", help="go on with new lines, until the run ends")
    add("--prefix", action="store_true", help="print time, rank and step before each line, also of a single rank")
    add_shared(parser, "json")


def run(options: argparse.Namespace) -> int:
    """Print the lines, and go on with --follow."""
    from stepscope.store.console import console_ranks
    from stepscope.store.layout import RunFolder

    past = open_run(options.run, options.dir)
    ranks = console_ranks(RunFolder(past.path))
    if not ranks and not (options.follow and past.state == "running"):
        raise StepscopeError(f"print the lines of run {past.id}", "none were kept", _remedy(past))
    if options.rank and not {*options.rank} & {*ranks} and not options.follow:
        known = f"lines were kept of {ranks_text(ranks)}"
        raise StepscopeError(f"print the lines of {ranks_text(options.rank)}", "none were kept", known)
    query = _query(options, past)
    printer = LinePrinter(options, options.rank or ranks)
    try:
        if options.json and not options.follow:
            return _print_facts(past, replace(query, limit=MOST_OBJECTS))
        answer = _print_all(past, query, printer)
        if options.follow:
            _follow(past, replace(query, last=None, after=answer.cursor), printer)
        elif not printer.has_printed and not answer.lines:
            say("no line fits these options")
    except KeyboardInterrupt:
        return FINE
    finally:
        printer.end()
    return FINE


def _query(options: argparse.Namespace, past: OpenedRun) -> ConsoleQuery:
    from stepscope.sources.console_range import moment_of
    from stepscope.store.console import MOST_LINES, ConsoleQuery

    return ConsoleQuery(
        ranks=options.rank,
        attempt=options.attempt,
        since=None if options.since is None else moment_of(past, options.since, is_end=False),
        until=None if options.until is None else moment_of(past, options.until, is_end=True),
        last=options.last or (FIRST_LINES if options.follow and options.since is None else None),
        pattern=options.grep,
        level="error" if options.errors else options.stream,
        limit=PAGE if options.last is None else min(options.last, MOST_LINES),
    )


def _print_facts(past: OpenedRun, query: ConsoleQuery) -> int:
    answer = past.console(query)
    facts = {"dropped": answer.dropped, "more": answer.more, "problems": answer.problems}
    print_json({"run": past.id, "lines": [line._asdict() for line in answer.lines], **facts})
    return FINE


def _print_all(past: OpenedRun, query: ConsoleQuery, printer: LinePrinter) -> ConsoleAnswer:
    """Print the lines that are there, page by page."""
    answer = past.console(query)
    if answer.dropped:
        least = "at least " if answer.more or query.last is not None else ""  # others may be in what was not read
        why = "too many for store.console_bytes, too fast, or the disk was full"
        say(f"{least}{format_items(answer.dropped, 'line')} of these ranks were not kept: {why}")
    while True:
        for problem in answer.problems:
            say(problem)
        printer.show(answer.lines)
        if not answer.more:
            return answer
        answer = past.console(replace(query, after=answer.cursor))


def _follow(past: OpenedRun, query: ConsoleQuery, printer: LinePrinter) -> None:
    """Print new lines until the run has ended."""
    is_over = False
    while True:
        answer = past.console(query)
        printer.show(answer.lines)
        query = replace(query, after=answer.cursor)
        if answer.more:
            continue
        if is_over and not answer.lines:
            return
        is_over = past.state != "running"  # then one more look: lines may be written after the end
        time.sleep(LOOK_EVERY)


def _remedy(past: OpenedRun) -> str:
    if past.meta.get("followed") or past.meta.get("imported"):
        return "another tool recorded it: look in the logs of that program"
    return "start it with `stepscope run`, or set recorder.console to on"


class LinePrinter:
    """Prints lines as text or JSON; one that has no end yet is held back until it has, or for a while."""

    def __init__(self, options: argparse.Namespace, ranks: Iterable[int]) -> None:
        """Take the options of the command, and the ranks whose lines may come."""
        self._as_json, self._always = options.json, options.prefix
        self._paint = Paint.of()
        self._ranks = set(ranks)
        self.has_printed = False
        self._open: dict[tuple[str, int, int, int], tuple[ConsoleLine, float]] = {}
        """Lines that have no end yet, and when each was held back (monotonic seconds)."""

    def show(self, lines: list[ConsoleLine]) -> None:
        """Print new lines."""
        now = time.monotonic()
        self._ranks |= {line.rank for line in lines}
        for line in lines:
            key = (line.node, line.attempt, line.rank, line.number)
            held = self._open.pop(key, None)
            if line.is_open:
                self._open[key] = (line, now if held is None else held[1])
            else:
                self._print(line)
        for key, (line, since) in list(self._open.items()):
            if now - since > OPEN_EVERY:
                self._print(line)
                del self._open[key]

    def end(self) -> None:
        """Print the lines that are still held back."""
        for line, _ in self._open.values():
            self._print(line)
        self._open.clear()

    def _print(self, line: ConsoleLine) -> None:
        self.has_printed = True
        if self._as_json:
            facts: dict[str, Any] = line._asdict()
            print(json.dumps(facts, allow_nan=False), flush=True)
            return
        text = for_terminal(line.text, in_colour=self._paint.enabled)
        if self._always or len(self._ranks) > 1:
            step = "" if line.step is None else f"  step {line.step}"
            stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(line.time))
            text = f"{self._paint(f'{stamp}  rank {line.rank}{step} |', 'dim')} {text}"
        print(text, flush=True)
