"""The notifier, with its clock and its senders in the hands of the test."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import resource
import threading
import time
from contextlib import closing

import pytest

from stepscope.alerts.delivery import notifier as notifiers
from stepscope.alerts.delivery import outbox, webhook
from stepscope.alerts.delivery.channel import channels_of
from stepscope.alerts.delivery.message import Message, MessageSubject
from stepscope.alerts.delivery.notifier import HANGS_AFTER, MAX_LINE, Brief, Notifier, Pipe, deliver
from stepscope.alerts.delivery.outbox import DeliveryJournal, Entry, LineReader, Note, Queue
from stepscope.alerts.delivery.webhook import Outcome
from stepscope.watcher.notifying import start_notifier
from tests.alerts.servers import alert
from tests.fakes import readable

OK, BAD = Outcome(ok=True), Outcome(ok=False, why="the server answered 500")


class Office:
    """A notifier of two channels in this process; what it sends and reports is kept."""

    def __init__(self, run, *outcomes, **settings):
        self.run, self.outcomes = run, list(outcomes)
        self.now, self.sent, self.reports, self.opened = 1_700_000_000.0, [], [], []
        channels = [{"name": "a", "url": "https://a.example/"}, {"name": "b", "url": "https://b.example/"}]
        settings = {"alerting.channels": channels, **{f"alerting.{key}": value for key, value in settings.items()}}
        self.brief = Brief(str(run), "n", settings)
        self.queue = Queue(run, "n")
        self.begin()

    def begin(self):
        self.journal = DeliveryJournal(self.run, "n")
        self.notifier = Notifier(self.brief, self.journal, self.reports.append, lambda: self.now, self.send)
        self.opened.append(self.notifier.woken)
        self.lane = self.notifier.lanes[0]

    def add(self, *events):
        self.queue.add([{**event, "time": self.now} for event in events])
        self.notifier.check_queue()

    def send(self, channel, message):
        self.sent.append((channel.name, message.id))
        return self.outcomes.pop(0) if self.outcomes else OK

    def step(self, lane=None):
        lane = lane or self.lane
        assert lane.begin(self.now)
        self.notifier.step(lane)

    def notes(self):
        return outbox.notes(LineReader(outbox.sent_path(self.run, "n")).rows())

    def close(self):
        self.journal.close()
        self.queue.close()
        for woken in self.opened:
            os.close(woken)


@pytest.fixture
def office(tmp_path):
    with closing(Office(tmp_path)) as made:
        yield made


def test_a_lasting_failure_is_reported_once(office):
    """The first failure and the delivery are reported; the failures between are only noted."""
    office.outcomes = [BAD, BAD, OK]
    office.add(alert())
    for _ in range(3):
        office.step()
        office.now += 60.0
    assert [(report["state"], report["why"]) for report in office.reports] == [("failed", BAD.why), ("sent", "")]
    assert office.reports[-1]["alerts"] == ["loss_spike-0"]
    assert [note.state for note in office.notes()] == ["failed", "failed", "sent"]


def test_a_message_that_is_given_up_is_reported(office):
    """After a day without success people learn that an alert did not arrive."""
    office.outcomes = [BAD, BAD]
    office.add(alert())
    office.step()
    office.now += 25 * 3600.0
    office.step()
    assert [report["state"] for report in office.reports] == ["failed", "dead"]


def test_a_disk_that_takes_nothing_stops_no_message(office, monkeypatch):
    """Notes wait in memory, at most so many, and are written in order once there is room."""
    monkeypatch.setattr(notifiers, "MOST_UNWRITTEN", 2)
    with monkeypatch.context() as full:
        full.setattr(os, "fdatasync", lambda _: (_ for _ in ()).throw(OSError(errno.ENOSPC, "no space")))
        for number in range(3):
            office.notifier.check_queue([Entry(number, alert(number=number, time=office.now))])
            office.step()
            office.now += 2.0
    assert office.notes() == []
    assert len(office.sent) == 3
    office.notifier.check_queue([Entry(3, alert(number=3, time=office.now))])
    office.step()
    assert [note.numbers for note in office.notes()] == [(1,), (2,), (3,)]


def test_sending_that_hangs_is_given_up_and_the_process_restarts(office):
    """A hung message fails and is sent again later; one that returns too late changes nothing more."""
    office.add(alert())
    assert office.lane.begin(office.now)
    began, returns = time.monotonic(), threading.Event()
    office.notifier._since[office.lane.channel.key] = began
    office.notifier._send = lambda *_: returns.wait(60) and OK
    sending = threading.Thread(target=office.notifier.step, args=(office.lane,))
    sending.start()
    assert office.notifier.next_due() == office.now  # one is being sent
    assert not office.notifier.find_hung(began + HANGS_AFTER - 1)
    assert office.notifier.find_hung(began + HANGS_AFTER + 1)
    returns.set()
    sending.join()
    assert office.reports == []
    [note] = office.notes()
    assert (note.state, note.why) == ("failed", "no answer within 60 s")
    assert office.lane.due(office.now) > office.now


def test_a_message_in_flight_delays_the_restart(office):
    """Another channel finishes its message first: a restart would send it twice."""
    office.add(alert())
    for lane, since in zip(office.notifier.lanes, (0.0, HANGS_AFTER), strict=True):
        lane.begin(office.now)
        office.notifier._since[lane.channel.key] = since
    assert not office.notifier.find_hung(HANGS_AFTER + 1)
    office.notifier.step(office.notifier.lanes[1])
    assert office.notifier.find_hung(HANGS_AFTER + 2)


def test_the_next_notifier_sends_the_unfinished_message_under_its_id(office):
    """A note of another channel, or of one that is configured no more, changes nothing for this one."""
    office.add(alert(), alert(number=1))
    office.lane.begin(office.now)
    office.journal.write(office.lane.note(outbox.TRY, office.now))
    office.journal.write(Note("gone", "g", outbox.DONE, (0,), office.now))
    office.journal.close()
    identity = office.lane.group.id
    office.begin()
    office.add(alert(number=2))
    office.step()
    assert office.sent == [("a", identity)]
    office.step(office.notifier.lanes[1])
    assert office.sent[1][1] != identity


def test_a_channel_notes_what_is_not_for_it(office):
    """An entry for one channel is skipped by the other, and that is written down."""
    office.queue.add([alert(time=office.now)], only="b")
    office.notifier.check_queue()
    assert [(note.channel, note.state) for note in office.notes()] == [(office.lane.channel.key, "skipped")]
    assert office.lane.due(office.now) is None
    office.notifier.step(office.lane)  # nothing has begun
    assert office.sent == []


def test_a_lane_waits_until_its_message_is_due(office):
    """The thread of a channel sleeps until an entry comes, and sends it."""
    threading.Thread(target=office.notifier.work, args=(office.lane,), daemon=True).start()
    office.add(alert())
    assert readable(office.notifier.woken, 60.0)
    assert [note.state for note in office.notes()] == ["try", "sent"]


def test_an_unreachable_channel_is_reported_at_the_start(office, monkeypatch):
    """Each channel is probed, and the reports say which would refuse a message, and why."""
    monkeypatch.setattr(
        "stepscope.alerts.delivery.probe.probe", lambda channel, _: "refused" if channel.name == "b" else ""
    )
    office.notifier.probe()
    assert [(row["channel"], row["state"], row["why"]) for row in office.reports] == [
        ("a", "ready", ""),
        ("b", "unreachable", "refused"),
    ]


@pytest.fixture
def pipe():
    reader, writer = os.pipe()
    woken = os.eventfd(0, os.EFD_NONBLOCK)
    made = Pipe(reader)
    made.writer, made.woken = writer, woken
    yield made
    for descriptor in {reader, made.writer, woken} - {-1}:
        os.close(descriptor)


def test_entries_come_through_the_pipe_and_damage_costs_only_itself(pipe):
    """The first line is the brief; blank, broken and foreign lines are skipped; a torn one waits for its end."""
    os.write(pipe.writer, b'{"run": "r"}\n\n{"n": 1, "event": {"rule": "a"}}\nbroken\n[1]\n{"n": 2')
    assert pipe.first() == b'{"run": "r"}'
    assert [entry.number for entry in pipe.wait(0.0, pipe.woken)] == [1]
    os.write(pipe.writer, b', "event": {}, "only": "mail"}\n')
    assert pipe.wait(10.0, pipe.woken) == [Entry(2, {}, "mail")]


def test_the_end_of_the_pipe_is_noticed_and_no_longer_awaited(pipe):
    """A parent that is gone leaves the wake-ups of the lanes."""
    os.close(pipe.writer)
    pipe.writer = -1
    assert pipe.first() == b""
    assert not pipe.open
    os.eventfd_write(pipe.woken, 3)
    assert pipe.wait(60.0, pipe.woken) == []
    with pytest.raises(BlockingIOError):
        os.eventfd_read(pipe.woken)


def test_a_pipe_beyond_the_reach_of_select_is_awaited(pipe):
    """A process may hold more than 1 024 descriptors; `select` would refuse the higher ones."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if most < 1200:
        pytest.skip(f"this process may only open {most} files")
    high = fcntl.fcntl(pipe._descriptor, fcntl.F_DUPFD_CLOEXEC, 1100)
    os.write(pipe.writer, b'{"n": 1, "event": {}}\n')
    assert Pipe(high).wait(10.0, pipe.woken) == [Entry(1, {})]
    os.close(high)


