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
from typing import TYPE_CHECKING

from stepscope.cli.command import FINE
from stepscope.cli.named_run import say
from stepscope.cli.signals import ended_by_signals
from stepscope.cli.text.machine_lines import one_line
from stepscope.cli.text.number import gpu_index, port, real, whole
from stepscope.cli.text.terminal import is_dashboard_terminal
from stepscope.core.errors import StepscopeError
from stepscope.core.terminal_text import plain
from stepscope.exporters.files.jsonl_log import JsonLines, Rotation
from stepscope.exporters.files.monitor_rows import gpu_indices, gpu_rows, system_row, timestamp
from stepscope.watcher.machine import LocalMachine, local_samplers

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Mapping, Sequence
    from typing import TextIO

    from stepscope.exporters.prometheus.server import Endpoint
    from stepscope.watcher.machine import MachineSample


INTERVAL = 1.0
SHORTEST, LONGEST = 0.1, 3600.0
"""Bounds of the sampling interval in seconds."""
PATIENCE = 3
"""Samples after which a requested GPU that has not answered is reported as absent."""
FIRST_SECONDS = 1.0
"""Seconds after which rates are known, at the latest."""
SERVE_SECONDS = 0.1
"""Seconds between two polls of the Prometheus endpoint while the dashboard runs."""


