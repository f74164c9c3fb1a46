"""Reading what the ranks of a run printed."""

from __future__ import annotations

import base64
import itertools
import json
import os
import zlib
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.core.console_line import ConsoleLine
from stepscope.core.errors import UsageError
from stepscope.store import console_segments as segments
from stepscope.store.console import ConsoleQuery, console_ranks, has_consoles, read_console
from stepscope.store.console_segments import (
    ConsoleWriterName,
    LostLines,
    backward,
    complete_size,
    decode_record,
    encode_record,
    forward,
    segment_path,
)
from stepscope.store.console_steps import steps_of
from stepscope.store.layout import RunFolder
from tests.golden import consoles
from tests.store.recorded import Recorded

if TYPE_CHECKING:
    from pathlib import Path

    from stepscope.store.console_segments import Record

WHO = ConsoleWriterName("host.1", 0, 3)


def line(number: int, text: str = "", *, time: float | None = None, rank: int = 3, **more: object) -> ConsoleLine:
    """Return a line of standard output, printed `number` seconds after 1970."""
    seconds = float(number) if time is None else time
    return ConsoleLine(seconds, rank, 0, "host.1", number, "out", text or f"line {number}")._replace(**more)


def put(folder: Path, number: int, *records: Record, who: ConsoleWriterName = WHO) -> Path:
    """Write a segment; a record that repeats a number is marked so."""
    path = segment_path(folder, who, number)
    path.parent.mkdir(parents=True, exist_ok=True)
    seen: set[int] = set()
    with path.open("ab") as file:
        for record in records:
            file.write(encode_record(record, again=record.number in seen))
            seen.add(record.number)
    return path


def texts(folder: Path, **query: object) -> list[str]:
    """Return the texts of an answer."""
    return [one.text for one in read_console(RunFolder(folder), ConsoleQuery(**query)).lines]


def test_a_run_without_consoles_has_no_lines(tmp_path: Path) -> None:
    """Without the folder there are no lines and no problems."""
    assert not has_consoles(RunFolder(tmp_path))
    answer = read_console(RunFolder(tmp_path), ConsoleQuery(last=10))
    assert (answer.lines, answer.problems, answer.dropped) == ([], [], 0)


def test_lines_of_several_ranks_are_merged_by_time(tmp_path: Path) -> None:
    """Lines come in the order of time, from the start and from the end alike."""
    put(tmp_path, 0, line(0, "a", time=1.0), line(1, "c", time=3.0))
    put(tmp_path, 0, line(0, "b", time=2.0, rank=4), who=WHO._replace(rank=4))
    assert texts(tmp_path) == ["a", "b", "c"]
    assert texts(tmp_path, last=2) == ["b", "c"]
    assert texts(tmp_path, ranks=(4,)) == ["b"]
    assert texts(tmp_path, attempt=1) == []


def test_a_loud_rank_does_not_hide_the_last_lines_of_another(tmp_path: Path) -> None:
    """With a limit for each rank, the newest lines of all of them are found."""
    put(tmp_path, 0, *(line(number) for number in range(100, 200)))
    put(tmp_path, 0, line(0, "early", rank=4), line(1, "last", rank=4), who=WHO._replace(rank=4))
    assert texts(tmp_path, last=50, last_each=2) == ["early", "last", "line 198", "line 199"]


def test_the_last_state_of_a_growing_line_counts(tmp_path: Path) -> None:
    """A line that was written again is one line, in both directions."""
    put(tmp_path, 0, line(0, "10%", is_open=True), line(1), line(0, "50%", is_open=True), line(0, "100%"))
    assert sorted(texts(tmp_path)) == ["100%", "line 1"]
    assert sorted(texts(tmp_path, last=9)) == ["100%", "line 1"]
    assert texts(tmp_path, last=9, pattern="50%") == texts(tmp_path, pattern="50%") == []


