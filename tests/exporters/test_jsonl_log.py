from __future__ import annotations

import json
import math
import os
import re
from datetime import datetime, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.core.errors import StepscopeError
from stepscope.core.vocabulary import MIB
from stepscope.exporters.files import jsonl_log
from stepscope.exporters.files.jsonl_log import JsonLines, Rotation
from stepscope.exporters.files.monitor_rows import (
    GPU_FIELDS,
    SYSTEM_FIELDS,
    TRAINING_FIELDS,
    encode,
    gpu_row,
    gpu_rows,
    percent,
    system_row,
    timestamp,
    training_row,
)

WALL = 1_753_878_896_789_999_999
"""2025-07-30T12:34:56.789Z and a little."""
VALUES = {
    "gpu/0/utilization_ratio": 0.95,
    "gpu/0/memory_used_bytes": 22500 * MIB,
    "gpu/0/memory_total_bytes": 24576 * MIB,
    "gpu/0/temperature_celsius": 75.0,
    "gpu/0/power_watts": 320.0,
    "gpu/0/fan_ratio": 0.65,
    "gpu/mean_utilization_ratio": 0.95,
    "cpu/usage_ratio": 0.29,
}
DOCUMENTED = {
    "timestamp": "2025-07-30T12:34:56.789Z",
    "gpu_index": 0,
    "utilization_percent": 95.0,
    "memory_used_mb": 22500.0,
    "memory_total_mb": 24576.0,
    "memory_percent": 91.5,
    "temperature_celsius": 75.0,
    "power_draw_watts": 320.0,
    "fan_speed_percent": 65.0,
}


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


class Seconds:
    """A wall clock that moves when told."""

    def __init__(self):
        self.now = WALL

    def __call__(self):
        return self.now


@pytest.mark.promise("S2-044", "S2-046")
def test_a_gpu_row_is_the_documents_example():
    """The documents' example comes out to the digit: field names, order, units, percentages cut to a tenth."""
    assert json.loads(encode(gpu_row(VALUES, 0, WALL))) == DOCUMENTED
    assert list(gpu_row(VALUES, 0, WALL)) == list(DOCUMENTED)


def test_a_field_that_a_gpu_does_not_tell_is_null():
    """Every field is there; what is unknown is null and never 0; a GPU that is not there has no row."""
    row = gpu_row({"gpu/3/power_watts": 0.0}, 3, WALL)
    assert {name for name, value in row.items() if value is None} == set(GPU_FIELDS) - {
        "timestamp",
        "gpu_index",
        "power_draw_watts",
    }
    assert gpu_row(VALUES, 1, WALL) is None


def test_rows_of_all_gpus_or_of_those_asked_for():
    """Aggregates over the node are no GPU."""
    values = {**VALUES, "gpu/10/power_watts": 1.0, "gpu/2/power_watts": 1.0}
    assert [row["gpu_index"] for row in gpu_rows(values, WALL)] == [0, 2, 10]
    assert [row["gpu_index"] for row in gpu_rows(values, WALL, only=[2, 7])] == [2]


@given(st.integers(0, 1000))
def test_a_tenth_of_a_percent_is_kept(tenths):
    """A share that a tenth can tell is told exactly, whatever the arithmetic of floats makes of it."""
    assert percent(tenths / 1000) == tenths / 10


def test_only_full_is_full():
    """Percentages are cut: 99.99 % is not 100."""
    assert [percent(0.9999), percent(1.0), percent(math.inf)] == [99.9, 100.0, math.inf]


