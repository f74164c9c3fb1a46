"""The run on disk as a spool: every row is handed out once, whatever happens to the files."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stepscope.exporters.sinks.spool import (
    Frontier,
    Spool,
    add_span,
    count_behind,
    is_before,
    spans_from,
    spans_to,
)
from stepscope.store.compact import MergeLimits, compact
from stepscope.store.drain import Drain, OwnRows
from stepscope.store.following import GrowingTail
from stepscope.store.layout import Writer
from stepscope.store.seal import seal
from tests.exporters.recorded import PAIR, WRITER, make_run, points_of, seal_points

OTHER = Writer("node.def", 0)


class Ranks:
    """Writes rows of several ranks as a watcher does, and knows what it wrote."""

    def __init__(self, folder, writer=WRITER):
        self.folder, self.writer = folder, writer
        self.drains, self.written = {}, []

    def write(self, rank, count, name="loss"):
        own = self.drains.setdefault(rank, OwnRows(rank, 0))
        # One stream per drain is all that `write_own` knows: each rank gets its own tail file.
        drain = Drain(self.folder, self.writer, own)
        for _ in range(count):
            self.written.append((rank, own.sequence, name))
            own.add({name: float(own.sequence), "other": 1.0}, own.sequence * 1_000_000)
        drain.write_own(PAIR)
        drain.rotate()

    def seal(self):
        spans = [span.last for span in self.folder.all_tails() if span.writer == self.writer]
        seal(self.folder, self.writer, max(spans, default=-1))


@pytest.fixture
def folder(tmp_path):
    return make_run(tmp_path)


def rows_of(portion):
    points = portion.points
    names = [points.names[code] for code in points.name.tolist()]
    return list(zip(points.rank.tolist(), points.seq.tolist(), names, strict=True))


def everything(spool, most=1000):
    found = []
    while (portion := spool.take(most)) is not None:
        found.append(portion)
    return found


def spool_of(folder, spans=None, wants=lambda _: True, **options):
    return Spool(folder, lambda writer: writer == WRITER, {} if spans is None else spans, wants, **options)


def test_rows_come_in_order_of_rank_and_sequence_and_none_is_divided(folder):
    """Sealed rows come before those of the tail, and a portion holds whole rows."""
    seal_points(folder, points_of({"loss": [1.0] * 5, "lr": [2.0] * 5}))
    portions = everything(spool_of(folder), most=3)
    assert [rows_of(portion) for portion in portions] == [
        [(0, seq, name) for name in ("loss", "lr")] for seq in range(5)
    ]
    assert portions[0].passed == {(0, 0): (0, 0)}
    assert portions[-1].passed == {(0, 0): (4, 4)}


def test_rows_without_a_wanted_metric_count_as_passed(folder):
    """A sink that wants one metric has passed the rows that hold only others, and is not behind for them."""
    seal_points(folder, points_of({"lr": [2.0] * 5}))
    (portion,) = everything(spool_of(folder, wants=lambda name: name == "loss"))
    assert not len(portion.points)
    assert portion.passed == {(0, 0): (0, 4)}


def test_rows_of_other_nodes_are_left_to_their_senders(folder):
    """A sender reads what the watcher of its own node wrote."""
    seal_points(folder, points_of({"loss": [1.0]}), writer=OTHER)
    assert spool_of(folder).take(10) is None


def test_what_was_sent_is_left_out_after_a_restart(folder):
    """A reader begins where the spans end, and does not open a file of which everything was sent."""
    path = seal_points(folder, points_of({"loss": [1.0] * 5}))
    seal_points(folder, points_of({"loss": [1.0] * 5}, first=5), number=1)
    path.write_bytes(b"not read")
    found = everything(spool_of(folder, {(0, 0): [[0, 6]]}))
    assert [row for portion in found for row in rows_of(portion)] == [(0, seq, "loss") for seq in (7, 8, 9)]


def test_a_second_reader_begins_with_the_newest_rows(folder):
    """The gap that it leaves is what the first reader still hands out, and nothing is handed out twice."""
    ranks = Ranks(folder)
    spans = {}
    ranks.write(0, 10)
    first = spool_of(folder, spans)
    assert len(rows_of(first.take(4))) == 4
    newest = spool_of(folder, spans, after=PAIR[0] // 1000 + 7_000)
    (portion,) = everything(newest)
    assert {seq for _, seq, _ in rows_of(portion)} == {8, 9}
    for place, (low, high) in portion.passed.items():
        add_span(spans, place, low, high)
    assert {seq for one in everything(first) for _, seq, _ in rows_of(one)} == set(range(2, 8))


def test_a_live_tail_is_read_as_it_grows(folder):
    """What is appended comes with the next call; a tail that was sealed and deleted meanwhile is read to its end."""
    own = OwnRows(-1, 0)
    drain = Drain(folder, WRITER, own)
    spool = spool_of(folder)
    assert spool.take(10) is None
    own.add({"loss": 1.0}, 0)
    drain.write_own(PAIR)
    assert rows_of(spool.take(10)) == [(-1, 0, "loss")]
    assert spool.take(10) is None
    own.add({"loss": 1.0}, 1)
    drain.write_own(PAIR)
    seal(folder, WRITER, drain.rotate())
    assert rows_of(spool.take(10)) == [(-1, 1, "loss")]
    own.add({"loss": 1.0}, 2)
    drain.write_own(PAIR)
    assert rows_of(spool.take(10)) == [(-1, 2, "loss")]
    assert spool.take(10) is None
    spool.close()


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_every_row_is_handed_out_once_whatever_happens_to_the_files(tmp_path_factory, data):
    """Rows are written, sealed, merged, read, confirmed or lost with a crash: in the end each was confirmed once."""
    folder = make_run(tmp_path_factory.mktemp("spool"))
    ranks, spans, confirmed = Ranks(folder), {}, []
    readers = [spool_of(folder, spans)]
    for _ in range(data.draw(st.integers(3, 20))):
        action = data.draw(st.sampled_from(["write", "seal", "merge", "read", "read", "crash", "jump"]))
        if action == "write":
            ranks.write(data.draw(st.integers(0, 2)), data.draw(st.integers(1, 9)))
        elif action == "seal":
            ranks.seal()
        elif action == "merge":
            compact(folder, WRITER, MergeLimits(fan_in=2, files=2, least=1))
        elif action == "jump" and len(readers) == 1:
            readers.append(spool_of(folder, spans, after=PAIR[0] // 1000 + data.draw(st.integers(0, 9000))))
        elif action == "read":
            portion = data.draw(st.sampled_from(readers)).take(data.draw(st.integers(1, 9)))
            if portion is not None:
                confirm(portion, spans, confirmed)
        else:  # what was handed out and not confirmed is handed out again
            data.draw(st.sampled_from(readers)).take(5)
            spans = spans_from(spans_to(spans))
            readers = [spool_of(folder, spans)]
    last = spool_of(folder, spans)
    while (portion := last.take(7)) is not None:
        confirm(portion, spans, confirmed)
    expected = [(rank, seq, name) for rank, seq, _ in ranks.written for name in ("loss", "other")]
    assert sorted(confirmed) == sorted(expected)
    assert all(len(pairs) == 1 for pairs in spans.values())


def confirm(portion, spans, confirmed):
    confirmed += rows_of(portion)
    for place, (low, high) in portion.passed.items():
        add_span(spans, place, low, high)


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 9)), max_size=20))
def test_spans_are_the_set_of_what_was_added(pairs):
    """Spans hold exactly the sequences that were added, in order, and neither touch nor overlap."""
    spans, expected = {}, set()
    for first, more in pairs:
        add_span(spans, (0, 0), first, first + more)
        expected |= set(range(first, first + more + 1))
    found = spans.get((0, 0), [])
    assert {number for low, high in found for number in range(low, high + 1)} == expected
    assert all(later[0] > before[1] + 1 for before, later in itertools.pairwise(found))
    assert spans_from(spans_to(spans)) == spans


def test_a_damaged_state_is_read_as_far_as_it_is_one():
    """Keys that name no rank and attempt are left out."""
    assert spans_from({"0.1": [[0, 4]], "x": [[1, 2]], "-2.0": [[7, 9]], "1.y": []}) == {
        (0, 1): [[0, 4]],
        (-2, 0): [[7, 9]],
    }


def test_everything_before_a_sequence_was_sent_only_without_a_gap():
    """A span that does not begin at the start says nothing about what is before it."""
    assert is_before({(0, 0): [[0, 9]]}, (0, 0), 9)
    assert not is_before({(0, 0): [[0, 9]]}, (0, 0), 10)
    assert not is_before({(0, 0): [[3, 9]]}, (0, 0), 9)
    assert not is_before({}, (0, 0), 0)


def test_rows_that_a_sink_does_not_have_are_counted(folder):
    """The count includes sealed rows and those in the tail, without what is in the spans."""
    ranks = Ranks(folder)
    ranks.write(0, 10)
    ranks.seal()
    ranks.write(0, 5)
    frontier = Frontier(folder, lambda _: True)
    newest = frontier.newest()
    assert newest == {(0, 0): 14}
    assert count_behind(newest, {}, {}) == 15
    assert count_behind(newest, {(0, 0): [[0, 3], [12, 14]]}, {}) == 8
    assert count_behind({(-1, 0): 1000}, {}, {(-1, 0): 998}) == 3
    ranks.write(0, 1)
    assert frontier.newest() == {(0, 0): 15}
    frontier.close()


@pytest.mark.parametrize("after", [None, 0])
def test_a_failed_read_is_made_again(folder, monkeypatch, after):
    """An error of the file system costs no row: without this, a run would count as sent that was only half read."""
    ranks = Ranks(folder)
    ranks.write(0, 5)
    spans = {}
    spool = spool_of(folder, spans, after=after)
    for place, (low, high) in spool.take(1000).passed.items():
        add_span(spans, place, low, high)
    ranks.write(0, 5)
    with monkeypatch.context() as patch:
        patch.setattr(GrowingTail, "read", _failing)
        with pytest.raises(OSError, match="I/O error"):
            spool.take(1000)
    assert [row for one in everything(spool) for row in rows_of(one) if row[2] == "loss"] == ranks.written[5:]


def _failing(*_):
    raise OSError(5, "I/O error")


def test_a_damaged_file_does_not_keep_the_others(folder):
    """Rows that nobody can read any more are passed over, and those after them are handed out."""
    path = seal_points(folder, points_of({"loss": [1.0] * 5}))
    seal_points(folder, points_of({"loss": [1.0] * 5}, first=5), number=1)
    path.write_bytes(b"damaged")
    assert [row for one in everything(spool_of(folder)) for row in rows_of(one)] == [
        (0, seq, "loss") for seq in range(5, 10)
    ]
