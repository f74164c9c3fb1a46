"""Follow the live runs of other tools at a path: find them, read them in children, record them as runs of ours."""

from __future__ import annotations

import os
import select
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stepscope.core.errors import StepscopeError, UsageError
from stepscope.importers import formats
from stepscope.importers.scanning import EMPTY, MAY_COME, MISSING, NOTHING, UNKNOWN, UNKNOWN_YET, FoundSource
from stepscope.importers.source_process import ScanProcess, TailProcess
from stepscope.importers.transfer import read_batches
from stepscope.session.followed_source import FollowedSource
from stepscope.session.foreign_run import FollowPlace, recorded, run_id_of
from stepscope.session.open_files import is_open
from stepscope.sources.imported_run import store

if TYPE_CHECKING:
    from collections.abc import Iterable

    from stepscope.session.followed_source import Tell

LOOK_EVERY = 1.0
"""Seconds between two checks of watchers and ends."""
MOST_SOURCES = 64
"""Maximum sources that are followed at a time: each has a child and a watcher."""
LAST_SECONDS = 3.0
"""Maximum seconds in which the children read the last rows when following shall end."""
IDLE = 600.0
"""Seconds without growth after which a source that nobody has open counts as ended."""


@dataclass(frozen=True)
class FollowPlan:
    """What to follow, and for how long."""

    path: str
    form: str | None = None
    """The format; None: detect it."""
    idle: float = IDLE
    once: bool = False
    """Take in what is there, and end."""
    wait: bool = False
    """Wait for a path that does not exist yet."""


