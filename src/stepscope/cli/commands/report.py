"""Report a run: HTML in one file, PNG, JSON or Markdown, with charts, diagnosis, alerts and environment.

The HTML file works offline and as a mail attachment: it contains its data, and its charts zoom.
Without options the report is printed as Markdown. A file that exists is replaced only with --force.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.cli.command import FINE, RUN, add_shared, json_text
from stepscope.cli.named_run import resolve
from stepscope.cli.text.progress import progress
from stepscope.core.errors import UsageError
from stepscope.exporters.files.output import open_output

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from stepscope.reports.report_drawing import DrawnLine
    from stepscope.reports.report_png import PngChart
    from stepscope.store.curves import Curves
    from stepscope.store.reader import Past

BASELINES = "docs/performance"
"""Default folder of --baseline."""


def prepare(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("run", metavar="RUN", nargs="?", help=RUN)
    add_shared(parser, "dir")
    add = parser.add_argument
    add("--html", metavar="F", help="write one HTML file that works offline; - is standard output")
    add("--png", metavar="D", help="write pictures to this folder; needs the extra png")
    add("--json", metavar="F", help="write the content of the report as JSON; - is standard output")
    add("--markdown", metavar="F", help="write Markdown; - is standard output")
    add("--compare", metavar="RUN", nargs="+", default=[], help="compare with these runs, in every format")
    words = f"HTML, Markdown and JSON as FOLDER/<run id>.*, to keep in a repository (default: {BASELINES})"
    add("--baseline", metavar="FOLDER", nargs="?", const=BASELINES, help=words)
    add("--force", action="store_true", help="replace files that exist")
    add_shared(parser, "quiet")


def run(options: argparse.Namespace) -> int:
    """Write the report in the formats that are asked for."""
    names = [*([options.run] if options.run else []), *options.compare]
    if not names:
        raise UsageError("report a run", "no run is given", "write: stepscope report latest --html report.html")
    if options.png:
        from stepscope.reports.report_png import check

        check()
    sources = [resolve(name, options.dir) for name in names]
    from stepscope.views.report import report

    with progress("report", 4, options=options) as advance, ExitStack() as stack:
        advance(0, "reading and diagnosing the run")
        runs = [stack.enter_context(source.opened()) for source in sources]
        facts = report(runs[0], runs[1:])
        written = _write(options, runs, facts, advance)
    for path in written:
        print(path, file=sys.stderr)
    return FINE


def _write(options: argparse.Namespace, runs: Sequence[Past], facts: dict[str, Any], advance: Any) -> list[str]:
    from stepscope.reports.report_file import html_of
    from stepscope.reports.report_markdown import markdown

    written: list[str] = []
    html, pages, words = _paths(options, runs[0].id)
    advance(1, "html")
    for path in html:
        written += _put(path, html_of(runs, facts), options)
    advance(1, "pictures")
    if options.png:
        written += _pictures(Path(options.png), runs, facts, options)
    advance(1, "text")
    for path in pages:
        written += _put(path, json_text(facts) + "\n", options)
    for path in words:
        written += _put(path, markdown(facts), options)
    return written


def _paths(options: argparse.Namespace, name: str) -> list[list[str]]:
    """Return where HTML, JSON and Markdown go; without options, Markdown goes to standard output."""
    asked = [[path] if path else [] for path in (options.html, options.json, options.markdown)]
    if options.baseline:
        folder = Path(options.baseline)
        folder.mkdir(parents=True, exist_ok=True)
        for place, end in enumerate((".html", ".json", ".md")):
            asked[place].append(str(folder / f"{name}{end}"))
    if not any(asked) and not options.png:
        asked[2] = ["-"]
    return asked


def _put(path: str, text: str, options: argparse.Namespace) -> list[str]:
    with open_output(path, force=options.force) as stream:
        stream.write(text.encode("utf-8", "replace"))
    return [] if path == "-" else [path]


def _pictures(folder: Path, runs: Sequence[Past], facts: dict[str, Any], options: argparse.Namespace) -> list[str]:
    """Write training.png, resources.png and step.png, those with data, to a folder."""
    from stepscope.exporters.files.output import new_file
    from stepscope.reports import report_png

    folder.mkdir(parents=True, exist_ok=True)
    title = " and ".join(past.name for past in runs)
    training, machine = _drawn(runs, facts)
    written = []
    for name, pictures in (("training.png", training), ("resources.png", machine)):
        if pictures:
            with new_file(folder / name, force=options.force) as path:
                report_png.charts(path, title, pictures)
            written.append(str(folder / name))
    if facts["performance"]["time"] and facts["performance"]["time"]["phases"]:
        with new_file(folder / "step.png", force=options.force) as path:
            report_png.step(path, f"{title}: where the time of a step goes", facts["performance"]["time"])
        written.append(str(folder / "step.png"))
    return written


def _drawn(runs: Sequence[Past], facts: dict[str, Any]) -> tuple[list[PngChart], list[PngChart]]:
    from stepscope.reports.report_file import POINTS, curves_of
    from stepscope.reports.report_png import PngChart

    names = facts["training"]["charts"]
    charts = facts["resources"]["charts"] if len(runs) == 1 else []
    wanted = [*names, *(name for chart in charts for name in chart["names"])]
    found = [curves_of(past, wanted, POINTS, fold=len(runs) > 1) for past in runs]
    labels = [past.name for past in runs] if len(runs) > 1 else [""]
    units = {one["name"]: one["unit"] for one in facts["training"]["metrics"]}
    begun = facts["run"]["created"] or 0.0
    training = [PngChart(name, units.get(name, ""), "step", _by_step(found, name, labels)) for name in names]
    timed = [(chart["title"], chart["unit"], _by_time(found[0], chart["names"], begun)) for chart in charts]
    machine = [PngChart(title, unit, "time", lines) for title, unit, lines in timed]
    return [one for one in training if one.lines], [one for one in machine if one.lines]


def _by_step(found: Sequence[Curves], name: str, labels: Sequence[str]) -> list[DrawnLine]:
    from stepscope.reports.report_drawing import lines_of

    pairs = zip(found, labels, strict=True)
    return [line for one, label in pairs for line in lines_of(one, name, label, by_time=False)]


def _by_time(found: Curves, names: Sequence[str], begun: float) -> list[DrawnLine]:
    from stepscope.reports.report_drawing import lines_of

    lines = (line for name in names for line in lines_of(found, name, name, by_time=True))
    return [replace(one, x=one.x - begun, bad=one.bad - begun) for one in lines]
