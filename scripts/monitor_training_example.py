"""Show what monitoring does: `python scripts/monitor_training_example.py --mode monitor|dashboard|train`.

`monitor` watches this machine until Ctrl-C; `dashboard` shows the newest run and the machine in the terminal until q;
`train` runs a simulated training with TrainingMonitorCallback. The first and the last write JSON lines to
`gpu_logs`. None needs a GPU.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from typing import TYPE_CHECKING

from stepscope.monitor import GPUMonitor, TrainingMonitorCallback

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Show what monitoring does.", allow_abbrev=False)
    parser.add_argument("--mode", choices=["monitor", "dashboard", "train"], default="monitor", help="what to show")
    parser.add_argument("--gpu", type=int, default=0, metavar="N", help="which GPU (default: 0)")
    parser.add_argument("--interval", type=float, default=1.0, metavar="S", help="seconds between samples (default: 1)")
    parser.add_argument("--log-dir", default="gpu_logs", metavar="D", help="folder of the files (default: gpu_logs)")
    parser.add_argument("--steps", type=int, default=100, metavar="N", help="steps of the training (default: 100)")
    parser.add_argument("--count", type=int, metavar="N", help="samples of the monitoring (default: until Ctrl-C)")
    return parser.parse_args(arguments)


def run_command(arguments: list[str]) -> int:
    """Run a command of stepscope in this process and return its exit code."""
    from stepscope.cli.main import main as stepscope_main

    return int(stepscope_main(arguments))


def train(options: argparse.Namespace, sleep: Callable[[float], object] = time.sleep) -> int:
    """Train something that is not there, and print what the monitor saw."""
    monitor = GPUMonitor(gpu_index=options.gpu, sample_interval=options.interval, log_dir=options.log_dir)
    callback = TrainingMonitorCallback(monitor)
    callback.on_train_begin()
    for step in range(options.steps):
        callback.on_step_begin()
        sleep(0.02)
        callback.on_step_end(
            step=step,
            epoch=step / 50,
            loss=2.5 * math.exp(-step / 40) + 0.1,
            lr=3e-4,
            grad_norm=1.0 + 1.0 / (step + 1),
            throughput=32 / 0.02,
        )
    callback.on_train_end()
    print(json.dumps(callback.get_summary(), indent=2, default=str))
    return 0


def main(arguments: Sequence[str] | None = None, *, command: Callable[[list[str]], int] = run_command) -> int:
    """Run the mode that was asked for and return the exit code.

    Args:
        arguments: command line without the program's name.
        command: runs a command of stepscope and returns its exit code.
    """
    options = parse(arguments)
    if options.mode == "train":
        return train(options)
    if options.mode == "dashboard":
        return command(["top"])
    words = ["monitor", "--gpu", str(options.gpu), "--interval", str(options.interval), "--jsonl-dir", options.log_dir]
    return command([*words, "--count", str(options.count)] if options.count else words)


if __name__ == "__main__":
    sys.exit(main())
