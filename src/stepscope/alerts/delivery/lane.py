"""The schedule of one channel: messages in groups, at most one per second, with retries and quiet hours.

Nothing here waits or sends: the notifier asks when the next message is due, and reports the outcome.
"""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from stepscope.alerts.delivery.message import event_severity
from stepscope.alerts.delivery.outbox import DEAD, DONE, FAILED, SKIPPED, TRY, Entry, Note

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepscope.alerts.delivery.channel import Channel

PACE = 1.0
"""Seconds between two messages of a channel; alerts that arrive meanwhile form one message."""
FIRST_WAIT, LONGEST_WAIT = 1.0, 600.0
"""Seconds to wait after the first failure, and at most; doubled after each failure."""
JITTER = 0.25
"""A wait is longer or shorter by up to this share, so that clients do not all return at once."""
LONGEST_ASKED = 3600.0
"""Seconds of a Retry-After that are honoured at most."""
GIVE_UP = 24 * 3600.0
"""Seconds after which an undeliverable message is dropped, and counted."""
MOST_ENTRIES = 5000
"""Alerts in one message; it lists the first ones, and counts the rest."""


@dataclass(frozen=True)
class MessageGroup:
    """Alerts that form one message."""

    id: str
    entries: tuple[Entry, ...]

    @property
    def numbers(self) -> tuple[int, ...]:
        """The numbers of its entries."""
        return tuple(entry.number for entry in self.entries)


@dataclass
class ChannelLane:
    """The entries of the outbox that one channel still has to send."""

    channel: Channel
    resolved: bool = True
    """Whether resolved alerts are sent, too."""
    name: str = ""
    """The run; part of the ids of its messages."""
    vary: Callable[[], float] = random.random
    """Returns 0 to 1, for the jitter."""
    failures: int = 0
    not_before: float = 0.0
    group: MessageGroup | None = None
    """The message that is being sent, or is to be sent again."""
    _pending: dict[int, Entry] = field(default_factory=dict)
    _over: set[int] = field(default_factory=set)
    _skipped: list[int] = field(default_factory=list)
    _again: tuple[str, tuple[int, ...]] | None = None
    _since: float = 0.0

    def restore(self, note: Note) -> None:
        """Apply a note of an earlier notifier; `add` the entries only after all notes."""
        if note.state in {DONE, DEAD, SKIPPED}:
            self._over.update(note.numbers)
        if note.state in {TRY, FAILED}:
            self._again, self._since = (note.group, note.numbers), self._since or note.time
        elif note.state != SKIPPED:
            self._again, self._since = None, 0.0

    def add(self, entry: Entry, now: float) -> None:
        """Add an entry of the queue unless it was sent, is too old or is not for this channel."""
        if entry.number in self._over or entry.number in self._pending:
            return
        happened = entry.event.get("time")
        is_old = isinstance(happened, (int, float)) and now - happened > GIVE_UP
        if (self._again and entry.number in self._again[1]) or (not is_old and self._is_for_us(entry)):
            self._pending[entry.number] = entry
        else:
            self._over.add(entry.number)
            self._skipped.append(entry.number)

    def _is_for_us(self, entry: Entry) -> bool:
        if entry.only:
            return entry.only == self.channel.name
        if entry.event.get("state") == "resolved" and not self.resolved:
            return False
        return self.channel.takes(str(entry.event.get("severity", "warning")))

    def resume(self) -> None:
        """Form again, under the same id, the message that an earlier notifier did not finish."""
        (group, numbers), self._again = self._again or ("", ()), None
        known = tuple(self._pending[number] for number in numbers if number in self._pending)
        if known:
            self.group = MessageGroup(group, known)

    def due(self, now: float) -> float | None:
        """Return when (unix seconds) there is something to send; None if there is nothing."""
        if self.group is not None:
            return max(self.not_before, 0.0)
        times = [self._free_at(entry, now) for entry in self._pending.values()]
        return max(self.not_before, min(times)) if times else None

    def _free_at(self, entry: Entry, now: float) -> float:
        """Return when an entry may be sent: at once, or after the quiet hours."""
        quiet = self.channel.quiet
        if quiet is None or entry.only or event_severity(entry.event) == "critical":
            return 0.0
        return quiet.until(now) or 0.0

    def begin(self, now: float) -> MessageGroup | None:
        """Return the message to send now, if one is due."""
        due = self.due(now)
        if due is None or due > now:
            return None
        if self.group is None:
            free = [entry for entry in self._pending.values() if self._free_at(entry, now) <= now]
            chosen = tuple(sorted(free)[:MOST_ENTRIES])
            numbers = ",".join(str(entry.number) for entry in chosen)
            digest = hashlib.sha256(f"{self.name}\0{self.channel.key}\0{numbers}".encode()).hexdigest()[:24]
            self.group, self._since = MessageGroup(f"alert_{digest}", chosen), now
        self._since = self._since or now
        return self.group

    def skipped(self, now: float) -> Note | None:
        """Return, once, a note of the entries that are not for this channel."""
        if not self._skipped:
            return None
        numbers, self._skipped = tuple(self._skipped), []
        return Note(self.channel.key, "", SKIPPED, numbers, now)

    def note(self, state: str, now: float, why: str = "") -> Note:
        """Return a note about the message that is being sent."""
        group = self.group or MessageGroup("", ())
        return Note(self.channel.key, group.id, state, group.numbers, now, why, self.channel.name)

    def sent(self, now: float) -> Note:
        """Mark the message as delivered; return the note to write."""
        note = self.note(DONE, now)
        self._close()
        self.failures, self.not_before = 0, now + PACE
        return note

    def failed(self, now: float, why: str, retry_after: float | None = None) -> Note:
        """Schedule another attempt, or give the message up; return the note to write."""
        if now - self._since > GIVE_UP:
            note = self.note(DEAD, now, why)
            self._close()
            self.not_before = now + PACE
            return note
        self.failures += 1
        wait = min(LONGEST_WAIT, FIRST_WAIT * 2.0 ** min(self.failures - 1, 20))
        wait *= 1.0 + JITTER * (2.0 * self.vary() - 1.0)
        if retry_after is not None:
            wait = max(wait, min(retry_after, LONGEST_ASKED))
        self.not_before = now + max(PACE, wait)
        return self.note(FAILED, now, why)

    def _close(self) -> None:
        for entry in self.group.entries if self.group else ():
            self._over.add(entry.number)
            self._pending.pop(entry.number, None)
        self.group, self._since = None, 0.0
