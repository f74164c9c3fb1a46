from __future__ import annotations

import argparse
import io
import json
import math
import os
import pty
import re
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from stepscope.cli.commands import monitor
from stepscope.cli.main import main
from stepscope.cli.text.monitor_view import Board, absences, figure, one_line, sources
from stepscope.cli.text.plain import LEVELS, width_of
from stepscope.cli.text.screen import HIDE, SHOW
from stepscope.core.vocabulary import GIB, MIB
from stepscope.watcher.machine import Machine, Moment
from tests.trackers.fakes import FakeClock
from tests.trackers.machines import GPU, HOST, NO_GPU, Source

pytestmark = pytest.mark.processes

ROOT = Path(__file__).resolve().parents[2]
MAIN = "import sys; from stepscope.cli.main import main; sys.exit(main())"
SECONDS = 240
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


def labels(values, **more):
    return [source.label for source in sources(values, **more)]


def texts(lines):
    return ["".join(text for text, _ in line) for line in lines]


@pytest.fixture
def machine(monkeypatch):
    """Return what the command looks at: a source that tests fill."""
    source = Source(VALUES, {"power/dram_watts": "no counter; none is needed"})
    monkeypatch.setattr(monitor, "open_machine", lambda options: Machine([source], 0.001))
    return source


def run(capsys, *arguments):
    code = main(["monitor", "--interval", "0.1", *arguments])
    return code, capsys.readouterr().out.splitlines()


@pytest.mark.promise("S2-003")
def test_every_source_has_a_line():
    """GPUs come first with one line for all of them, then the host; a source nobody knows has its figures too."""
    expected = [*(f"gpu {index}" for index in range(8)), "8 GPUs", "cpu", "memory", "disk", "network", "pressure"]
    assert labels(VALUES) == [*expected, "power"]
    assert labels({**GPU, "strange/thing_watts": 3.0}) == ["gpu 0", "strange"]
    assert labels(VALUES, gpus=[3])[:2] == ["gpu 3", "cpu"]


def test_a_line_says_what_matters():
    """Use, memory, temperature, power and fan of a GPU; a full memory and a hot card are marked."""
    card = sources(GPU)[0]
    assert (card.value, [fact.text for fact in card.facts]) == (
        "95 %",
        ["22.0 of 24.0 GiB", "75 °C", "320 W", "fan 65 %"],
    )
    assert card.facts[0].style == "yellow"
    assert [fact.style for fact in sources({"gpu/0/temperature_celsius": 81.0})[0].facts] == ["yellow"]


def test_what_is_unknown_is_a_dash_and_never_0():
    """A source without its main figure shows a dash; a source without any is not there."""
    assert sources({"gpu/0/power_watts": 1.0})[0].value == "-"
    assert labels({}) == []


def test_memory_is_against_the_limit_that_binds():
    """In a container the limit of the control group is shown, and so is throttling."""
    group = {"cgroup/memory_limit_bytes": 8 * GIB, "cgroup/memory_used_bytes": 2 * GIB, "cgroup/throttled_ratio": 0.5}
    lines = {source.label: [fact.text for fact in source.facts] for source in sources({**VALUES, **group})}
    assert lines["memory"] == ["2.0 of 8.0 GiB", "limit of the container"]
    assert "throttled 50 %" in lines["cpu"]


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.954, "ratio", "95 %"),
        (0.0, "bytes", "0 B"),
        (3 * MIB, "bytes/second", "3.0 MiB/s"),
        (1023.99, "bytes", "1.0 KiB"),
        (88.4, "watts", "88 W"),
        (3.125, "", "3.12"),
        (None, "ratio", "-"),
        (math.nan, "ratio", "NaN"),
    ],
)
def test_figures_keep_their_width(value, unit, text):
    """Whole percents and one decimal for sizes: a line does not dance."""
    assert figure(value, unit) == text


@pytest.mark.parametrize(("width", "height"), [(80, 24), (200, 50), (60, 10), (40, 6), (10, 2)])
def test_the_screen_fits(width, height):
    """There are never more rows nor longer lines than fit, down to 30 columns; what is hidden is counted."""
    board = Board("stepscope monitor  host")
    board.right, board.notes = "0:00:01  every 1 s", ["a note", "another note"]
    for _ in range(30):
        board.take(VALUES)
    lines = texts(board.draw(width, height))
    assert len(lines) < max(height, 4)
    assert max(map(width_of, lines)) <= max(width, 30)
    assert any("more; make the" in line for line in lines) == (height < 24)


