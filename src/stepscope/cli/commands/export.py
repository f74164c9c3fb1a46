"""Write the metrics of a run to a file in another format, or send the run to another tool.

csv, json, jsonl and grafana go to standard output unless --output names a file; parquet and arrow need one, and
tensorboard needs a folder. An existing file is replaced only with --force. Unreadable parts of the run are
reported on standard error. `stepscope import` restores an export bit for bit. With --to, the whole run is sent to a
sink such as mlflow+http://localhost:5000, with its configuration, state, alerts and diagnosis.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.cli.command import FINE, add_shared
from stepscope.cli.sinks import LOOK_EVERY, SinkScreen, add_sink_options, check_served, chosen, conclude
from stepscope.cli.text.progress import progress
from stepscope.core.errors import StepscopeError, UsageError
from stepscope.exporters.files.selection import SPELLINGS
from stepscope.exporters.formats import FILE, FORMATS, STREAM

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from stepscope.exporters.files.selection import ExportedMetric
    from stepscope.exporters.formats import ExportFormat
    from stepscope.store.reader import Past

PATIENCE = 60.0
"""Seconds for which a sink may not answer before the command gives up."""
COUNTED = ("csv", "json", "jsonl", "arrow", "tensorboard")
"""Formats whose writers report the number of points written."""


def prepare(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    add_shared(parser, "run", "dir")
    formats = ", ".join(f"{form.name} ({form.help})" for form in FORMATS.values())
    parser.add_argument("--format", metavar="FORMAT", choices=list(FORMATS), help=formats)
    add_sink_options(parser)
    add_shared(parser, "output")
    parser.add_argument("--force", action="store_true", help="replace the file if it exists")
    add_shared(parser, "quiet")
    metrics = "only these, separated by commas, in any documented spelling; may be given several times"
    parser.add_argument("--metrics", metavar="A,B", action="append", help=metrics)
    spelling = "names as recorded (the default), canonical (docs/reference/metrics.md), or compatible with other tools"
    parser.add_argument("--spelling", choices=SPELLINGS, default=SPELLINGS[0], help=spelling)
    wide = "csv: one line per step, one column per metric; the last value wins"
    parser.add_argument("--wide", action="store_true", help=wide)


def run(options: argparse.Namespace) -> int:
    """Export the run."""
    from stepscope.cli.named_run import resolve, say
    from stepscope.exporters.files.selection import choose
    from stepscope.store.shelf import problems_of

    if bool(options.to) == bool(options.format):
        cause = "both --format and --to are given" if options.to else "neither --format nor --to is given"
        raise UsageError("export the run", cause, "use --format for a file, --to URL for another tool")
    if options.to:
        return _send(options)
    form = FORMATS[options.format]
    if options.wide and form.write_wide is None:
        what = f"export {form.name} with --wide"
        raise UsageError(what, "this format does not support it", "leave --wide out, or take csv")
    with resolve(options.run, options.dir).opened() as past:
        metrics = choose(past, _wanted(options.metrics, past.names()), options.spelling)
        _export(form, past, metrics, options)
        problems = problems_of(past)
    for problem in problems:
        say(problem)
    return FINE


def _send(options: argparse.Namespace) -> int:
    """Send what is on disk to sinks; give up on one that denies us or does not answer."""
    from stepscope.cli.named_run import resolve, say
    from stepscope.store.layout import RunFolder
    from stepscope.watcher.tee import Tee

    options.json = False
    addresses, page = chosen(options)
    with resolve(options.run, options.dir).opened() as past:
        tee = Tee(RunFolder(past.path), addresses, say, page, once=True)
        screen = SinkScreen(options)
        try:
            tee.look()
            check_served(tee)
            while not tee.is_done():
                stuck = tee.stuck(time.time(), PATIENCE)
                if stuck:
                    names = ", ".join(lane.address.name for lane in stuck)
                    remedy = "the same command goes on where this one stopped"
                    raise StepscopeError(f"send the run to {names}", stuck[0].state.why, remedy)
                screen.update(tee)
                time.sleep(LOOK_EVERY)
        finally:
            screen.clear()
            tee.close()
        return conclude(tee.lanes(), options)


def _export(form: ExportFormat, past: Past, metrics: Sequence[ExportedMetric], options: argparse.Namespace) -> None:
    """Write the export; progress is in points where the writer counts them."""
    from stepscope.exporters.files.portions import counting, sizes_of

    if options.output in {None, "-"} and sys.stdout.isatty():
        _write(form, past, metrics, options)  # the output itself is on the terminal
        return
    sizes = sizes_of(past)
    total = sum(sizes.get(metric.recorded, 0) for metric in metrics) if form.name in COUNTED else None
    with progress(f"export {form.name}", total, "points", options=options) as advance, counting(advance):
        _write(form, past, metrics, options)


def _wanted(given: Sequence[str] | None, known: Sequence[str]) -> list[str] | None:
    """Return the requested names; a name with a comma is kept whole if it was recorded so."""
    if given is None:
        return None
    return [name for text in given for name in ([text] if text in known else map(str.strip, text.split(","))) if name]


def _write(form: ExportFormat, past: Past, metrics: Sequence[ExportedMetric], options: argparse.Namespace) -> None:
    from stepscope.exporters.files.output import new_file, new_folder, open_output

    if form.target == STREAM:
        write = form.write_wide if options.wide and form.write_wide else form.write
        with open_output(options.output, force=options.force) as stream:
            write(past, metrics, stream)
    else:
        make = new_file if form.target == FILE else new_folder
        with make(_named(form, options.output), force=options.force) as temporary:
            form.write(past, metrics, temporary)


def _named(form: ExportFormat, output: str | None) -> Path:
    """Return the path that was given; a format that needs a file or folder does not go to standard output."""
    if output is None or output == "-":
        remedy = f"name it with --output NAME{form.suffix}"
        raise UsageError(f"export {form.name} to standard output", f"it needs a {form.target}", remedy)
    return Path(output)
