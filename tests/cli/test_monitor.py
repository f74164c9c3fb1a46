from __future__ import annotations

import argparse
import fcntl
import io
import json
import math
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from stepscope.cli.commands import monitor
from stepscope.cli.main import main
from stepscope.cli.text.machine_lines import one_line
from stepscope.core.vocabulary import GIB, MIB
from stepscope.watcher.machine import LocalMachine, MachineSample
from tests.fakes import FakeClock, readable
from tests.trackers.machines import GPU, HOST, NO_GPU, Source

pytestmark = pytest.mark.processes

ROOT = Path(__file__).resolve().parents[2]
MAIN = "import sys; from stepscope.cli.main import main; sys.exit(main())"
SECONDS = 240
SHOW = "\x1b[?25h"
CARDS = {name.replace("gpu/0/", f"gpu/{index}/"): value for index in range(8) for name, value in GPU.items()}
VALUES = {
    **CARDS,
    **HOST,
    "cpu/load_1m": 3.125,
    **{f"cpu/{core}/usage_ratio": core / 4 for core in range(4)},
    "memory/used_bytes": 12.5 * GIB,
    "memory/total_bytes": 50 * GIB,
    "disk/write_bytes_per_second": 5 * MIB,
    "network/received_bytes_per_second": 1000.0,
    "network/sent_bytes_per_second": 10.0,
    "pressure/cpu_some_ratio": 0.25,
    "power/cpu_watts": 88.4,
}


@pytest.fixture
def machine(monkeypatch):
    """Return what the command looks at: a source that tests fill."""
    source = Source(VALUES, {"power/dram_watts": "no counter; none is needed"})
    monkeypatch.setattr(monitor, "open_machine", lambda options: LocalMachine([source], 0.001))
    return source


def run(capsys, *arguments):
    code = main(["monitor", "--interval", "0.1", *arguments])
    return code, capsys.readouterr().out.splitlines()


@pytest.mark.promise("S2-003")
def test_a_pipe_gets_one_line():
    """A sample is one line: GPUs first with their mean, then the host, then every other source."""
    line = one_line({**VALUES, "gpu/mean_utilization_ratio": 0.95})
    assert "\n" not in line
    parts = [
        "gpu 7 95 %, 22/24 GiB, 75 °C, 320 W, fan 65 %",
        "8 GPUs 95 %",
        "cpu 50 %",
        "memory 25 %",
        "disk read 3 MiB/s, write 5 MiB/s",
        "network received 1000 B/s, sent 10 B/s",
        "pressure 25 %",
        "power 88.4 W",
    ]
    assert line.endswith("  ".join(parts))


def test_only_the_chosen_gpus_are_shown():
    """--gpu leaves the others out."""
    assert one_line(VALUES, [3]).startswith("gpu 3 95 %")
    assert "gpu 2" not in one_line(VALUES, [3])


def test_what_is_unknown_is_left_out_and_never_0():
    """A source without a value is not on the line."""
    assert one_line({"gpu/0/power_watts": 1.0, "cpu/usage_ratio": math.nan}) == "gpu 0 1 W"
    assert one_line({}) == ""


def test_text_of_a_machine_cannot_act():
    """Control characters in names and reasons do not reach the terminal."""
    assert "\x1b" not in one_line({"a\x1b[2J/b_watts": 1.0})
    assert "\x1b" not in monitor.describe({"kind": "\x1b[2J"})


def test_samples_of_the_dashboard_reach_the_sinks():
    """Every sample but the first, which has no rates, goes to the files and to Prometheus."""
    clock, sink = FakeClock(), Recorder()
    sampled = monitor.Sampled(LocalMachine([Source(HOST)], 1.0, clock), [sink])
    for _ in range(3):
        sampled.look()
        clock.pass_time(1.0)
    assert len(sink.moments) == 2


class Recorder:
    """A display and a sink that keep what they are told."""

    def __init__(self):
        self.moments, self.notes, self.begun = [], [], []

    def begin(self, absent):
        self.begun.append(absent)

    def take(self, moment):
        self.moments.append(moment)

    def note(self, text):
        self.notes.append(text)


