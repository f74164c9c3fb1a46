"""The notifier: a process that sends the alerts in the outbox of a run, and ends when it is done.

Its standard input is a pipe from the process that started it: one line of JSON is the brief, each further line
announces new entries. It outlives that process. On its standard output it reports outcomes, one line of JSON each.
A channel that hangs keeps no other waiting: each has a thread.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import threading
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.alerts.delivery.channel import APPRISE, Channel, channels_of
from stepscope.alerts.delivery.lane import ChannelLane
from stepscope.alerts.delivery.message import Message, MessageSubject
from stepscope.alerts.delivery.outbox import (
    DEAD,
    TRY,
    DeliveryJournal,
    Entry,
    LineReader,
    Note,
    NotifierBusyError,
    entries,
    entry_of,
    notes,
    queue_path,
    sent_path,
)
from stepscope.alerts.delivery.sender import deliver
from stepscope.core.errors import in_words

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from stepscope.alerts.delivery.webhook import Outcome

LOOK_EVERY = 0.5
"""Seconds between two checks of the queue without an announcement."""
HANGS_AFTER = 60.0
"""Seconds after which sending counts as hung; the process then restarts, because a thread cannot be killed."""
SLEEPS_FROM = 30.0
"""The process ends if the next message is due later than this many seconds, and its parent can start it again."""
MAX_LINE = 1 << 20
MOST_UNWRITTEN = 1000
"""Notes that wait for a disk which takes nothing."""


@dataclass
class Brief:
    """The first line that the notifier reads: the run, its settings and its options."""

    run: str
    node: str
    settings: dict[str, Any]
    """By path, as the configuration has them."""
    probe: bool = False
    """Ask each channel first whether it would take a message."""
    subject: dict[str, str] = field(default_factory=dict)

    def line(self) -> bytes:
        """Return it as the first line."""
        return json.dumps(self.__dict__).encode() + b"\n"

    @classmethod
    def parse(cls, line: bytes) -> Brief:
        """Parse it; ValueError or TypeError if it is invalid."""
        return cls(**json.loads(line))


class Notifier:
    """The lanes of all channels, and the files between this process and the others."""

    def __init__(
        self,
        brief: Brief,
        journal: DeliveryJournal,
        report: Callable[[dict[str, Any]], None],
        clock: Callable[[], float] = time.time,
        send: Callable[[Channel, Message], Outcome] = deliver,
    ) -> None:
        """Take up where the last notifier of this node left off."""
        run = Path(brief.run)
        self._journal, self._report, self._clock, self._send = journal, report, clock, send
        self._queue = LineReader(queue_path(run, brief.node))
        self._subject = MessageSubject(
            **{"run": run.name, "project": run.parent.name, "node": brief.node, **brief.subject}
        )
        channels, _ = channels_of(brief.settings)
        resolved = bool(brief.settings.get("alerting.resolved", True))
        self.lanes = [ChannelLane(channel, resolved, str(run)) for channel in channels]
        self._by_key = {lane.channel.key: lane for lane in self.lanes}
        self.changed = threading.Condition()
        self.woken = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        """Readable when a lane has sent something, so that the main thread checks whether anything is left."""
        self.upto = -1
        """Number of the last entry that was seen."""
        self._unwritten: list[Note] = []
        self._since: dict[str, float] = {}
        """When (monotonic seconds) each channel began its current message."""
        self.hung: set[str] = set()
        for note in notes(LineReader(sent_path(run, brief.node))):
            lane = self._by_key.get(note.channel)
            if lane is not None:
                lane.restore(note)
        self.check_queue()
        for lane in self.lanes:
            lane.resume()

    def check_queue(self, more: list[Entry] | None = None) -> None:
        """Read new entries of the queue, and add entries that came through the pipe because the disk is full."""
        with self.changed:
            now = self._clock()
            for entry in [*entries(self._queue), *(more or ())]:
                self.upto = max(self.upto, entry.number)
                for lane in self.lanes:
                    lane.add(entry, now)
            for lane in self.lanes:
                skipped = lane.skipped(now)
                if skipped is not None:
                    self._write(skipped)
            self.changed.notify_all()

    def _write(self, note: Note) -> None:
        """Write a note; one that the disk refuses is kept in memory, and messages are sent anyway."""
        self._unwritten.append(note)
        while self._unwritten:
            try:
                self._journal.write(self._unwritten[0])
            except OSError:
                del self._unwritten[:-MOST_UNWRITTEN]
                return
            del self._unwritten[0]

    def work(self, lane: ChannelLane) -> None:
        """Send the due messages of one lane, forever; runs in its own thread."""
        while True:
            with self.changed:
                while lane.begin(self._clock()) is None:
                    self.changed.wait(self._wait(lane))
                self._since[lane.channel.key] = time.monotonic()
                self._write(lane.note(TRY, self._clock()))
            self.step(lane)

    def step(self, lane: ChannelLane) -> None:
        """Send the message that a lane has begun, and write down how it went."""
        group = lane.group
        if group is None:
            return
        message = Message(group.id, self._subject, [entry.event for entry in group.entries])
        outcome = self._send(lane.channel, message)
        with self.changed:
            if lane.channel.key in self.hung:  # too late: it counts as failed, and is sent again
                return
            self._since.pop(lane.channel.key, None)
            self._settle(lane, outcome)
            self.changed.notify_all()
        os.eventfd_write(self.woken, 1)

    def _settle(self, lane: ChannelLane, outcome: Outcome) -> None:
        now = self._clock()
        before = lane.failures
        told = [str(entry.event.get("alert", "")) for entry in (lane.group.entries if lane.group else ())]
        why = outcome.why or "it was not accepted"
        note = lane.sent(now) if outcome.ok else lane.failed(now, why, outcome.retry_after)
        self._write(note)
        if outcome.ok or note.state == DEAD or not before:  # a lasting failure is reported once
            self._tell(lane, note, told)

    def _tell(self, lane: ChannelLane, note: Note, told: list[str]) -> None:
        facts = {"channel": lane.channel.name, "state": note.state, "message": note.group, "why": note.why}
        self._report({**facts, "alerts": told[:20], "count": len(told), "time": note.time})

    def _wait(self, lane: ChannelLane) -> float | None:
        due = lane.due(self._clock())
        return None if due is None else max(0.01, min(60.0, due - self._clock()))

    def next_due(self) -> float | None:
        """Return when (unix seconds) the next message is due; None if there is nothing left; now while one is sent."""
        with self.changed:
            now = self._clock()
            if self._since:
                return now
            times = [due for lane in self.lanes if (due := lane.due(now)) is not None]
            return min(times) if times else None

    def find_hung(self, now: float, after: float = HANGS_AFTER) -> bool:
        """Give up messages that take too long; return whether to restart, as nothing else is in flight.

        Args:
            now: monotonic, in seconds.
            after: seconds that sending may take.
        """
        with self.changed:
            for key, since in list(self._since.items()):
                if now - since > after:
                    self.hung.add(key)
                    del self._since[key]
                    lane = self._by_key[key]
                    self._write(lane.failed(self._clock(), f"no answer within {after:.0f} s"))
            return bool(self.hung) and not self._since

    def probe(self, ask: Callable[[Channel, Mapping[str, str]], str]) -> None:
        """Ask each channel whether it would take a message, and report those that would not."""
        for lane in self.lanes:
            why = ask(lane.channel, os.environ)
            state = "unreachable" if why else "ready"
            self._report({"channel": lane.channel.name, "state": state, "why": why, "time": self._clock()})


class Pipe:
    """The pipe from the parent process."""

    def __init__(self, descriptor: int) -> None:
        """Read from `descriptor`."""
        self._descriptor, self._data, self.open = descriptor, b"", True

    def first(self) -> bytes:
        """Wait for the first line."""
        while b"\n" not in self._data and self.open and len(self._data) < MAX_LINE:
            self._read()
        line, _, self._data = self._data.partition(b"\n")
        return line

    def wait(self, seconds: float, woken: int) -> list[Entry]:
        """Wait until there is something, the pipe ends or `woken` is readable; return the entries that came."""
        ready = select.select([woken, *([self._descriptor] if self.open else [])], [], [], seconds)[0]
        if woken in ready:
            os.eventfd_read(woken)
        if self._descriptor in ready:
            self._read()
        *lines, self._data = self._data.split(b"\n")
        return [entry for line in lines if (entry := _entry(line)) is not None]

    def _read(self) -> None:
        data = os.read(self._descriptor, 1 << 16)
        self.open = bool(data)
        self._data = (self._data + data)[-MAX_LINE:]


def _entry(line: bytes) -> Entry | None:
    try:
        row = json.loads(line) if line else None
    except ValueError:
        return None
    return entry_of(row) if isinstance(row, dict) else None


def report(facts: dict[str, Any]) -> None:
    """Write a report to standard output; the reader may be gone."""
    try:
        os.write(1, json.dumps(facts).encode() + b"\n")
    except OSError:
        return


def main(arguments: list[str]) -> int:
    """Send what is in the outbox; the argument, the run's folder, is only there for the list of processes."""
    del arguments
    for number in (
        signal.SIGINT,
        signal.SIGHUP,
        signal.SIGTERM,
    ):  # the end of the job is exactly what must be reported
        signal.signal(number, signal.SIG_IGN)
    os.umask(0o077)
    pipe = Pipe(0)
    line = pipe.first()
    try:
        brief = Brief.parse(line)
        journal = DeliveryJournal(Path(brief.run), brief.node)
    except NotifierBusyError:
        report({"state": "busy"})
        return 0
    except (OSError, ValueError, TypeError) as error:
        report({"state": "failed", "channel": "", "why": in_words(error)})
        return 2
    _prepare(brief)
    notifier = Notifier(brief, journal, report)
    probing = _probe(notifier) if brief.probe else None
    for lane in notifier.lanes:
        threading.Thread(target=notifier.work, args=(lane,), name=lane.channel.name, daemon=True).start()
    if _serve(notifier, pipe, lambda: probing is not None and probing.is_alive()):
        _begin_anew(line)
    os._exit(0)  # a thread that waits must not keep us


