"""The watcher's loop: find rings, drain them, keep the heartbeat, seal, detect ends. One `tick` at a time."""

from __future__ import annotations

import errno
import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stepscope.core import ring, status
from stepscope.core.clock import Clock, boot_id, read_pair
from stepscope.core.feed import Feed, Subject
from stepscope.core.places import STACKS_SUFFIX
from stepscope.store.drain import RingBusyError, Stream
from stepscope.store.layout import node_name
from stepscope.watcher.alerting import OFF, Alerting
from stepscope.watcher.attempts import Attempts
from stepscope.watcher.hang_watch import HangWatch
from stepscope.watcher.rank_guard import Job, RankGuard
from stepscope.watcher.ranks import Ends, WatchedRank
from stepscope.watcher.sampling import SampleRound, Sampling, SamplingPlan
from stepscope.watcher.sending import Sending
from stepscope.watcher.stall import FLOOR, HUNG_AFTER, StallDetector
from stepscope.watcher.straggling import note_timings
from stepscope.watcher.trouble import Trouble

if TYPE_CHECKING:
    from pathlib import Path

    from stepscope.core.clock import Pair
    from stepscope.core.places import Places
    from stepscope.store.drain import Drain
    from stepscope.store.layout import RunFolder
    from stepscope.watcher.death import Trainee
    from stepscope.watcher.journal import Journal
    from stepscope.watcher.sealing import Sealing

DISCOVER_EVERY, BEAT_EVERY, METER_EVERY, DESCRIBE_EVERY = 0.5, 0.5, 2.0, 5.0
"""Seconds between two searches for rings, heartbeats in rings, rows about our own cost, descriptions of the machine."""
SETTLE, ANYWAY = 2.0, 5.0
"""Seconds after a change in which a folder's time proves nothing, and between two listings in any case."""
AGAIN = ("describe", "sync", "heartbeat")
"""Tasks that are repeated in the tick after a failed write: their success clears the problem."""


@dataclass(frozen=True)
class WatcherPace:
    """How often the watcher does what; seconds and bytes."""

    drain: float = 0.1
    sync: float = 1.0
    heartbeat: float = 2.0
    seal_bytes: int = 4 << 20
    seal_interval: float = 300.0
    stall_after: float = FLOOR
    hang_after: float = HUNG_AFTER

    @classmethod
    def of(cls, settings: dict[str, Any]) -> WatcherPace:
        """Read the pace from the configuration; missing keys keep their default."""
        keys = {
            "drain": "watcher.drain_interval",
            "sync": "watcher.sync_interval",
            "heartbeat": "watcher.heartbeat_interval",
            "seal_bytes": "store.seal_bytes",
            "seal_interval": "store.seal_interval",
            "stall_after": "watcher.stall_after",
            "hang_after": "watcher.hang_after",
        }
        return cls(**{name: settings[key] for name, key in keys.items() if key in settings})


class RingFolders:
    """The folders in which the rings of a run appear; checking their times is cheaper than listing them."""

    def __init__(self, places: Places, run: Path) -> None:
        """Check nothing yet."""
        self._paths = [places.of_run(str(run), root) for root in places.roots()]
        self._times: list[int] = []
        self._changed = self._listed = 0.0

    def may_have_new(self, now: float) -> bool:
        """Return whether a ring may have appeared since the last True; `now` is monotonic, in seconds."""
        times = [_modified_ns(path) for path in self._paths]
        if times != self._times:
            self._times, self._changed = times, now
        if now - self._changed > SETTLE and now - self._listed < ANYWAY:
            return False
        self._listed = now
        return True


