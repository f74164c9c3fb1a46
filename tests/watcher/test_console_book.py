"""The book of a console: numbers, open lines, limits and full disks."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from stepscope.store.console import ConsoleQuery, read_console
from stepscope.store.console_segments import ConsoleWriterName, find_segments
from stepscope.store.console_writer import SegmentWriter
from stepscope.store.layout import RunFolder
from stepscope.watcher.console_book import PAUSE, SELDOM, SOON, ConsoleBook
from stepscope.watcher.console_keeper import MOST_WAITING, ConsoleRecording, HandedOnStream, whole_lines

if TYPE_CHECKING:
    from pathlib import Path

WHO = ConsoleWriterName("host.1", 2, 5)


class Book(ConsoleBook):
    """A book in a folder, with what it says about problems."""

    def __init__(self, folder: Path, limit: int = 1 << 30, segment_bytes: int = 1 << 20) -> None:
        """Open the book of rank 5."""
        self.folder, self.notes = folder, []
        self.writer = SegmentWriter(folder, WHO, limit, segment_bytes)
        super().__init__(WHO, self.writer, ("out", "err"), self.notes.append)

    def answer(self, **query: object):
        """Return what a reader finds."""
        return read_console(RunFolder(self.folder), ConsoleQuery(**query))

    def said(self, **query: object) -> list[tuple[int, str, str]]:
        """Return number, stream and text of each line."""
        return [(line.number, line.stream, line.text) for line in self.answer(**query).lines]


def test_lines_are_numbered_in_the_order_of_their_ends(tmp_path: Path) -> None:
    """Both streams share the numbers; rank and attempt are those of the file."""
    book = Book(tmp_path)
    book.feed("out", 10.0, b"a\nb")
    book.feed("err", 11.0, b"c\n")
    book.feed("out", 12.0, b"b\n")
    book.flush(12.0)
    assert book.said() == [(0, "out", "a"), (1, "err", "c"), (2, "out", "bb")]
    assert {(line.rank, line.attempt, line.node) for line in book.answer().lines} == {(5, 2, "host.1")}


def test_an_open_line_is_written_soon_and_then_seldom(tmp_path: Path) -> None:
    """A bar is in the run after 0.2 s, then at most every 2 s, and in its last state when it ends."""
    book = Book(tmp_path)
    book.feed("err", 10.0, b"\r1%")
    assert book.due() == 10.0 + SOON
    book.flush(10.1)
    assert book.said() == []
    book.flush(10.0 + SOON)
    assert book.said() == [(0, "err", "1%")]
    book.feed("err", 10.3, b"\r2%")
    assert book.due() == 10.0 + SOON + SELDOM
    book.flush(12.0)
    assert book.said() == [(0, "err", "1%")]
    book.flush(12.2)
    assert book.said() == [(0, "err", "2%")]
    assert book.answer().lines[0].is_open
    book.feed("err", 12.3, b"\r100%\n")
    book.flush(12.3)
    assert book.said() == book.said(last=5) == [(0, "err", "100%")]
    assert not book.answer().lines[0].is_open
    assert book.due() is None


def test_the_end_writes_what_has_no_end(tmp_path: Path) -> None:
    """The last words without a line feed are kept."""
    book = Book(tmp_path)
    book.feed("out", 10.0, b"half")
    book.close(10.0)
    assert book.said() == [(0, "out", "half")]


def test_a_long_console_keeps_its_start_and_its_newest_lines(tmp_path: Path) -> None:
    """Beyond the limit the middle goes, and the reader says how many lines are missing."""
    book = Book(tmp_path, limit=(1 << 20) + 40_000, segment_bytes=10_000)
    for number in range(3000):
        book.feed("out", float(number), b"line %d\n" % number)
        book.flush(float(number))
    kept = [text for _, _, text in book.said(limit=10_000)]
    assert (kept[0], kept[-1]) == ("line 0", "line 2999")
    assert len(kept) + book.answer().dropped == 3000
    assert sum(path.stat().st_size for path in tmp_path.rglob("*.log")) < 60_000


def test_lines_that_the_disk_refuses_are_counted(tmp_path: Path, monkeypatch) -> None:
    """A full disk costs the lines of that time, which the run then counts; the problem is said."""
    book = Book(tmp_path)
    book.feed("out", 1.0, b"before\n")
    book.flush(1.0)

    def full(data: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(book.writer, "append", full)
    book.feed("out", 2.0, b"lost\nlost\n")
    book.flush(2.0)
    book.feed("out", 2.1, b"lost too\n")
    book.flush(2.1)
    monkeypatch.undo()
    book.feed("out", 3.0 + PAUSE, b"after\n")
    book.flush(3.0 + PAUSE)
    assert [text for _, _, text in book.said()] == ["before", "after"]
    assert book.answer().dropped == 3
    assert book.notes[0].startswith("cannot keep what the program prints: No space left on device")


def test_a_clock_that_is_set_back_loses_no_line(tmp_path: Path, monkeypatch) -> None:
    """After a failed write, or with an open line, nothing waits until the clock is where it was."""
    book, failures = Book(tmp_path), []
    append = book.writer.append
    monkeypatch.setattr(
        book.writer, "append", lambda data: append(data) if failures else failures.append(data) or full()
    )

    def full() -> None:
        raise OSError(28, "No space left on device")

    book.feed("out", 5000.0, b"lost\n")
    book.flush(5000.0)
    book.feed("out", 1000.0, b"kept\n")
    book.feed("err", 5000.0, b"open")
    book.flush(1000.0)
    assert [text for _, _, text in book.said()] == ["kept", "open"]


def test_lines_that_were_never_taken_are_counted(tmp_path: Path) -> None:
    """Lines that came faster than the disk are numbered and counted."""
    book = Book(tmp_path)
    book.feed("out", 1.0, b"one\n")
    book.lose(2.0, 7, "too fast")
    book.flush(2.0)
    assert book.answer().dropped == 7
    book.feed("out", 3.0, b"nine\n")
    book.flush(3.0)
    assert book.said() == [(0, "out", "one"), (8, "out", "nine")]
    assert book.answer().dropped == 7


def test_a_run_that_was_deleted_is_not_made_again(tmp_path: Path) -> None:
    """Without the run's folder nothing is written."""
    book = Book(tmp_path / "gone")
    book.feed("out", 1.0, b"one\n")
    book.close(1.0)
    assert not (tmp_path / "gone").exists()
    assert "No such file or directory" in book.notes[0]


