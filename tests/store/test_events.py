from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.store.events import read_events
from tests.store.recorded import make_folder


@pytest.fixture
def folder(tmp_path):
    return make_folder(tmp_path / "run")


def write(folder, name, *events, end="\n"):
    text = "\n".join(event if isinstance(event, str) else json.dumps(event) for event in events) + end
    (folder.path / "events" / name).write_text(text)


def event(time, sequence=None, rank=0, **more):
    own = {} if sequence is None else {"sequence": sequence}
    return {"time": time, "rank": rank, "kind": "log", **own, **more}


def test_in_order_of_time(folder):
    """Events of all watchers come in order of time, in seconds; those of one moment in their sequence."""
    write(folder, "a-0.jsonl", event(3_000_000, 7), event(1_000_000, 6), event(1_000_000, 5))
    write(folder, "b-0.jsonl", event(2_000_000, 1, rank=1))
    found, problems = read_events(folder)
    assert [(item["time"], item["sequence"]) for item in found] == [(1.0, 5), (1.0, 6), (2.0, 1), (3.0, 7)]
    assert problems == []


def test_written_twice_read_once(folder):
    """An event that a second watcher wrote again is read once; events without a sequence are all kept."""
    write(folder, "a-0.jsonl", event(1, 5), event(1, 5), event(1, 5, rank=1), event(2), event(2))
    assert len(read_events(folder)[0]) == 4


def test_line_under_way(folder):
    """What follows the last line end is still being written, and no problem."""
    write(folder, "a-0.jsonl", event(1, 1), '{"time": 2, "ra', end="")
    assert (len(read_events(folder)[0]), read_events(folder)[1]) == (1, [])


def test_damaged_lines_are_told(folder):
    """Lines that cannot be understood are counted, and the others read."""
    bad = ['{"kind"', "[]", "5", '{"kind": "no time"}', '{"time": "noon"}', "[" * 100_000, ""]
    write(folder, "a-0.jsonl", event(1, 1), *bad, event(2, 2))
    found, problems = read_events(folder)
    assert [item["sequence"] for item in found] == [1, 2]
    assert problems == ["a-0.jsonl: 6 damaged lines were passed over"]


def test_file_that_cannot_be_read(folder):
    """A file that cannot be read is a problem of its own."""
    (folder.path / "events" / "odd-0.jsonl").mkdir()
    write(folder, "a-0.jsonl", event(1, 1))
    found, problems = read_events(folder)
    assert len(found) == 1
    assert problems[0].startswith("odd-0.jsonl: ")


@given(st.binary(max_size=200))
def test_any_bytes(tmp_path_factory, data):
    """Whatever bytes an events file holds, each line of it is an event or a problem, or part of the cut end."""
    folder = make_folder(tmp_path_factory.mktemp("run"))
    (folder.path / "events" / "a-0.jsonl").write_bytes(data)
    events, problems = read_events(folder)
    assert len(events) <= data.count(b"\n") + 1
    assert all(problem.startswith("a-0.jsonl") for problem in problems)


@given(st.integers(0, 400), st.integers(1, 255))
def test_any_changed_byte(tmp_path_factory, at, change):
    """A changed byte costs at most the line it stands in, or joins it with the next."""
    folder = make_folder(tmp_path_factory.mktemp("run"))
    write(folder, "a-0.jsonl", *(event(number * 1_000_000, number, note="x" * 9) for number in range(6)))
    path = folder.path / "events" / "a-0.jsonl"
    data = bytearray(path.read_bytes())
    data[at % len(data)] ^= change
    path.write_bytes(data)
    assert len(read_events(folder)[0]) >= 4
