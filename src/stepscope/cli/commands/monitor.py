"""Watch this machine alone, without a training: GPUs, processors, memory, disks, network, power.

On a terminal this is the machine screen of `stepscope top`, until `q` or Ctrl-C; elsewhere, and with --count, one line
is printed per sample. Values that this machine does not report are listed once, with the reason and the remedy.
Optionally writes JSON lines in compatible file formats and serves the metrics to Prometheus.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
import time
from typing import TYPE_CHECKING, Protocol

from stepscope.cli.command import FINE
from stepscope.cli.signals import ended_by_signals
from stepscope.cli.text.machine_line import one_line
from stepscope.cli.text.number import gpu_index, port, real, whole
from stepscope.cli.text.terminal import is_dashboard_terminal
from stepscope.core.errors import StepscopeError
from stepscope.core.terminal_text import plain
from stepscope.exporters.files.jsonl_log import JsonLines, Rotation
from stepscope.exporters.files.monitor_rows import gpu_indices, gpu_rows, system_row, timestamp
from stepscope.watcher.machine import Machine, local_samplers

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Mapping, Sequence
    from typing import TextIO

    from stepscope.exporters.prometheus.server import Endpoint
    from stepscope.watcher.machine import Moment

INTERVAL = 1.0
SHORTEST, LONGEST = 0.1, 3600.0
"""Seconds between two moments."""
PATIENCE = 3
"""Moments after which a GPU that was asked for and has not answered is said to be absent."""
FIRST_SECONDS = 1.0
"""Seconds after which rates are known, at the latest."""
SERVE_SECONDS = 0.1
"""Seconds between two polls of the Prometheus endpoint while the dashboard runs."""


class Sink(Protocol):
    """Something that is told every moment."""

    def take(self, moment: Moment) -> None:
        """Take in a moment."""

    def close(self) -> None:
        """Let go of what it holds."""


def prepare(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    add = parser.add_argument
    add("--gpu", type=gpu_index, action="append", metavar="N", help="only this GPU; may be repeated (default: all)")
    interval = real(SHORTEST, LONGEST)
    add("--interval", type=interval, default=INTERVAL, metavar="S", help="seconds between two moments, from 0.1 on")
    add("--count", type=whole(1), metavar="N", help="end after so many moments (default: at Ctrl-C)")
    add("--prometheus-port", type=port, metavar="PORT", help="serve the metrics on 127.0.0.1 at this or the next port")
    add("--jsonl-dir", metavar="D", help="write gpu_metrics_*.jsonl and system_metrics_*.jsonl to this folder")
    add("--jsonl-max-mb", type=real(0), default=64.0, metavar="M", help="MiB of a file, 0: no limit (default: 64)")
    add("--jsonl-max-hours", type=real(0), default=24.0, metavar="H", help="age of a file, 0: no limit (default: 24)")
    add("--jsonl-keep", type=whole(0), default=0, metavar="N", help="files of each kind to keep, 0: all (default: 0)")
    add("--json", action="store_true", help="print a JSON object for each moment, in base units")


def run(options: argparse.Namespace) -> int:
    """Sample until Ctrl-C, or `--count` times."""
    with contextlib.ExitStack() as stack:
        ends = stack.enter_context(ended_by_signals())
        machine = open_machine(options)
        stack.callback(machine.close)
        show = JsonOut(sys.stdout) if options.json else Lines(sys.stdout, options.gpu)
        sinks: list[Sink] = []
        page = None
        if options.jsonl_dir is not None:
            sinks.append(Files(options, show.note))
        if options.prometheus_port is not None:
            page = Page(machine, options.prometheus_port)
            show.note(f"metrics for Prometheus: {page.address}")
            sinks.append(page)
        for sink in sinks:
            stack.callback(sink.close)
        if not options.json and options.count is None and is_dashboard_terminal():
            return _dashboard(Sampled(machine, sinks), options, page)
        wait = time.sleep if page is None else page.endpoint.poll
        with contextlib.suppress(KeyboardInterrupt):
            watch(machine, show, sinks, options.interval, options.count, options.gpu or (), wait)
        if ends and isinstance(ends[0], SystemExit):
            raise ends[0]
    return FINE


def _dashboard(machine: Sampled, options: argparse.Namespace, page: Page | None) -> int:
    """Show the machine screen until it is left."""
    from stepscope.tui.app import TopApp
    from stepscope.tui.frame import Look
    from stepscope.tui.machine_feed import MachineFeed

    feed = MachineFeed(machine, os.uname().nodename)
    hint = "" if page is None else f"Prometheus: {page.address}"
    app = TopApp(feed, options.interval, Look("machine", gpus=tuple(options.gpu) if options.gpu else None, hint=hint))
    if page is not None:
        app.also_every(SERVE_SECONDS, lambda: page.endpoint.poll(0.0))
    app.run()
    return app.return_code or FINE


class Sampled:
    """A machine whose samples also go to sinks, except the first: rates need two samples."""

    def __init__(self, machine: Machine, sinks: Sequence[Sink]) -> None:
        """Wrap a machine."""
        self._machine, self._sinks = machine, sinks
        self._is_first = True
        self.absent, self.close = machine.absent, machine.close

    def look(self) -> Moment:
        """Sample the machine."""
        moment = self._machine.look()
        if moment.new and not self._is_first:
            for sink in self._sinks:
                sink.take(moment)
        self._is_first = False
        return moment


def open_machine(options: argparse.Namespace) -> Machine:
    """Return this machine with all its sources."""
    return Machine(local_samplers(all_gpus=options.gpu is not None), min(options.interval, FIRST_SECONDS))


def watch(
    machine: Machine,
    show: Display,
    sinks: Sequence[Sink],
    interval: float,
    count: int | None,
    gpus: Sequence[int] = (),
    wait: Callable[[float], object] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Look at the machine again and again.

    The first look is for the screen only: rates need a past.

    Args:
        machine: what is looked at.
        show: where people look.
        sinks: whoever else wants to know.
        interval: seconds.
        count: moments; None: for ever.
        gpus: those that were asked for by number.
        wait: a sleep of so many seconds.
        clock: seconds that only go up.
    """
    said = machine.absent()
    show.begin(machine.look(), said)
    due = clock() + min(interval, FIRST_SECONDS)
    done = 0
    while count is None or done < count:
        wait(max(0.0, due - clock()))
        moment = machine.look()
        for sink in sinks:
            sink.take(moment)
        absent = machine.absent()
        for what in absent.keys() - said.keys():  # what a driver tells only after it was asked
            show.note(f"{what} is absent: {absent[what]}")
        said = {**said, **absent}
        done += 1
        if done == PATIENCE and "gpu" not in absent:
            for text in missing(gpus, gpu_indices(moment.values)):
                show.note(text)
        show.take(moment)
        due += interval
        if due < clock():  # the machine was asleep, or stopped: go on from here
            due = clock() + interval


