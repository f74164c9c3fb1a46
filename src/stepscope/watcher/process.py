"""The watcher as a process: elected by a lock, at low priority; it ends after its run."""

from __future__ import annotations

import fcntl
import gc
import json
import os
import select
import signal
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.core.clock import Clock
from stepscope.core.errors import StepscopeError, in_words
from stepscope.core.feed import Feed
from stepscope.core.places import WATCHER_LOCK, Places, find_places, private_directory
from stepscope.core.walls import wall
from stepscope.store.known_roots import note_root
from stepscope.store.layout import RunFolder
from stepscope.store.retention import RetentionLimits, apply
from stepscope.store.salvage import salvage
from stepscope.watcher.alerting import Alerting
from stepscope.watcher.journal import Journal
from stepscope.watcher.loop import Watcher, WatcherPace
from stepscope.watcher.rank_guard import Job
from stepscope.watcher.sampling import build_sampling
from stepscope.watcher.sealing import Sealing, lower_priority

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from stepscope.store.drain import Stream
    from stepscope.watcher.death import Trainee

NICE = 10
MOST_FAILURES, LAST_FAILURES = 1000, 100
"""Ticks that may fail in a row: while a trainer lives, and after the end of the last."""


def main(arguments: list[str]) -> int:
    """Watch one run until its trainers have ended.

    Arguments: the run's folder, the settings as JSON, and the pid of the trainer whose pidfd is our standard input.
    """
    folder = RunFolder(Path(arguments[0]))
    settings: dict[str, Any] = json.loads(arguments[1]) if len(arguments) > 1 else {}
    pace = WatcherPace.of(settings)
    lower_priority(NICE)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    os.umask(0o077)
    journal = Journal(folder.path / "watcher.log")
    job = Job.here(seeing=bool(settings.get("watcher.stacks", True)))
    job.born = int(arguments[2]) if len(arguments) > 2 else None
    # SIGTERM means that the whole job ends: our task is to record how the trainers end.
    signal.signal(signal.SIGTERM, lambda *_: job.warn(time.monotonic_ns()))
    places = find_places()
    # In a thread: a home directory on a dead server may block for minutes.
    threading.Thread(target=_note, args=(folder, journal), daemon=True).start()
    while (descriptor := _elect(folder, places)) is not None:
        salvage(places, note=journal.note, except_for=places.rings(str(folder.path)))
        watcher = Watcher(folder, places, Clock(), pace, Sealing(folder, journal), journal, job)
        watcher.sampling = build_sampling(settings, folder.path, watcher.pids, journal)
        alerting = Alerting(folder, watcher.node, journal, watcher.streams, partial(getattr, watcher, "sampling"))
        watcher.alerting, watcher.feed = alerting, Feed([*_exporters(watcher, settings, journal), alerting])
        gc.freeze()  # what is loaded stays: scanning it for garbage was a tenth of the watcher's work
        gave_up = not _watch(watcher, journal)
        watcher.sampling.close()
        watcher.feed.close()
        watcher.sending.close()
        watcher.hangs.close()
        _resign(folder, places, descriptor)
        if gave_up or not folder.path.is_dir() or watcher.bad.issuperset(places.rings(str(folder.path))):
            _clean_up(folder, settings, journal)
            break  # otherwise a ring came while we held the lock, and its own watcher exited because of us
    return 0


def _exporters(watcher: Watcher, settings: dict[str, Any], journal: Journal) -> list[Feed]:
    """Return the feeds that the configuration asks for; each is imported only then."""
    feeds: list[Feed | None] = []
    if settings.get("exporters.prometheus.enabled"):
        from stepscope.exporters.prometheus.feed import open_feed

        feeds.append(open_feed(settings, watcher.subject(), watcher.sampling.metrics, journal.note))
    if settings.get("exporters.tensorboard.enabled"):
        from stepscope.exporters.tensorboard import feed as tensorboard

        feeds.append(tensorboard.open_feed(settings, watcher.subject(), journal.note))
    if settings.get("exporters.grafana.enabled"):
        from stepscope.exporters.prometheus.grafana import write_for

        write_for(watcher.subject(), settings, journal.note)
    return [feed for feed in feeds if feed is not None]


def _note(folder: RunFolder, journal: Journal) -> None:
    """Record where this run is, so that it is found from any folder."""
    problem = note_root(folder.path.parents[1])
    if problem:
        journal.note(f"cannot note where the runs are: {problem}; name their folder with --dir")


