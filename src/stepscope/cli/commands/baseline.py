"""Save the normal behaviour of runs as a baseline, to compare later runs with it; show or list baselines.

A baseline is one file with the curves and environments of its runs and the normal range of each quantity, in which the
next run lies with 95 % confidence if nothing has changed. It is stored with the runs, or at --output, for instance in a
repository for its CI. Several repeats make a better baseline than one run.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

from stepscope.cli.command import FINE, add_shared, print_json, show
from stepscope.cli.named_run import say
from stepscope.cli.text.progress import progress
from stepscope.cli.text.table import Column, table
from stepscope.cli.text.terminal import Paint, columns
from stepscope.core.errors import StepscopeError
from stepscope.core.numbers import format_items, format_value
from stepscope.core.terminal_text import cut, plain

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

    from stepscope.analysis.compare.recording import Group


def prepare(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    save = actions.add_parser("save", help="save runs as a baseline")
    save.add_argument("name", metavar="NAME", help="name of the baseline")
    save.add_argument("runs", metavar="RUN", nargs="+", help="runs of one program, as in `stepscope compare`")
    save.add_argument("--force", action="store_true", help="replace a baseline of that name")
    add_shared(save, "output", "quiet")
    show = actions.add_parser("show", help="show a baseline, or list all")
    show.add_argument("name", metavar="NAME", nargs="?", help="name or file of a baseline (default: list all)")
    for own in (save, show):
        add_shared(own, "dir", "json")


def run(options: argparse.Namespace) -> int:
    """Save or show."""
    if options.action == "save":
        return _save(options)
    return _show(options) if options.name else _list(options)


def _save(options: argparse.Namespace) -> int:
    from stepscope.analysis.compare import likeness
    from stepscope.analysis.compare.baseline import to_facts
    from stepscope.analysis.compare.comparison import mixtures
    from stepscope.analysis.compare.recording import Group
    from stepscope.exporters.files.output import open_output
    from stepscope.sources.baselines import baseline_path
    from stepscope.sources.groups import group_of

    target = baseline_path(options.name, options.dir)
    with progress("reading", unit="runs", options=options) as advance:
        runs = [run for text in options.runs for run in group_of(text, options.dir, (), advance, say).runs]
    group = Group(options.name, tuple(runs))
    facts = to_facts(group, time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()))
    if options.output is None:
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = options.output or str(target)
    with open_output(path, force=options.force) as stream:
        stream.write(json.dumps(facts, allow_nan=False).encode())
    findings = [*likeness.unlikeness([group]), *mixtures([group])]
    if options.json:
        told = {"ranges": facts["ranges"], "findings": [item.facts() for item in findings]}
        print_json({"name": options.name, "path": path, "runs": [run.label for run in runs], **told})
    elif path != "-":
        print(f"saved {plain(options.name)} of {format_items(len(runs), 'run')} to {plain(path)}")
        lines = [*range_lines(facts["ranges"], columns(), Paint.of()), *(plain(item.text) for item in findings)]
        print("\n".join(lines))
    return FINE


def _show(options: argparse.Namespace) -> int:
    from stepscope.analysis.compare.baseline import ranges
    from stepscope.cli.targets import aims, targets
    from stepscope.sources.baselines import find_baseline, read_baseline

    path = find_baseline(options.name, options.dir)
    if path is None:
        what = f"show baseline {options.name!r}"
        raise StepscopeError(what, "there is no baseline of that name", "see `stepscope baseline show`, or save one")
    group = read_baseline(path)
    found = [item.facts() for item in ranges(group)]
    reached = [aim.facts() for aim in aims(group, targets())]
    runs = [{"label": run.label, "facts": run.facts} for run in group.runs]
    facts = {"name": group.label, "path": str(path), "runs": runs, "ranges": found, "targets": reached}
    return show(options, facts, lambda width, paint: _page(group, found, reached, width, paint))


def _page(
    group: Group, found: Sequence[dict[str, Any]], reached: Sequence[dict[str, Any]], width: int, paint: Paint
) -> Iterator[str]:
    runs = f"{format_items(len(group.runs), 'run')}: {', '.join(run.label for run in group.runs)}"
    yield f"{paint(plain(group.label), 'bold')}  {cut(plain(runs), width - len(group.label) - 2)}"
    yield from range_lines(found, width, paint)
    for aim in reached:
        yield cut(f"  target {plain(aim['quantity'])} {aim['target']:g}: {aim['result']}", width)


def range_lines(found: Sequence[dict[str, Any]], width: int, paint: Paint) -> Iterator[str]:
    """Yield a table of normal ranges."""
    shape = [Column("quantity", narrowest=14), Column("normal", right=True), Column("from", right=True)]
    shape += [Column("to", right=True), Column("is", optional=True, narrowest=10)]
    rows = []
    for item in found:
        values = [format_value(item[key], item["unit"]) for key in ("value", "low", "high")]
        rows.append([plain(item["quantity"]), *values, plain(item["definition"])])
    if rows:
        yield from table(shape, rows, width, paint, 2)
    else:
        yield "  no quantity common to all runs"


def _list(options: argparse.Namespace) -> int:
    from stepscope.sources.baselines import BASELINES, SUFFIX
    from stepscope.store.catalog import runs_root

    folder = runs_root(options.dir) / BASELINES
    names = sorted(path.name.removesuffix(SUFFIX) for path in folder.glob(f"[!.]*{SUFFIX}"))
    lines = [plain(name) for name in names] or [f"no baseline in {plain(str(folder))}"]
    return show(options, {"folder": str(folder), "baselines": names}, lambda *_: lines)
