"""A run of another tool, recorded as one of ours while it goes on: its own ring and watcher, with its own times."""

from __future__ import annotations

import hashlib
import os
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from stepscope.core import ring
from stepscope.core.clock import Pair
from stepscope.core.endings import SOURCE_ENDED
from stepscope.core.errors import StepscopeError
from stepscope.core.identity import Identity
from stepscope.core.places import find_places
from stepscope.core.redact import jsonable, redact
from stepscope.importers.words import clean
from stepscope.recorder.declarations import TooManyNamesError
from stepscope.session.current import LaterFacts
from stepscope.session.followed_rows import EARLIEST, LATEST, KnownPoints, Row, rows_of, select
from stepscope.session.opening import configure, record
from stepscope.session.run import END_SECONDS
from stepscope.sources.imported_run import OWN_FACTS, folder_name, name_of, store
from stepscope.store.catalog import ready_folder
from stepscope.store.layout import FORMAT_VERSION, RUN_FILE, RunFolder
from stepscope.store.meta import check_format
from stepscope.store.reader import Past

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from stepscope.core.config import Config
    from stepscope.core.defaults import Defaults
    from stepscope.importers.imported import Imported, ImportedSeries
    from stepscope.recorder.declarations import Layout
    from stepscope.session.run import Run

PROJECT = "followed"
SETTINGS = {"samplers__processes": False, "watcher__stacks": False}
"""What is off: our own process is not the training."""
REPLACED = "source_replaced"
"""Kind of the event with which an attempt begins whose source is another one than before."""
MOST_RANKS = 256
"""Ranks from here on are recorded as rank 0: each has a ring of its own."""
FULL, DRAINED = 0.5, 0.25
"""Shares of the ring: above the first, writing waits until the second; the source itself keeps what is left."""
ROWS_AT_A_TIME = 256
NAP = 0.02
STUCK_SECONDS = 60.0
"""Maximum seconds that writing waits for the watcher; a new one comes after ten."""
WENT_ON = "its source went on with another attempt"


@dataclass(frozen=True)
class FollowPlace:
    """Where followed runs are recorded, and under what name."""

    root: Path
    project: str = ""
    """Empty: as the source says, else PROJECT."""
    name: str = ""
    """Empty: as the source says, else that of its file or folder."""


def run_id_of(path: str, key: str = "") -> str:
    """Return the id of the run in a source, the same whenever it is followed; `key` tells apart the runs in it."""
    source = b"\0".join((os.fsencode(path), key.encode("utf-8", "replace")))
    return f"follow-{hashlib.sha256(source).hexdigest()[:12]}"


def recorded(root: Path, run_id: str) -> Path | None:
    """Return the folder of a run that was followed before; None if there is none."""
    return next((path for path in root.glob(f"*/{run_id}") if (path / RUN_FILE).is_file()), None)