def test_another_writers_segment_is_left_alone(tmp_path: Path) -> None:
    """No file has two writers: a second one goes on in a file of its own."""
    for number in range(2):
        book = Book(tmp_path)
        book.feed("out", float(number), b"line\n")
        book.close(1.0)
    assert find_segments(RunFolder(tmp_path))[WHO] == [0, 1]


def test_ranks_that_share_a_pipe_do_not_mix_their_lines() -> None:
    """One write has whole lines of at most the size that a pipe takes at once, unless a line is longer."""
    assert whole_lines(b"a\nb\nc\n", 5) == 4
    assert whole_lines(b"a\nb", 5) == 3
    assert whole_lines(b"long line\nb\n", 5) == 10
    assert whole_lines(b"no line feed", 5) == 12


def test_a_burst_is_written_in_small_parts(tmp_path: Path) -> None:
    """What came at once fills segments of the usual size, and is all kept."""
    book = Book(tmp_path)
    recording = ConsoleRecording(book)
    recording.put("out", b"".join(b"line %d\n" % number for number in range(50_000)))
    recording.start()
    recording.close(60.0)
    sizes = [path.stat().st_size for path in tmp_path.glob("console/*/*")]
    assert len(sizes) > 2
    assert max(sizes) <= 1 << 20
    assert [line.text for line in book.answer(last=1).lines] == ["line 49999"]
    assert book.answer(last=1).dropped == 0


def test_the_newest_of_too_much_is_kept_and_the_rest_counted(tmp_path: Path) -> None:
    """What does not fit any more are the oldest lines: a traceback behind a flood is kept, and no line is torn."""
    book = Book(tmp_path)
    recording = ConsoleRecording(book)
    recording.put("out", b"".join(b"line %7d\n" % number for number in range(MOST_WAITING // 13)) + b"be")
    recording.put("err", b"Trace")
    recording.put("out", b"gun\nlast\n")
    recording.put("err", b"back\n")
    recording.start()
    recording.close(60.0)
    assert book.said() == [(1290555, "out", "begun"), (1290556, "out", "last"), (1290557, "err", "Traceback")]
    assert book.answer().dropped == 1290555


def test_a_line_that_was_open_before_a_loss_ends_there(tmp_path: Path) -> None:
    """Parts of two lines with others dropped in between are not taken for one line."""
    book = Book(tmp_path)
    recording = ConsoleRecording(book)
    book.feed("out", 1.0, b"begin")
    recording.put("out", b"lost" + b"\n" * MOST_WAITING)
    recording.put("out", b"whole\n")
    recording.start()
    recording.close(60.0)
    assert [text for _, _, text in book.said()] == ["begin", "whole"]


def test_an_ended_stream_delays_no_exit() -> None:
    """A stream that nobody can write to any more has nothing left: the end of the program does not wait for it."""
    (source, sink), (seen, target), (over, ended) = os.pipe(), os.pipe(), os.pipe()
    stream = HandedOnStream("out", source, target, lambda *_: None, ended)
    os.write(sink, b"last\n")
    os.close(sink)
    stream.start()
    assert os.read(over, 1)
    assert stream.is_drained()
    assert os.read(seen, 10) == b"last\n"
    assert os.read(seen, 10) == b"", "the reader behind it waits for an end"
    for descriptor in (source, seen, target, over, ended):
        os.close(descriptor)
