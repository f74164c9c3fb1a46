"""Measure the figures and print them in one table: `python -m bench [GROUP …] [--quick] [--json FILE]`."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import sys
import time
from dataclasses import asdict
from pathlib import Path

from bench.figure import Figure, Options, table
from bench.peers import versions
from bench.sandbox import sandbox

GROUPS = (
    *("hotpath", "bursts", "loop", "start", "kills", "peers_loss", "size", "memory", "reading", "watching", "choices"),
    "first_errors",
    "many_ranks",
    "simulated_fleet",
    "page",
    "serving",
    "terminal",
    "exporting",
    "stragglers",
    "importing",
    "wandb_drop_in",
    "following",
    *(
        "gradients",
        "torch_loop",
        "catching",
        "phases",
        "leaks",
        "ledger",
        "detection",
        "comparing",
        "traces",
        "alerting",
        "notifying",
        "gauntlet",
        "diagnosing",
        "sinks",
        "console",
        "console_reading",
        "stack_dumps",
        "live_hangs",
        "hangs",
    ),
)


def main(arguments: list[str]) -> int:
    """Run the groups asked for; exit code 3 if a figure exceeds its limit and `--gate` was given."""
    parser = argparse.ArgumentParser(prog="python -m bench", description="Print the figures, peers beside them.")
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=f"of {', '.join(GROUPS)}; all by default")
    parser.add_argument("--quick", action="store_true", help="few repeats: shows that it works, not how well")
    parser.add_argument("--kills", type=int, default=None, help="kills in all (200; 12 with --quick)")
    parser.add_argument("--huge", action="store_true", help="800 million points instead of 80 (minutes, 5 GB)")
    parser.add_argument(
        "--only",
        default="",
        metavar="WORD",
        help="parts of the page or the sinks, or cases of the gauntlet, with this name",
    )
    parser.add_argument("--loaded", action="store_true", help="run the gauntlet with the other core busy, too")
    parser.add_argument("--gate", action="store_true", help="exit with 3 if a figure exceeds its limit")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    given = parser.parse_args(arguments)
    unknown = set(given.groups) - set(GROUPS)
    if unknown:
        parser.error(f"cannot measure {', '.join(sorted(unknown))}: no such group; choose of {', '.join(GROUPS)}")
    kills = given.kills if given.kills is not None else (12 if given.quick else 200)
    found: list[tuple[str, Figure]] = []
    for name in given.groups or GROUPS:
        started = time.monotonic()
        with sandbox() as scratch:
            options = Options(scratch, given.quick, kills, given.huge, only=given.only, loaded=given.loaded)
            found += [(name, figure) for figure in importlib.import_module(f"bench.{name}").measure(options)]
        print(f"{name} took {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
    print(table(found))
    print(f"{platform.platform()}, {os.cpu_count()} cores, Python {platform.python_version()}, {versions()}")
    if given.json:
        rows = [{"group": name, **asdict(figure), "verdict": figure.verdict} for name, figure in found]
        given.json.write_text(json.dumps(rows, indent=1), encoding="utf-8")
    return 3 if given.gate and any(figure.verdict == "MISS" for _, figure in found) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