def _probe(notifier: Notifier) -> threading.Thread:
    from stepscope.alerts.delivery.probe import probe

    thread = threading.Thread(target=partial(notifier.probe, probe), daemon=True)
    thread.start()
    return thread


def _prepare(brief: Brief) -> None:
    """Prepare this process for the network: only allowed addresses, no redirects."""
    from stepscope.alerts.delivery.allowed_addresses import guard_this_process

    guard_this_process(brief.settings)
    if any(channel.kind == APPRISE for channel in channels_of(brief.settings)[0]):
        from stepscope.alerts.delivery.apprise_channel import prepare_this_process

        prepare_this_process()


def _serve(notifier: Notifier, pipe: Pipe, is_probing: Callable[[], bool]) -> bool:
    """Check the queue until nothing is left; return whether the process must restart."""
    while True:
        notifier.check_queue(pipe.wait(LOOK_EVERY, notifier.woken))
        if notifier.find_hung(time.monotonic()):
            return True
        due = notifier.next_due()
        if is_probing():
            continue
        if due is None:
            notifier.check_queue()
            if notifier.next_due() is None:
                report({"state": "done", "upto": notifier.upto})
                return False
        elif pipe.open and due - time.time() > SLEEPS_FROM:
            report({"state": "sleeps", "until": due, "upto": notifier.upto})
            return False


def _begin_anew(line: bytes) -> None:
    """Restart this process with the same brief and a closed pipe: a hung thread cannot be killed."""
    brief = os.memfd_create("brief")
    os.write(brief, line + b"\n")
    os.lseek(brief, 0, os.SEEK_SET)
    os.dup2(brief, 0)
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606 - ourselves
