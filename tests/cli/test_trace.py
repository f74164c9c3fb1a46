"""`stepscope trace`: facts for programs, lines for people, files for viewers."""

from __future__ import annotations

import gzip
import json

import pytest

from stepscope.analysis import read_trace
from stepscope.cli.main import main
from stepscope.core.trace import KERNEL
from stepscope.sources import traces

KEYS = [
    "file",
    "rank",
    "window",
    "idle_percent",
    "compute_percent",
    "communication_percent",
    "exposed_communication_percent",
    "memcpy_percent",
    "overlap_percent",
    "dataloader_percent",
    "findings",
    "kernels",
    "operators",
]


def events(factor=1) -> list[dict]:
    """Return two steps with data loading, launches, compute and communication."""
    host, found, number = {"ph": "X", "pid": 10, "tid": 10}, [], 0
    for step in (1, 2):
        at = 1000 * step
        found.append({**host, "cat": "user_annotation", "name": f"ProfilerStep#{step}", "ts": at, "dur": 1000})
        found.append({**host, "cat": "cpu_op", "name": "enumerate(DataLoader)#x.__next__", "ts": at, "dur": 400})
        for place, name in enumerate(("sgemm", "ncclDevKernel_AllReduce", "vectorized_elementwise_kernel")):
            number += 1
            call, ran = at + 450 + 100 * place, at + 470 + 100 * place
            ids = {"correlation": number, "External id": number}
            found.append({**host, "cat": "cpu_op", "name": "aten::mm", "ts": call - 5, "dur": 40, "args": ids})
            found.append({**host, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": call, "dur": 9, "args": ids})
            device = {"device": 0, "stream": 7, **ids}
            found.append(
                {
                    "ph": "X",
                    "cat": "kernel",
                    "name": name,
                    "pid": 0,
                    "tid": 7,
                    "ts": ran,
                    "dur": 50 * factor,
                    "args": device,
                }
            )
    return found


@pytest.fixture
def write(tmp_path):
    """Write a trace of some events."""

    def make(name="rank0.json", content=None, rank=0):
        path = tmp_path / name
        text = json.dumps({"distributedInfo": {"rank": rank, "world_size": 2}, "traceEvents": content or events()})
        path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
        return str(path)

    return make


@pytest.fixture
def ask(capsys):
    """Run `stepscope trace` and return its exit code, its output and its errors."""

    def call(*arguments):
        code = main(["trace", *arguments])
        return code, *capsys.readouterr()

    return call


def test_json_has_the_promised_keys(write, ask):
    """A rank's facts have every promised key, first and in order; shares are of the window of all device events."""
    path = write()
    code, out, err = ask(path, "--json")
    (rank,) = json.loads(out)["ranks"]
    assert (code, err) == (0, "")
    assert [key for key in rank if key in KEYS] == KEYS
    assert (rank["file"], rank["rank"]) == (path, 0)
    assert rank["window"] == {"kind": "gpu_events", "start_us": 1470.0, "end_us": 2720.0}
    assert rank["idle_percent"] == 76.0
    assert rank["dataloader_percent"] == 40.0
    assert {"input_bound"} <= {finding["kind"] for finding in rank["findings"]}
    assert rank["kernels"][0]["calls"] == 2
    assert rank["operators"][0]["name"]


@pytest.mark.parametrize(
    ("window", "kind", "start"),
    [("steps", "profiler_steps", 1000.0), ("1500:", "given", 1500.0), (":2000", "given", 1470.0)],
)
def test_windows(write, ask, window, kind, start):
    """The window can be chosen, and is stated."""
    _, out, _ = ask(write(), "--json", "--window", window)
    found = json.loads(out)["ranks"][0]["window"]
    assert (found["kind"], found["start_us"]) == (kind, start)


def test_people_get_a_page_without_colour_in_a_pipe(write, ask, monkeypatch):
    """The page fits its width, has no escape sequences, and says shares, causes, findings and tables."""
    monkeypatch.setenv("COLUMNS", "80")
    code, out, err = ask(write())
    assert (code, err) == (0, "")
    assert "\x1b" not in out
    assert max(map(len, out.splitlines())) <= 80
    for words in (
        "rank 0",
        "all device events",
        "idle",
        "Why the device is idle",
        "input-bound",
        "Kernels",
        "aten::mm",
    ):
        assert words in out


def test_many_ranks_make_a_table(write, ask, tmp_path):
    """Several traces, or a folder of them, are the ranks of one job: one row each."""
    for rank in range(5):
        write(f"rank{rank}.json", rank=rank)
    code, out, _ = ask(str(tmp_path), "--json")
    facts = json.loads(out)
    assert code == 0
    assert [rank["rank"] for rank in facts["ranks"]] == [0, 1, 2, 3, 4]
    assert facts["many_ranks"]["matched"] == 2
    assert "5 traces" in ask(str(tmp_path))[1]


def test_processes_read_many_files(write, ask, monkeypatch):
    """Large files are read by several processes, with the same answers."""
    paths = [write(f"rank{rank}.json.gz", rank=rank) for rank in range(2)]
    alone = json.loads(ask(*paths, "--json")[1])
    monkeypatch.setattr(traces, "SERIAL_BYTES", 0)
    monkeypatch.setattr(traces.os, "cpu_count", lambda: 2)
    assert json.loads(ask(*paths, "--json")[1])["ranks"] == alone["ranks"]


def test_a_bad_file_does_not_hide_the_others(write, ask, tmp_path):
    """A file that cannot be read is named, the others are told, and the exit code says so."""
    (tmp_path / "bad.json").write_text("{}")
    code, out, err = ask(write(), str(tmp_path / "bad.json"), "--json")
    facts = json.loads(out)
    assert code == 1
    assert len(facts["ranks"]) == 1
    assert facts["failed"][0]["file"].endswith("bad.json")
    assert "cannot read the trace" in err
    assert ask(str(tmp_path / "bad.json"))[0] == 1


def test_compare_two_traces(write, ask):
    """Two traces are compared: the parts sum to the difference of the step."""
    before, after = write("before.json"), write("after.json", events(factor=1.2))
    code, out, _ = ask(before, after, "--compare", "--json")
    facts = json.loads(out)["comparison"]
    assert code == 0
    assert sum(part["difference_us"] for part in facts["parts"]) == pytest.approx(facts["difference_us"])
    assert "Comparison" in ask(before, after, "--compare")[1]


def test_perfetto_writes_a_small_valid_trace(write, ask, tmp_path):
    """The interesting part is a trace that can be read again: the slowest step with its launches and kernels."""
    target = str(tmp_path / "small.json.gz")
    code, out, _ = ask(write(), "--perfetto", target)
    small = read_trace(target)
    written = json.loads(gzip.decompress((tmp_path / "small.json.gz").read_bytes()))
    assert code == 0
    assert "wrote" in out
    assert small.rank == 0
    assert int((small.kind == KERNEL).sum()) == 3
    assert {event["ph"] for event in written["traceEvents"]} == {"M", "X", "s", "f"}
    assert ask(write(), "--perfetto", target)[0] == 2
    assert ask(write(), "--perfetto", target, "--force")[0] == 0


def test_html_is_one_file(write, ask, tmp_path):
    """The page for the browser needs nothing from elsewhere."""
    pytest.importorskip("stepscope.reports.trace_page")
    assert ask(write(), "--html", str(tmp_path / "trace.html"))[0] == 0
    text = (tmp_path / "trace.html").read_text()
    assert "default-src &#x27;none&#x27;" in text or "default-src 'none'" in text
    assert "sgemm" in text


@pytest.mark.parametrize(
    "arguments",
    [["--compare"], ["--window", "soon"], ["--window", "nan:"], ["--window", "1"]],
    ids=lambda words: words[-1],
)
def test_wrong_usage(write, ask, arguments):
    """What cannot be meant is a usage error before anything is read."""
    assert ask(write(), *arguments)[0] == 2


def test_a_name_cannot_act_on_the_terminal(write, ask):
    """Names in a trace are foreign text: nothing in them reaches the terminal as a command."""
    content = [{**event, "name": "\x1b[31mred" if event["cat"] == "kernel" else event["name"]} for event in events()]
    assert "\x1b" not in ask(write(content=content))[1]
