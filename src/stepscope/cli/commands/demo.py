"""Watch a small real training with planted faults, live.

A numpy network trains for about a minute in its own process, with a data stall, a loss spike, evaluations, a
checkpoint and a memory leak planted in it. It is recorded like any training and shown while it runs, in the dashboard
of `stepscope top` and on a page in the browser; `q` or Ctrl-C ends both and prints a summary. Without a terminal the
command prints a line every few seconds and ends by itself. The run is kept.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import shlex
import subprocess
import sys
import tempfile
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from stepscope.cli.command import FINE, add_shared
from stepscope.cli.signals import ended_by_signals
from stepscope.cli.text.number import port, whole
from stepscope.core.command_line import typed
from stepscope.core.errors import StepscopeError
from stepscope.core.spawn import SpawnError, arguments, interpreter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from stepscope.cli.demo.progress import DemoProgress, DemoRun
    from stepscope.cli.demo.training import DemoSettings
    from stepscope.store.reader import Past

STEPS = 1000
QUERY = "SELECT name, sum(value) AS s FROM points WHERE run = 'RUN' AND name LIKE 'phase/%' GROUP BY 1 ORDER BY 2 DESC"
PROGRAM = "stepscope.cli.demo.training"
POLL_SECONDS = 0.5
END_SECONDS = 5.0
"""Longest wait for the watcher to record the end of the training."""
MOST_STEPS = 10_000_000
STOP_SECONDS = 5.0
"""Longest wait for the training to stop; then it is killed."""


def prepare(parser: argparse.ArgumentParser) -> None:
    """Add the command's own options."""
    steps = whole(1, MOST_STEPS)
    parser.add_argument("--steps", type=steps, default=STEPS, metavar="N", help="steps to train (default: %(default)s)")
    text = "random seed; the same seed gives the same loss (default: %(default)s)"
    parser.add_argument("--seed", type=whole(0), default=1, metavar="S", help=text)
    text = "speed factor (default: %(default)s, about a minute)"
    parser.add_argument("--speed", type=_speed, default=1.0, metavar="X", help=text)
    parser.add_argument("--project", default="demo", help="project to record into (default: %(default)s)")
    add_shared(parser, "dir")
    page = "port of the page; 0: any free port (default: 8080 or the next free port)"
    parser.add_argument("--port", type=port, metavar="PORT", help=page)
    parser.add_argument("--no-page", action="store_true", help="do not serve the page")
    # A compatible spelling of the same option.
    parser.add_argument("--simulate", action="store_true", help=argparse.SUPPRESS)
    hidden: dict[str, Any] = {"default": argparse.SUPPRESS, "help": argparse.SUPPRESS}
    parser.add_argument("--simulate_steps", "--simulate-steps", dest="steps", type=steps, **hidden)


def _speed(text: str) -> float:
    number = float(text)
    if not (number > 0 and math.isfinite(number)):
        raise argparse.ArgumentTypeError(f"{text} is not a number above 0")
    return number


def run(options: argparse.Namespace) -> int:
    """Start the training, show it, and print a summary."""
    from stepscope.cli.demo.training import DemoSettings
    from stepscope.cli.text.terminal import is_dashboard_terminal

    settings = DemoSettings(options.steps, options.seed, options.speed, options.project, options.dir)
    terminal = is_dashboard_terminal()
    wants_page = not options.no_page and (terminal or options.port is not None)
    with contextlib.ExitStack() as stack:
        with ended_by_signals() as ends, Child(settings) as child:
            past = child.open()
            address = stack.enter_context(served(past, options.port)) if wants_page else None
            if address:
                print(f"The page is at {address}", flush=True)
            code = _show(past, child, address) if terminal else _print(past, child, ends)
        _summarize(past, options.dir)
        if child.complaints:
            print(child.complaints, file=sys.stderr)
    return code


@contextlib.contextmanager
def served(past: Past, port: int | None) -> Iterator[str | None]:
    """Serve the page of the run's folder, and yield its address.

    Raises:
        StepscopeError: the requested port is taken.
    """
    from stepscope.session.page import free_port
    from stepscope.web.server import Server, ServerOptions

    chosen = free_port("127.0.0.1", 8080) if port is None else port
    server = Server(ServerOptions(past.path.parents[1], port=chosen))
    server.start()
    try:
        yield f"{server.address}#/run/{quote(f'{past.path.parent.name}/{past.path.name}', safe='')}"
    finally:
        server.stop()