@given(st.integers(0, 4_102_444_800_000_000_000))
def test_times_are_iso_with_milliseconds(wall):
    """A time reads back as the same moment, cut to a millisecond."""
    text = timestamp(wall)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", text)
    moment = datetime.strptime(text, "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=timezone.utc)
    assert round(moment.timestamp() * 1000) == wall // 1_000_000


@pytest.mark.promise("S2-045")
def test_a_training_row_has_the_documents_fields():
    """Step, fractional epoch and the rest stand in order and unrounded; what was not given is null."""
    row = training_row({"step": 1000, "epoch": 2.5, "loss": 0.12345678901, "learning_rate": 1e-4}, WALL)
    assert list(row) == list(TRAINING_FIELDS)
    assert json.loads(encode(row)) == {
        **dict.fromkeys(TRAINING_FIELDS),
        "timestamp": "2025-07-30T12:34:56.789Z",
        "step": 1000,
        "epoch": 2.5,
        "loss": 0.12345678901,
        "learning_rate": 0.0001,
    }


@pytest.mark.promise("S2-003")
def test_the_host_has_a_row_too():
    """Processor and memory of the host are written in the documents' units."""
    row = system_row({**VALUES, "disk/read_bytes_per_second": 3 * MIB}, WALL)
    assert list(row) == ["timestamp", *SYSTEM_FIELDS]
    assert (row["cpu_usage_percent"], row["disk_read_mb_s"], row["memory_usage_percent"]) == (29.0, 3.0, None)


@pytest.mark.promise("S2-047")
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_null_and_named(value):
    """JSON stays strict: the value is null, and `nonfinite` says what it was."""
    line = encode(training_row({"step": 1, "loss": value}, WALL))
    row = json.loads(line, parse_constant=pytest.fail)
    assert (row["loss"], row["nonfinite"]) == (None, {"loss": repr(value)})


@pytest.mark.promise("S2-048")
def test_two_writers_of_one_second_share_no_file(tmp_path):
    """The second one gets a name of its own; both have the form of the documents."""
    files = [JsonLines(tmp_path, "gpu_metrics", now=Seconds()) for _ in range(3)]
    for number, file in enumerate(files):
        file.write([{"n": number}])
    assert [file.path.name for file in files] == [
        "gpu_metrics_20250730_123456.jsonl",
        "gpu_metrics_20250730_123456_1.jsonl",
        "gpu_metrics_20250730_123456_2.jsonl",
    ]
    assert [read(file.path) for file in files] == [[{"n": 0}], [{"n": 1}], [{"n": 2}]]


@pytest.mark.promise("S2-051", "S2-004")
def test_a_line_is_in_the_file_when_the_call_returns(tmp_path):
    """Nothing waits in the process: a crash after the call loses no line."""
    file = JsonLines(tmp_path, "training_metrics")
    for number in range(3):
        file.write([{"n": number}])
        assert len(read(file.path)) == number + 1


def test_nothing_is_made_before_the_first_row(tmp_path):
    """Neither folder nor file appears for a writer that never writes; both are private."""
    file = JsonLines(tmp_path / "a" / "b", "gpu_metrics")
    file.write([])
    file.close()
    assert not (tmp_path / "a").exists()
    file.write([{"n": 1}])
    assert (file.path.stat().st_mode & 0o777, file.folder.stat().st_mode & 0o777) == (0o600, 0o700)


@pytest.mark.promise("S2-053")
def test_files_are_followed_by_size(tmp_path):
    """A file that would grow past the limit is followed by the next; no line is lost or split."""
    file = JsonLines(tmp_path, "gpu_metrics", Rotation(max_bytes=40))
    for number in range(10):
        file.write([{"number": number}])
    paths = sorted(tmp_path.iterdir(), key=lambda path: read(path)[0]["number"])
    assert [row["number"] for path in paths for row in read(path)] == list(range(10))
    assert max(path.stat().st_size for path in paths) <= 40


@pytest.mark.promise("S2-053")
def test_files_are_followed_by_age_and_old_ones_go(tmp_path):
    """A file older than the limit is followed; beyond the number that is kept the writer's own oldest goes."""
    (tmp_path / "gpu_metrics_20200101_000000.jsonl").write_text("someone else's\n")
    clock = Seconds()
    file = JsonLines(tmp_path, "gpu_metrics", Rotation(max_seconds=60, keep=2), now=clock)
    for minute in range(4):
        clock.now = WALL + minute * 60_000_000_000
        file.write([{"minute": minute}])
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == [f"gpu_metrics_{end}.jsonl" for end in ("20200101_000000", "20250730_123656", "20250730_123756")]


def test_a_folder_that_cannot_be_is_said(tmp_path):
    """A file in the way is one clear error, and the rows count as lost."""
    (tmp_path / "file").write_text("")
    file = JsonLines(tmp_path / "file", "gpu_metrics")
    with pytest.raises(StepscopeError, match=r"cannot write gpu_metrics to .*; make room or access there"):
        file.write([{"n": 1}, {"n": 2}])
    assert (file.lines, file.lost) == (0, 2)


def test_a_full_disk_tears_one_line_only(tmp_path, monkeypatch):
    """After a write that the disk cut short the next row stands on a line of its own."""
    file = JsonLines(tmp_path, "gpu_metrics")
    file.write([{"n": 0}])

    def short(descriptor, data):
        if data[:1] == b"{":
            return os.pwrite(descriptor, data[:3], 0)
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(jsonl_log.os, "write", short)
        with pytest.raises(StepscopeError, match="No space left"):
            file.write([{"n": 1}])
    file.write([{"n": 2}])
    whole = [line for line in file.path.read_bytes().split(b"\n") if line.endswith(b"}")]
    assert whole == [b'{"n":0}', b'{"n":2}']
    assert (file.lines, file.lost) == (2, 1)


def test_a_forked_child_gets_a_file_of_its_own(tmp_path):
    """Parent and child never write to one file."""
    file = JsonLines(tmp_path, "gpu_metrics", now=Seconds())
    file.write([{"who": "parent"}])
    child = os.fork()
    if not child:
        file.write([{"who": "child"}])
        os._exit(0)
    os.waitpid(child, 0)
    file.write([{"who": "parent"}])
    file.close()
    assert [
        [row["who"] for row in read(path)] for path in sorted(tmp_path.iterdir(), key=lambda path: len(path.name))
    ] == [
        ["parent", "parent"],
        ["child"],
    ]
