"""The runs below a folder, looked through by threads of their own: the list answers at once and grows.

A run is known by its key, "project/id", which is looked up in the list and never made into a path. Each
change of a row has a number, so that a page asks for what changed since. A folder whose disk hangs is left behind: it
is listed as one that is being read, and the others go on.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.store.catalog import is_run
from stepscope.store.layout import RUN_FILE
from stepscope.views.run_list import row, unread
from stepscope.web.errands import Errands

if TYPE_CHECKING:
    from collections.abc import Callable

    Stamp = tuple[tuple[str, int, int], ...]

EVERY = 2.0
"""Seconds between two looks through the folder, and at least ten times what a look takes."""
LOST = 30.0
"""Seconds after which a run that seems to go on is looked at again even if nothing changed: it may be lost."""
CARD = 10.0
"""Seconds after which the card of a run that goes on is read anew."""
IDLE = 30.0
"""Seconds without a question after which nothing is looked at any more, until somebody asks."""
PATIENCE = 5.0
"""Seconds that a thread may take to end; one that a disk holds up is left behind."""
SLOW_CARD, MOST_SLOW = 20.0, 4
"""Seconds after which the reading of a card is left behind, and how many may be."""
MOST_RUNS = 20_000
"""Runs of the list; the newest are kept."""


class Catalogue:
    """Every run below a root, with the time its row last changed."""

    def __init__(self, root: Path, read_card: Callable[[Path], dict[str, Any] | None] | None = None) -> None:
        """Know nothing yet; `start` begins to look.

        Args:
            root: folder of the projects.
            read_card: returns what the list shows beside the row and must be read from the points, in a thread.
        """
        self.root = root
        self._read_card = read_card
        self._lock = threading.Lock()
        self._rows: dict[str, dict[str, Any]] = {}
        self._paths: dict[str, Path] = {}
        self._stamps: dict[str, Stamp] = {}
        self._read: dict[str, float] = {}
        self._versions: dict[str, int] = {}
        self._gone: deque[tuple[int, str]] = deque(maxlen=1000)
        self._waiting: set[str] = set()
        self._carded: dict[str, float] = {}
        self._errands = Errands()
        self._card_turn = 0
        self._card_begun: dict[int, tuple[str, float]] = {}
        self._asked = time.monotonic()
        self.version = 0
        self.complete = False
        self._stop = threading.Event()
        self._wake = threading.Event()
        self._again = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Begin to look through the folder, and to read cards."""
        self._begin(self._look_often)
        self._begin(self._read_cards, self._card_turn)

    def _begin(self, work: Callable[..., None], *arguments: int) -> None:
        name = f"stepscope-{work.__name__.strip('_')}"
        thread = threading.Thread(target=work, args=arguments, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def stop(self) -> None:
        """End the threads."""
        for event in (self._stop, self._wake, self._again):
            event.set()
        for thread in self._threads:
            thread.join(PATIENCE)  # a thread inside DuckDB when the interpreter ends would take the process with it

    def path(self, key: str) -> Path | None:
        """Return the folder of a run that is listed; None if there is none."""
        with self._lock:
            return self._paths.get(key)

    def rows(self, since: int | None = None) -> dict[str, Any]:
        """Return the list, newest first; with `since`, the rows that changed after that version."""
        self._be_asked()
        with self._lock:
            keys = [key for key, version in self._versions.items() if since is None or version > since]
            found = [self._rows[key] for key in keys]
            gone = [] if since is None else [key for version, key in self._gone if version > since]
            slow = {key for key, _ in self._card_begun.values()}
            facts = {
                "version": self.version,
                "complete": self.complete,
                "reading": len(self._waiting | slow | (self._errands.held & self._rows.keys())),
                "total": len(self._rows),
            }
        found.sort(key=lambda one: (one["created"], one["id"]), reverse=True)
        return {**facts, "rows": found, "gone": gone}

    def any_running(self) -> bool:
        """Look through the folder, and say whether a run goes on."""
        self.look()
        with self._lock:
            return any(one["state"] == "running" for one in self._rows.values())

    def row(self, key: str) -> dict[str, Any] | None:
        """Return one row."""
        with self._lock:
            return self._rows.get(key)

    def look(self) -> None:
        """Go through the folder once: new runs, changed ones, removed ones."""
        paths = self._candidates()
        if len(paths) > MOST_RUNS:
            paths = dict(sorted(paths.items(), key=lambda entry: entry[1].name)[-MOST_RUNS:])
        with self._lock:
            for key in self._rows.keys() - paths.keys():
                self._forget(key)
        newest = sorted(paths.items(), key=lambda entry: entry[1].name, reverse=True)
        late = self._errands.do([(key, partial(self._consider, key, path)) for key, path in newest])
        if self._stop.is_set():
            return
        for key in late & self._errands.held:
            self._hold(key, paths[key])
        self.complete = True

    def _candidates(self) -> dict[str, Path]:
        """Return every folder that may be a run's, by its key; of a project that does not answer, those known."""
        found: dict[str, Path] = {}

        def search(project: Path) -> None:
            runs = [project] if (project / RUN_FILE).is_file() else _folders(project)
            found.update({f"{path.parent.name}/{path.name}": path for path in runs})

        projects = {str(path): path for path in _folders(self.root)}
        late = self._errands.do([(key, partial(search, path)) for key, path in projects.items()])
        with self._lock:
            kept = {key: path for key, path in self._paths.items() if {str(path), str(path.parent)} & late}
        return {**kept, **found.copy()}

    def _hold(self, key: str, path: Path) -> None:
        """List a run that does not answer, unless something is known of it already."""
        with self._lock:
            if key in self._rows:
                return
            self.version += 1
            self._paths[key], self._rows[key], self._versions[key] = path, {**unread(path), "card": None}, self.version

    def _consider(self, key: str, path: Path) -> None:
        """Read a run's row anew if its small files changed."""
        if self._stop.is_set():
            return
        if not is_run(path):
            with self._lock:
                if key in self._rows:
                    self._forget(key)
            return
        stamp, now = _stamp(path), time.monotonic()
        known = self._rows.get(key)
        same = known is not None and stamp == self._stamps.get(key)
        if same and (known is None or known["state"] != "running" or now - self._read[key] < LOST):
            return
        fresh = row(path)
        with self._lock:
            known = self._rows.get(key)
            card = None if known is None else known["card"]
            self._paths[key], self._stamps[key], self._read[key] = path, stamp, now
            changed = known is None or {**fresh, "card": card} != known
            if not changed:
                return
            self.version += 1
            self._rows[key] = {**fresh, "card": card}
            self._versions[key] = self.version
            due = fresh["state"] != "running" or now - self._carded.get(key, -CARD) >= CARD
            if fresh["state"] != "broken" and due:
                self._waiting.add(key)
                self._wake.set()

    def _forget(self, key: str) -> None:
        self.version += 1
        for table in (self._rows, self._paths, self._stamps, self._read, self._versions, self._carded):
            table.pop(key, None)
        self._waiting.discard(key)
        self._gone.append((self.version, key))

    def _be_asked(self) -> None:
        """Note that somebody looks, and begin to look again if nobody did for long."""
        idle = time.monotonic() - self._asked > IDLE
        self._asked = time.monotonic()
        if idle:
            self._again.set()

    def _look_often(self) -> None:
        while not self._stop.is_set():
            began = time.monotonic()
            self.look()
            self._replace_slow_card()
            self._stop.wait(max(EVERY, 10 * (time.monotonic() - began)))
            self._again.clear()
            if time.monotonic() - self._asked > IDLE:
                self._again.wait()

    def _read_cards(self, turn: int) -> None:
        """Read one card after another, the newest run first, with pauses as long as the work; until replaced."""
        while not self._stop.is_set() and self._read_card is not None and turn == self._card_turn:
            with self._lock:
                slow = {key for key, _ in self._card_begun.values()}
                ready = self._waiting - slow
                key = max(ready, key=lambda one: self._rows[one]["created"], default=None)
                self._waiting.discard(key or "")
                path = self._paths.get(key or "")
                if key is not None and path is not None:
                    self._card_begun[turn] = (key, time.monotonic())
            if key is None or path is None:
                self._wake.wait(1.0)
                self._wake.clear()
                continue
            began = time.monotonic()
            try:
                self._put_card(key, self._read_card(path))
            finally:
                with self._lock:
                    del self._card_begun[turn]
            self._stop.wait(min(0.2, time.monotonic() - began))

    def _replace_slow_card(self) -> None:
        """Leave the thread behind that has been on one card for long, and go on with another."""
        with self._lock:
            _, began = self._card_begun.get(self._card_turn, ("", time.monotonic()))
            if time.monotonic() - began < SLOW_CARD or len(self._card_begun) > MOST_SLOW:
                return
            self._card_turn += 1
        self._begin(self._read_cards, self._card_turn)

    def _put_card(self, key: str, card: dict[str, Any] | None) -> None:
        with self._lock:
            known = self._rows.get(key)
            self._carded[key] = time.monotonic()
            if known is None or known["card"] == card:
                return
            self.version += 1
            self._rows[key] = {**known, "card": card}
            self._versions[key] = self.version


def _folders(path: Path) -> list[Path]:
    """Return the folders in a folder, and the links, which may lead to one; none of them is touched."""
    try:
        with os.scandir(path) as entries:
            kinds = [entry for entry in entries if entry.is_dir(follow_symlinks=False) or entry.is_symlink()]
            return [Path(entry.path) for entry in kinds if not entry.name.startswith(".")]
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return []


def _stamp(path: Path) -> Stamp:
    """Return what tells whether the small files of a run changed: their names, sizes and times."""
    found = []
    for folder in (path, path / "nodes"):
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    if entry.name.endswith(".json") and not entry.name.startswith("."):
                        facts = entry.stat()
                        found.append((entry.name, facts.st_size, facts.st_mtime_ns))
        except OSError:
            found.append((str(folder), -1, -1))
    return tuple(sorted(found))
