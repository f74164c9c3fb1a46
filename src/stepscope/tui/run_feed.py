"""Feed the dashboard with one run: its past from a reading process, new points from its tails, its state from files."""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np

from stepscope.alerts.evaluation.history import alerts_of
from stepscope.core.ring import NO_STEP
from stepscope.core.vocabulary import unit_of
from stepscope.sources.rank_blame import HANGS, hanging_ranks
from stepscope.store.console import read_console
from stepscope.store.events import read_events
from stepscope.store.following import TailFollower
from stepscope.store.layout import RunFolder
from stepscope.store.machine import read_machines
from stepscope.store.meta import read_meta
from stepscope.store.points import NO_NS, Points
from stepscope.store.series import by_name
from stepscope.store.states import newest_attempt, read_nodes
from stepscope.tui.feed import SceneFeed
from stepscope.tui.reading import PastRequest, request
from stepscope.views.event_list import QUIET, EventCount, line_of
from stepscope.views.pace import STEP, RankPace, StepPace
from stepscope.views.rates import StepTotals
from stepscope.views.run_card import status
from stepscope.views.sinks import sink_rows
from stepscope.views.terminal import TerminalCurve, TerminalNode, TerminalRank, TerminalScene
from stepscope.views.terminal_console import TerminalConsole
from stepscope.views.terminal_history import History, HistoryBuckets

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping
    from pathlib import Path

OWN, PHASE, PROCESS = "stepscope/", "phase/", "process/"
STATUS_SECONDS = 1.0
"""Seconds between two reads of the small files."""
EVENTS = 200
"""Most events kept for the screen."""
MOST_RANKS = 4096
MOST_WAITING = 400_000
"""Most points kept while the past is being read."""