def test_times_select_lines_of_any_segment(tmp_path: Path) -> None:
    """`since` and `until` select by time, whichever segment holds the lines."""
    for number in range(5):
        put(tmp_path, number, *(line(10 * number + at) for at in range(10)))
    assert texts(tmp_path, since=31.0, until=33.0) == ["line 31", "line 32", "line 33"]
    assert texts(tmp_path, since=8.0, last=2, until=11.0) == ["line 10", "line 11"]


def test_patterns_and_levels_select_lines(tmp_path: Path) -> None:
    """Plain text ignores case and colours; slashes make an expression; `err` and `error` are levels."""
    red = "\x1b[31mValue\x1b[0mError: bad"
    put(tmp_path, 0, line(0, "step 12 é"), line(1, red, stream="err"), line(2, "warning", stream="err"), line(3, "x"))
    assert texts(tmp_path, pattern="valueERROR") == [red]
    assert texts(tmp_path, pattern="é") == ["step 12 é"]
    assert texts(tmp_path, pattern="/step [0-9]+/") == ["step 12 é"]
    assert texts(tmp_path, level="err") == [red, "warning"]
    assert texts(tmp_path, level="error", last=5) == [red]


def test_a_line_of_an_unknown_stream_is_an_error_by_its_words(tmp_path: Path) -> None:
    """Where both streams were one, the level `err` takes lines that look like errors."""
    put(tmp_path, 0, line(0, "loss 1", stream=""), line(1, "RuntimeError: no", stream=""))
    assert texts(tmp_path, level="err") == ["RuntimeError: no"]


FAR = base64.urlsafe_b64encode(zlib.compress(json.dumps([[*WHO, 0, 2**70]]).encode())).decode()


@pytest.mark.parametrize(
    "query",
    [
        {"pattern": "/[/"},
        {"pattern": r"/(a)\1/"},
        {"pattern": "a" * 201},
        {"level": "loud"},
        {"after": "??"},
        {"after": FAR},
    ],
)
def test_a_wrong_query_is_refused(tmp_path: Path, query: dict[str, str]) -> None:
    """A query that cannot be answered is an error that says what to do."""
    with pytest.raises(UsageError, match="cannot "):
        read_console(RunFolder(tmp_path), ConsoleQuery(**query))


@pytest.mark.parametrize("pattern", ["/.*.*.*.*x/", "/(a+)+x/", "/" + "(a|a)" * 35 + "x/"])
def test_no_expression_takes_long(tmp_path: Path, pattern: str) -> None:
    """Python's own expressions would take years for one such line; 60 seconds are the limit of a test."""
    put(tmp_path, 0, line(0, "a" * 16_000), line(1, "a" * 50 + "x"))
    assert texts(tmp_path, pattern=pattern) == ["a" * 50 + "x"]
    assert texts(tmp_path, pattern=pattern, last=1) == ["a" * 50 + "x"]


@pytest.mark.parametrize("query", [{}, {"last": 9}], ids=["oldest", "newest"])
@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("/lo+ss.*nan/", ["loss is nan", "é \x1b[31mloo\x1b[0mss: NaN"]),
        ("/^loss/", ["loss is nan"]),
        ("/nan$/", ["loss is nan", "é \x1b[31mloo\x1b[0mss: NaN"]),
        ('/say "\\w+"/', ['I say "yes"']),
    ],
)
def test_an_expression_reads_only_what_may_have_it(tmp_path: Path, monkeypatch, query, pattern, found) -> None:
    """Most of a long console is passed over unread, whatever colours, quotes and letters the lines found have."""
    said = ["loss is nan", "é \x1b[31mloo\x1b[0mss: NaN", 'I say "yes"']
    for number in range(8):
        lines = [line(number * 10_000 + at) for at in range(5000)]
        if number in (1, 4, 6):
            lines[3000] = lines[3000]._replace(text=said.pop(0))
        put(tmp_path, number, *lines)
    read, decode = [], decode_record
    monkeypatch.setattr(segments, "decode_record", lambda one, who: read.append(one) or decode(one, who))
    assert sorted(texts(tmp_path, pattern=pattern, **query)) == found
    assert len(read) < 40_000 or {"^", "$"} & set(pattern)


