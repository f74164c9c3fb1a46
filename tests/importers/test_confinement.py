"""Foreign files are read by a child with limits: whatever it does, the one who asked goes on."""

from __future__ import annotations

import math
import os
import signal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from stepscope.cli.main import main
from stepscope.core.errors import StepscopeError, UsageError
from stepscope.importers import confinement, formats, transfer
from stepscope.importers.confinement import ChildLimits, confined
from stepscope.importers.imported import Imported, ImportedSeries
from tests.importers.foreign import SAMPLES


def test_bytes_come_back():
    """What the work yields is what is returned, in order; the child is another process, and is gone."""
    told = confined("work", lambda: [b"a", memoryview(b"bc"), str(os.getpid()).encode()])
    assert told[:3] == b"abc"
    assert int(told[3:]) != os.getpid()
    with pytest.raises(ChildProcessError):
        os.waitpid(int(told[3:]), os.WNOHANG)


def test_errors_come_back_as_they_are():
    """An error of ours keeps its parts and its exit code; any other says what the reader did."""
    with pytest.raises(UsageError, match="cannot read 'x': no; do"):
        confined("work", lambda: _raise(UsageError("read 'x'", "no", "do")))
    with pytest.raises(StepscopeError, match=r"cannot work: its reader failed \(KeyError: 'a'\)"):
        confined("work", lambda: _raise(KeyError("a")))


def test_memory_is_bounded():
    """A reader that wants more memory than it may have is refused, not the machine."""
    limits = ChildLimits(address_bytes=256 << 20)
    with pytest.raises(StepscopeError, match="memory is short: reading may take 256 MiB"):
        confined("work", lambda: [bytes(1 << 30)], limits)


def test_processor_time_is_bounded():
    """A reader that never ends is ended by the kernel."""
    with pytest.raises(StepscopeError, match="takes more than 1 s of processor time"):
        confined("work", _endless, ChildLimits(cpu_seconds=1))


def test_answers_are_bounded():
    """A reader that hands back too much is refused."""
    with pytest.raises(StepscopeError, match="does not fit into 1 MiB"):
        confined("work", lambda: (bytes(1 << 20) for _ in range(3)), ChildLimits(result_bytes=1 << 20))


def test_a_crash_is_an_error():
    """A reader that dies is named as such."""
    with pytest.raises(StepscopeError, match="perhaps memory is short"):
        confined("work", lambda: _die(signal.SIGKILL))
    with pytest.raises(StepscopeError, match=f"ended by signal {signal.SIGTERM:d}"):
        confined("work", lambda: _die(signal.SIGTERM))


def _raise(error):
    raise error


def _endless():
    while True:
        pass


def _die(number):
    os.kill(os.getpid(), number)
    return []


def bits(run):
    """Return an imported run in plain values that are equal only where it is to the last bit."""
    columns = {
        name: [
            None if (values := getattr(series, column)) is None else (values.dtype, values.tobytes())
            for column in ("step", "time", "value", "rank", "attempt", "seq")
        ]
        for name, series in run.columns.items()
    }
    return run.path, run.format, run.notes, list(columns.items()), repr(run.facts)


@pytest.mark.parametrize("name", SAMPLES)
def test_every_format_comes_through_the_child_unchanged(name, tmp_path):
    """A file read by the child gives what it gives when it is read here."""
    path = tmp_path / "file"
    path.write_bytes(SAMPLES[name])
    (mine,), (theirs,) = formats.read(str(path)), transfer.read(str(path))
    assert bits(mine) == bits(theirs)


NUMBERS = some.floats(allow_nan=True, allow_infinity=True)


@settings(max_examples=50)
@given(
    some.lists(
        some.tuples(some.text(max_size=5), some.lists(NUMBERS, max_size=4), some.booleans()),
        max_size=4,
        unique_by=lambda row: row[0],
    ),
    some.dictionaries(some.text(max_size=4), NUMBERS | some.text(max_size=4), max_size=3),
)
def test_any_run_comes_through_bytes_unchanged(rows, facts):
    """Names, empty series, any numbers and facts survive the way."""
    columns = {}
    for name, values, counted in rows:
        many = np.arange(len(values))
        rank = many.astype(np.int32)
        seq = many.astype(np.int64) if counted else None
        columns[name] = ImportedSeries(
            name, many.astype(np.int64), np.array(values, float), -np.array(values, float), rank, rank, seq
        )
    run = Imported("a", "b", columns, facts, ("note",))
    (back,), problems = transfer.runs(b"".join(bytes(piece) for piece in transfer.pieces([run])))
    assert not problems
    assert bits(run) == bits(back)


@settings(max_examples=100)
@given(some.integers(0), some.binary(max_size=8), some.integers(0, 8))
def test_a_damaged_answer_is_refused_or_read(at, put, gone):
    """Whatever a child hands back, the parent gets runs or an error it knows."""
    value = np.array([1.0, math.nan])
    rank = np.zeros(2, np.int32)
    series = ImportedSeries("loss", np.arange(2), value, value, rank, rank)
    whole = b"".join(bytes(piece) for piece in transfer.pieces([Imported("a", "b", {"loss": series})]))
    at %= len(whole)
    try:
        found, _ = transfer.runs(whole[:at] + put + whole[at + gone :])
    except (ValueError, TypeError, KeyError, AttributeError):
        return
    assert all(isinstance(run, Imported) for run in found)


@pytest.mark.slow
def test_commands_read_foreign_files_in_the_child(tmp_path, capsys, monkeypatch):
    """A reader that runs away ends in an error of the command, of import, compare and trace alike."""
    monkeypatch.setattr(confinement, "CPU_SECONDS", 1)
    monkeypatch.setattr(formats, "read_batch", lambda *_: _endless())
    monkeypatch.setattr("stepscope.importers.traces.chrome_trace.read_traces", lambda *_, **__: _endless())
    path = tmp_path / "log.jsonl"
    path.write_bytes(SAMPLES["jsonl"])
    for command in (["import", path], ["compare", path, path], ["trace", path]):
        assert (
            main([command[0], *map(str, command[1:]), *([] if command[0] == "trace" else ["--dir", str(tmp_path)])])
            == 1
        )
        assert "takes more than 1 s of processor time" in capsys.readouterr().err
