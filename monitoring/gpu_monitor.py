"""Watch a GPU: `python -m monitoring.gpu_monitor --gpu 0 --interval 1.0 [--prometheus-port 9090]`.

A thin wrapper under a compatible name: `stepscope monitor`, which here also writes its JSON lines to
`gpu_logs` unless `--jsonl-dir` names another folder. Also importable for `GPUMonitor` and `TrainingMonitorCallback`.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from stepscope.monitor import GPUMonitor, TrainingMonitorCallback

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["GPUMonitor", "TrainingMonitorCallback", "main"]

LOG_DIR = "gpu_logs"


def run_command(arguments: list[str]) -> int:
    """Run a command of stepscope in this process and return its exit code."""
    from stepscope.cli.main import main as stepscope_main

    return int(stepscope_main(arguments))


def main(arguments: Sequence[str] | None = None, *, command: Callable[[list[str]], int] = run_command) -> int:
    """Run `stepscope monitor` with these arguments and return its exit code.

    Args:
        arguments: command line without the program's name.
        command: runs a command of stepscope and returns its exit code.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    # Before the given ones: the last of two options of one name holds.
    return command(["monitor", "--jsonl-dir", LOG_DIR, *given])


if __name__ == "__main__":
    sys.exit(main())