def test_what_is_no_segment_is_passed_over_and_reported(tmp_path: Path) -> None:
    """A pipe would never answer, a link may lead anywhere, a name may act on a terminal."""
    put(tmp_path, 0, line(0, "mine"))
    folder = segment_path(tmp_path, WHO, 0).parent
    os.mkfifo(segment_path(tmp_path, WHO._replace(rank=4), 0))
    os.symlink("/dev/zero", segment_path(tmp_path, WHO._replace(rank=5), 0))
    segment_path(tmp_path, WHO._replace(rank=6), 0).mkdir()
    os.symlink(folder, folder.with_name("evil\x1b[2J"))
    for last in (None, 10):
        answer = read_console(RunFolder(tmp_path), ConsoleQuery(last=last))
        assert [one.text for one in answer.lines] == ["mine"]
        assert len(answer.problems) == 3
        assert answer.problems[0] == "host.1/0-4-0.log: not read: it is no file"
    assert console_ranks(RunFolder(tmp_path)) == [3, 4, 5, 6]


def test_pages_follow_each_other_by_the_cursor(tmp_path: Path) -> None:
    """Pages hold every line once, and a cursor at the end finds what is printed later, in a new segment too."""
    put(tmp_path, 0, *map(line, range(5)))
    put(tmp_path, 0, *(line(number, rank=4) for number in range(5)), who=WHO._replace(rank=4))
    found, cursor, more = [], None, True
    while more:
        answer = read_console(RunFolder(tmp_path), ConsoleQuery(after=cursor, limit=3))
        found += answer.lines
        cursor, more = answer.cursor, answer.more
    assert len(found) == len(set(found)) == 10
    put(tmp_path, 1, line(5, "later"))
    assert texts(tmp_path, after=cursor) == ["later"]
    newest = read_console(RunFolder(tmp_path), ConsoleQuery(last=1)).cursor
    put(tmp_path, 1, line(6, "latest"))
    assert texts(tmp_path, after=newest) == ["latest"]


def test_lost_lines_are_counted(tmp_path: Path) -> None:
    """Deleted segments count by the numbers that are missing, other losses by their records."""
    put(tmp_path, 0, line(0), line(1))
    put(tmp_path, 4, line(12), LostLines(13.0, 13, 7, "the disk is full"), line(20))
    assert read_console(RunFolder(tmp_path), ConsoleQuery()).dropped == 10 + 7
    assert read_console(RunFolder(tmp_path), ConsoleQuery(last=9)).dropped == 10 + 7


def test_a_damaged_line_is_passed_over_and_reported(tmp_path: Path) -> None:
    """A damaged line costs itself; a torn one at the end is still being written."""
    path = put(tmp_path, 0, *map(line, range(3)))
    data = bytearray(path.read_bytes())
    data[data.index(b"line 1")] ^= 1
    path.write_bytes(bytes(data) + b'{"crc": "0')
    for query in (ConsoleQuery(), ConsoleQuery(last=9)):
        answer = read_console(RunFolder(tmp_path), query)
        assert [one.text for one in answer.lines] == ["line 0", "line 2"]
        assert answer.problems == ["host.1/0-3-0.log: 1 damaged lines were passed over"]