class ForeignRun:
    """One followed run: takes what is new in its source, and writes what the store does not have."""

    def __init__(self, place: FollowPlace, path: str, form: str, key: str = "") -> None:
        """Follow the run `key` of the source at `path`; nothing is created before its first point comes."""
        self._place, self._path, self._form = place, path, form
        self.id = run_id_of(path, key)
        self.facts: dict[str, Any] = {}
        self.points = 0
        self.step: int | None = None
        """The last step."""
        self.newest = 0.0
        """Time of the newest point in seconds since 1970; 0 without one."""
        self._config: Config | Defaults | None = None
        self._folder: RunFolder | None = None
        found = recorded(place.root, self.id)
        if found is not None:
            self._folder = ready_folder(found)
            check_format(self._folder)
            if _is_written(self._folder):
                cause, remedy = f"another process records it as {self.id}", f"look with `stepscope top {self.id}`"
                raise StepscopeError(f"follow {path!r}", cause, remedy)
        self._first_attempt = self._generation()
        self._known = KnownPoints(self._folder, self._first_attempt)
        self._rings: dict[int, Run] = {}
        self._layouts: dict[tuple[int, tuple[str, ...]], Layout] = {}
        self._pairs: dict[int, Pair] = {}
        self._attempt = self._next_attempt()
        """Attempt that is being written, or comes next."""
        self._source_attempt: int | None = None
        self._start = 0.0
        self._later: LaterFacts | None = None

    @property
    def is_new(self) -> bool:
        """Whether nothing was recorded of it so far."""
        return self._folder is None

    @property
    def path(self) -> Path | None:
        """Its folder; None as long as it has no point."""
        return None if self._folder is None else self._folder.path

    def _generation(self) -> int:
        """Return the first attempt that its source gives again: that of the last replacement."""
        if self._folder is None:
            return 0
        return max((int(event.get("attempt", 0)) for event in Past(self._folder).events(REPLACED)), default=0)

    def _next_attempt(self) -> int:
        if self._folder is None:
            return 0
        claims = (path.name.partition("-")[0] for path in (self._folder.path / "claims").glob("*-*"))
        used = [*map(int, filter(str.isdecimal, claims)), *Past(self._folder).attempts]
        return max(used, default=-1) + 1

    def begin_again(self, *, is_other: bool = False) -> None:
        """Expect the source from its beginning; if it is another one than before, it becomes a new attempt."""
        self._drain()
        self._source_attempt = None
        if is_other:
            self._advance(self._attempt + 1 if self._rings else self._attempt)
            self._first_attempt = self._attempt
            self._known = KnownPoints(None)
        else:
            # Rows of an attempt that has just ended may still be on their way.
            known = None if self._folder is None else ready_folder(self._folder.path)
            self._known = KnownPoints(known, self._first_attempt)

    def take(self, run: Imported, changed: float) -> int:
        """Write the new points of a part of the run; return their number.

        `changed` is when the source changed, in seconds since 1970: the time of points that have none.

        Raises:
            SourceChangedError: what was recorded before is no longer in the source.
        """
        if run.facts:
            self._take_facts(run.facts)
        fresh = [self._known.fresh(_checked(series)) for series in run.columns.values()]
        return self._write([series for series in fresh if series is not None], changed)

    def store_ended(self, run: Imported, state: str, cause: str) -> None:
        """Store a run that had ended before anything of it was recorded: it needs neither ring nor watcher."""
        facts = {**run.facts, "state": state, "cause": cause, "name": self._place.name or run.facts.get("name")}
        project = self._place.project or str(run.facts.get("project") or "") or PROJECT
        stored = store(replace(run, facts=facts, path=self._path), self._place.root, project, self.id)
        self.facts, self.points, self._folder = run.facts, stored.points, RunFolder(stored.path)
        self._attempt = self._next_attempt()

    def _take_facts(self, facts: dict[str, Any]) -> None:
        self.facts = redact(jsonable(facts))
        if self._rings and self._folder is not None:
            self._later = self._later or LaterFacts(next(iter(self._rings.values())))
            config = self._settings()
            self._later.add(config if isinstance(config, dict) else {}, str(self.facts.get("name") or "") or None)

    def _settings(self) -> Any:
        return self.facts.get("config", self.facts.get("hparams"))

    def _write(self, found: list[ImportedSeries], changed: float) -> int:
        if not found:
            return 0
        owners = {(attempt, rank) for one in found for attempt, rank in _owners(one)}
        count = 0
        for attempt, rank in sorted(owners):
            mine = {}
            for one in found:
                chosen = np.flatnonzero((one.attempt == attempt) & (one.rank == rank))
                if len(chosen):
                    mine[one.name] = one if len(chosen) == len(one) else select(one, chosen)
            start = self._started(mine.values(), changed)
            count += self._write_rows(attempt, rank, rows_of(mine, start, changed))
        self.points += count
        return count

    def _started(self, found: Iterable[ImportedSeries], changed: float) -> float:
        """Return the start of the run in seconds since 1970, from which small times count."""
        if not self._start:
            created = self.facts.get("created", self.facts.get("started"))
            if isinstance(created, (int, float)) and EARLIEST < created < LATEST:
                self._start = float(created)
            else:
                times = np.concatenate([one.time for one in found])
                small = times[np.abs(times) < EARLIEST]
                self._start = changed - float(small.max(initial=0.0))
        return self._start

    def _write_rows(self, attempt: int, rank: int, rows: Iterable[Row]) -> int:
        count = 0
        run: Run | None = None
        for number, row in enumerate(rows):
            if run is None:
                run = self._ring(attempt, rank, row.time)
            if number % ROWS_AT_A_TIME == 0:
                self._await_room(run)
            layout = self._layout(run, rank, row.names)
            if layout is None:
                continue
            pair = self._pairs[rank]
            run.write_at(layout, row.time * 1000 - pair.wall_ns + pair.monotonic_ns, row.step, row.values)
            count += len(row.values)
            self.newest = max(self.newest, row.time / 1e6)
            if row.step != ring.NO_STEP:
                self.step = row.step
        return count

    def _layout(self, run: Run, rank: int, names: tuple[str, ...]) -> Layout | None:
        """Return how to write a row; None if the run has too many names."""
        found = self._layouts.get((rank, names))
        if found is None:
            try:
                found = self._layouts[rank, names] = run.layout(names)
            except TooManyNamesError:  # the run keeps the names that it has
                return None
            except OSError as error:
                raise StepscopeError(f"record {self._path!r}", error, "free some space in shared memory") from error
        return found

    def _ring(self, attempt: int, rank: int, first: int) -> Run:
        """Return the ring of a rank; `attempt` is the source's, `first` the time of the first row in microseconds."""
        if self._source_attempt is not None and attempt > self._source_attempt:
            self._advance(self._attempt + attempt - self._source_attempt)
        self._source_attempt = max(attempt, self._source_attempt or 0)
        found = self._rings.get(rank)
        if found is None:
            found = self._rings[rank] = self._open(rank, first)
        return found

    def _open(self, rank: int, first: int) -> Run:
        if self._config is None:
            self._config = configure(None, dict(SETTINGS))
        is_first = self._folder is None
        folder = self._folder = self._folder or self._create(first)
        identity = Identity(self.id, "follow", rank, 1, None, None, self._attempt)
        # The same map from one clock to the other, but read at the first row: the run began there.
        moved = time.time_ns() - first * 1000
        pair = self._pairs[rank] = Pair(first * 1000, time.monotonic_ns() - moved)
        run = record(folder, identity, folder.claim(self._attempt, rank), self._config, pair)
        if self._attempt == self._first_attempt and self._attempt and not is_first:
            run.own_event(REPLACED, path=self._path)
        return run

    def _create(self, first: int) -> RunFolder:
        project = folder_name(self._place.project or str(self.facts.get("project") or "") or PROJECT)
        folder = RunFolder((self._place.root / project / self.id).absolute())
        folder.make()
        about = {key: value for key, value in self.facts.items() if key not in OWN_FACTS}
        source = {"path": self._path, "format": self._form}
        folder.describe(
            {
                "format": FORMAT_VERSION,
                "id": self.id,
                "name": self.name,
                "project": project,
                "created": max(0, first),
                "config": self._settings(),
                "followed": source,
                "imported": {**source, "facts": about, "notes": []},
            }
        )
        return folder

    @property
    def name(self) -> str:
        """Its name: as given, as the source says, or that of the file or its folder."""
        return clean(self._place.name or str(self.facts.get("name") or "") or name_of(self._path))

    def _advance(self, attempt: int) -> None:
        """Go on with another attempt."""
        if attempt != self._attempt:
            self.end("lost", WENT_ON)
            self._attempt = attempt

    def _await_room(self, run: Run) -> None:
        """Wait until the watcher has drained enough: the source keeps what is not written yet."""
        if run.behind > FULL:
            self._drain(DRAINED)

    def _drain(self, share: float = 0.0) -> None:
        deadline = time.monotonic() + STUCK_SECONDS
        for run in self._rings.values():
            while run.behind > share:
                run.check_watcher()
                if time.monotonic() > deadline:
                    cause, remedy = "its watcher does not write", "see watcher.log in its folder"
                    raise StepscopeError(f"record {self._path!r} in {self.path}", cause, remedy)
                time.sleep(NAP)

    def look(self) -> None:
        """Restart a watcher that is gone, and print its messages; about once a second."""
        for run in self._rings.values():
            run.check_watcher()

    def end(self, state: str, cause: str = "", *, certain: bool = False, ended: float | None = None) -> None:
        """End the attempt; `ended` is when, in seconds since 1970, by default at the newest point."""
        rings, self._rings, self._layouts = self._rings, {}, {}
        for run in rings.values():
            facts = {"state": state, "cause": cause, "certain": certain, "ended": ended or self.newest or None}
            run.own_event(SOURCE_ENDED, **facts, step=self.step)
            run.stop(None, ring.STATE_FINISHED)
        if rings and self._later is not None:
            self._later.settle(END_SECONDS)
        for run in rings.values():
            run.let_go(time.monotonic() + END_SECONDS)
        if rings:
            self._attempt += 1
            self._later = None


def _is_written(folder: RunFolder) -> bool:
    """Return whether a living process writes this run: one of its rings is locked."""
    for path in find_places().rings(str(folder.path)):
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:  # its watcher has just removed it
            continue
        try:
            if ring.lock_holder(descriptor, ring.LOCK_WRITER) is not None:
                return True
        finally:
            os.close(descriptor)
    return False


def _owners(series: ImportedSeries) -> set[tuple[int, int]]:
    """Return the pairs of attempt and rank in a series."""
    if (series.attempt == series.attempt[0]).all() and (series.rank == series.rank[0]).all():
        return {(int(series.attempt[0]), int(series.rank[0]))}
    return set(zip(series.attempt.tolist(), series.rank.tolist(), strict=True))


def _checked(series: ImportedSeries) -> ImportedSeries:
    """Return a series of the child, which is not trusted, with a name and ranks that can be recorded."""
    rank = np.where((series.rank >= 0) & (series.rank < MOST_RANKS), series.rank, 0).astype(np.int32)
    return replace(series, name=clean(series.name), rank=rank, attempt=np.maximum(series.attempt, 0))
