"""Follow a source that another program still writes: its ordinary reader, which waits for more at the end.

A reader asks `source.goes_on` when it has read all that is there. Then what it has added since the last time is handed
over and forgotten, and the question waits until the source has grown. A source that was replaced (rotated, truncated,
rewritten) is read from its beginning, and so is a changed file whose reader takes it as a whole, as a JSON document.
"""

from __future__ import annotations

import contextvars
import os
import time
import zlib
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from stepscope.core.errors import StepscopeError
from stepscope.importers.run_builder import ImportFormat, RunBuilders
from stepscope.importers.source import AT_END, HELD_BACK

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepscope.importers.imported import Imported

    Send = Callable[["HandOver"], None]
    Wait = Callable[[float], bool]

EVERY = 0.5
"""Seconds between two looks at a source."""
SHARE = 20
"""A look at a source, or reading it again, takes at most one part in this many of the time."""
ALIVE_EVERY = 2.0
"""Maximum seconds without a word while the source is being awaited."""
PATIENCE = 5.0
"""Seconds that a file may be unreadable before that is reported: it may just be written."""
HEAD_BYTES = 256
"""First bytes of a file that show whether it is still the same."""
SQLITE = b"SQLite format 3\0"
COMPANIONS = ("-wal", "-journal")
"""Files beside a database that change in its place."""
MOST_ENTRIES = 10_000
"""Maximum entries of a folder that are looked at."""


class SourceReplacedError(Exception):
    """What is at the path is no longer what was being read."""


class HandOver(NamedTuple):
    """What was new in a source, and how it stands."""

    runs: list[Imported]
    """Runs with new points or facts; empty facts mean that they did not change."""
    is_start: bool = False
    """Whether the source is read from its beginning, here and in what follows."""
    is_over: bool = False
    """Whether nothing follows."""
    is_gone: bool = False
    """Whether there is nothing at the path any more."""
    changed: float = 0.0
    """When the source last changed, in seconds since 1970."""
    notes: tuple[str, ...] = ()
    """What could not be read of the whole."""


class SourceMark(NamedTuple):
    """How a file or folder looked; one that looks the same has not changed."""

    inode: tuple[int, int] = (0, 0)
    size: int = 0
    """Bytes; 0 for a folder, which only its reader can judge."""
    changed_ns: int = 0
    rest: int = 0
    """Of files beside a database, and of everything in a folder."""

    @classmethod
    def of(cls, path: str) -> SourceMark | None:
        """Look at a path; None if nothing is there."""
        try:
            facts = os.stat(path)
        except OSError:
            return None
        inode = facts.st_dev, facts.st_ino
        if not os.path.isdir(path):
            beside = [one for name in COMPANIONS if (one := _facts(path + name)) is not None]
            return cls(inode, facts.st_size, max([facts.st_mtime_ns, *(one[1] for one in beside)]), hash(tuple(beside)))
        rest, newest, left = 0, facts.st_mtime_ns, MOST_ENTRIES
        for place, folders, names in os.walk(path):
            for name in (*folders, *names):
                found = _facts(os.path.join(place, name))
                if found is not None:
                    rest = zlib.crc32(repr((name, found)).encode(), rest)
                    newest = max(newest, found[1])
            left -= len(names) + len(folders)
            if left < 0:
                break
        return cls(inode, 0, newest, rest)