def prepare(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    add = parser.add_argument
    add("--gpu", type=gpu_index, action="append", metavar="N", help="only this GPU; may be repeated (default: all)")
    text = "sampling interval in seconds, at least 0.1 (default: 1.0)"
    add("--interval", type=real(SHORTEST, LONGEST), default=INTERVAL, metavar="S", help=text)
    add("--count", type=whole(1), metavar="N", help="print so many samples as lines and end (default: until Ctrl-C)")
    add("--prometheus-port", type=port, metavar="PORT", help="serve the metrics on 127.0.0.1 at this or the next port")
    add("--jsonl-dir", metavar="D", help="write gpu_metrics_*.jsonl and system_metrics_*.jsonl to this folder")
    text = "size at which a new file starts in MiB, 0: no limit (default: 64)"
    add("--jsonl-max-mb", type=real(0), default=64.0, metavar="M", help=text)
    text = "age at which a new file starts in hours, 0: no limit (default: 24)"
    add("--jsonl-max-hours", type=real(0), default=24.0, metavar="H", help=text)
    add("--jsonl-keep", type=whole(0), default=0, metavar="N", help="files of each kind to keep, 0: all (default: 0)")
    add("--json", action="store_true", help="print one JSON object per sample, in base units")


def run(options: argparse.Namespace) -> int:
    """Sample until Ctrl-C, or `--count` times."""
    with contextlib.ExitStack() as stack:
        ends = stack.enter_context(ended_by_signals())
        machine = open_machine(options)
        stack.callback(machine.close)
        show = JsonOut(sys.stdout) if options.json else SampleLines(sys.stdout, options.gpu)
        sinks: list[Files | PrometheusPage] = []
        page = None
        if options.jsonl_dir is not None:
            sinks.append(Files(options, show.note))
        if options.prometheus_port is not None:
            page = PrometheusPage(machine, options.prometheus_port)
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


def _dashboard(machine: Sampled, options: argparse.Namespace, page: PrometheusPage | None) -> int:
    from stepscope.tui.app import TopApp
    from stepscope.tui.feed import MachineFeed
    from stepscope.tui.frame import ViewOptions

    feed = MachineFeed(machine, os.uname().nodename)
    hint = "" if page is None else f"Prometheus: {page.address}"
    view = ViewOptions("machine", gpus=tuple(options.gpu) if options.gpu else None, hint=hint)
    app = TopApp(feed, options.interval, view)
    if page is not None:
        app.also_every(SERVE_SECONDS, lambda: page.endpoint.poll(0.0))
    app.run()
    return app.return_code or FINE


class Sampled:
    """A machine whose samples also go to sinks, except the first: rates need two samples."""

    def __init__(self, machine: LocalMachine, sinks: Sequence[Files | PrometheusPage]) -> None:
        """Wrap a machine."""
        self._machine, self._sinks = machine, sinks
        self._is_first = True
        self.absent, self.close = machine.absent, machine.close

    def look(self) -> MachineSample:
        """Sample the machine."""
        moment = self._machine.look()
        if moment.new and not self._is_first:
            for sink in self._sinks:
                sink.take(moment)
        self._is_first = False
        return moment


def open_machine(options: argparse.Namespace) -> LocalMachine:
    """Return this machine with all its sources."""
    return LocalMachine(local_samplers(all_gpus=options.gpu is not None), min(options.interval, FIRST_SECONDS))


def watch(
    machine: LocalMachine,
    show: SampleLines | JsonOut,
    sinks: Sequence[Files | PrometheusPage],
    interval: float,
    count: int | None,
    gpus: Sequence[int] = (),
    wait: Callable[[float], object] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Sample the machine at an interval.

    The first sample goes to no sink: rates need two samples.

    Args:
        machine: the sampled machine.
        show: prints the samples.
        sinks: other consumers of samples.
        interval: seconds.
        count: number of samples; None: no limit.
        gpus: indices of the requested GPUs.
        wait: sleeps for so many seconds.
        clock: monotonic seconds.
    """
    said = machine.absent()
    machine.look()  # it has no rates and is not shown
    show.begin(said)
    due = clock() + min(interval, FIRST_SECONDS)
    done = 0
    while count is None or done < count:
        wait(max(0.0, due - clock()))
        moment = machine.look()
        for sink in sinks:
            sink.take(moment)
        absent = machine.absent()
        for what in absent.keys() - said.keys():  # some drivers report this only after the first query
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
    """Return a note for each requested GPU that is missing."""
    have = f"this machine has {', '.join(map(str, found))}" if found else "none has answered yet"
    gone = (index for index in asked if index not in found)
    return [f"GPU {index} is absent: {have}; run `stepscope doctor` for details" for index in gone]


class Files:
    """Writes compatible JSON lines. The first failure ends the command; later failures are reported once."""

    def __init__(self, options: argparse.Namespace, note: Callable[[str], None]) -> None:
        """Write below `--jsonl-dir`; `note` prints notes."""
        folder = options.jsonl_dir
        rotation = Rotation(int(options.jsonl_max_mb * 2**20), options.jsonl_max_hours * 3600, options.jsonl_keep)
        self._only, self._note = options.gpu, note
        self._gpu, self._system = (JsonLines(folder, stem, rotation) for stem in ("gpu_metrics", "system_metrics"))
        note(f"JSON lines go to {folder}")

    def take(self, moment: MachineSample) -> None:
        """Write one line per GPU and one for the host."""
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
        """Flush and close the files."""
        self._gpu.close()
        self._system.close()


class PrometheusPage:
    """Serves the newest values to Prometheus while the command waits for the next sample."""

    def __init__(self, machine: LocalMachine, port: int) -> None:
        """Listen on loopback at this port, or at the next free port."""
        from stepscope.exporters.prometheus.board import Board as Series
        from stepscope.exporters.prometheus.server import Endpoint

        self._series = Series(machine.metrics())
        self.endpoint: Endpoint = Endpoint(self._series.page, port=port)
        self.address = f"http://{self.endpoint.target}/metrics"

    def take(self, moment: MachineSample) -> None:
        """Update the page."""
        self._series.update("monitor", -1, "", moment.new)

    def close(self) -> None:
        """Stop listening."""
        self.endpoint.close()


class SampleLines:
    """Prints one line per sample, for a pipe, a file or a simple terminal."""

    def __init__(self, stream: TextIO, gpus: Sequence[int] | None) -> None:
        """Write to the stream."""
        self._stream, self._gpus = stream, gpus

    def begin(self, absent: Mapping[str, str]) -> None:
        """Print the absent values."""
        for what, why in absent.items():
            self.note(f"{what} is absent: {why}")

    def note(self, text: str) -> None:
        """Write a note."""
        print(plain(text), file=self._stream, flush=True)

    def take(self, moment: MachineSample) -> None:
        """Print one line, and one per event."""
        time_of = f"{timestamp(moment.wall_ns)[:19]}Z"
        for text in (*map(describe, moment.events), one_line(moment.values, self._gpus)):
            print(f"{time_of}  {text}", file=self._stream, flush=True)


class JsonOut:
    """Prints one JSON object per sample; the first lists the absent values, and notes go to stderr."""

    def __init__(self, stream: TextIO) -> None:
        """Write to the stream."""
        self._stream = stream
        self._absent: Mapping[str, str] | None = None

    def begin(self, absent: Mapping[str, str]) -> None:
        """Keep the absent values for the first object."""
        self._absent = absent

    def note(self, text: str) -> None:
        """Print a note to stderr."""
        say(text)

    def take(self, moment: MachineSample) -> None:
        """Print the sample."""
        finite = {name: value for name, value in moment.values.items() if math.isfinite(value)}
        broken = {name: repr(value) for name, value in moment.values.items() if name not in finite}
        facts: dict[str, object] = {"timestamp": timestamp(moment.wall_ns), "metrics": finite}
        if broken:
            facts["nonfinite"] = broken
        if moment.events:
            facts["events"] = moment.events
        if self._absent is not None:
            facts["absent"], self._absent = self._absent, None
        print(json.dumps(facts, allow_nan=False, default=str), file=self._stream, flush=True)


def describe(event: Mapping[str, object]) -> str:
    """Return an event as text: its kind, then its fields."""
    kind = str(event.get("kind", "event")).replace("_", " ")
    rest = ", ".join(f"{name} {value}" for name, value in event.items() if name != "kind")
    return plain(f"{kind}: {rest}" if rest else kind)
