from __future__ import annotations

import os
import stat
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.alerts.delivery import outbox
from stepscope.alerts.delivery.outbox import (
    DONE,
    FAILED,
    TRY,
    DeliveryJournal,
    LineReader,
    Note,
    NotifierBusyError,
    Queue,
    deliveries,
    entries,
    notes,
)
from tests.alerts.servers import alert


@pytest.fixture
def queue(tmp_path):
    """The queue of a node; closed after the test."""
    with closing(Queue(tmp_path, "n")) as opened:
        yield opened


def numbers(run):
    return [entry.number for entry in entries(LineReader(outbox.queue_path(run, "n")).rows())]


def test_a_queue_goes_on_where_the_last_one_stopped(tmp_path, queue):
    """Numbers never repeat, whoever writes; readers see what is new once."""
    assert queue.add([alert(), alert()])
    reading = LineReader(outbox.queue_path(tmp_path, "n"))
    assert [entry.number for entry in entries(reading.rows())] == [0, 1]
    with closing(Queue(tmp_path, "n")) as other:
        other.add([alert(number=7)], only="mail")
    [entry] = entries(reading.rows())
    assert (entry.number, entry.only, entry.event["alert"]) == (2, "mail", "loss_spike-7")
    assert entries(reading.rows()) == []


def test_only_this_user_can_read_it(tmp_path, queue):
    """The folder and the files are private."""
    queue.add([alert()])
    path = outbox.queue_path(tmp_path, "n")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


@given(cut=st.integers(0, 400), rest=st.binary(max_size=40))
def test_whatever_is_torn_the_whole_lines_are_read(tmp_path_factory, cut, rest):
    """A line that was cut or damaged costs itself alone, and the next one stands on a line of its own."""
    run = tmp_path_factory.mktemp("run")
    with closing(Queue(run, "n")) as queue:
        queue.add([alert(number=number) for number in range(5)])
    path = outbox.queue_path(run, "n")
    data = path.read_bytes()
    path.write_bytes(data[: max(0, len(data) - cut)] + rest.replace(b"\n", b""))
    before = numbers(run)
    with closing(Queue(run, "n")) as queue:
        queue.add([alert()])
    after = numbers(run)
    assert after[: len(before)] == before
    assert len(after) in {len(before) + 1, len(before) + 2}  # a line of which only its end was cut is whole again


def test_a_full_disk_keeps_nobody_from_being_told(tmp_path, queue, monkeypatch):
    """What cannot be written waits for the notifier and for room; it is written with the same number then."""
    queue.add([alert()])
    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", lambda *_: (_ for _ in ()).throw(OSError(28, "no space")))
        assert not queue.add([alert(), alert()])
        assert [entry.number for entry in queue.unwritten] == [1, 2]
    assert numbers(tmp_path) == [0]
    assert queue.flush()
    assert numbers(tmp_path) == [0, 1, 2]


def test_a_rule_that_never_stops_does_not_fill_the_disk(tmp_path, queue, monkeypatch):
    """Beyond its size the queue takes no more, and counts what it refused."""
    monkeypatch.setattr(outbox, "MAX_BYTES", 1000)
    for number in range(100):
        queue.add([alert(number=number)])
    assert queue.refused > 90
    assert outbox.queue_path(tmp_path, "n").stat().st_size < 2000


def test_one_notifier_at_a_time(tmp_path):
    """A second one finds the journal taken."""
    ledger = DeliveryJournal(tmp_path, "n")
    with pytest.raises(NotifierBusyError):
        DeliveryJournal(tmp_path, "n")
    ledger.close()
    DeliveryJournal(tmp_path, "n").close()


def test_deliveries_tell_how_it_went(tmp_path, queue):
    """For each channel: what was told, what waits, and why."""
    queue.add([alert(number=number) for number in range(4)])
    ledger = DeliveryJournal(tmp_path, "n")
    for note in (
        Note("k1", "g", TRY, (0, 1), 1.0, "", "mail"),
        Note("k1", "g", DONE, (0, 1), 2.0, "", "mail"),
        Note("k2", "g", FAILED, (0, 1), 3.0, "the server answered 500", "hook"),
        Note("k2", "", outbox.SKIPPED, (3,), 3.0),
    ):
        ledger.write(note)
    ledger.close()
    assert len(notes(LineReader(outbox.sent_path(tmp_path, "n")).rows())) == 4
    mail, hook = deliveries(tmp_path)
    assert (mail["channel"], mail["state"], mail["sent"], mail["waiting"]) == ("mail", "sent", 2, 2)
    assert (hook["state"], hook["waiting"], hook["why"]) == ("failing", 3, "the server answered 500")
    assert deliveries(tmp_path / "nowhere") == []


def test_rows_of_another_version_are_passed_over(tmp_path):
    """A line that is no object, no entry or no note costs itself alone."""
    path = tmp_path / "rows"
    path.write_text('[1]\n{"n": "1"}\n{"n": 3, "event": {"rule": "a"}}\n{"n": [1], "c": "x"}\n')
    assert [entry.number for entry in entries(LineReader(path).rows())] == [3]
    assert notes(LineReader(path).rows()) == []


def test_an_alert_beyond_the_size_of_the_file_is_counted(tmp_path, queue, monkeypatch):
    """A queue file at its limit takes no entry more; what it refuses is counted, and closing it twice is fine."""
    assert queue.flush()
    queue.add([alert()])
    monkeypatch.setattr(outbox, "MAX_BYTES", 0)
    assert queue.add([alert(), alert()])
    assert queue.refused == 2
    queue.close()
    queue.close()
    assert numbers(tmp_path) == [0]
