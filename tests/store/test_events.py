from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.core.events import is_users, ours
from stepscope.store import events as store_events
from stepscope.store.events import decode_event, encode_event, read_events
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


@given(st.integers(0, 10_000), st.integers(1, 255))
def test_a_changed_byte_is_never_believed(at, change):
    """Whatever byte of a line with a checksum changes, it says what it said, or nothing."""
    line = encode_event(event(1_700_000_000_000_000, 4, seconds=12.5, note="crc", values={"a": [1, 2.5, None]})).rstrip(
        b"\n"
    )
    damaged = bytearray(line)
    damaged[at % len(line)] ^= change
    found = [one for part in bytes(damaged).split(b"\n") if (one := decode_event(part)) is not None]
    assert found in ([], [decode_event(line)])


def test_a_damaged_line_is_told_and_the_rest_kept(folder):
    """A flipped digit in a line with a checksum costs that line, and is a problem of the run."""
    lines = [encode_event(event(number * 1_000_000, number, seconds=5)) for number in range(3)]
    (folder.path / "events" / "a-0.jsonl").write_bytes(
        lines[0] + lines[1].replace(b'"seconds": 5', b'"seconds": 7') + lines[2]
    )
    found, problems = read_events(folder)
    assert [one["sequence"] for one in found] == [0, 2]
    assert problems == ["a-0.jsonl: 1 damaged lines were passed over"]


def test_lines_of_before_are_read(folder):
    """Lines without a checksum are read as ever, a user's field `crc` in them too."""
    write(folder, "a-0.jsonl", event(1, 1, crc="89abcdef"), {"sequence": 2, **event(2)})
    assert [one.get("crc") for one in read_events(folder)[0]] == ["89abcdef", None]


@pytest.mark.parametrize(
    "line",
    [
        '{"time": 1e400}',
        '{"time": -1}',
        '{"time": 1e99, "kind": "log"}',
        '{"time": "1"}',
        '{"time": 1, "deep": ' + "[" * 200 + "]" * 200 + "}",
        "{}",
    ],
)
def test_what_is_no_event(line):
    """A time that is none, or values too deep, make a line damaged."""
    assert decode_event(line.encode()) is None


def test_fields_of_every_event_have_their_type():
    """A rank, attempt, step or sequence that is no whole number is kept under another name; the kind becomes text."""
    line = b'{"time": 1, "kind": 5, "rank": "0", "step": [3], "sequence": 1.5, "attempt": 99999999999999999999}'
    wrong = {"rank_": "0", "step_": [3], "sequence_": 1.5, "attempt_": 99999999999999999999}
    assert decode_event(line) == {"time": 1e-6, "kind": "5", **wrong}


def test_texts_are_whole():
    """Half a character of UTF-16 in any text or key is replaced: no writer or screen could take it."""
    found = decode_event(b'{"time": 1, "kind": "\\ud800x", "a\\udfff": ["\\uD912"], "far": NaN, "big": 1e999}')
    assert found == {"time": 1e-6, "kind": "\ufffdx", "a\ufffd": ["\ufffd"], "far": "NaN", "big": "inf"}
    assert json.dumps(found, ensure_ascii=False).encode()


def test_users_events_are_told_apart():
    """The mark, or the sequence of a kind that only the watcher writes, says that an event is the user's."""
    mine = {"kind": "exception", "written_by": "user", "time": 1.0}
    old = decode_event(b'{"time": 1, "rank": 0, "kind": "stalled", "sequence": 3, "seconds": "about ten"}')
    seen = {"kind": "stalled", "time": 2.0, "seconds": [], "phase": 5, "rank": 0}
    shared = {"kind": "checkpoint", "written_by": "user", "time": 3.0}
    assert [is_users(one) for one in (mine, old, seen, shared)] == [True, True, False, True]
    assert ours([mine, old, seen, shared]) == [{"kind": "stalled", "time": 2.0, "rank": 0}, shared]


def test_too_many_files_are_passed_over(folder, monkeypatch):
    """A folder with more files than a run can have is read in part, with a sentence."""
    monkeypatch.setattr(store_events, "MOST_FILES", 2)
    monkeypatch.setattr(store_events, "MOST_BYTES", 60)
    for number in range(4):
        write(folder, f"n{number}-0.jsonl", event(1, 1), event(2, 2))
    found, problems = read_events(folder)
    assert len(found) == 2
    assert "2 of 4 files were passed over" in problems[0]
    assert "only its first 60 bytes" in problems[1]
