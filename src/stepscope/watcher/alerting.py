"""The alerts of a run in its watcher: rules fed with what is drained and sampled, what they find written and told.

What has to be told is in the outbox before it is an event of the run: a watcher that is killed in between finds it
firing anew when it is started again, and somebody hears of it twice rather than never.
"""

from __future__ import annotations

import json
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from stepscope.alerts.evaluation.claims import Claims
from stepscope.alerts.requests import ACKNOWLEDGE, SILENCE, TEST, Inbox, Request
from stepscope.core import ring, status
from stepscope.core.access import write_private
from stepscope.core.errors import StepscopeError, in_words
from stepscope.core.events import WATCHERS, is_users
from stepscope.core.places import ALERTING_SUFFIX, NOTICE_SUFFIX
from stepscope.store.events import read_events

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
    from pathlib import Path

    from stepscope.alerts.delivery.channel import Channel
    from stepscope.alerts.evaluation.rule_engine import Engine
    from stepscope.alerts.evaluation.state import Transition
    from stepscope.core.clock import Pair
    from stepscope.core.columns import SchemaTable
    from stepscope.exporters.prometheus.feed import Feed
    from stepscope.store.drain import Drain, Stream
    from stepscope.store.layout import RunFolder
    from stepscope.watcher.acting import Acting
    from stepscope.watcher.journal import Journal
    from stepscope.watcher.notifying import Notifying
    from stepscope.watcher.sampling import Sampling

EVALUATE_EVERY = 1.0
"""Seconds between two evaluations; an event that matters is looked at at once."""
FAREWELL = 600.0
"""Seconds that a watcher stays for messages that cannot be delivered after its last trainer has ended."""
MAX_SETTINGS = 1 << 20
CHANNEL_KEYS = frozenset(f"alerting.{name}" for name in ("channels", "email", "slack", "quiet_hours"))
MOST_FAILURES = 100
"""Faults of the rules after which they are no longer asked."""
MOST_EVENTS = 1000
"""Events that wait for a disk which takes nothing."""
MOST_FROM_TRAINER = 100
"""Alerts of the training's own that are told in one look."""