class Follower:
    """Follows everything at one path. Call `turn` until it returns False, then `close`."""

    def __init__(self, plan: FollowPlan, place: FollowPlace, tell: Tell) -> None:
        """Start to look at the path; `tell` gets every event."""
        if plan.form is not None and plan.form not in formats.FORMATS:
            known = ", ".join(formats.FORMATS)
            raise UsageError(
                f"follow {plan.path!r} as {plan.form!r}", "there is no such format", f"take one of {known}"
            )
        self._plan, self._place, self._tell = plan, place, tell
        self.sources: dict[str, FollowedSource] = {}
        self._over: list[list[FoundSource]] = []
        """Runs that have ended before: they are imported, one at a time."""
        self._scan = ScanProcess(os.path.abspath(plan.path), plan.form, str(place.root) + os.sep)
        self._is_folder: bool | None = None
        self._looked = 0.0
        self._problem = ""
        self._is_full = False
        self.failed = 0
        """Number of sources that could not be read."""

    def turn(self, seconds: float = 0.5) -> bool:
        """Wait at most so many seconds for something new, and record it; return False when nothing is left to do."""
        self._hear(seconds)
        now = time.monotonic()
        if now - self._looked >= LOOK_EVERY:
            self._looked = now
            for source in list(self.sources.values()):
                source.look(self._plan.idle)
        for group, source in list(self.sources.items()):
            if self._plan.once and source.is_read():
                source.stop(self._plan.idle, "followed with --once; the training may go on")
            if source.is_over:
                source.close()
                del self.sources[group]
        if self._over:
            self._import(self._over.pop(0))
        return bool(self.sources or self._over) or self._awaits_more()

    def _awaits_more(self) -> bool:
        if self._is_folder is None:  # nothing was found so far
            return True
        return self._is_folder and not self._plan.once

    def _hear(self, seconds: float) -> None:
        """Take what the children have to say."""
        owners = {
            child.fileno(): source for source in self.sources.values() for child in source.children if not child.is_over
        }
        awaited = [*owners, *([] if self._scan.is_over else [self._scan.fileno()])]
        ready = select.select(awaited, [], [], seconds)[0]
        for descriptor in ready:
            if descriptor in owners:
                self._hear_source(owners[descriptor], descriptor)
            else:
                for found, problem in self._scan.found():
                    self._take(found, problem)

    def _hear_source(self, source: FollowedSource, descriptor: int) -> None:
        child = next((one for one in source.children if not one.is_over and one.fileno() == descriptor), None)
        try:
            if child is not None:
                source.hear(child)
        except StepscopeError as error:
            self.failed += 1
            self._tell("failed", None, str(error))
            source.fail(error.cause)

    def _take(self, found: list[FoundSource], problem: str) -> None:
        """Take what a look at the path has found."""
        if self._is_folder is None:
            self._check(found, problem)
        elif problem == MISSING != self._problem:
            self._tell("gone", None, f"{self._plan.path} is gone; waiting for it")
        self._problem = problem
        groups: dict[str, list[FoundSource]] = {}
        for one in found:
            if one.group not in self.sources or one.path not in self.sources[one.group].paths:
                groups.setdefault(one.group, []).append(one)
        for group, some in groups.items():
            if group not in self.sources and self._is_over(group, some):
                self._over.append(some)
            elif group not in self.sources and len(self.sources) >= MOST_SOURCES:
                if not self._is_full:
                    self._is_full = True
                    self._tell("full", None, f"more than {MOST_SOURCES} live sources: the others are not followed")
            else:
                self._follow(group, some)

    def _check(self, found: list[FoundSource], problem: str) -> None:
        """Learn at the first looks whether there is something to follow."""
        path = self._plan.path
        if found:
            self._is_folder = [one.path for one in found] != [os.path.realpath(path)]
            if self._plan.once or not self._is_folder:
                self._scan.ask_to_end()
            return
        if not problem or (problem == self._problem and not self._plan.once):
            return
        if problem not in MAY_COME or (problem == MISSING and not self._plan.wait) or self._plan.once:
            known = f"give its --format; Stepscope reads {', '.join(formats.FORMATS)}"
            remedies = {
                MISSING: "check the path, or wait for it with --wait",
                EMPTY: "leave --once out to wait for it",
                **dict.fromkeys((UNKNOWN, UNKNOWN_YET, NOTHING), known),
            }
            remedy = remedies.get(problem, "check the path and its permissions")
            raise StepscopeError(f"follow {path!r}", problem, remedy)
        self._tell("waiting", None, f"waiting for {path}: {problem}")

    def _is_over(self, group: str, some: list[FoundSource]) -> bool:
        """Return whether a run in a folder has ended before we came, and was not followed before."""
        changed = max(one.changed for one in some)
        if not self._is_folder or time.time() - changed < self._plan.idle or formats.FORMATS[some[0].format].fill_all:
            return False
        return recorded(self._place.root, run_id_of(group)) is None and not is_open({one.path for one in some})

    def _follow(self, group: str, some: list[FoundSource]) -> None:
        source = self.sources.get(group)
        if source is None:
            source = FollowedSource(group, some[0].format, self._place, self._tell, once=self._plan.once)
            self.sources[group] = source
            self._tell("found", None, f"following {group} ({formats.FORMATS[some[0].format].help})")
        source.add([one.path for one in some], max(one.changed for one in some))

    def _import(self, some: list[FoundSource]) -> None:
        """Import a run that has ended before."""
        found, problems = read_batches([formats.Batch(some[0].format, tuple(one.path for one in some), 0)])
        for run in found:
            try:
                stored = store(run, self._place.root, self._place.project)
            except StepscopeError as error:
                problems.append(error)
                continue
            verb = "was imported before" if stored.existed else f"has ended: imported as {stored.id}"
            self._tell("imported", None, f"{some[0].group} {verb}")
        for problem in problems:
            self.failed += 1
            self._tell("failed", None, str(problem))

    def close(self) -> None:
        """Read what is there, record it, and stop."""
        self._scan.close()
        deadline = time.monotonic() + LAST_SECONDS
        for child in self._children():
            child.ask_to_end()
        while (left := deadline - time.monotonic()) > 0 and any(not child.is_over for child in self._children()):
            self._hear(left)
        for source in self.sources.values():
            source.stop(self._plan.idle)
            source.close()
        self.sources = {}

    def _children(self) -> Iterable[TailProcess]:
        return [child for source in self.sources.values() for child in source.children]