def _modified_ns(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def resident_bytes(statm: str = "/proc/self/statm") -> int | None:
    """Return the resident memory of this process in bytes; None if the system does not report it."""
    try:
        with open(statm, "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return None


class WatcherCost:
    """The cost of the watcher itself, as metrics of the run."""

    def __init__(self) -> None:
        """Start without a past: a share of time needs two readings."""
        self._spent: tuple[float, float] | None = None

    def read(self, drain: Drain, now: float) -> dict[str, float]:
        """Return CPU share, memory, and the bytes that are not sealed yet; `now` is monotonic, in seconds."""
        spent = time.process_time()
        before, self._spent = self._spent, (now, spent)
        values = {"stepscope/tail_bytes": float(drain.file.size if drain.file else 0)}
        if before is not None and now > before[0]:
            values["stepscope/watcher_cpu_ratio"] = (spent - before[1]) / (now - before[0])
        memory = resident_bytes()
        return values if memory is None else values | {"stepscope/watcher_memory_bytes": float(memory)}


def _guard(path: Path, stream: Stream, job: Job, pace: WatcherPace) -> RankGuard:
    """Return the guard of a rank: of its process, or of the source that a follower reads."""
    if stream.identity.extra.get(ring.FOLLOWED):
        return RankGuard.over_source(job, pace.stall_after)
    stacks, pid = str(path.with_suffix(STACKS_SUFFIX)), stream.identity.pid
    return RankGuard.over(stream.fileno(), stacks, job, StallDetector(pace.stall_after, pace.hang_after), pid)


class Watcher:
    """The state of one watcher; a test passes a clock and calls `tick` itself."""

    def __init__(
        self,
        folder: RunFolder,
        places: Places,
        clock: Clock,
        pace: WatcherPace,
        sealing: Sealing,
        journal: Journal,
        job: Job | None = None,
    ) -> None:
        """Prepare to watch one run; nothing is opened yet."""
        self._job = job or Job()
        self._folder, self._places, self._clock, self._pace = folder, places, clock, pace
        self._sealing, self._journal = sealing, journal
        self.node = node_name(places.disk, boot_id())
        self._ranks: dict[Path, WatchedRank] = {}
        self._attempts = Attempts(folder, self.node, sealing, self._ranks, pace.seal_bytes, clock)
        self.bad: set[Path] = set()
        """Rings that we leave alone: unreadable, of another version, or of a deleted run."""
        self._due = dict.fromkeys(("beat", "describe", "discover", "meter", "sync", "heartbeat"), 0.0)
        self._rings = RingFolders(places, folder.path)
        self._streams, self._abandoned = 0, False
        self._trouble = Trouble(folder, journal)
        self._cost = WatcherCost()
        self.sampling = Sampling([], SamplingPlan(), journal)
        """The sources of the machine; none by default."""
        self.woken = False
        """A trainer has ended, or its ring fills up, since the last tick."""
        self.feed = Feed()
        """Gets every row and sample."""
        self.alerting = Alerting(folder, self.node, journal, self.streams, lambda: self.sampling, OFF)
        """Evaluates the alert rules; none by default."""
        self.sending = Sending(folder, self.node, journal)
        """Starts the sender of a run that has sinks."""
        self.hangs = HangWatch(folder, self.node, self._ranks.values(), journal, self._attempts.beat)
        self._ends = Ends(folder, lambda: self.sampling.latest, self._attempts.beat, self.hangs.is_of_many)

    def tick(self) -> bool:
        """Do what is due; return False when nothing is left to watch."""
        pair = read_pair(self._clock)
        now = pair.monotonic_ns / 1e9
        if self._folder_gone(now):
            return False
        if self._is_cut(now):
            return True
        is_time = self._is_due("discover", now, DISCOVER_EVERY if self._ranks else 0.0)
        if is_time and (self._rings.may_have_new(now) or not self._ranks):
            self._discover()
        self._attempts.note_jumps(pair, self._journal.note)
        self._write(pair, now)
        for drain in self._attempts.drains()[-1:]:
            self.alerting.poll(pair, drain)
        self._sealing.poll(now, alone=not self._ranks)
        self.sending.poll(now)
        return self._alive(pair, now)

    def _write(self, pair: Pair, now: float) -> None:
        """Write everything that is new; a part of the run that cannot be written does not block the others."""
        problem: OSError | None = None
        tasks = (self._drain_all, self._ends.refine, self._note_costs, self._describe, self._sample, self._sync)
        for task in (*tasks, self._heartbeat, self._seal_full):
            try:
                task(pair)
            except OSError as error:
                self._due.update(dict.fromkeys(AGAIN, 0.0))
                if error.errno != errno.ENOENT or not self._trouble.notice(now):
                    problem = problem or error
        self._trouble.update(problem, now, self.streams())

    def rest(self) -> float:
        """Return the seconds from the start of a tick to the next: twice as many while the rings are nearly empty."""
        is_calm = bool(self._ranks) and all(rank.is_calm() for rank in self._ranks.values())
        return self._pace.drain * 2 if is_calm and not self._ends.pending() else self._pace.drain

    def _alive(self, pair: Pair, now: float) -> bool:
        if self._trouble.is_over(now, self.streams()):
            self._abandon(pair)
        if not self._ranks:
            self._discover()
        is_busy = self.alerting.busy(now, alone=not self._ranks) | self.sending.busy(now, alone=not self._ranks)
        is_busy = is_busy and not self._abandoned
        alive = bool(self._ranks) or self._ends.pending() or not self._sealing.idle() or is_busy
        if not alive:
            self._attempts.conclude(self.alerting.critical(), pair, self._journal.note)
        return alive

    def _is_due(self, what: str, now: float, every: float) -> bool:
        is_due = now >= self._due[what]
        self._due[what] = now + every if is_due else self._due[what]
        return is_due

    def _discover(self) -> None:
        for path in self._places.rings(str(self._folder.path)):
            if path in self._ranks or path in self.bad:
                continue
            try:
                stream = Stream(path, self._streams)
            except RingBusyError:  # a salvager holds it and will remove it
                continue
            except (OSError, ValueError) as error:
                self.bad.add(path)
                self._journal.note(f"cannot read ring {path}: {error}; it is left alone")
                continue
            if not self._folder.is_home_of(stream.identity.extra.get("created")):
                self._dismiss(path, stream)
                continue
            self._streams += 1
            guard = _guard(path, stream, self._job, self._pace)
            files = self._attempts.of(stream, self._clock.monotonic_ns(), self.alerting.on_events)
            self._ranks[path] = WatchedRank(stream, *files, guard)
            stream.reader.set_word(ring.WORD_HEARTBEAT, self._clock.monotonic_ns())
            self.sampling.meet(stream.identity.extra)
            self.alerting.attach(path, read_pair(self._clock))
            self.sending.attach(path)
            self._trouble.greet(stream)

    def _dismiss(self, path: Path, stream: Stream) -> None:
        """Drop a ring whose run was deleted; a folder of that name belongs to another run now."""
        self.bad.add(path)
        stream.reader.set_word(ring.WORD_STATUS, status.GONE)
        stream.close()

    def _drain_all(self, pair: Pair) -> None:
        beat = self._is_due("beat", pair.monotonic_ns / 1e9, BEAT_EVERY)
        problem: OSError | None = None
        for path, rank in list(self._ranks.items()):
            try:
                self._drain(path, rank, pair, beat=beat)
            except ValueError as error:
                self._give_up(path, rank, pair, error)
            except OSError as error:
                problem = problem or error
        if problem is not None:
            raise problem
        if beat:
            self.hangs.poll(pair)

    def _drain(self, path: Path, rank: WatchedRank, pair: Pair, *, beat: bool) -> None:
        stream = rank.stream
        quiet = rank.is_quiet()  # with many ranks, most are quiet in any one tick
        if beat:
            stream.reader.set_word(ring.WORD_HEARTBEAT, pair.monotonic_ns)
        if beat or rank.guard.is_asking():
            self._ends.check_progress(rank, pair)
        rank.alive = rank.alive and rank.writes(sure=beat or self.woken)
        if quiet and rank.alive and not self.woken:
            return
        over = not rank.alive or rank.words[ring.WORD_STATE] != ring.STATE_RUNNING
        dry = rank.move(pair, self.feed)
        if over:  # its last rows may show that it recovered
            self._ends.check_progress(rank, pair)
        # Unreadable records of a dead writer stay unreadable; those of a live one may still be completed.
        if over and (stream.empty() or (dry and not rank.alive)):
            self._end(path, rank, pair)

    def _give_up(self, path: Path, rank: WatchedRank, pair: Pair, error: ValueError) -> None:
        """Leave a ring alone that was damaged or truncated while we read it."""
        self._journal.note(f"cannot read ring {path} any more: {error}; it is left alone")
        self.bad.add(path)
        self._release(path, rank)
        rank.guard.close()
        rank.state.state, rank.state.cause, rank.state.ended = "lost", f"its ring: {error}", pair.wall_ns // 1000
        rank.node.ended = all(other.state != "running" for other in rank.node.ranks.values())
        self._attempts.beat(rank.node, pair)
        if rank.node.ended:
            self._attempts.seal(rank.drain)

    def _end(self, path: Path, rank: WatchedRank, pair: Pair) -> None:
        """Record the end of a rank once it is known, then remove its ring."""
        end = self._ends.find_end(rank, pair)
        if end is None:
            return
        self._add_own(rank.drain, rank.recorder_cost(), pair)
        rank.drain.write_own(pair)
        self._ends.conclude(rank, end, pair)
        if rank.node.ended:
            self._attempts.seal(rank.drain)
        rank.stream.reader.set_word(ring.WORD_ENDED, 1)
        rank.stream.remove()
        self._release(path, rank)

    def _abandon(self, pair: Pair) -> None:
        """Leave the rows of dead trainers to a salvager, because the run cannot be written."""
        self._abandoned = True
        for path, rank in list(self._ranks.items()):
            self.bad.add(path)
            self._ends.leave(rank, pair, self._journal)
            self._release(path, rank)
        for drain in self._attempts.drains():
            try:
                self._attempts.seal(drain)
            except OSError as error:
                self._journal.note(f"cannot close a tail: {error}; the rows in it stay readable")

    def _release(self, path: Path, rank: WatchedRank) -> None:
        rank.stream.close()
        self.feed.end(rank.number)
        del self._ranks[path]

    def trainees(self) -> list[Trainee]:
        """Return the processes whose end should wake the watcher."""
        if self._trouble.is_cut():
            return []
        return [
            rank.guard.trainee
            for rank in self._ranks.values()
            if rank.guard.trainee and rank.alive and not rank.guard.is_leaving()
        ]

    def _note_costs(self, pair: Pair) -> None:
        now = pair.monotonic_ns / 1e9
        if self._is_due("meter", now, METER_EVERY):
            for rank in self._ranks.values():
                self._add_own(rank.drain, rank.recorder_cost(), pair)
            for drain in self._attempts.live():
                self._add_own(drain, {**self._cost.read(drain, now), **self.sending.metrics()}, pair)

    def _describe(self, pair: Pair) -> None:
        if self._is_due("describe", pair.monotonic_ns / 1e9, DESCRIBE_EVERY):
            self._attempts.describe(self.sampling)

    def _sync(self, pair: Pair) -> None:
        if self._is_due("sync", pair.monotonic_ns / 1e9, self._pace.sync):
            for drain in self._attempts.live():
                drain.sync()

    def _seal_full(self, pair: Pair) -> None:
        self._attempts.seal_full(pair.monotonic_ns / 1e9, self._pace.seal_bytes, self._pace.seal_interval)

    def _heartbeat(self, pair: Pair) -> None:
        if not self._is_due("heartbeat", pair.monotonic_ns / 1e9, self._pace.heartbeat):
            return
        self._trouble.notice(pair.monotonic_ns / 1e9)
        for rank in self._ranks.values():
            rank.note_memory(self.sampling.latest)
        note_timings({rank.number: rank.state for rank in self._ranks.values()}, self.alerting.timings())
        self._attempts.beat_all(pair)

    def _sample(self, pair: Pair) -> None:
        """Ask the sources that are due, and write the watcher's own rows."""
        sample = SampleRound()
        if self.sampling.is_due(pair.monotonic_ns):
            phases = {rank.phase() for rank in self._ranks.values()}
            sample = self.sampling.round(pair.monotonic_ns, phases.pop() if len(phases) == 1 else "")
        if sample.rows:
            self._ends.sampled()
        for drain in self._attempts.live():
            for row in sample.rows:
                self._add_own(drain, row, pair)
            if drain.own.waiting():
                drain.write_own(pair)
            if sample.events:
                drain.write_events([dict(event) for event in sample.events], drain.own.rank, pair)

    def _add_own(self, drain: Drain, row: dict[str, float], pair: Pair) -> None:
        drain.own.add(row, pair.monotonic_ns)
        self.feed.sample(drain.own.rank, row)

    def streams(self) -> list[Stream]:
        """Return the rings of the ranks that live."""
        return [rank.stream for rank in self._ranks.values()]

    def subject(self) -> Subject:
        """Return the run that this watcher watches."""
        return Subject(self._folder.path.name, self._folder.path.parent.name, self.node, self._folder.path)

    def pids(self) -> dict[int, int]:
        """Return the process id of each rank's trainer on this node, where it is visible."""
        return {rank.number: rank.guard.trainee.pid for rank in self._ranks.values() if rank.guard.trainee}

    def _folder_gone(self, now: float) -> bool:
        """Return whether the run was deleted: its rows have no place to go, and no other run may get them."""
        lost, there = self._attempts.close_lost_tails()
        if there and not lost:
            return False  # the folder still holds its file
        if lost:
            self._trouble.notice(now, lost=True)
        if self._trouble.is_cut():  # a folder that is made again names its run later: check until parts are restored
            for path, rank in list(self._ranks.items()):
                if not self._folder.is_home_of(rank.stream.identity.extra.get("created")):
                    self._dismiss(path, self._ranks.pop(path).stream)
        if not self._ranks or not self._trouble.folder_gone():
            return False
        for rank in self._ranks.values():
            rank.stream.reader.set_word(ring.WORD_STATUS, status.GONE)
        return True

    def _is_cut(self, now: float) -> bool:
        """Restore missing parts of the run; return whether to wait, because more may be removed."""
        if not self._ranks or not self._trouble.is_cut():
            return False
        if self._trouble.notice(now):
            return True
        if self._trouble.is_cut():
            self._trouble.mend(self.streams())
            self._attempts.described.clear()
        return False