class RunFeed(SceneFeed):
    """A run on the dashboard; `scene` is the data to draw."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        """Start at the present; the past comes with the answer to `wanted`.

        Raises:
            StepscopeError: there is no run, or it cannot be read.
        """
        self.path: Path = path
        self._clock = clock
        self._folder = RunFolder(path)
        meta = read_meta(self._folder)
        name = meta.get("name") or meta["id"]
        self.scene = TerminalScene(str(name), is_run=True, project=str(meta.get("project") or ""), id=str(meta["id"]))
        self.scene.loading = True
        self._facts: dict[str, Any] = {}
        self._events = EventCount(self._folder)
        self._seen_events = -1
        self._due = self._console_due = 0.0
        self._follower = TailFollower(self._folder)
        self._sources: dict[str, str] = {}
        self._waiting: list[Points] | None = []
        self._wanted: PastRequest | None = request(everything=True)
        self._pace = StepPace()
        self._read_files(clock())

    def close(self) -> None:
        """Close the files that are followed."""
        self._follower.close()

    def wanted(self) -> PastRequest | None:
        """Return the pending request once; None if there is none."""
        asked, self._wanted = self._wanted, None
        return asked

    def show(self, names: list[str]) -> None:
        """Choose the graphs; the past of new metrics is read."""
        self.scene.shown = list(names)
        new = [name for name in names if name not in self.scene.curves]
        self.scene.curves = {name: self.scene.curves.get(name) or self._new_curve(name) for name in names}
        if new:
            self._waiting = self._waiting if self._waiting is not None else []
            self._wanted = request(names=new)

    def ask_diagnosis(self) -> None:
        """Request a diagnosis."""
        self._wanted = request(names=self.scene.shown[:1], diagnosis=True)

    def follow_console(self, rank: int | None) -> None:
        """Read new lines of the console of a rank, or of all; called at each refresh while they are shown."""
        console = self.scene.console
        if console.rank != rank:
            console = self.scene.console = TerminalConsole(rank)
        now = self._clock()
        if not console.is_of(rank) or now >= self._console_due:
            console.take(read_console(self._folder, console.query()))
            self._console_due = now + STATUS_SECONDS

    def reset(self) -> None:
        """Clear all graphs; they restart with the next point."""
        for curve in self.scene.curves.values():
            curve.history = History(self._step_width(curve.name))
        for node in self.scene.nodes.values():
            node.reset()
        for rank in self.scene.ranks.values():
            rank.steps.clear()
            rank.phases.clear()

    def poll(self) -> None:
        """Read new points."""
        now = self.scene.now = self._clock()
        new = self._follower.look()
        if len(new):
            if self._waiting is not None and sum(map(len, self._waiting)) < MOST_WAITING:
                self._waiting.append(new)
            self._add(new, self.scene.curves if self._waiting is None else {})
            self._pace.take(new)
        if now >= self._due:
            self._read_files(now)

    def failed(self, why: str) -> None:
        """Report that the past cannot be read, and continue with new points."""
        self.scene.loading, self.scene.note, self._waiting = False, f"the past cannot be read: {why}", None

    def answered(self, facts: dict[str, Any], columns: dict[str, Any]) -> None:
        """Add the past."""
        self.scene.loading, self.scene.note = False, ""
        self.scene.diagnosis = facts.get("diagnosis", self.scene.diagnosis)
        for name, unit, source in facts["metrics"]:
            self._sources[name], self.scene.units[name] = source, unit
        if "total_steps" in facts:
            self._begin(facts, columns)
        self._fill(facts["names"], columns)
        waiting, self._waiting = self._waiting or [], None
        asked = set(facts["names"])
        for part in waiting:
            self._replay(part, asked, columns)
        self._read_files(self._clock())

    def _begin(self, facts: dict[str, Any], columns: dict[str, Any]) -> None:
        """Add the first answer: graphs, recent steps, the machine."""
        self._facts = {key: facts[key] for key in ("recent_rate", "epoch", "total_steps")}
        self._facts["names"] = len(facts["metrics"])
        ranks = facts["pace"]
        self._pace = StepPace(RankPace(attempt, rank, StepTotals(*sums), end) for attempt, rank, sums, end in ranks)
        for part in self._waiting or []:
            self._pace.take(part)
        if not self.scene.shown:
            self.scene.shown = list(facts["names"])
        for name in self.scene.shown:
            self.scene.curves.setdefault(name, self._new_curve(name))
        for prefix in ("recent", "machine"):
            if f"{prefix}_names" in columns:
                past = _points(prefix, columns)
                self._add(past.select(np.argsort(past.time, kind="stable")), {}, live=False)

    def _fill(self, names: list[str], columns: dict[str, Any]) -> None:
        """Rebuild the histories of some metrics from an answer."""
        codes = columns["blocks_names"].tolist()
        curves = {name: self.scene.curves[name] for name in names if name in self.scene.curves}
        for name, curve in curves.items():
            curve.history = History(self._step_width(name))
            place = np.flatnonzero(columns["blocks_name"] == (codes.index(name) if name in codes else -1))
            if len(place):
                curve.history.add(*_of_blocks(columns, place, by_time=self._by_time(name)))
        for name, part in by_name(_points("points", columns)):
            if name in curves:
                self._grow(curves[name], part)
                self.scene.last[name] = float(part.value[int(part.time.argmax())])

    def _replay(self, part: Points, names: set[str], columns: dict[str, Any]) -> None:
        """Add the points that arrived while the past was read, except those already in it."""
        seen = _last_seen(columns)
        for name, own in by_name(part):
            curve = self.scene.curves.get(name)
            if curve is None:
                continue
            if name in names:
                keys = zip(own.rank.tolist(), own.attempt.tolist(), strict=True)
                limit = np.array([seen.get((name, *key), -1) for key in keys])
                own = own.select(own.seq > limit)  # noqa: PLW2901 - the rest is known
            self._grow(curve, own)

    def _add(self, new: Points, curves: Mapping[str, TerminalCurve], *, live: bool = True) -> None:
        """Add points: newest values, recent steps, samples, and the histories of `curves`."""
        for name, part in by_name(new if live else new.select(np.argsort(new.name, kind="stable"))):
            if name.startswith(OWN):
                continue
            if part.rank[0] < 0:
                self._sample(name, part)
                continue
            if live:
                self.scene.last[name] = float(part.value[-1])
            curve = curves.get(name)
            if curve is not None:
                self._grow(curve, part)
            if name == STEP or name.startswith(PHASE):
                self._recent(name, part)

    def _grow(self, curve: TerminalCurve, part: Points) -> None:
        x = part.time / 1e6 if self._by_time(curve.name) else part.step.astype(np.float64)
        known = np.ones(len(part), bool) if self._by_time(curve.name) else part.step != NO_STEP
        if known.any():
            buckets = HistoryBuckets.of_points(x[known], part.value[known], part.attempt[known].astype(np.int64))
            curve.history.add(buckets, float(part.value[-1]))

    def _sample(self, name: str, part: Points) -> None:
        """Add samples of the machine per node; those of processes belong to their ranks."""
        for node in np.unique(part.rank).tolist():
            values = part.value[part.rank == node].tolist()
            rank, _, metric = name.removeprefix(PROCESS).partition("/")
            if name.startswith(PROCESS) and rank.isdecimal() and "/" not in metric:
                self._rank(int(rank)).values[metric] = values[-1]
                continue
            for value in values:
                self._node(node).take({name: value})

    def _recent(self, name: str, part: Points) -> None:
        for number in np.unique(part.rank).tolist():
            rank = self._rank(number)
            values = part.value[part.rank == number].tolist()
            if name == STEP:
                rank.steps.extend(values)
            else:
                phase = name.removeprefix(PHASE)
                rank.phases.setdefault(phase, deque(maxlen=rank.steps.maxlen)).extend(values)

    def _node(self, number: int) -> TerminalNode:
        return self.scene.nodes.setdefault(number, TerminalNode())

    def _rank(self, number: int) -> TerminalRank:
        if number not in self.scene.ranks and len(self.scene.ranks) >= MOST_RANKS:
            return TerminalRank(number)
        return self.scene.ranks.setdefault(number, TerminalRank(number))

    def _read_files(self, now: float) -> None:
        self._due = now + STATUS_SECONDS
        scene = self.scene
        scene.now = now
        seconds = scene.step_seconds()
        if seconds:
            self._facts["recent_rate"] = 1 / seconds
        self._facts["rate"], scene.samples_per_second = self._pace.rates()
        scene.status = status(self._folder, self._facts, self._events, now)
        scene.sinks = sink_rows(self._folder)
        nodes, _ = read_nodes(self._folder)
        newest = newest_attempt(nodes)
        for node in nodes:
            for number, state in node.ranks.items() if node.attempt == newest else ():
                rank = self._rank(number)
                rank.state = state.stall or state.state if state.state == "running" else state.state
                rank.node = node.node
                rank.pid, rank.step = state.pid, state.step
        if self._seen_events != self._events.total:
            self._seen_events = self._events.total
            found, _ = read_events(self._folder, {node.node: node.ahead_seconds for node in nodes})
            scene.alerts = alerts_of(found)
            scene.events = [_event(one) for one in found if one.get("kind") not in QUIET][-EVENTS:]
            self._blame(hanging_ranks(found, newest))
            self._read_machines()

    def _blame(self, hanging: Collection[int]) -> None:
        for number, rank in self.scene.ranks.items():
            rank.blame = HANGS if number in hanging and rank.state != "running" else ""

    def _read_machines(self) -> None:
        machines, _ = read_machines(self._folder)
        for place, machine in enumerate(machines):
            node = self._node(-1 - place)
            node.name, node.devices, node.absent = machine.node, dict(machine.devices), machine.absent

    def _by_time(self, name: str) -> bool:
        return self._sources.get(name) in {"machine", "own"}

    def _step_width(self, name: str) -> float:
        return 0.5 if self._by_time(name) else 1.0

    def _new_curve(self, name: str) -> TerminalCurve:
        return TerminalCurve(name, self.scene.units.get(name) or unit_of(name), History(self._step_width(name)))

    def known(self) -> Iterable[tuple[str, str]]:
        """Return every metric that can have a graph, with its source."""
        return self._sources.items()


def _event(event: dict[str, Any]) -> dict[str, Any]:
    kind = str(event.get("kind", "other"))[:60]
    return {"time": event.get("time"), "kind": kind, "step": event.get("step"), "text": line_of(event)}


def _points(prefix: str, columns: dict[str, Any]) -> Points:
    kept = {key: columns[f"{prefix}_{key}"] for key in ("name", "rank", "attempt", "seq", "step", "time", "value")}
    return Points(columns[f"{prefix}_names"].tolist(), **kept, ns=np.full(len(kept["name"]), NO_NS, np.int64))


def _of_blocks(columns: dict[str, Any], place: Any, *, by_time: bool) -> tuple[HistoryBuckets, float]:
    """Return blocks of an answer as buckets, and the newest value."""
    own = {key: columns[f"blocks_{key}"][place] for key in ("min", "max", "mean", "nonfinite", "attempt", "last_time")}
    bad = own["nonfinite"].astype(np.int64)
    count = columns["blocks_count"][place].astype(np.int64) - bad
    x = own["last_time"] / 1e6 if by_time else columns["blocks_last_step"][place].astype(np.float64)
    newest = float(columns["blocks_last"][place][int(own["last_time"].argmax())])
    attempt = own["attempt"].astype(np.int64)
    return HistoryBuckets(x, own["min"], own["max"], own["mean"], count, bad, attempt), newest


def _last_seen(columns: dict[str, Any]) -> dict[tuple[str, int, int], int]:
    """Return the highest sequence of each curve of an answer."""
    seen: dict[tuple[str, int, int], int] = {}
    for prefix, which in (("points", "seq"), ("blocks", "last_seq")):
        names = columns[f"{prefix}_names"].tolist()
        parts = [columns[f"{prefix}_{key}"].tolist() for key in ("name", "rank", "attempt", which)]
        for code, rank, attempt, seq in zip(*parts, strict=True):
            key = (names[code], rank, attempt)
            seen[key] = max(seq, seen.get(key, -1))
    return seen
