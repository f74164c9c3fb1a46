"""The alerts of a run in its watcher: evaluates rules, records changes, sends notifications, takes actions.

A notification is in the outbox before its alert is an event of the run. If the watcher is killed in between, the alert
fires again after the restart: people may be notified twice, but never miss an alert.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from functools import partial
from typing import TYPE_CHECKING, Any

from stepscope.alerts.evaluation.notification_claims import NotificationClaims
from stepscope.alerts.evaluation.state import FIRING, Silence
from stepscope.alerts.user_requests import ACKNOWLEDGE, SILENCE, TEST, Inbox, UserRequest
from stepscope.core import ring, status
from stepscope.core.access import write_private
from stepscope.core.coordinates import PLACED
from stepscope.core.errors import in_words
from stepscope.core.events import WATCHERS, is_users
from stepscope.core.feed import Feed
from stepscope.core.places import ALERTING_SUFFIX, NOTICE_SUFFIX
from stepscope.core.terminal_text import plain
from stepscope.core.vocabulary import SINK
from stepscope.core.walls import wall
from stepscope.store.events import read_events
from stepscope.watcher.straggling import MachineFacts, OtherNodes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from stepscope.alerts.delivery.channel import Channel
    from stepscope.alerts.evaluation.job_facts import JobFacts
    from stepscope.alerts.evaluation.rule_engine import Engine
    from stepscope.alerts.evaluation.state import Transition
    from stepscope.analysis.stragglers.pace import StepTiming
    from stepscope.core.clock import Pair
    from stepscope.core.columns import SchemaTable
    from stepscope.store.drain import Drain, Stream
    from stepscope.store.layout import RunFolder
    from stepscope.watcher.acting import Acting
    from stepscope.watcher.journal import Journal
    from stepscope.watcher.notifying import Notifying
    from stepscope.watcher.sampling import Sampling

EVALUATE_EVERY = 1.0
"""Seconds between two evaluations; an urgent event is evaluated at once."""
FAREWELL = 600.0
"""Seconds that a watcher waits for undelivered messages after its last trainer has ended."""
MAX_SETTINGS = 1 << 20
"""Bytes of the settings file."""
OFF: dict[str, Any] = {"alerting.enabled": False}
"""Settings without alerts."""
CHANNEL_KEYS = frozenset(f"alerting.{name}" for name in ("channels", "email", "slack", "quiet_hours"))
MOST_FAILURES = 100
"""Failed evaluations after which the alerts are switched off."""
MOST_EVENTS = 1000
"""Events that wait for a disk that cannot be written, and calls that wait until the rules are loaded."""
MOST_FROM_TRAINER = 100
"""Alerts of the training's own rules that are handled in one tick."""
MOST_REASON = 300
"""Characters of a sink's reason in an alert."""
OWN_KINDS = {*WATCHERS, "alert", "alert_options"}
"""Kinds of events that count only when Stepscope itself wrote them."""