def test_moments_come_at_their_interval():
    """After the first look, which rates need, a moment comes every interval; one that is late is not made up for."""
    clock, show, sink = FakeClock(), Recorder(), Recorder()
    waits = []

    def wait(seconds):
        waits.append(round(seconds, 6))
        clock.pass_time(seconds)
        if len(waits) == 3:
            clock.pass_time(100)

    source = LocalMachine([Source(HOST)], 1.0, clock)
    monitor.watch(source, show, [sink], 2.0, 5, wait=wait, clock=lambda: clock.ticks)
    assert waits == [1.0, 2.0, 2.0, 2.0, 2.0]
    assert len(show.begun) == 1
    assert sink.moments == show.moments
    assert len(show.moments) == 5


def test_what_a_driver_tells_late_is_said_once():
    """An absence that shows only after a while is a note; so is a GPU that was asked for and is not there."""
    clock, show, source = FakeClock(), Recorder(), Source(GPU)

    def wait(seconds):
        clock.pass_time(max(seconds, 0.5))
        source.missing = {"gpu/0/fan_ratio": "not told; nothing to do"}

    monitor.watch(LocalMachine([source], 0.1, clock), show, [], 0.5, 6, [0, 5], wait, lambda: clock.ticks)
    assert show.notes == [
        "gpu/0/fan_ratio is absent: not told; nothing to do",
        "GPU 5 is absent: this machine has 0; run `stepscope doctor` for details",
    ]


def test_no_gpu_is_said_once_with_its_remedy(machine, capsys):
    """The reason comes from the source; asking for a GPU by number is no error."""
    machine.values, machine.missing = dict(HOST), dict(NO_GPU)
    code, lines = run(capsys, "--count", "4", "--gpu", "0")
    assert code == 0
    assert [line for line in lines if "absent" in line] == ["gpu is absent: no driver here; install one"]
    assert sum("cpu 50 %" in line for line in lines) == 4


def test_events_are_lines_of_their_own(machine, capsys):
    """What happens, such as a lost GPU, is told with its parts."""
    machine.happened = [{"kind": "gpu_lost", "gpu": 1, "reason": "off the bus"}]
    moment = MachineSample(0, 0, {}, {}, machine.happened)
    stream = io.StringIO()
    monitor.SampleLines(stream, None).take(moment)
    assert "gpu lost: gpu 1, reason off the bus" in stream.getvalue()


def test_json_is_an_object_a_moment(machine, capsys):
    """Values are in base units, absent things stand in the first object, NaN is named and not printed."""
    machine.values["odd/ratio"] = math.nan
    code, lines = run(capsys, "--json", "--count", "2")
    first, second = (json.loads(line, parse_constant=pytest.fail) for line in lines)
    assert code == 0
    assert first["metrics"]["cpu/usage_ratio"] == 0.5
    assert first["absent"] == machine.missing
    assert (first["nonfinite"], "absent" in second) == ({"odd/ratio": "nan"}, False)


@pytest.mark.promise("S2-004", "S2-044")
def test_json_lines_are_written(machine, tmp_path, capsys):
    """A line per GPU and moment, and one for the host; --gpu keeps the others out."""
    folder = tmp_path / "logs"
    code, _ = run(capsys, "--count", "2", "--jsonl-dir", str(folder), "--gpu", "3")
    [gpu] = folder.glob("gpu_metrics_*.jsonl")
    [host] = folder.glob("system_metrics_*.jsonl")
    rows = [json.loads(line) for line in gpu.read_text().splitlines()]
    assert (code, [row["gpu_index"] for row in rows]) == (0, [3, 3])
    assert len(host.read_text().splitlines()) == 2


@pytest.mark.promise("S2-053")
def test_rotation_is_an_option(machine, tmp_path, capsys):
    """Small files follow one another, and as many stay as asked for."""
    run(capsys, "--count", "4", "--jsonl-dir", str(tmp_path), "--jsonl-max-mb", "0.0001", "--jsonl-keep", "2")
    assert len(list(tmp_path.glob("system_metrics_*.jsonl"))) == 2


def test_a_folder_that_cannot_be_written_ends_the_command(machine, tmp_path, capsys):
    """The first line that cannot be written is a clear error."""
    (tmp_path / "file").write_text("")
    assert main(["monitor", "--count", "1", "--interval", "0.1", "--jsonl-dir", str(tmp_path / "file")]) == 1
    assert "cannot write gpu_metrics" in capsys.readouterr().err


