"""Watch GPUs in the terminal: `python -m monitoring.gpu_dashboard --gpu 0 --interval 0.5`.

A thin wrapper under a compatible name: `stepscope top --machine`. Keys: `q` quits, `s` saves, `r` resets.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from monitoring.gpu_monitor import run_command

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None, *, command: Callable[[list[str]], int] = run_command) -> int:
    """Run `stepscope top --machine` with these arguments and return its exit code.

    Args:
        arguments: command line without the program's name.
        command: runs a command of stepscope and returns its exit code.
    """
    return command(["top", "--machine", *(sys.argv[1:] if arguments is None else arguments)])


if __name__ == "__main__":
    sys.exit(main())