@given(st.lists(st.text(max_size=40), max_size=30), st.data())
def test_whole_lines_survive_any_cut_and_flip(
    tmp_path_factory: pytest.TempPathFactory, said: list[str], data: st.DataObject
) -> None:
    """Whatever is cut or flipped, other lines are read right, and both directions agree."""
    encoded = [encode_record(line(number, text)) for number, text in enumerate(said)]
    whole = bytearray(b"".join(encoded))
    cut = data.draw(st.integers(0, len(whole)))
    damaged = whole[:cut]
    if damaged:
        damaged[data.draw(st.integers(0, len(damaged) - 1))] ^= data.draw(st.integers(1, 255))
    path = tmp_path_factory.mktemp("cut") / "segment"
    path.write_bytes(bytes(damaged))
    ahead = [one for one, _ in forward(path)]
    assert ahead == list(backward(path, complete_size(path)))[::-1]
    kept = [record for one in ahead if (record := decode_record(one, WHO)) is not None]
    good = [decode_record(one[:-1], WHO) for one in encoded]
    assert all(record in good for record in kept)
    assert len(kept) >= max(0, damaged.count(b"\n") - 2)


def test_long_garbage_costs_little_memory(tmp_path: Path) -> None:
    """A file without line feeds is passed over in both directions."""
    path = segment_path(tmp_path, WHO, 0)
    path.parent.mkdir(parents=True)
    path.write_bytes(b"\0" * 3_000_000 + b"\n" + encode_record(line(0)))
    assert texts(tmp_path) == texts(tmp_path, last=5) == ["line 0"]


def test_a_line_has_the_step_that_its_rank_had_completed(tmp_path: Path) -> None:
    """The step of a line is the last one completed at or before its time; none before the first."""
    recorded = Recorded(tmp_path)
    for number in range(3):
        recorded.run.log({"step_seconds": 0.1}, step=number)
    recorded.drain()
    times = recorded.past().series("step_seconds").time
    said = [times[0] - 1, times[1], times[2] + 5]
    lines = (line(number, time=float(time), rank=0) for number, time in enumerate(said))
    put(recorded.folder.path, 0, *lines, who=WHO._replace(rank=0))
    newest = max(step for step in range(3) if times[step] <= times[1])  # rows may have the same microsecond
    assert [one.step for one in recorded.past().console().lines] == [None, newest, 2]


class ManyPoints(NamedTuple):
    """Steps of ranks 0 to 2 in attempts 0 and 1, mixed; nothing may be selected for each rank by itself."""

    rank: np.ndarray
    attempt: np.ndarray
    time: np.ndarray
    step: np.ndarray

    def counts(self) -> dict[str, int]:
        """Return the metrics of the run."""
        return {"step_seconds": len(self.rank)}

    def points(self, *_: object) -> tuple[ManyPoints, list[str]]:
        """Return all points."""
        return self, []

    def select(self, chosen: np.ndarray) -> ManyPoints:
        """Return some of the points; a second selection is one too many."""
        assert chosen.all()
        return Selected(*self)


class Selected(ManyPoints):
    """Points that were selected already."""

    select = None


def test_steps_of_many_ranks_are_found_in_one_go() -> None:
    """Each line has the step of its own rank and attempt, without a look at all points for each rank."""
    rank, attempt, step = (np.array(one) for one in zip(*itertools.product(range(3), range(2), range(5)), strict=True))
    points = ManyPoints(rank, attempt, (10 * step + rank + 1) * 10**6, 100 * rank + 10 * attempt + step)
    mixed = ManyPoints(*(one[np.random.default_rng(0).permutation(len(rank))] for one in points))
    lines = [line(0, time=25.0, rank=rank)._replace(attempt=attempt) for rank in (2, 0, 7) for attempt in (1, 0)]
    found, problems = steps_of([*lines, line(1, time=0.5, rank=0)], mixed, None)
    assert [one.step for one in found] == [212, 202, 12, 2, None, None, None]
    assert not problems


def test_the_golden_segment_is_written_and_read_as_ever() -> None:
    """The records of the golden segment have the bytes that they had, and are read as they were."""
    golden = consoles.FILE.read_bytes()
    assert b"".join(encode_record(record, again=again) for record, again in consoles.RECORDS) == golden
    assert [decode_record(one, consoles.WHO) for one in golden.splitlines()] == [one for one, _ in consoles.RECORDS]