def missing(asked: Sequence[int], found: Sequence[int]) -> list[str]:
    """Return what to say about GPUs that were asked for and are not there."""
    have = f"this machine has {', '.join(map(str, found))}" if found else "none has answered yet"
    return [f"GPU {index} is absent: {have}; `stepscope doctor` says more" for index in asked if index not in found]


class Files:
    """Writes compatible JSON lines. The first failure ends the command, a later one is reported once."""

    def __init__(self, options: argparse.Namespace, note: Callable[[str], None]) -> None:
        """Write below `--jsonl-dir`; `note` tells people."""
        mib, hours = options.jsonl_max_mb, options.jsonl_max_hours
        rotation = Rotation(int(mib * 2**20), hours * 3600, options.jsonl_keep)
        self._only, self._note = options.gpu, note
        self._gpu, self._system = (
            JsonLines(options.jsonl_dir, stem, rotation) for stem in ("gpu_metrics", "system_metrics")
        )
        note(f"JSON lines go to {options.jsonl_dir}")

    def take(self, moment: Moment) -> None:
        """Write a line per GPU and one for the host."""
        rows = gpu_rows(moment.new, moment.wall_ns, self._only)
        for file, lines in ((self._gpu, rows), (self._system, [system_row(moment.new, moment.wall_ns)])):
            try:
                file.write(lines)
            except StepscopeError as error:
                if not file.lines:
                    raise
                if file.lost == len(lines):
                    self._note(str(error))

    def close(self) -> None:
        """Make the files safe."""
        self._gpu.close()
        self._system.close()