def read_settings(path: Path) -> dict[str, Any]:
    """Return what was set of the alerts, from the file beside a ring; {} if nothing was.

    Raises:
        OSError, ValueError: there is a file and it cannot be read.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return {}
    with os.fdopen(descriptor, "rb") as file:
        return dict(json.loads(file.read(MAX_SETTINGS)))


OWN_KINDS = {*WATCHERS, "alert", "alert_options"}
"""Kinds of events that are heard from Stepscope itself alone."""


class Alerting:
    """The alerts of one node."""

    def __init__(
        self,
        folder: RunFolder,
        node: str,
        journal: Journal,
        streams: Callable[[], Iterable[Stream]],
        sampling: Callable[[], Sampling],
        **notifying: Any,
    ) -> None:
        """Hold nothing yet: a run without a ring has no settings; `notifying` are options of `Notifying`."""
        self._options, self._failures = notifying, 0
        self._wrong: list[str] = []
        """What is wrong with rules and channels, and the person at the terminal was not told yet."""
        self._folder, self._node, self._journal = folder, node, journal
        self._streams, self._sampling = streams, sampling
        self._settings: dict[str, Any] | None = None
        self._has_begun = False
        self._backlog: list[Callable[[], None]] = []
        """What came before the rules were loaded."""
        self._engine: Engine | None = None
        self._notifying: Notifying | None = None
        self._acting: Acting | None = None
        self._inbox, self._claims = Inbox(folder.path), Claims(folder.path, node)
        self._now = 0
        self._offset = 0.0
        """Seconds from the monotonic clock to the engine's."""
        self._due = 0.0
        self._alone_since: float | None = None
        self._events: list[dict[str, Any]] = []
        """To be written by the watcher."""
        self._from_trainer: list[dict[str, Any]] = []
        self._found: list[Transition] = []
        """Changes that nobody was told of yet."""

    def meet(self, path: Path, pair: Pair) -> None:
        """Take the settings beside the first ring that is found; they go with it."""
        self._now = pair.monotonic_ns
        if self._settings is not None:
            return
        try:
            self._settings = read_settings(path.with_suffix(ALERTING_SUFFIX))
        except (OSError, ValueError) as error:
            self._settings = {"alerting.enabled": False}
            self._note(f"cannot evaluate alerts: {in_words(error)}; the run is recorded without")

    def _load(self, settings: dict[str, Any], pair: Pair) -> None:
        """Load the rules: not before the first rows are safe, since that takes as long as a short training."""
        self._has_begun = True
        try:
            if settings.get("alerting.enabled", True):
                self._begin(settings, pair)
        except Exception as error:  # noqa: BLE001 - a watcher without alerts is better than none; it is written down
            self._note(f"cannot evaluate alerts: {in_words(error)}; the run is recorded without")
        backlog, self._backlog = self._backlog, []
        for one in backlog:
            one()

    def _waits(self, one: Callable[[], None]) -> bool:
        """Say whether the rules are not loaded yet; then it is done once they are."""
        if not self._has_begun and len(self._backlog) < MOST_EVENTS:
            self._backlog.append(one)
        return self._engine is None

    def _note(self, text: str) -> None:
        if not self._journal.counts[text]:
            self._events.append({"kind": "alerting", "text": text})
        self._journal.note(text)

    def _warn(self, problems: list[str]) -> None:
        """Report a misconfigured channel on the terminal at the start, not when the first alert fails."""
        more = f" (and {len(problems) - 1} more: see `stepscope alerts check`)" if len(problems) > 1 else ""
        for stream in self._streams():
            try:
                write_private(stream.path.with_suffix(NOTICE_SUFFIX), f"{problems[0]}{more}")
            except OSError as error:
                self._journal.note(f"cannot write a notice for the terminal: {error}", "notice")
            stream.reader.set_word(ring.WORD_STATUS, status.UNTOLD)

    def _begin(self, settings: dict[str, Any], pair: Pair) -> None:
        from stepscope.alerts.actions import commands_of
        from stepscope.alerts.evaluation.rule_engine import Engine
        from stepscope.alerts.rules.profiles import rules_of
        from stepscope.watcher.acting import Acting

        rules, problems = rules_of(settings)
        channels, wrong = _channels(settings)
        commands, others = commands_of(settings)
        for problem in (*problems, *wrong, *others):
            self._note(problem)
            self._wrong.append(problem)
        self._offset = (pair.wall_ns - pair.monotonic_ns) / 1e9
        self._engine = Engine(rules, offset=self._offset, note=self._journal.note)
        self._engine.restore(read_events(self._folder)[0])
        self._acting = Acting(self._folder.path, self._streams, self._sampling, commands)
        if channels:
            self._notifying = self._notifier(settings)

    def _notifier(self, settings: dict[str, Any]) -> Notifying:
        from stepscope.alerts.delivery.notifier import Brief
        from stepscope.alerts.delivery.outbox import Queue
        from stepscope.watcher.notifying import Notifying

        told = {key: value for key, value in settings.items() if key != "alerting.rules"}
        brief = Brief(str(self._folder.path), self._node, told, probe=True, subject=self._subject(settings))
        return Notifying(brief, Queue(self._folder.path, self._node), self._journal, **self._options)

    def _subject(self, settings: Mapping[str, Any]) -> dict[str, str]:
        try:
            facts = json.loads(self._folder.run_file.read_bytes())
            found = {key: str(facts.get(key, ""))[:200] for key in ("project", "name")}
        except (OSError, ValueError, AttributeError):
            found = {}
        return {**found, "page": str(settings.get("alerting.page_url") or "")}

    def rows(self, rank: int, pieces: Iterable[bytes], table: SchemaTable, *, checked: bool = False) -> None:
        """Take drained records of a rank."""
        if self._engine is not None:  # the engine only puts them aside, which nothing can go wrong with
            self._engine.rows(rank, pieces, table, checked=checked)
        elif not self._has_begun:
            held = list(pieces)
            self._waits(lambda: self.rows(rank, held, table, checked=checked))

    def sample(self, rank: int, values: Mapping[str, float]) -> None:
        """Take a row that the watcher made itself."""
        if self._engine is not None:  # the engine only puts it aside, which nothing can go wrong with
            self._engine.sample(rank, values, self._now)
        elif not self._has_begun:
            self._waits(lambda: self.sample(rank, values))

    def hear(self, events: list[dict[str, Any]], rank: int, now: int) -> None:
        """Take events that are being written into the run; those of ours are known."""
        if self._waits(lambda: self.hear(events, rank, now)) or self._engine is None:
            return
        for event in events:
            if is_users(event) and event.get("kind") in OWN_KINDS:
                continue  # called like one of ours, and none
            if event.get("kind") != "alert":
                with self._guard():
                    self._engine.event(event, rank, int(event.get("monotonic_ns", now)))
            elif "sequence" in event and len(self._from_trainer) < MOST_FROM_TRAINER:  # the training's own rules
                self._from_trainer.append({"rank": rank, **event})

    def end(self, rank: int) -> None:
        """Forget a rank that is gone."""
        if not self._waits(lambda: self.end(rank)) and self._engine is not None:
            with self._guard():
                self._found += self._engine.end(rank, self._now)

    def look(self, pair: Pair, drain: Drain) -> None:
        """Evaluate what is due, have people told, do what rules ask for; write it down with `drain`.

        A disk that takes nothing is no reason not to tell: what it refuses comes again.
        """
        self._now, now = pair.monotonic_ns, pair.monotonic_ns / 1e9
        if not self._has_begun and self._settings is not None:
            self._load(self._settings, pair)
        is_due = self._found or self._from_trainer or now >= self._due
        if self._engine is not None and (is_due or self._engine.urgent):
            self._due = now + EVALUATE_EVERY
            with self._guard():
                self._evaluate(self._engine, pair)
        if self._notifying is not None:
            self._ask(self._notifying, now)
        if self._wrong:
            self._warn(self._wrong)
            self._wrong = []
        if self._acting is not None:
            self._events += self._acting.poll(now)
        if not self._events:
            return
        self._events = self._events[-MOST_EVENTS:]
        try:
            drain.write_events([dict(event) for event in self._events], drain.own.rank, pair, sync=True)
        except OSError as error:
            self._journal.note(f"cannot write an event of the alerts: {error}; trying again", "alert events")
            return
        self._events = []

    def _ask(self, notifying: Notifying, now: float) -> None:
        """Take what the notifier says."""
        notifying.poll(now)
        reports, notifying.reports = notifying.reports, []
        self._events += [self._placed({"kind": "notification", **facts}) for facts in reports]
        self._wrong += [_unreachable(facts) for facts in reports if facts.get("state") == "unreachable"]

    def _evaluate(self, engine: Engine, pair: Pair) -> None:
        found, self._found = self._found, []
        found += self._answer(engine, self._inbox.new(pair.wall_ns / 1e9), pair)
        self._take(self._claims.settle(found + engine.evaluate(pair.monotonic_ns), engine.rules), pair)

    @contextmanager
    def _guard(self) -> Iterator[None]:
        """Let no fault of a rule stop the recording: it is written down, and after too many the alerts are off."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - as the docstring says
            self._failures += 1
            self._note(f"cannot evaluate alerts: {in_words(error)}; going on")
            if self._failures >= MOST_FAILURES and self._engine is not None:
                self._engine = None
                self._note(f"alerts are off after {self._failures} faults; the run is recorded without")

    def _placed(self, event: dict[str, Any]) -> dict[str, Any]:
        """Return an event for the run, whose time is that of the monotonic clock."""
        facts = dict(event)
        time = facts.pop("time", None)
        if isinstance(time, (int, float)):
            facts["monotonic_ns"] = round((time - self._offset) * 1e9)
        return facts

    def _take(self, found: list[Transition], pair: Pair) -> None:
        own, self._from_trainer = self._from_trainer, []
        told = [transition.event() for transition in found if transition.tells]
        told += [_named(event, pair) for event in own if event.get("state") in {"firing", "resolved"}]
        if self._notifying is not None:
            self._notifying.tell(told)
        self._events += [self._placed(transition.event()) for transition in found]
        if self._acting is None:
            return
        for transition in found:
            if transition.actions:
                self._events += self._act(transition, pair)

    def _act(self, transition: Transition, pair: Pair) -> list[dict[str, Any]]:
        from stepscope.alerts.actions import actions_of

        assert self._acting is not None  # noqa: S101 - whoever calls has checked
        try:
            actions = actions_of(transition.actions)
        except StepscopeError as error:
            return [{"kind": "alerting", "text": str(error)}]
        return self._acting.perform(actions, transition.event(), pair.monotonic_ns / 1e9)

    def _answer(self, engine: Engine, requests: Iterable[Request], pair: Pair) -> list[Transition]:
        """Do what people ask for from outside."""
        found: list[Transition] = []
        for request in requests:
            facts, by, now = request.facts, str(request.facts.get("by", "")), pair.monotonic_ns
            if request.do == ACKNOWLEDGE:
                found += engine.acknowledge(facts["alert"], by=by, now=now)
            elif request.do == SILENCE:
                found += engine.silence({"rule": facts["rule"]}, until=facts["until"], by=by, now=now)
            elif request.do == TEST:
                self._test(request, pair)
            else:
                found += engine.unsilence({"rule": facts["rule"]}, now=now)
            self._events.append({"kind": "alert_request", "do": request.do, "request": request.id, **facts})
        return found

    def _test(self, request: Request, pair: Pair) -> None:
        from stepscope.alerts.delivery.message import trial_event

        if self._notifying is not None:
            self._notifying.tell([trial_event(pair.wall_ns / 1e9, request.id)], str(request.facts.get("channel", "")))

    def busy(self, now: float, *, alone: bool) -> bool:
        """Say whether there is still something to do; `alone` if no trainer is left. `now` is monotonic, in seconds."""
        if not alone:
            self._alone_since = None
            return True
        if self._alone_since is None:
            self._alone_since = now
            if self._engine is not None:
                with self._guard():
                    self._found += self._engine.close(self._now)
        is_urgent = bool(self._found) or (self._engine is not None and self._engine.urgent)
        is_idle = (self._notifying is None or self._notifying.idle()) and (self._acting is None or self._acting.idle())
        return (is_urgent or not is_idle or bool(self._events)) and now - self._alone_since < FAREWELL

    def wrong(self) -> str:
        """Return what is critical now, in words; "" for nothing."""
        return "" if self._engine is None else self._engine.wrong()

    def close(self) -> None:
        """Let go; a notifier that has something to tell goes on."""
        if self._notifying is not None:
            self._notifying.close()


def _unreachable(facts: Mapping[str, Any]) -> str:
    """Return which channel would not take a message, and why."""
    why = str(facts.get("why") or "it does not answer")[:500]
    remedy = "" if "; " in why else "; see `stepscope alerts check`"
    return f"cannot tell {str(facts.get('channel', 'a channel'))[:60]} of alerts: {why}{remedy}"


def _named(event: dict[str, Any], pair: Pair) -> dict[str, Any]:
    """Return an alert of the training's own as the others are: with a time and an identity."""
    moment = (pair.wall_ns + int(event.get("monotonic_ns", pair.monotonic_ns)) - pair.monotonic_ns) / 1e9
    name = f"{event.get('rule', 'alert')}-{event['rank']}-{event['sequence']}"
    return {"alert": name, **{key: value for key, value in event.items() if key != "monotonic_ns"}, "time": moment}