def test_a_picture_shows_the_recent_past():
    """Shares are drawn from 0 to 1, rates from 0 to their highest, and a silent source leaves a gap."""
    board = Board("host")
    for share, rate in ((0.0, 0.0), (1.0, 10.0), (None, None), (0.5, 20.0)):
        known = {"cpu/usage_ratio": share, "disk/read_bytes_per_second": rate}
        board.take({name: value for name, value in known.items() if value is not None})
    cpu, disk = texts(board.draw(80, 24))[1:]
    assert re.search(r"▁█ ▅", cpu)
    assert re.search(r"▁▅ █", disk)


def test_a_pipe_gets_one_line():
    """One moment is one line of figures, without pictures."""
    line = one_line(VALUES)
    assert "\n" not in line
    assert not set(line) & set(LEVELS)
    for part in ("gpu 7 95 %, 22.0 of 24.0 GiB", "cpu 50 %", "memory 25 %", "disk read 3.0 MiB/s, write 5.0 MiB/s"):
        assert part in line


def test_absences_have_reason_and_remedy():
    """What is absent stands on lines that fit, GPUs first, with an arrow to what to do."""
    lines = [
        fact.text for fact in absences({"power/cpu_watts": "no counters; ask the host", "gpu": "x " * 40 + "; y"}, 60)
    ]
    assert lines[0].startswith(" - gpu ")
    assert lines[-1] == " - power/cpu_watts  no counters → ask the host"
    assert max(map(len, lines)) < 60


def test_text_of_a_machine_cannot_act():
    """Control characters in names and reasons do not reach the terminal."""
    board = Board("\x1b[2J")
    board.notes = ["\x1b]0;x\x07"]
    board.take({"a\x1b[2J/b_watts": 1.0})
    text = "".join(texts(board.draw(80, 24))) + one_line({"a\x1b[2J/b_watts": 1.0})
    assert "\x1b" not in text
    assert "\x1b" not in monitor.describe({"kind": "\x1b[2J"})


class Recorder:
    """A display and a sink that keep what they are told."""

    def __init__(self):
        self.moments, self.notes, self.begun = [], [], []

    def begin(self, moment, absent):
        self.begun.append((moment, absent))

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

    source = Machine([Source(HOST)], 1.0, clock)
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

    monitor.watch(Machine([source], 0.1, clock), show, [], 0.5, 6, [0, 5], wait, lambda: clock.ticks)
    assert show.notes == [
        "gpu/0/fan_ratio is absent: not told; nothing to do",
        "GPU 5 is absent: this machine has 0; `stepscope doctor` says more",
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
    moment = Moment(0, 0, {}, {}, machine.happened)
    stream = io.StringIO()
    monitor.Lines(stream, None).take(moment)
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
    pages = [monitor.Page(monitor.open_machine(None), 0)]
    pages.append(monitor.Page(monitor.open_machine(None), pages[0].endpoint.port))
    assert pages[0].endpoint.port != pages[1].endpoint.port
    pages[1].take(Moment(0, 0, VALUES, VALUES))
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
        self.written = ""
        self.process = subprocess.Popen(
            command(*arguments), stdin=theirs, stdout=theirs, stderr=theirs, env=environment(**environ)
        )
        os.close(theirs)

    def read_until(self, done):
        while not done(self.written):
            assert select.select([self.ours], [], [], SECONDS)[0], self.written
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
    """This machine is drawn in place; Ctrl-C ends with 0 and a visible cursor, a termination as a shell says it."""
    screen = OnTerminal()
    screen.read_until(lambda text: text.count("every 0.2 s") >= 3)
    assert screen.end(number) == code
    assert screen.written.count(HIDE) == 1
    assert screen.written.rindex(SHOW) > screen.written.rindex("memory")
    assert "Traceback" not in screen.written


@pytest.mark.parametrize("environ", [{"NO_COLOR": "1"}, {"TERM": "dumb"}], ids=str)
def test_no_colour_where_none_is_wanted(environ):
    """NO_COLOR leaves cursor moves only; a dumb terminal gets plain lines."""
    screen = OnTerminal("--count", "2", **environ)
    screen.read_until(lambda text: False)
    assert screen.process.wait(SECONDS) == 0
    os.close(screen.ours)
    assert not re.search(r"\x1b\[[0-9;]*m", screen.written)
    assert ("\x1b" in screen.written) == ("TERM" not in environ)


def test_a_reader_that_leaves_is_no_error():
    """When nobody reads any more the command ends without a word."""
    reader, writer = os.pipe()
    process = subprocess.Popen(command(), stdout=writer, stderr=subprocess.PIPE, env=environment())
    os.close(writer)
    assert os.read(reader, 10)
    os.close(reader)
    _, said = process.communicate(timeout=SECONDS)
    assert (process.returncode, said) == (141, b"")
