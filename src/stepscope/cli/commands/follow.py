"""Record live runs of other tools while they are written, with page, terminal, alerts and diagnosis.

PATH is a file that another program writes (W&B, TensorBoard, Lightning CSV, JSON rows, a console log, …), or a folder:
then every run that appears in it is followed, until Ctrl-C, and runs that have ended before are imported. Following
again goes on where it stopped. A run ends by its own word. Without one, its end is inferred when nothing was written
for --idle minutes and no process here has its file open.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from typing import TYPE_CHECKING, Any

from stepscope.cli.command import FAILED, FINE, add_shared
from stepscope.cli.named_run import say
from stepscope.cli.text.number import real
from stepscope.cli.text.terminal import columns
from stepscope.core.numbers import format_duration, format_items
from stepscope.core.terminal_text import plain

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from stepscope.session.following import Follower
    from stepscope.session.foreign_run import ForeignRun

STATUS_EVERY = 1.0
"""Seconds between two updates of the status line."""
LOUD = ("failed", "note", "stuck", "full")
"""Events that are shown on standard error."""


def prepare(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    add = parser.add_argument
    add("path", metavar="PATH", help="file or folder that another program writes")
    add_shared(parser, "dir")
    add("--format", metavar="FORMAT", help="format, if it cannot be detected")
    add("--project", metavar="NAME", default="", help="project of the runs (default: as the source says, or followed)")
    add("--name", metavar="NAME", default="", help="name of the run")
    text = "minutes without growth after which a run that no process has open has ended (default: 10)"
    add("--idle", type=real(0.01), default=10.0, metavar="MIN", help=text)
    add("--once", action="store_true", help="record what is there, and end")
    add("--wait", action="store_true", help="wait for a path that does not exist yet")
    add("--quiet", "-q", action="store_true", help="show only problems")
    add("--json", action="store_true", help="print one JSON object per event")


def run(options: argparse.Namespace) -> int:
    """Follow until the end, or Ctrl-C."""
    from stepscope.session.following import Follower, FollowPlan
    from stepscope.session.foreign_run import FollowPlace
    from stepscope.store.catalog import runs_root
    from stepscope.store.known_roots import note_root

    root = runs_root(options.dir)
    plan = FollowPlan(options.path, options.format, options.idle * 60, once=options.once, wait=options.wait)
    screen = Screen(options)
    stopped: list[int] = []
    before = {
        number: signal.signal(number, lambda n, _: stopped.append(n)) for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        follower = Follower(plan, FollowPlace(root, options.project, options.name), screen.tell)
        try:
            while not stopped and follower.turn():
                screen.show_status(follower)
            if stopped:
                screen.tell("stopped", None, "stopped following; the training may go on")
        finally:
            screen.clear()
            follower.close()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    note_root(root)
    return FAILED if follower.failed else FINE


class Screen:
    """Prints events as lines, and on a terminal a status line below them."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._quiet, self._json = options.quiet, options.json
        self._has_status = not (options.quiet or options.json) and sys.stdout.isatty()
        self._shown, self._width = 0.0, 0

    def tell(self, kind: str, run: ForeignRun | None, text: str) -> None:
        """Print one event."""
        self.clear()
        if self._json:
            print(json.dumps({"event": kind, "text": text, "time": time.time(), **_facts(run)}), flush=True)
        elif kind in LOUD:
            say(text)
        elif not self._quiet:
            print(plain(text), flush=True)
            for line in _hints(kind, run):
                print(f"  {plain(line)}", flush=True)

    def show_status(self, follower: Follower) -> None:
        """Show how far the live runs are, once a second."""
        now = time.monotonic()
        if not self._has_status or now - self._shown < STATUS_EVERY:
            return
        self._shown = now
        runs = [run for source in follower.sources.values() for run in source.runs.values()]
        points = format_items(sum(run.points for run in runs), "point")
        parts = [format_items(len(runs), "run"), points] if len(runs) != 1 else [plain(runs[0].name, 40), points]
        steps = [run.step for run in runs if run.step is not None]
        newest = max((run.newest for run in runs), default=0.0)
        parts += [f"step {max(steps)}"] if steps else []
        parts += [f"newest {format_duration(round(max(0.0, time.time() - newest)))} old"] if newest else []
        text = " · ".join(parts)[: columns() - 1]
        print(f"\r{text.ljust(self._width)}", end="", flush=True)
        self._width = len(text)

    def clear(self) -> None:
        """Remove the status line."""
        if self._width:
            print(f"\r{' ' * self._width}\r", end="", flush=True)
            self._width = 0


def _facts(run: ForeignRun | None) -> dict[str, Any]:
    if run is None:
        return {}
    return {"id": run.id, "name": run.name, "path": str(run.path), "points": run.points, "step": run.step}


def _hints(kind: str, run: ForeignRun | None) -> Iterator[str]:
    """Yield where a new run is recorded, and how to look at it."""
    if run is not None and kind in {"began", "continued"}:
        yield f"recorded in {run.path}"
        yield f"look: stepscope top {run.id}   or: stepscope serve"
