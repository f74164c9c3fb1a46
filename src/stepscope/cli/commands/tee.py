"""Send a run to other tools while it goes on, from outside: W&B, MLflow, Trackio, OpenTelemetry, Prometheus, Kubeflow.

URL is a sink such as mlflow+http://localhost:5000; without --to, those of the configuration (exporters.sinks) are used.
Nothing in the training changes. Ends when the run has ended and the sinks have everything, or with Ctrl-C. A second
call goes on where the first one stopped. `stepscope export RUN --to URL` sends a finished run.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from stepscope.cli.command import FAILED, add_shared
from stepscope.cli.named_run import find_run, say
from stepscope.cli.sinks import LOOK_EVERY, SinkScreen, add_sink_options, check_served, chosen, conclude

if TYPE_CHECKING:
    import argparse


def prepare(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    add_shared(parser, "run", "dir")
    add_sink_options(parser)
    metrics = "with --to: only these, separated by commas; patterns such as gpu/*, and !pattern to leave some out"
    parser.add_argument("--metrics", metavar="A,B", action="append", help=metrics)
    add_shared(parser, "quiet", "json")


def run(options: argparse.Namespace) -> int:
    """Send until the end, or Ctrl-C."""
    from stepscope.store.layout import RunFolder
    from stepscope.watcher.tee import Tee

    path = find_run(options.run, options.dir)
    addresses, page = chosen(options)
    tee = Tee(RunFolder(path), addresses, say, page)
    screen = SinkScreen(options)
    try:
        while True:
            tee.look()
            screen.update(tee)
            check_served(tee)
            if tee.is_done():
                break
            time.sleep(LOOK_EVERY)
    except KeyboardInterrupt:
        screen.clear()
        say("stopped; the same command goes on from here")
        return FAILED
    finally:
        screen.clear()
        tee.close()
    return conclude(tee.lanes(), options)
