"""One run of 512 ranks on 64 nodes, 10 000 steps and 20 metrics each: how fast it is read.

`python -m bench.many_ranks --folder F [--ranks 64 --steps 1000]` only makes the run, in F/ranks, and prints where.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from bench.figure import Figure, Options
from bench.synthetic_ranks import RankRun, make

KEPT = Path(tempfile.gettempdir()) / "stepscope-many-ranks"
"""Where the run of the figures is kept: making it takes minutes."""


def kept(root: Path, plan: RankRun) -> Path:
    """Return the run of this plan below a folder; make it if it is not there."""
    path = root / "ranks" / f"many-{plan.ranks}-{plan.steps}-{plan.seed}"
    if not path.is_dir():
        draft = path.with_name(f"{path.name}-draft")
        draft.parent.mkdir(parents=True, exist_ok=True)
        make(draft, plan, path.name)
        draft.rename(path)
    return path


def measure(options: Options) -> list[Figure]:
    """Return the figures of reading a run of many ranks."""
    plan = RankRun(ranks=64, steps=1000) if options.quick else RankRun()
    began = time.monotonic()
    run = kept(options.scratch if options.quick else KEPT, plan)
    size = sum(path.stat().st_size for path in run.rglob("*") if path.is_file())
    beside = f"{plan.ranks} ranks on {plan.nodes} nodes, {plan.steps} steps, {time.monotonic() - began:.0f} s to make"
    return [Figure("many_ranks_size", "the run on disk", size / 2**20, "MiB", None, beside)]


def main(arguments: list[str]) -> int:
    """Make a run and print its folder."""
    parser = argparse.ArgumentParser(prog="python -m bench.many_ranks", description="Make a run of many ranks.")
    parser.add_argument("--folder", type=Path, default=KEPT, help="folder of runs to keep it in")
    parser.add_argument("--ranks", type=int, default=RankRun.ranks)
    parser.add_argument("--steps", type=int, default=RankRun.steps)
    given = parser.parse_args(arguments)
    began = time.monotonic()
    run = kept(given.folder, RankRun(ranks=given.ranks, steps=given.steps))
    size = sum(path.stat().st_size for path in run.rglob("*") if path.is_file())
    sys.stdout.write(f"{run}\n{size / 2**20:.0f} MiB, {time.monotonic() - began:.1f} s\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