def _clean_up(folder: RunFolder, settings: dict[str, Any], journal: Journal) -> None:
    """Apply the limits of the store to the other runs, if the configuration says so."""
    if not settings.get("store.auto_cleanup"):
        return
    try:
        for removal in apply(folder.path.parents[1], RetentionLimits.of(settings), keep=[folder.path]):
            journal.note(f"removed run {removal.path}: {removal.reason}")
    except (OSError, StepscopeError) as error:
        journal.note(f"cannot apply the limits of the store: {error}; `stepscope gc` tries again")


def _elect(folder: RunFolder, places: Places) -> int | None:
    """Return the held lock of the run's watcher, or None if another process holds it."""
    path = places.of_run(str(folder.path), places.disk) / WATCHER_LOCK
    while True:
        private_directory(path.parent)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if path.stat().st_ino == os.fstat(descriptor).st_ino:
                return descriptor
        except FileNotFoundError:  # the last watcher removed its lock file between our two calls
            os.close(descriptor)
            continue
        except OSError:
            os.close(descriptor)
            return None
        os.close(descriptor)


def _resign(folder: RunFolder, places: Places, descriptor: int) -> None:
    """Release the lock, and remove the folder if no ring is left."""
    if not places.rings(str(folder.path)):
        places.remove(str(folder.path))
    os.close(descriptor)


def wakers(trainees: Iterable[Trainee], streams: Iterable[Stream]) -> list[int]:
    """Return the descriptors that become readable when the pause should end."""
    rings = [stream.waker() for stream in streams]
    return [trainee.fileno() for trainee in trainees] + [descriptor for descriptor in rings if descriptor >= 0]


def pause(usual: float, spent: float, streams: Iterable[Stream]) -> float:
    """Return the seconds until the next tick: none while a ring holds more than one tick drains.

    A tick starts `usual` seconds after the last one, which took the `spent` seconds.
    """
    return 0.0 if any(stream.is_behind for stream in streams) else usual - spent


class Sleeper:
    """The pause between two ticks, in which the feed serves clients; a trainer that exits or a full ring ends it."""

    def __init__(self) -> None:
        """Wait for nothing yet."""
        self._awaited: dict[int, int] = {}
        self._poll = select.poll()

    def sleep(self, seconds: float, wake: Sequence[int], feed: Feed) -> bool:
        """Sleep until `seconds` have passed or a descriptor in `wake` is readable; return whether one is."""
        end = time.monotonic() + seconds
        while True:
            ready = self._wait(max(0.0, end - time.monotonic()), wake, feed)
            feed.serve()
            if not ready.isdisjoint(wake):
                return True
            if time.monotonic() >= end:
                return False

    def _wait(self, seconds: float, wake: Sequence[int], feed: Feed) -> set[int]:
        awaited = {**feed.descriptors(), **dict.fromkeys(wake, select.POLLIN)}
        if awaited != self._awaited:  # rare: almost every pause awaits the same descriptors
            self._awaited, self._poll = awaited, select.poll()
            for descriptor, events in awaited.items():
                self._poll.register(descriptor, events)
        return {descriptor for descriptor, _ in self._poll.poll(seconds * 1000)}


def _watch(watcher: Watcher, journal: Journal) -> bool:
    """Run ticks until nothing is left to watch; return False if it gave up because every tick failed."""
    failures = 0
    sleeper = Sleeper()

    def fail(error: Exception) -> None:
        nonlocal failures
        failures += 1
        journal.note(f"cannot finish a tick: {in_words(error)}; going on")

    while True:
        started = time.monotonic()
        wake: list[int] = []
        before = failures
        with wall(fail):  # no single fault may end the loop
            if not watcher.tick():
                return True
            wake = wakers(watcher.trainees(), watcher.streams())
            failures = 0
        if failures > before:
            is_needed = any(stream.writer_alive() for stream in watcher.streams())
            if failures > (MOST_FAILURES if is_needed else LAST_FAILURES):
                journal.note(f"giving up after {failures} failed ticks; `stepscope show` recovers what is left")
                return False
        left = pause(watcher.rest(), time.monotonic() - started, watcher.streams())
        watcher.woken = sleeper.sleep(left, wake, watcher.feed)
        if watcher.woken:
            for stream in watcher.streams():
                stream.clear_waker()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