def read_settings(path: Path) -> dict[str, Any]:
    """Return the alert settings from the file beside a ring; {} without one, OSError or ValueError if it is damaged."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return {}
    with os.fdopen(descriptor, "rb") as file:
        return dict(json.loads(file.read(MAX_SETTINGS)))


class Alerting(Feed):
    """The alerts of one node.

    Loading the rules takes as long as a short training, so it waits until the first rows are on disk. Earlier calls
    are kept in a backlog and repeated, in order, once the rules are loaded.
    """

    def __init__(
        self,
        folder: RunFolder,
        node: str,
        journal: Journal,
        streams: Callable[[], Iterable[Stream]],
        sampling: Callable[[], Sampling],
        settings: dict[str, Any] | None = None,
        **notifying: Any,
    ) -> None:
        """Load nothing yet; without `settings`, those beside the first ring count. `notifying`: see `Notifying`."""
        self._options, self._failures = notifying, 0
        self._problems: list[str] = []
        """Problems with rules and channels that the terminal has not shown yet."""
        self._folder, self._node, self._journal = folder, node, journal
        self._streams, self._sampling = streams, sampling
        self._settings = settings
        self._is_loaded = False
        self._backlog: list[Callable[[], None]] = []
        """Calls of this object that came before the rules were loaded."""
        self._engine: Engine | None = None
        """None before the rules are loaded, and if alerts are off."""
        self._notifying: Notifying | None = None
        self._acting: Acting | None = None
        self._machine, self._others = MachineFacts(), OtherNodes(folder, node)
        self._inbox, self._claims = Inbox(folder.path), NotificationClaims(folder.path, node)
        self._now = 0
        self._offset = 0.0
        """Seconds from the monotonic clock to the engine's."""
        self._due = 0.0
        self._alone_since: float | None = None
        self._events: list[dict[str, Any]] = []
        """Events that the watcher has to write."""
        self._from_trainer: list[dict[str, Any]] = []
        self._changes: list[Transition] = []
        """Changes of alerts that have not been sent yet."""

    def attach(self, path: Path, pair: Pair) -> None:
        """Read the settings beside the first ring: they are removed together with it."""
        self._now = pair.monotonic_ns
        if self._settings is not None:
            return
        try:
            self._settings = read_settings(path.with_suffix(ALERTING_SUFFIX))
        except (OSError, ValueError) as error:
            self._settings = OFF
            self._switch_off(error)

    def _switch_off(self, error: Exception) -> None:
        self._note(f"cannot evaluate alerts: {in_words(error)}; the run is recorded without them")

    def _load(self, settings: dict[str, Any], pair: Pair) -> None:
        """Load the rules, and handle the backlog."""
        self._is_loaded = True
        if settings.get("alerting.enabled", True):
            with wall(self._switch_off):  # a watcher without alerts is better than none
                self._start(settings, pair)
        backlog, self._backlog = self._backlog, []
        for call in backlog:
            call()

    def _keep(self, call: Callable[[], None]) -> None:
        """Keep a call until the rules are loaded; drop it if they are, because alerts are off."""
        if not self._is_loaded and len(self._backlog) < MOST_EVENTS:
            self._backlog.append(call)

    def _note(self, text: str) -> None:
        """Report a problem in the watcher's log and, once, as an event of the run."""
        if not self._journal.counts[text]:
            self._events.append({"kind": "alerting", "text": text})
        self._journal.note(text)

    def _warn(self, problems: list[str]) -> None:
        """Show problems in the user's terminal now, before an alert cannot be delivered."""
        more = f" (and {len(problems) - 1} more: see `stepscope alerts check`)" if len(problems) > 1 else ""
        for stream in self._streams():
            try:
                write_private(stream.path.with_suffix(NOTICE_SUFFIX), f"{problems[0]}{more}")
            except OSError as error:
                self._journal.note(f"cannot write a notice for the terminal: {error}", "notice")
            stream.reader.set_word(ring.WORD_STATUS, status.ALERTS_UNSENT)

    def _start(self, settings: dict[str, Any], pair: Pair) -> None:
        from stepscope.alerts.actions import commands_of
        from stepscope.alerts.evaluation.job_facts import JobFacts
        from stepscope.alerts.evaluation.rule_engine import Engine
        from stepscope.alerts.rules.profiles import rules_of
        from stepscope.watcher.acting import Acting

        rules, rule_problems = rules_of(settings)
        channels, channel_problems = _channels(settings)
        commands, command_problems = commands_of(settings)
        for problem in (*rule_problems, *channel_problems, *command_problems):
            self._note(problem)
            self._problems.append(problem)
        self._offset = (pair.wall_ns - pair.monotonic_ns) / 1e9
        self._engine = Engine(rules, offset=self._offset, note=self._journal.note)
        self._engine.job = JobFacts(self._node)
        self._engine.restore(read_events(self._folder)[0])
        self._acting = Acting(self._folder.path, self._streams, self._sampling, commands)
        if channels:
            self._notifying = self._new_notifying(settings)

    def _new_notifying(self, settings: dict[str, Any]) -> Notifying:
        from stepscope.alerts.delivery.notifier import Brief
        from stepscope.alerts.delivery.outbox import Queue
        from stepscope.watcher.notifying import Notifying

        needed = {key: value for key, value in settings.items() if key != "alerting.rules"}
        brief = Brief(str(self._folder.path), self._node, needed, probe=True, subject=self._subject(settings))
        return Notifying(brief, Queue(self._folder.path, self._node), self._journal, **self._options)

    def _subject(self, settings: Mapping[str, Any]) -> dict[str, str]:
        try:
            facts = json.loads(self._folder.run_file.read_bytes())
            names = {key: str(facts.get(key, ""))[:200] for key in ("project", "name")}
        except (OSError, ValueError, AttributeError):
            names = {}
        return {**names, "page": str(settings.get("alerting.page_url") or "")}

    def rows(self, rank: int, pieces: Iterable[bytes], table: SchemaTable, *, checked: bool = False) -> None:
        """Add drained records of a rank; the engine only stores them until it evaluates."""
        if self._engine is None:
            self._keep(partial(self.rows, rank, list(pieces), table, checked=checked))
        else:
            self._engine.rows(rank, pieces, table, checked=checked)

    def sample(self, rank: int, values: Mapping[str, float]) -> None:
        """Add a row that the watcher made itself; the engine only stores it until it evaluates."""
        if self._engine is None:
            self._keep(partial(self.sample, rank, values))
        else:
            self._engine.sample(rank, values, self._now)

    def end(self, rank: int) -> None:
        """Forget a rank that has ended."""
        if self._engine is None:
            self._keep(partial(self.end, rank))
        else:
            with wall(self._failed):
                self._changes += self._engine.end(rank, self._now)

    def on_events(self, events: list[dict[str, Any]], rank: int, now: int) -> None:
        """Add events that are being written into the run; `now` is monotonic, in ns."""
        if self._engine is None:
            self._keep(partial(self.on_events, events, rank, now))
            return
        for event in events:
            if is_users(event) and event.get("kind") in OWN_KINDS:
                continue  # a user's event with the name of one of ours
            if event.get("kind") == PLACED:
                self._machine.place(rank, event)
            if event.get("kind") != "alert":
                with wall(self._failed):
                    self._engine.event(event, rank, int(event.get("monotonic_ns", now)))
            elif "sequence" in event and len(self._from_trainer) < MOST_FROM_TRAINER:  # the training's own rules
                self._from_trainer.append({"rank": rank, **event})

    def poll(self, pair: Pair, drain: Drain) -> None:
        """Evaluate what is due, notify people, take actions, and write events with `drain`.

        Notifications do not wait for the disk: events that it refuses are written later.
        """
        self._now, now = pair.monotonic_ns, pair.monotonic_ns / 1e9
        if not self._is_loaded and self._settings is not None:
            self._load(self._settings, pair)
        is_due = self._changes or self._from_trainer or now >= self._due
        if self._engine is not None and (is_due or self._engine.urgent):
            self._due = now + EVALUATE_EVERY
            with wall(self._failed):
                self._evaluate(self._engine, pair)
        if self._notifying is not None:
            self._poll_notifier(self._notifying, now)
        if self._problems:
            self._warn(self._problems)
            self._problems = []
        if self._acting is not None:
            self._events += self._acting.poll(now)
        if self._events:
            self._write_events(pair, drain)

    def _write_events(self, pair: Pair, drain: Drain) -> None:
        self._events = self._events[-MOST_EVENTS:]
        try:
            drain.write_events([dict(event) for event in self._events], drain.own.rank, pair, sync=True)
        except OSError as error:
            self._journal.note(f"cannot write an event of the alerts: {error}; trying again", "alert events")
            return
        self._events = []

    def _poll_notifier(self, notifying: Notifying, now: float) -> None:
        """Record what the notifier reports."""
        notifying.poll(now)
        reports, notifying.reports = notifying.reports, []
        self._events += [self._with_monotonic_time({"kind": "notification", **facts}) for facts in reports]
        self._problems += [_unreachable(facts) for facts in reports if facts.get("state") == "unreachable"]

    def timings(self) -> Sequence[StepTiming]:
        """Return the timing of each rank of this node in its newest steps; nothing before there are enough."""
        job = self._engine.job if self._engine is not None else None
        return job.own if job is not None else ()

    def _compare_nodes(self, job: JobFacts, pair: Pair) -> None:
        """Read what the straggler alert compares with: the machine, and the ranks of other nodes."""
        streams = list(self._streams())
        attempt = max((stream.identity.attempt for stream in streams), default=0)
        job.facts = self._machine.add(self._sampling().latest, [stream.identity.rank for stream in streams])
        job.elsewhere = self._others.timings(attempt, pair.monotonic_ns / 1e9)
        for problem in self._others.problems:
            self._journal.note(problem, "other nodes")

    def _evaluate(self, engine: Engine, pair: Pair) -> None:
        if engine.job is not None and engine.job.own:
            self._compare_nodes(engine.job, pair)
        changes, self._changes = self._changes, []
        changes += self._answer(engine, self._inbox.new(pair.wall_ns / 1e9), pair)
        changes += [explained(change, self._folder, self._node) for change in engine.evaluate(pair.monotonic_ns)]
        self._handle(self._claims.claim(changes, engine.rules), pair)

    def _failed(self, error: Exception) -> None:
        """Note a fault in a rule, from which the recording is isolated; after too many of them, alerts are off."""
        self._failures += 1
        self._note(f"cannot evaluate alerts: {in_words(error)}; going on")
        if self._failures >= MOST_FAILURES and self._engine is not None:
            self._engine = None
            self._note(f"alerts are off after {self._failures} faults; the run is recorded without them")

    def _with_monotonic_time(self, event: dict[str, Any]) -> dict[str, Any]:
        """Return an event with its time on the monotonic clock, as it is written."""
        facts = dict(event)
        time = facts.pop("time", None)
        if isinstance(time, (int, float)):
            facts["monotonic_ns"] = round((time - self._offset) * 1e9)
        return facts

    def _handle(self, changes: list[Transition], pair: Pair) -> None:
        """Notify people about changes, record them as events, and take their actions."""
        own, self._from_trainer = self._from_trainer, []
        messages = [change.event() for change in changes if change.notifies]
        messages += [_identified(event, pair) for event in own if event.get("state") in {"firing", "resolved"}]
        if self._notifying is not None:
            self._notifying.send(messages)
        self._events += [self._with_monotonic_time(change.event()) for change in changes]
        for change in changes:
            if change.actions and self._acting is not None:
                self._events += self._acting.perform(change.actions, change.event(), pair.monotonic_ns / 1e9)

    def _answer(self, engine: Engine, requests: Iterable[UserRequest], pair: Pair) -> list[Transition]:
        """Handle the requests of people."""
        changes: list[Transition] = []
        for request in requests:
            facts, now = request.facts, pair.monotonic_ns / 1e9 + self._offset
            if request.do == ACKNOWLEDGE:
                changes += engine.alerts.acknowledge(facts["alert"], str(facts.get("by", "")), now)
            elif request.do == SILENCE:
                changes += engine.alerts.silence(Silence({"rule": facts["rule"]}, facts["until"]), now)
            elif request.do == TEST:
                from stepscope.alerts.delivery.message import trial_event

                if self._notifying is not None:
                    test = trial_event(pair.wall_ns / 1e9, request.id)
                    self._notifying.send([test], str(facts.get("channel", "")))
            else:
                changes += engine.alerts.unsilence({"rule": facts["rule"]}, now)
            self._events.append({"kind": "alert_request", "do": request.do, "request": request.id, **facts})
        return changes

    def busy(self, now: float, *, alone: bool) -> bool:
        """Return whether work is left; `alone` if no trainer is left. `now` is monotonic, in seconds."""
        if not alone:
            self._alone_since = None
            return True
        if self._alone_since is None:
            self._alone_since = now
            if self._engine is not None:
                with wall(self._failed):
                    self._changes += self._engine.close(self._now)
        is_urgent = bool(self._changes) or (self._engine is not None and self._engine.urgent)
        is_idle = (self._notifying is None or self._notifying.idle()) and (self._acting is None or self._acting.idle())
        return (is_urgent or not is_idle or bool(self._events)) and now - self._alone_since < FAREWELL

    def critical(self) -> str:
        """Return the text of the newest critical alert that fires; "" for none."""
        return "" if self._engine is None else self._engine.critical()

    def close(self) -> None:
        """Stop; a notifier that has messages left continues by itself."""
        if self._notifying is not None:
            self._notifying.close()