def _channels(settings: dict[str, Any]) -> tuple[list[Channel], list[str]]:
    """Return whom to tell; without loading what reads that where nothing was set."""
    if not CHANNEL_KEYS & settings.keys():
        return [], []
    from stepscope.alerts.delivery.channel import channels_of

    return channels_of(settings)


class NoAlerting:
    """Evaluates nothing."""

    def meet(self, path: Path, pair: Pair) -> None:
        """Do nothing."""

    def hear(self, events: list[dict[str, Any]], rank: int, now: int) -> None:
        """Do nothing."""

    def look(self, pair: Pair, drain: Drain) -> None:
        """Do nothing."""

    def busy(self, now: float, *, alone: bool) -> bool:
        """Have nothing to do."""
        del now, alone
        return False

    def wrong(self) -> str:
        """Know of nothing."""
        return ""


class AlertFeed:
    """A feed that gives everything to the alerts, too."""

    def __init__(self, feed: Feed, alerting: Alerting) -> None:
        """Give to `feed` and to `alerting`; what waits is the feed."""
        self._feed, self._alerting = feed, alerting

    def rows(self, rank: int, pieces: Iterable[bytes], table: SchemaTable, *, checked: bool = False) -> None:
        """Take drained records of a rank."""
        self._feed.rows(rank, pieces, table, checked=checked)
        self._alerting.rows(rank, pieces, table, checked=checked)

    def sample(self, rank: int, values: Mapping[str, float]) -> None:
        """Take a row that the watcher made itself."""
        self._feed.sample(rank, values)
        self._alerting.sample(rank, values)

    def end(self, rank: int) -> None:
        """Take a rank off."""
        self._feed.end(rank)
        self._alerting.end(rank)

    def wait(self, seconds: float, wake: Collection[int] = ()) -> bool:
        """Let time pass."""
        return self._feed.wait(seconds, wake)

    def close(self) -> None:
        """Stop."""
        self._feed.close()
        self._alerting.close()