def test_a_line_without_an_end_is_cut(pipe):
    """A parent that writes no line end cannot fill the memory."""
    writing = threading.Thread(target=os.write, args=(pipe.writer, b"x" * (MAX_LINE + 4096)))
    writing.start()
    assert len(pipe.first()) == MAX_LINE
    while writing.is_alive():
        pipe.wait(0.01, pipe.woken)
    assert len(pipe._data) <= MAX_LINE


def test_a_notifier_with_nothing_left_says_so(office, pipe, capfd):
    """It reports how far it got, and need not restart."""
    office.add(alert())
    for lane in office.notifier.lanes:
        office.step(lane)
    assert notifiers._serve(office.notifier, pipe, lambda: False) is False
    assert json.loads(capfd.readouterr().out) == {"state": "done", "upto": 0}


def test_a_notifier_that_would_wait_long_leaves_it_to_its_parent(office, pipe, capfd):
    """It reports when the next message is due; while it probes, it stays."""
    office.now = time.time()
    office.outcomes = [Outcome(ok=False, why="x", retry_after=600.0)] * 2
    office.add(alert())
    for lane in office.notifier.lanes:
        office.step(lane)
    probing = iter([True, False])
    assert notifiers._serve(office.notifier, pipe, lambda: next(probing)) is False
    told = json.loads(capfd.readouterr().out)
    assert told["state"] == "sleeps"
    assert told["until"] > time.time() + 500