@pytest.mark.promise("S2-008", "S2-005")
def test_prometheus_is_served_while_it_waits(machine):
    """The page has the documents' names and listens on loopback; a taken port is no error."""
    pages = [monitor.PrometheusPage(monitor.open_machine(None), 0)]
    pages.append(monitor.PrometheusPage(monitor.open_machine(None), pages[0].endpoint.port))
    assert pages[0].endpoint.port != pages[1].endpoint.port
    pages[1].take(MachineSample(0, 0, VALUES, VALUES))
    text = scrape(pages[1].endpoint)
    assert re.search(r'^gpu_utilization_percent\{[^}]*gpu_id="7"[^}]*\} 95', text, re.MULTILINE)
    assert "cpu_usage_percent" in text
    for page in pages:
        page.close()


def scrape(endpoint):
    """Ask for the page in a process of its own while we serve."""
    code = f"import urllib.request as u; print(u.urlopen('http://{endpoint.target}/metrics').read().decode())"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as client:
        while client.poll() is None:
            endpoint.poll(0.05)
        return client.stdout.read()


@pytest.mark.promise("S2-049")
@pytest.mark.parametrize(
    "arguments",
    [["--interval", "0.05"], ["--interval", "nan"], ["--gpu", "-1"], ["--count", "0"], ["--prometheus-port", "70000"]],
)
def test_nonsense_is_wrong_usage(arguments, capsys):
    """Intervals below 0.1 s, negative numbers and ports that are none end with exit code 2."""
    with pytest.raises(SystemExit) as stop:
        main(["monitor", *arguments])
    assert stop.value.code == 2


def test_the_default_interval_is_a_second():
    """Without options every GPU is shown once a second, for ever."""
    parser = argparse.ArgumentParser()
    monitor.prepare(parser)
    options = parser.parse_args([])
    assert (options.interval, options.gpu, options.count, options.prometheus_port) == (1.0, None, None, None)


def command(*arguments):
    return [sys.executable, "-c", MAIN, "monitor", "--interval", "0.2", *arguments]


def environment(**more):
    return {**os.environ, "PYTHONPATH": str(ROOT / "src"), "TERM": "xterm", "PYTHONIOENCODING": "utf-8", **more}


class OnTerminal:
    """The command in a pseudo-terminal."""

    def __init__(self, *arguments, **environ):
        self.ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
        self.written = ""
        self.process = subprocess.Popen(
            command(*arguments), stdin=theirs, stdout=theirs, stderr=theirs, env=environment(**environ)
        )
        os.close(theirs)

    def read_until(self, done):
        while not done(self.written):
            assert readable(self.ours, SECONDS), self.written
            try:
                self.written += os.read(self.ours, 65536).decode(errors="replace")
            except OSError:  # the other end is closed
                return

    def end(self, number):
        self.process.send_signal(number)
        self.read_until(lambda text: False)
        os.close(self.ours)
        return self.process.wait(SECONDS)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 0), (signal.SIGTERM, 128 + signal.SIGTERM)])
def test_a_signal_gives_the_terminal_back(number, code):
    """A terminal gets the machine screen; Ctrl-C ends with 0 and a visible cursor, a termination as a shell says it."""
    screen = OnTerminal()
    screen.read_until(lambda text: "this machine" in text and "memory" in text)
    assert screen.end(number) == code
    assert screen.written.rindex(SHOW) > screen.written.rindex("memory")
    assert "Traceback" not in screen.written


@pytest.mark.parametrize("environ", [{"TERM": "dumb"}, {"NO_COLOR": "1"}], ids=str)
def test_no_colour_in_lines(environ):
    """A dumb terminal, and --count, get plain lines."""
    screen = OnTerminal("--count", "2", **environ)
    screen.read_until(lambda text: False)
    assert screen.process.wait(SECONDS) == 0
    os.close(screen.ours)
    assert "\x1b" not in screen.written


def test_a_reader_that_leaves_is_no_error():
    """When nobody reads any more the command ends without a word."""
    reader, writer = os.pipe()
    process = subprocess.Popen(command(), stdout=writer, stderr=subprocess.PIPE, env=environment())
    os.close(writer)
    assert os.read(reader, 10)
    os.close(reader)
    _, said = process.communicate(timeout=SECONDS)
    assert (process.returncode, said) == (141, b"")
