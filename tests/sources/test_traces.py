"""Reading and analysing traces, from the command line and from Python."""

from __future__ import annotations

import json

import pytest

from stepscope.cli.main import main
from stepscope.core.errors import UsageError
from stepscope.importers.traces import chrome_trace
from stepscope.sources.traces import TraceOptions, analyse, expand


def event(name, category, start, lasted, lane):
    """Return one complete event, in microseconds."""
    return {"ph": "X", "name": name, "cat": category, "ts": start, "dur": lasted, "pid": lane, "tid": lane}


@pytest.fixture
def write(tmp_path):
    """Write a small trace with one operator and one kernel."""

    def make(name, lasted=100):
        events = [event("aten::mm", "cpu_op", 0, 10, 1), event("gemm", "kernel", 20, lasted, 2)]
        (tmp_path / name).write_text(json.dumps({"traceEvents": events}))
        return str(tmp_path / name)

    return make


def test_python_users_get_the_facts_of_the_command(write, capsys):
    """`analyse` returns the facts that `stepscope trace --json` prints."""
    path = write("a.json")
    assert main(["trace", path, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)["ranks"][0]
    assert analyse([path])["ranks"][0]["kernels"] == printed["kernels"]


def test_a_trace_is_parsed_once_per_command(write, tmp_path, monkeypatch, capsys):
    """A command that compares two traces and writes a small one reads each file once."""
    files, log, read = [write("a.json"), write("b.json", 200)], tmp_path / "reads", chrome_trace._read

    def counted(source, *rest):
        with log.open("a") as stream:  # the reading process is a child
            stream.write(f"{source.name}\n")
        return read(source, *rest)

    monkeypatch.setattr(chrome_trace, "_read", counted)
    assert main(["trace", *files, "--compare", "--perfetto", str(tmp_path / "small.json"), "--json"]) == 0
    assert sorted(log.read_text().split()) == sorted(files)
    assert {"comparison", "perfetto"} <= set(json.loads(capsys.readouterr().out))


def test_an_unreadable_file_is_reported_among_the_results(write, tmp_path):
    """A bad file does not hide the others, and no comparison is made of one trace."""
    (tmp_path / "bad.json").write_text("{}")
    facts = analyse([write("a.json"), str(tmp_path / "bad.json")], TraceOptions(compare=True))
    assert (len(facts["ranks"]), len(facts["failed"]), "comparison" in facts) == (1, 1, False)


def test_a_folder_without_traces_is_refused(tmp_path):
    """A folder without a possible trace is a usage error."""
    with pytest.raises(UsageError, match="give trace files"):
        expand([str(tmp_path)])
