"""Watch a training, or a simulated one: `python scripts/monitor_training.py --simulate --simulate_steps 100`.

A thin wrapper under a compatible name, also importable for `TrainingMonitor`.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.core.config import load
from stepscope.core.errors import StepscopeError
from stepscope.monitor import TrainingMonitor

if TYPE_CHECKING:
    from collections.abc import Callable, MutableMapping, Sequence

__all__ = ["TrainingMonitor", "main"]


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line; options may have underscores or hyphens."""
    parser = argparse.ArgumentParser(description="Watch a training, or a simulated one.", allow_abbrev=False)
    parser.add_argument("--config", type=Path, metavar="FILE", help="YAML file with settings")
    parser.add_argument("--simulate", action="store_true", help="train something small, with planted events")
    parser.add_argument("--simulate_steps", "--simulate-steps", type=int, default=100, metavar="N", help="its steps")
    parser.add_argument("--enable_dashboard", "--enable-dashboard", action="store_true", help="serve the page")
    parser.add_argument("--dashboard_port", "--dashboard-port", type=int, metavar="PORT", help="port of the page")
    return parser.parse_args(arguments)


def run_command(arguments: list[str]) -> int:
    """Run a command of stepscope in this process and return its exit code."""
    from stepscope.cli.main import main as stepscope_main

    return int(stepscope_main(arguments) or 0)


def main(
    arguments: Sequence[str] | None = None,
    *,
    command: Callable[[list[str]], int] = run_command,
    environ: MutableMapping[str, str] = os.environ,
) -> int:
    """Simulate a training, serve the page, or list the runs; return the exit code.

    Args:
        arguments: command line without the program's name.
        command: runs a command of stepscope and returns its exit code.
        environ: environment; `STEPSCOPE_CONFIG` is set in it for the command.
    """
    options = parse(arguments)
    if options.config is not None:
        try:
            load([options.config])
        except StepscopeError as error:
            print(error, file=sys.stderr)
            return error.exit_code
        environ["STEPSCOPE_CONFIG"] = str(options.config.resolve())
    shown = options.enable_dashboard or options.dashboard_port is not None
    port = [] if options.dashboard_port is None else ["--port", str(options.dashboard_port)]
    if options.simulate:
        page = (port or ["--port", "8080"]) if shown else []
        return command(["demo", "--steps", str(options.simulate_steps), *page])
    return command(["serve", *port] if shown else ["runs"])


if __name__ == "__main__":
    sys.exit(main())