def explained(change: Transition, folder: RunFolder, node: str) -> Transition:
    """Return an alert about a sink that is behind with the reason that its sender wrote; any other as it is."""
    from stepscope.alerts.rules.builtin import SINK_BEHIND

    if change.rule != SINK_BEHIND or change.state != FIRING:
        return change
    from stepscope.store.sinks import read_sinks

    why = ""
    with contextlib.suppress(OSError):  # an alert without its reason is better than none
        names = {one.name: one.why for one in read_sinks(folder) if one.node == node}
        why = next((names[name] for name in names if change.key.startswith(f"{SINK}{name}/")), "")
    return dataclasses.replace(change, text=f"{change.text}: {plain(why, MOST_REASON)}") if why else change


def _unreachable(facts: Mapping[str, Any]) -> str:
    """Return which channel would refuse a message, and why."""
    why = str(facts.get("why") or "it does not answer")[:500]
    remedy = "" if "; " in why else "; see `stepscope alerts check`"
    return f"cannot send alerts to {str(facts.get('channel', 'a channel'))[:60]}: {why}{remedy}"


def _identified(event: dict[str, Any], pair: Pair) -> dict[str, Any]:
    """Return an alert of the training's own rules with a time and an id, as other alerts have them."""
    time = (pair.wall_ns + int(event.get("monotonic_ns", pair.monotonic_ns)) - pair.monotonic_ns) / 1e9
    name = f"{event.get('rule', 'alert')}-{event['rank']}-{event['sequence']}"
    return {"alert": name, **{key: value for key, value in event.items() if key != "monotonic_ns"}, "time": time}


def _channels(settings: dict[str, Any]) -> tuple[list[Channel], list[str]]:
    """Return the channels and their problems; the module is loaded only where a channel is configured."""
    if not CHANNEL_KEYS & settings.keys():
        return [], []
    from stepscope.alerts.delivery.channel import channels_of

    return channels_of(settings)