class Page:
    """Serves the newest values to Prometheus, while the command waits for the next moment."""

    def __init__(self, machine: Machine, port: int) -> None:
        """Listen on loopback at this port, or at the next one that is free."""
        from stepscope.exporters.prometheus.board import Board as Series
        from stepscope.exporters.prometheus.server import Endpoint

        self._series = Series(machine.metrics())
        self.endpoint: Endpoint = Endpoint(self._series.page, port=port)
        self.address = f"http://{self.endpoint.target}/metrics"

    def take(self, moment: Moment) -> None:
        """Renew the page."""
        self._series.update("monitor", -1, "", moment.new)

    def close(self) -> None:
        """Stop listening."""
        self.endpoint.close()


class Display(Protocol):
    """Where people look."""

    def begin(self, moment: Moment, absent: Mapping[str, str]) -> None:
        """Say what is absent, and show the first look."""

    def note(self, text: str) -> None:
        """Say something once."""

    def take(self, moment: Moment) -> None:
        """Show a moment."""


class Lines:
    """A line per moment, for a pipe, a file or a simple terminal."""

    def __init__(self, stream: TextIO, gpus: Sequence[int] | None) -> None:
        """Write to the stream."""
        self._stream, self._gpus = stream, gpus

    def begin(self, moment: Moment, absent: Mapping[str, str]) -> None:
        """Write what is absent; the first look has no rates and is left out."""
        del moment
        for what, why in absent.items():
            self._write(f"{plain(what)} is absent: {plain(why)}")

    def note(self, text: str) -> None:
        """Write a note."""
        self._write(plain(text))

    def take(self, moment: Moment) -> None:
        """Write one line, and one for everything that happened."""
        time_of = f"{timestamp(moment.wall_ns)[:19]}Z"
        for event in moment.events:
            self._write(f"{time_of}  {describe(event)}")
        self._write(f"{time_of}  {one_line(moment.values, self._gpus)}")

    def _write(self, text: str) -> None:
        self._stream.write(f"{text}\n")
        self._stream.flush()


class JsonOut:
    """A JSON object per moment; what is absent stands in the first one, and notes go to stderr."""

    def __init__(self, stream: TextIO) -> None:
        """Write to the stream."""
        self._stream = stream
        self._absent: Mapping[str, str] | None = None

    def begin(self, moment: Moment, absent: Mapping[str, str]) -> None:
        """Keep what is absent for the first object."""
        del moment
        self._absent = absent

    def note(self, text: str) -> None:
        """Tell people, not programs."""
        print(f"stepscope: {plain(text)}", file=sys.stderr)

    def take(self, moment: Moment) -> None:
        """Print the moment."""
        finite = {name: value for name, value in moment.values.items() if math.isfinite(value)}
        broken = {name: repr(value) for name, value in moment.values.items() if name not in finite}
        facts: dict[str, object] = {"timestamp": timestamp(moment.wall_ns), "metrics": finite}
        if broken:
            facts["nonfinite"] = broken
        if moment.events:
            facts["events"] = moment.events
        if self._absent is not None:
            facts["absent"], self._absent = self._absent, None
        self._stream.write(json.dumps(facts, allow_nan=False, default=str) + "\n")
        self._stream.flush()


def describe(event: Mapping[str, object]) -> str:
    """Return an event in words: its kind, then its other parts."""
    kind = str(event.get("kind", "event")).replace("_", " ")
    rest = ", ".join(f"{name} {value}" for name, value in event.items() if name != "kind")
    return plain(f"{kind}: {rest}" if rest else kind)