def _facts(path: str) -> tuple[int, int, int] | None:
    """Return inode, time of the last change in ns and size of a file; None if it is missing."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


class Tail:
    """One source that is being followed."""

    def __init__(
        self, path: str, form: ImportFormat, send: Send, wait: Wait, now: Callable[[], float] = time.monotonic
    ) -> None:
        """Follow the file or folder at `path`.

        Args:
            path: the source; it must exist.
            form: its format.
            send: takes what is new.
            wait: lets so many seconds pass; returns False when following shall end.
            now: the clock, in seconds.
        """
        self._path, self._form, self._send, self._wait, self._now = path, form, send, wait, now
        self._mark, self._head = SourceMark(), b""
        self._runs = RunBuilders()
        self._held_back: list[Callable[[], None]] = []
        self._told: dict[str, tuple[object, ...]] = {}
        """Facts and notes of each run as they were last handed over."""
        self._is_start = self._is_moved = self._is_over = False
        self._sent = self._began = 0.0
        self._pause = EVERY

    def run(self) -> None:
        """Follow until that shall end; raise StepscopeError if the source cannot be read even then."""
        while not self._is_over:
            self._start()
            problem: StepscopeError | None = None
            try:
                contextvars.copy_context().run(self._read)
            except SourceReplacedError:  # the next turn reads what is there now
                continue
            except StepscopeError as error:
                problem = error
            self._hand_over()
            self._pause = max(EVERY, SHARE * (self._now() - self._began))
            self._await_change(problem)
            if self._is_over and problem is not None:
                raise problem
        self._hand_over(is_over=True)

    def _start(self) -> None:
        """Take the source as it is now."""
        self._mark, self._head = SourceMark.of(self._path) or SourceMark(), self._first_bytes(HEAD_BYTES)
        self._runs, self._held_back, self._told = RunBuilders(), [], {}
        self._is_start, self._is_moved = True, False
        self._began, self._pause = self._now(), EVERY

    def _read(self) -> None:
        if self._form.reads_on:
            AT_END.set(self._ask)
            HELD_BACK.set(self._held_back)
        if self._form.fill_all is not None:
            self._form.fill_all(self._path, self._runs)
        elif self._form.fill is not None:
            self._form.fill(self._path, self._runs.of(""))

    def _ask(self) -> bool:
        """Hand over what was read, and wait for more; the answer to `source.goes_on`."""
        for add in self._held_back:
            add()
        self._hand_over()
        if self._is_moved:
            raise SourceReplacedError
        while not self._is_over:
            if self._look():
                return True
            self._is_over = not self._wait(self._pause)
        return False

    def _look(self) -> bool:
        """Return whether the source may have more; raise SourceReplacedError if it is another one."""
        began = self._now()
        mark = SourceMark.of(self._path)
        self._pause = max(EVERY, SHARE * (self._now() - began))
        if mark is None or mark == self._mark:
            self._say_alive(is_gone=mark is None)
            return False
        if mark.inode != self._mark.inode:
            self._is_moved = True  # the reader still has the old file, which may have got its last rows since
            return True
        if mark.size < self._mark.size or not self._has_same_head():
            raise SourceReplacedError
        self._mark = mark
        return True

    def _has_same_head(self) -> bool:
        is_same = self._first_bytes(len(self._head)) == self._head
        if len(self._head) < HEAD_BYTES:
            self._head = self._first_bytes(HEAD_BYTES)
        return is_same

    def _first_bytes(self, count: int) -> bytes:
        """Return the first bytes of a file; of a database those that never change, of a folder none."""
        try:
            with open(self._path, "rb") as file:
                found = file.read(count)
        except OSError:
            return b""
        return found[: len(SQLITE)] if found.startswith(SQLITE) else found

    def _await_change(self, problem: StepscopeError | None) -> None:
        """Wait until the source of a reader that has returned looks different, or following shall end."""
        since = self._now()
        while not self._is_over:
            mark = SourceMark.of(self._path)
            if mark is not None and mark != self._mark:
                return
            if problem is not None and self._now() - since > PATIENCE:
                self._runs.note(str(problem))
                self._hand_over()
                problem = None
            self._say_alive(is_gone=mark is None)
            self._is_over = not self._wait(self._pause)

    def _say_alive(self, *, is_gone: bool) -> None:
        if self._now() - self._sent >= ALIVE_EVERY:
            self._tell(HandOver([], is_gone=is_gone))

    def _hand_over(self, *, is_over: bool = False) -> None:
        found = []
        for key, run in self._runs.by_key.items():
            taken = run.take(self._path, self._form.name, is_ours=self._form.is_ours, key=key)
            told = taken.facts, taken.notes
            is_known = self._told.get(key) == told
            if taken.columns or not is_known:
                self._told[key] = told
                found.append(replace(taken, facts={}) if is_known else taken)
        if found or self._is_start or is_over:
            self._tell(HandOver(found, self._is_start, is_over, notes=tuple(self._runs.notes)))
            self._is_start = False

    def _tell(self, what: HandOver) -> None:
        self._sent = self._now()
        self._send(what._replace(changed=self._mark.changed_ns / 1e9))