def test_a_hung_notifier_becomes_a_new_one_with_the_same_brief(office, pipe, monkeypatch):
    """A thread cannot be killed, so the process replaces itself; the brief is its standard input."""
    office.notifier._since[office.lane.channel.key] = time.monotonic() - HANGS_AFTER - 1
    office.add(alert())
    office.lane.begin(office.now)
    assert notifiers._serve(office.notifier, pipe, lambda: False) is True
    given = []
    monkeypatch.setattr(os, "dup2", lambda descriptor, target: given.append((descriptor, target)))
    monkeypatch.setattr(os, "execv", lambda *command: given.append(command))
    notifiers._restart(b'{"run": "r"}')
    [(descriptor, target), (_, command)] = given
    assert target == 0
    assert os.read(descriptor, 100) == b'{"run": "r"}\n'
    assert len(command) > 0
    os.close(descriptor)


def told_by_a_process(run, line):
    """Start a real notifier with this brief; return its exit code and what it reported."""
    child = start_notifier(str(run))
    out, _ = child.communicate(line, timeout=120)
    return child.returncode, [json.loads(row) for row in out.splitlines()]


@pytest.mark.processes
def test_a_second_notifier_leaves_the_work_to_the_first(tmp_path):
    """The journal is locked: the second one says so and ends well."""
    with closing(DeliveryJournal(tmp_path, "n")):
        assert told_by_a_process(tmp_path, Brief(str(tmp_path), "n", {}).line()) == (0, [{"state": "busy"}])


@pytest.mark.processes
def test_a_brief_that_is_none_is_reported(tmp_path):
    """A notifier that cannot begin says why, and its exit code says so, too."""
    code, [told] = told_by_a_process(tmp_path, b'{"unknown": 1}\n')
    assert (code, told["state"]) == (2, "failed")
    assert "unknown" in told["why"]


def test_a_reader_that_is_gone_harms_nobody(monkeypatch):
    """Reports that nobody reads are dropped."""
    written = []

    def write(_, data):
        written.append(data)
        raise BrokenPipeError

    monkeypatch.setattr(os, "write", write)
    notifiers.report({"state": "done"})
    assert len(written) == 1


@pytest.mark.parametrize("url", ["https://hook.example/${MISSING}", "alertmanager+https://own.example/${MISSING}"])
def test_a_missing_secret_is_the_outcome(url):
    """Secrets are read when a message is sent; without them it fails, and the cause names the variable."""
    [channel], _ = channels_of({"alerting.channels": [url]})
    outcome = deliver(channel, Message("id", MessageSubject("r"), [alert()]), {})
    assert not outcome.ok
    assert "MISSING" in outcome.why


@pytest.mark.parametrize("url", ["https://hook.example/x", "alertmanager+https://hook.example"])
def test_each_kind_of_channel_has_its_sender(url, monkeypatch):
    """A webhook and an Alertmanager get documents of their own form."""
    posted = []
    for module in (webhook, pytest.importorskip("stepscope.alerts.delivery.alertmanager")):
        monkeypatch.setattr(module, "post", lambda address, body, headers: posted.append((address, body)) or OK)
    [channel], _ = channels_of({"alerting.channels": [url]})
    assert deliver(channel, Message("id", MessageSubject("r"), [alert()]), {}).ok
    [(address, body)] = posted
    assert address.startswith("https://hook.example/")
    assert isinstance(json.loads(body), list) is url.startswith("alertmanager")
