"""The notifier: a process that sends the alerts in the outbox of a run, and ends when it is done.

Its standard input is a pipe from the process that started it, which it outlives: the first line is the brief, as JSON,
and each further line announces new entries. It reports outcomes on its standard output, one line of JSON each.
Each channel has a thread, so that one that hangs does not delay the others.
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
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.alerts.delivery import outbox
from stepscope.alerts.delivery.channel import ALERTMANAGER, APPRISE, WEBHOOK, Channel, channels_of
from stepscope.alerts.delivery.lane import ChannelLane
from stepscope.alerts.delivery.message import LastLines, Message, MessageSubject
from stepscope.core.errors import StepscopeError, in_words
from stepscope.core.walls import attempt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from stepscope.alerts.delivery.webhook import Outcome

LOOK_EVERY = 0.5
"""Seconds between two checks of the queue without an announcement."""
HANGS_AFTER = 60.0
"""Seconds after which sending counts as hung; the process then restarts, because a thread cannot be killed."""
SLEEPS_FROM = 30.0
"""If the next message is due later than this many seconds, the process ends, and its parent starts it again."""
DEATH = "death"
"""The rule whose alerts quote what a rank printed last."""
MAX_LINE = 1 << 20
MOST_UNWRITTEN = 1000
"""Notes that wait for a disk that cannot be written."""


@dataclass
class Brief:
    """The first line that the notifier reads: the run, its settings and its options."""

    run: str
    node: str
    settings: dict[str, Any]
    """By path, as in the configuration."""
    probe: bool = False
    """Check first whether each channel would accept a message."""
    subject: dict[str, str] = field(default_factory=dict)

    def line(self) -> bytes:
        """Return the brief as a line."""
        return json.dumps(self.__dict__).encode() + b"\n"

    @classmethod
    def parse(cls, line: bytes) -> Brief:
        """Parse a brief; ValueError or TypeError if it is invalid."""
        return cls(**json.loads(line))


def deliver(channel: Channel, message: Message, environ: Mapping[str, str] = os.environ) -> Outcome:
    """Send a message and return the outcome. Secrets are read now, because they may change during a run."""
    from stepscope.alerts.delivery import webhook

    try:
        address, secret = channel.address(environ), channel.signing_secret(environ)
    except StepscopeError as error:
        return webhook.Outcome(ok=False, why=f"{error.cause}; {error.remedy}")
    if channel.kind == WEBHOOK:
        return webhook.send(message, address, secret)
    if channel.kind == ALERTMANAGER:
        from stepscope.alerts.delivery import alertmanager

        return alertmanager.send(message, address)
    from stepscope.alerts.delivery import apprise_channel

    return apprise_channel.send(message, address)


class Notifier:
    """The lanes of all channels, and the files between this process and the others."""

    def __init__(
        self,
        brief: Brief,
        journal: outbox.DeliveryJournal,
        report: Callable[[dict[str, Any]], None],
        clock: Callable[[], float] = time.time,
        send: Callable[[Channel, Message], Outcome] = deliver,
        last_lines: Callable[[Path], LastLines] | None = None,
    ) -> None:
        """Continue where the last notifier of this node stopped; `last_lines` finds what a run ended with."""
        run = Path(brief.run)
        self._journal, self._report, self._clock, self._send = journal, report, clock, send
        self._run, self._last_lines = run, last_lines
        self._queue = outbox.LineReader(outbox.queue_path(run, brief.node))
        subject = {"run": run.name, "project": run.parent.name, "node": brief.node, **brief.subject}
        self._subject = MessageSubject(**subject)
        channels, _ = channels_of(brief.settings)
        resolved = bool(brief.settings.get("alerting.resolved", True))
        self.lanes = [ChannelLane(channel, resolved, str(run)) for channel in channels]
        self._by_key = {lane.channel.key: lane for lane in self.lanes}
        self.changed = threading.Condition()
        self.woken = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        """Readable when a lane has sent something, so that the main thread checks whether anything is left."""
        self.upto = -1
        """Number of the last entry that was read."""
        self._unwritten: list[outbox.Note] = []
        self._since: dict[str, float] = {}
        """When (monotonic seconds) each channel began its current message."""
        self.hung: set[str] = set()
        for note in outbox.notes(outbox.LineReader(outbox.sent_path(run, brief.node)).rows()):
            if note.channel in self._by_key:
                self._by_key[note.channel].restore(note)
        self.check_queue()
        for lane in self.lanes:
            lane.resume()

    def check_queue(self, more: Iterable[outbox.Entry] = ()) -> None:
        """Read new entries of the queue, and `more` that came through the pipe because the disk is full."""
        with self.changed:
            now = self._clock()
            for entry in [*outbox.entries(self._queue.rows()), *more]:
                self.upto = max(self.upto, entry.number)
                for lane in self.lanes:
                    lane.add(entry, now)
            for lane in self.lanes:
                skipped = lane.skipped(now)
                if skipped is not None:
                    self._write(skipped)
            self.changed.notify_all()

    def _write(self, note: outbox.Note) -> None:
        """Write a note; if the disk refuses it, it stays in memory, and messages are sent anyway."""
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
                    due = lane.due(self._clock())
                    self.changed.wait(None if due is None else max(0.01, min(60.0, due - self._clock())))
                self._since[lane.channel.key] = time.monotonic()
                self._write(lane.note(outbox.TRY, self._clock()))
            self.step(lane)

    def step(self, lane: ChannelLane) -> None:
        """Send the message that a lane has begun, and record the outcome."""
        group = lane.group
        if group is None:
            return
        events = [entry.event for entry in group.entries]
        message = Message(group.id, self._subject, events, self._lines_for(events))
        outcome = self._send(lane.channel, message)
        with self.changed:
            if lane.channel.key in self.hung:  # too late: it counts as failed and is sent again
                return
            self._since.pop(lane.channel.key, None)
            self._settle(lane, outcome)
            self.changed.notify_all()
        os.eventfd_write(self.woken, 1)

    def _lines_for(self, events: Sequence[Mapping[str, Any]]) -> LastLines:
        """Return the last lines of the guilty rank for alerts about a death; a fault there must not stop the alert."""
        find = self._last_lines
        died = any(event.get("rule") == DEATH and event.get("state") == "firing" for event in events)
        if find is None or not died:
            return LastLines("")
        return attempt(
            lambda: find(self._run), lambda error: LastLines(f"its console was not read: {in_words(error, 200)}")
        )

    def _settle(self, lane: ChannelLane, outcome: Outcome) -> None:
        now = self._clock()
        had_failed = lane.failures > 0
        alerts = [str(entry.event.get("alert", "")) for entry in (lane.group.entries if lane.group else ())]
        why = outcome.why or "it was not accepted"
        note = lane.sent(now) if outcome.ok else lane.failed(now, why, outcome.retry_after)
        self._write(note)
        if outcome.ok or note.state == outbox.DEAD or not had_failed:  # a lasting failure is reported once
            facts = {"channel": lane.channel.name, "state": note.state, "message": note.group, "why": note.why}
            self._report({**facts, "alerts": alerts[:20], "count": len(alerts), "time": note.time})

    def next_due(self) -> float | None:
        """Return when (unix seconds) the next message is due: now while one is being sent, None if none is left."""
        with self.changed:
            now = self._clock()
            if self._since:
                return now
            times = [due for lane in self.lanes if (due := lane.due(now)) is not None]
            return min(times) if times else None

    def find_hung(self, now: float, after: float = HANGS_AFTER) -> bool:
        """Fail messages that take longer than `after` seconds; return whether to restart now (nothing is in flight).

        `now` is monotonic, in seconds.
        """
        with self.changed:
            for key, since in list(self._since.items()):
                if now - since > after:
                    self.hung.add(key)
                    del self._since[key]
                    self._write(self._by_key[key].failed(self._clock(), f"no answer within {after:.0f} s"))
            return bool(self.hung) and not self._since

    def probe(self) -> None:
        """Check whether each channel would accept a message, and report the results."""
        from stepscope.alerts.delivery.probe import probe

        for lane in self.lanes:
            why = probe(lane.channel, os.environ)
            state = "unreachable" if why else "ready"
            self._report({"channel": lane.channel.name, "state": state, "why": why, "time": self._clock()})


class Pipe:
    """The pipe from the parent process."""

    def __init__(self, descriptor: int) -> None:
        """Read from `descriptor`."""
        self._descriptor, self._data, self.open = descriptor, b"", True
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLIN)

    def first(self) -> bytes:
        """Wait for the first line."""
        while b"\n" not in self._data and self.open and len(self._data) < MAX_LINE:
            self._read()
        line, _, self._data = self._data.partition(b"\n")
        return line

    def wait(self, seconds: float, woken: int) -> list[outbox.Entry]:
        """Wait until data comes, the pipe ends or `woken` is readable; return the entries that came."""
        self._poll.register(woken, select.POLLIN)
        ready = {descriptor for descriptor, _ in self._poll.poll(seconds * 1000)}
        if woken in ready:
            os.eventfd_read(woken)
        if self._descriptor in ready:
            self._read()
        lines, _, self._data = self._data.rpartition(b"\n")
        return outbox.entries(outbox.rows_of(lines))

    def _read(self) -> None:
        data = os.read(self._descriptor, 1 << 16)
        self._data = (self._data + data)[-MAX_LINE:]
        if not data:
            self.open = False
            self._poll.unregister(self._descriptor)  # the end of a pipe would be ready for ever


def report(facts: dict[str, Any]) -> None:
    """Write a report to standard output; the reader may be gone."""
    try:
        os.write(1, json.dumps(facts).encode() + b"\n")
    except OSError:
        return


def main(arguments: list[str], last_lines: Callable[[Path], LastLines] | None = None) -> int:
    """Send what is in the outbox; the argument, the run's folder, only labels this process in `ps`."""
    del arguments
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):  # the end of the job is what must be reported
        signal.signal(number, signal.SIG_IGN)
    os.umask(0o077)
    pipe = Pipe(0)
    line = pipe.first()
    try:
        brief = Brief.parse(line)
        journal = outbox.DeliveryJournal(Path(brief.run), brief.node)
    except outbox.NotifierBusyError:
        report({"state": "busy"})
        return 0
    except (OSError, ValueError, TypeError) as error:
        report({"state": "failed", "channel": "", "why": in_words(error)})
        return 2
    _prepare(brief)
    notifier = Notifier(brief, journal, report, last_lines=last_lines)
    probing = threading.Thread(target=notifier.probe, daemon=True)
    if brief.probe:
        probing.start()
    for lane in notifier.lanes:
        threading.Thread(target=notifier.work, args=(lane,), name=lane.channel.name, daemon=True).start()
    if _serve(notifier, pipe, probing.is_alive):
        _restart(line)
    os._exit(0)  # threads that still wait must not keep the process alive


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


def _restart(line: bytes) -> None:
    """Replace this process by a new one with the same brief and a closed pipe: a hung thread cannot be killed."""
    brief = os.memfd_create("brief")
    os.write(brief, line + b"\n")
    os.lseek(brief, 0, os.SEEK_SET)
    os.dup2(brief, 0)
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606 - ourselves