def _show(past: Past, child: Child, address: str | None) -> int:
    """Show the run in the dashboard until it is left; return the exit code. Leaving it stops the training."""
    from stepscope.tui.app import TopApp
    from stepscope.tui.frame import ViewOptions
    from stepscope.tui.run_feed import RunFeed

    hint = "" if address is None else address.partition("#")[0]
    app = TopApp(RunFeed(past.path), POLL_SECONDS, ViewOptions(hint=hint))
    app.run()
    child.stop()
    _await_end(past)
    return app.return_code or child.code()


def _print(past: Past, child: Child, ends: list[BaseException]) -> int:
    """Print lines until the training is over; return its exit code. Ctrl-C stops the training."""
    from stepscope.cli.demo.text import RunLines

    lines = RunLines(sys.stdout)
    try:
        while child.wait(POLL_SECONDS) is None:
            if ends:  # raised where it could not be passed on, such as in a finalizer
                raise ends[0]
            lines.show(_read(past)[1])
        _await_end(past)
    except KeyboardInterrupt:
        child.stop()
    lines.show(_read(past)[1])
    return child.code()


def _await_end(past: Past, sleep: Callable[[float], None] = time.sleep) -> None:
    """Wait until the watcher has written the end of the run, for END_SECONDS at most."""
    deadline = time.monotonic() + END_SECONDS
    while past.state == "running" and time.monotonic() < deadline:
        sleep(0.05)


def _read(past: Past) -> tuple[DemoRun, DemoProgress]:
    from stepscope.cli.demo.progress import progress, read

    recorded = read(past)
    return recorded, progress(recorded)


def _summarize(past: Past, root: str | None) -> None:
    """Print the summary, the folder of the run, and what to type next."""
    from stepscope.cli.demo.text import summary
    from stepscope.cli.text.terminal import Paint

    paint = Paint.of()
    print()
    for label, text in [*summary(*_read(past)), ("run", str(past.path))]:
        print(f" {paint(label.ljust(10), 'dim')} {text}")
    print()
    print(paint(" Next:", "bold"))
    place = "" if root is None else f" --dir {shlex.quote(root)}"
    query = QUERY.replace("RUN", past.id)
    program = typed()
    print(f"   {program} diagnose {past.id}{place}")
    print(f"   {program} serve{'' if root is None else ' ' + shlex.quote(root)}")
    print(f"   {program} show {past.id}{place}")
    print(f'   {program} sql "{query}"{place}')
    print(f"   {program} export {past.id} --format csv --output demo.csv{place}")


class Child:
    """The training process; a context manager that stops it at the end."""

    def __init__(self, settings: DemoSettings) -> None:
        """Start the training in its own session, so that Ctrl-C reaches only us.

        Raises:
            StepscopeError: no process can be started.
        """
        self.complaints = ""
        self._errors = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 - closed by __exit__
        threads = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        try:
            self._process = subprocess.Popen(
                [interpreter(), *arguments(PROGRAM, settings.encode())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                env={**os.environ, **threads},
                text=True,
                start_new_session=True,
            )
        except (SpawnError, OSError) as error:
            self._errors.close()
            raise StepscopeError("start the training", error, "free memory or processes, and try again") from error

    def __enter__(self) -> Child:  # noqa: PYI034 - typing.Self needs Python 3.11
        """Return the training."""
        return self

    def open(self) -> Past:
        """Wait until the run exists, and open it.

        Raises:
            StepscopeError: the training cannot record.
        """
        from stepscope.cli.demo.training import READY
        from stepscope.sources.opened_run import open_run

        line = self._process.stdout.readline() if self._process.stdout is not None else ""
        if line.startswith(READY):
            return open_run(line.removeprefix(READY).rstrip("\n"))
        self._process.wait()
        why = self._read_errors().removeprefix("stepscope: ") or "it ended immediately"
        raise StepscopeError("record the demo", why, "give a writable folder with --dir")

    def wait(self, seconds: float) -> int | None:
        """Return the exit code, or None if the training still runs after so many seconds."""
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def code(self) -> int:
        """Return the exit code of the training, as a shell has it; 0 while it runs."""
        code = self.wait(0) or FINE
        return code if code >= 0 else 128 - code

    def stop(self) -> None:
        """Stop the training; kill it if it does not stop in time."""
        self._process.terminate()
        if self.wait(STOP_SECONDS) is None:
            self._process.kill()
            self._process.wait()

    def _read_errors(self) -> str:
        self._errors.seek(0)
        return self._errors.read().strip()

    def __exit__(self, *_: object) -> None:
        """Stop the training if it still runs, and keep its error output."""
        self.stop()
        self.complaints = self._read_errors()
        self._errors.close()
        if self._process.stdout is not None:
            self._process.stdout.close()
