"""The list of the runs below a folder, updated by background threads: it responds at once and grows.

A run is known by its key, "project/id", which is looked up in the list and never made into a path. Each change of a row
gets a number, so that a page can ask for the changes since the last one. A folder whose disk hangs is listed as being
read, and does not hold up the others.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.store.catalog import is_run
from stepscope.store.layout import RUN_FILE
from stepscope.views.run_list import row as read_row
from stepscope.views.run_list import unread
from stepscope.web.disk_tasks import DiskTasks

if TYPE_CHECKING:
    from collections.abc import Callable

    Stamp = tuple[tuple[str, int, int], ...]

EVERY = 2.0
"""Seconds between two scans of the folder; more if a scan takes longer than a tenth of that."""
LOST = 30.0
"""Seconds after which the row of a running run is read again even if its files did not change: it may be lost."""
CARD = 10.0
"""Seconds after which the card of a running run is read again."""
IDLE = 30.0
"""Seconds without a request after which scanning pauses."""
THREAD_END_SECONDS = 5.0
"""Seconds that a thread may take to end; a thread that a disk holds up is abandoned."""
SLOW_CARD, MAX_SLOW = 20.0, 4
"""Seconds after which a thread that reads one card is replaced, and how many replaced threads there may be."""
MAX_RUNS = 20_000
"""Runs in the list; the newest are kept."""


@dataclass
class _ListedRun:
    """A run in the list; times are monotonic seconds."""

    path: Path
    row: dict[str, Any]
    version: int
    stamp: Stamp = ()
    row_read: float = 0.0
    card_read: float = -CARD


class ListedRuns:
    """Every run below a root, with the version at which its row last changed."""

    def __init__(self, root: Path, read_card: Callable[[Path], dict[str, Any] | None] | None = None) -> None:
        """Begin empty; `start` starts the threads. `read_card` computes the part of a row that needs points."""
        self.root = root
        self.version = 0
        self.complete = False
        self._read_card = read_card
        self._lock = threading.Lock()
        self._entries: dict[str, _ListedRun] = {}
        self._removed: deque[tuple[int, str]] = deque(maxlen=1000)
        self._tasks = DiskTasks()
        self._cards_due: set[str] = set()
        self._card_thread = 0
        self._cards_begun: dict[int, tuple[str, float]] = {}
        self._requested = time.monotonic()
        self._stop, self._card_due, self._resume = threading.Event(), threading.Event(), threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Start to scan the folder and to read cards."""
        self._start_thread(self._scan_forever)
        self._start_thread(self._read_cards, self._card_thread)

    def _start_thread(self, work: Callable[..., None], *arguments: int) -> None:
        name = f"stepscope-{work.__name__.strip('_')}"
        thread = threading.Thread(target=work, args=arguments, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def stop(self) -> None:
        """End the threads."""
        for event in (self._stop, self._card_due, self._resume):
            event.set()
        for thread in self._threads:
            thread.join(THREAD_END_SECONDS)  # a thread inside DuckDB at interpreter exit would crash the process

    def path(self, key: str) -> Path | None:
        """Return the folder of a listed run; None if it is not listed."""
        with self._lock:
            entry = self._entries.get(key)
            return None if entry is None else entry.path

    def row(self, key: str) -> dict[str, Any] | None:
        """Return the row of a run; None if it is not listed."""
        with self._lock:
            entry = self._entries.get(key)
            return None if entry is None else entry.row

    def rows(self, since: int | None = None) -> dict[str, Any]:
        """Return the list, newest first; with `since`, the rows that changed after that version."""
        if time.monotonic() - self._requested > IDLE:
            self._resume.set()  # scanning paused because no request came
        self._requested = time.monotonic()
        with self._lock:
            rows = [entry.row for entry in self._entries.values() if since is None or entry.version > since]
            gone = [] if since is None else [key for version, key in self._removed if version > since]
            slow = {key for key, _ in self._cards_begun.values()}
            facts = {
                "version": self.version,
                "complete": self.complete,
                "reading": len(self._cards_due | slow | (self._tasks.stalled & self._entries.keys())),
                "total": len(self._entries),
            }
        rows.sort(key=lambda row: (row["created"], row["id"]), reverse=True)
        return {**facts, "rows": rows, "gone": gone}

    def any_running(self) -> bool:
        """Scan the folder, and return whether a run is running."""
        self.scan()
        with self._lock:
            return any(entry.row["state"] == "running" for entry in self._entries.values())

    def scan(self) -> None:
        """Go through the folder once: add new runs, read changed rows, remove deleted runs."""
        newest = sorted(self._candidates().items(), key=lambda item: item[1].name, reverse=True)[:MAX_RUNS]
        paths = dict(newest)
        with self._lock:
            for key in self._entries.keys() - paths.keys():
                self._remove(key)
        late = self._tasks.run([(key, partial(self._update, key, path)) for key, path in newest])
        if self._stop.is_set():
            return
        for key in late & self._tasks.stalled:
            with self._lock:  # its disk does not respond: list it, unless its row is known
                if key not in self._entries:
                    self.version += 1
                    row = {**unread(paths[key]), "card": None}
                    self._entries[key] = _ListedRun(paths[key], row, self.version)
        self.complete = True

    def _candidates(self) -> dict[str, Path]:
        """Return every folder that may hold a run, by its key; of a project that does not respond, the known runs."""
        candidates: dict[str, Path] = {}

        def search(project: Path) -> None:
            runs = [project] if (project / RUN_FILE).is_file() else _folders(project)
            candidates.update({f"{path.parent.name}/{path.name}": path for path in runs})

        late = self._tasks.run([(str(path), partial(search, path)) for path in _folders(self.root)])
        with self._lock:
            known = {key: entry.path for key, entry in self._entries.items()}
        stalled = {key: path for key, path in known.items() if {str(path), str(path.parent)} & late}
        return {**stalled, **candidates.copy()}

    def _update(self, key: str, path: Path) -> None:
        """Read the row of a run again if its small files changed."""
        if self._stop.is_set():
            return
        if not is_run(path):
            with self._lock:
                if key in self._entries:
                    self._remove(key)
            return
        stamp, now = _stamp(path), time.monotonic()
        entry = self._entries.get(key)
        same = entry is not None and stamp == entry.stamp
        if entry is not None and same and (entry.row["state"] != "running" or now - entry.row_read < LOST):
            return
        row = read_row(path)
        with self._lock:
            entry = self._entries.setdefault(key, _ListedRun(path, {"card": None}, 0))
            entry.path, entry.stamp, entry.row_read = path, stamp, now
            row["card"] = entry.row["card"]
            if row == entry.row:
                return
            self._replace(entry, row)
            due = row["state"] != "running" or now - entry.card_read >= CARD
            if row["state"] != "broken" and due:
                self._cards_due.add(key)
                self._card_due.set()

    def _replace(self, entry: _ListedRun, row: dict[str, Any]) -> None:
        self.version += 1
        entry.row, entry.version = row, self.version

    def _remove(self, key: str) -> None:
        self.version += 1
        del self._entries[key]
        self._cards_due.discard(key)
        self._removed.append((self.version, key))

    def _scan_forever(self) -> None:
        while not self._stop.is_set():
            began = time.monotonic()
            self.scan()
            self._replace_slow_thread()
            self._stop.wait(max(EVERY, 10 * (time.monotonic() - began)))
            self._resume.clear()
            if time.monotonic() - self._requested > IDLE:
                self._resume.wait()

    def _read_cards(self, number: int) -> None:
        """Read cards, the newest run first, with pauses as long as the work, until this thread is replaced."""
        while not self._stop.is_set() and self._read_card is not None and number == self._card_thread:
            with self._lock:
                ready = self._cards_due - {key for key, _ in self._cards_begun.values()}
                key = max(ready, key=lambda key: self._entries[key].row["created"], default=None)
                path = None if key is None else self._entries[key].path
                if key is not None:
                    self._cards_due.discard(key)
                    self._cards_begun[number] = (key, time.monotonic())
            if key is None or path is None:
                self._card_due.wait(1.0)
                self._card_due.clear()
                continue
            began = time.monotonic()
            try:
                self._set_card(key, self._read_card(path))
            finally:
                with self._lock:
                    del self._cards_begun[number]
            self._stop.wait(min(0.2, time.monotonic() - began))

    def _replace_slow_thread(self) -> None:
        """Start another thread for cards if the present one has been reading the same card for long."""
        with self._lock:
            _, began = self._cards_begun.get(self._card_thread, ("", time.monotonic()))
            if time.monotonic() - began < SLOW_CARD or len(self._cards_begun) > MAX_SLOW:
                return
            self._card_thread += 1
        self._start_thread(self._read_cards, self._card_thread)

    def _set_card(self, key: str, card: dict[str, Any] | None) -> None:
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                return
            entry.card_read = time.monotonic()
            if entry.row["card"] != card:
                self._replace(entry, {**entry.row, "card": card})


def _folders(path: Path) -> list[Path]:
    """Return the folders in a folder, and symbolic links; none of them is opened."""
    try:
        with os.scandir(path) as entries:
            kinds = [entry for entry in entries if entry.is_dir(follow_symlinks=False) or entry.is_symlink()]
            return [Path(entry.path) for entry in kinds if not entry.name.startswith(".")]
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return []


def _stamp(path: Path) -> Stamp:
    """Return names, sizes and times of the small files of a run: they change whenever its row may change."""
    stamps = []
    for folder in (path, path / "nodes"):
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    if entry.name.endswith(".json") and not entry.name.startswith("."):
                        facts = entry.stat()
                        stamps.append((entry.name, facts.st_size, facts.st_mtime_ns))
        except OSError:
            stamps.append((str(folder), -1, -1))
    return tuple(sorted(stamps))
