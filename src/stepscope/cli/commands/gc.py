"""Remove runs beyond the limits of size, age and number, and files left by interrupted work.

The limits are those of the configuration (store.max_size_gb, store.max_age_days, store.max_runs) unless given here;
0 is no limit. The oldest runs are removed first, by their last activity. Runs that may still be written, and folders
that are not clearly runs, are never removed. Data left behind by crashed processes is recovered first.
"""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.cli.command import add_shared, show
from stepscope.cli.text.number import real, whole
from stepscope.cli.text.progress import progress
from stepscope.cli.text.table import Column, table
from stepscope.core.config import discover, load_or_default
from stepscope.core.numbers import format_items, format_value
from stepscope.core.terminal_text import plain
from stepscope.store.catalog import runs_root, salvage_quietly
from stepscope.store.retention import Removal, RetentionLimits, apply, clear, find_candidates, leftovers, plan

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from stepscope.cli.text.terminal import Paint

SHOWN = 40
"""Lines of the table; the rest is counted."""


def prepare(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    add_shared(parser, "dir")
    parser.add_argument("--max-size-gb", metavar="GIB", type=real(0), help="size of all runs together, in GiB")
    parser.add_argument("--max-age-days", metavar="DAYS", type=real(0), help="days since the last activity")
    parser.add_argument("--max-runs", metavar="N", type=whole(0), help="number of runs")
    parser.add_argument("--dry-run", action="store_true", help="list what would be removed, and remove nothing")
    add_shared(parser, "quiet", "json")


def run(options: argparse.Namespace) -> int:
    """Remove runs, or only list them with --dry-run."""
    root = runs_root(options.dir)
    limits = limits_of(options)
    salvaged = salvage_quietly()
    with progress("looking", options=options):
        candidates = find_candidates(root)
    with progress("removing", options=options):
        removed = plan(candidates, limits, time.time()) if options.dry_run else apply(root, limits)
    swept = leftovers(root)
    if not options.dry_run:
        for leftover in swept:
            clear(leftover, root)
    facts = {
        "root": str(root),
        "dry_run": options.dry_run,
        "limits": limits.__dict__,
        "runs": len(candidates),
        "bytes": sum(candidate.bytes for candidate in candidates),
        "removed": [_plain(removal) for removal in removed],
        "leftovers": [_plain(removal) for removal in swept],
        "rings_salvaged": salvaged,
    }
    return show(options, facts, lambda width, paint: report(facts, root, removed, swept, width, paint))


def limits_of(options: argparse.Namespace) -> RetentionLimits:
    """Return the limits of the configuration, replaced by those that were given."""
    config = load_or_default(discover(Path.cwd(), os.environ), environ=os.environ)
    given = {name: getattr(options, name) for name in ("max_size_gb", "max_age_days", "max_runs")}
    chosen = {name: value for name, value in given.items() if value is not None}
    return replace(RetentionLimits.of(config.values), **chosen)


def _plain(removal: Removal) -> dict[str, Any]:
    return {"path": str(removal.path), "bytes": removal.bytes, "reason": removal.reason}


def report(
    facts: dict[str, Any], root: Path, removed: Sequence[Removal], swept: Sequence[Removal], width: int, paint: Paint
) -> list[str]:
    """Return the removed runs, or those that would be removed, as text."""
    verb = "would remove" if facts["dry_run"] else "removed"
    lines = _table(removed, root, width, paint)
    if removed:
        lines += ["", paint(f"{verb} {format_items(len(removed), 'run')}, {_size(removed)}", "bold")]
    if swept:
        lines.append(f"{verb} {format_items(len(swept), 'leftover file')}, {_size(swept)}")
    if facts["rings_salvaged"]:
        lines.append(f"recovered the data of {format_items(facts['rings_salvaged'], 'crashed process', 'es')}")
    if not removed and not swept:
        lines.append("nothing to remove")
    left, size = facts["runs"] - len(removed), facts["bytes"] - sum(removal.bytes for removal in removed)
    lines.append(paint(f"{format_items(left, 'run')}, {format_value(size, 'bytes')} stay in {plain(root)}", "dim"))
    if not any(facts["limits"].values()):
        lines.append(paint("no limit is set: give --max-size-gb, --max-age-days or --max-runs", "dim"))
    return lines


def _size(removed: Sequence[Removal]) -> str:
    return format_value(sum(one.bytes for one in removed), "bytes")


def _table(removed: Sequence[Removal], root: Path, width: int, paint: Paint) -> list[str]:
    if not removed:
        return []
    shape = (Column("run", narrowest=20), Column("size", right=True), Column("why", narrowest=12))
    rows = [[plain(os.path.relpath(one.path, root)), _size([one]), one.reason] for one in removed[:SHOWN]]
    more = [paint(f"and {len(removed) - SHOWN} more", "dim")] if len(removed) > SHOWN else []
    return [*table(shape, rows, width, paint), *more]
