"""What `wandb.log` of ten numbers costs the training thread with the drop-in, beside the real wandb offline.

Both are called in one process and one loop, in turns of one block each, with the same rows; a block is the CPU time of
the calling thread. The ratio is the median of those of each turn.
"""

from __future__ import annotations

import importlib.util
import json
import os
import statistics
import sys
from pathlib import Path
from time import thread_time_ns
from typing import TYPE_CHECKING, Any

from bench.figure import ONE_OVER, Figure, Options
from bench.peers import rows
from bench.processes import output_of

if TYPE_CHECKING:
    from collections.abc import Sequence

CALLS = 200
"""Calls of a block."""
LIMIT = 1 / 50
WHAT = "stepscope.wandb.log of 10 floats / wandb offline, thread CPU"


def measure(options: Options) -> list[Figure]:
    """Return the ratio."""
    if importlib.util.find_spec("wandb") is None:
        return [Figure("wandb_drop_in", WHAT, None, ONE_OVER, LIMIT, "wandb not installed")]
    turns = 20 if options.quick else 150
    printed, _, _ = output_of("-m", "bench.wandb_drop_in", str(options.scratch / "wandb_drop_in"), str(turns))
    told = json.loads(printed.splitlines()[-1])
    beside = f"{told['ours']:.2f} µs over {told['theirs']:.0f} µs, {turns} turns of {CALLS} calls"
    return [Figure("wandb_drop_in", WHAT, told["ratio"], ONE_OVER, LIMIT, beside)]


def block(module: Any, data: Sequence[dict[str, float]]) -> float:
    """Return the microseconds of a call, less those of the loop around it."""
    start = thread_time_ns()
    for row in data:
        module.log(row)
    middle = thread_time_ns()
    for _ in data:
        pass
    return (2 * middle - start - thread_time_ns()) / len(data) / 1e3


def main(arguments: Sequence[str]) -> int:
    """Measure in this process, in the folder given."""
    folder, turns = Path(arguments[0]), int(arguments[1])
    folder.mkdir(parents=True)
    os.chdir(folder)
    os.environ.update(WANDB_MODE="offline", WANDB_SILENT="true", WANDB_CONSOLE="off")
    import wandb as theirs

    from stepscope import wandb as ours

    modules = (ours, theirs)
    for module in modules:
        module.init(project="bench", dir=str(folder))
    data = rows(CALLS)
    pairs = [[block(module, data) for module in modules] for _ in range(turns + 2)][2:]
    for module in modules:
        module.finish()
    mine, other = (statistics.median(column) for column in zip(*pairs, strict=True))
    ratio = statistics.median(first / second for first, second in pairs)
    print(json.dumps({"ours": mine, "theirs": other, "ratio": ratio}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
