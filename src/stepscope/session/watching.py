"""Start the watcher and keep it running: as a process, or as a thread of this one if none can be started."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

from stepscope.core.spawn import SpawnError, start_detached
from stepscope.recorder.complaints import tell

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from stepscope.core.places import Places
    from stepscope.session.draining import DrainThread

STALE_SECONDS = 10.0
"""A watcher without a heartbeat for this long is restarted."""
GONE_SECONDS = 2.0
"""The same for one that has also released the ring: its process has ended."""
FIRST_PAUSE, LONGEST_PAUSE = 5.0, 60.0
"""Seconds between two starts, initially and at most; each pause is twice the one before."""
STEADY_SECONDS = 60.0
"""A watcher that lived this long does not delay the next start."""
START = "stepscope.watcher.process"
_NS = 1_000_000_000


class Watch:
    """Keep the ring of this process drained."""

    def __init__(
        self,
        folder: Path,
        arguments: tuple[str, ...],
        start: Callable[..., None] = start_detached,
        is_drained: Callable[[], bool] = lambda: True,
        count_lost: Callable[[], int] = lambda: 0,
    ) -> None:
        """Watch the run in `folder`; `arguments` is the watcher's configuration.

        `is_drained` returns whether a process holds the ring's consumer lock, `count_lost` how many rows are lost.
        """
        self._folder, self._arguments, self._start = folder, arguments, start
        self._is_drained, self._count_lost = is_drained, count_lost
        self._thread: DrainThread | None = None
        self._pause, self._not_before = FIRST_PAUSE, 0
        self._started = 0
        """Time of the last restart (monotonic ns); 0 if there was none."""
        self._gone_since: int | None = None
        self._lost_before = 0

    def begin(self, ring_path: Path, places: Places) -> None:
        """Start the watcher; if that is impossible, drain in a thread and report it."""
        try:
            self._start(START, str(self._folder), *self._arguments, str(os.getpid()))
        except SpawnError as error:
            tell(f"cannot start the watcher: {error}; a thread of this process writes the run instead")
            from stepscope.session.draining import DrainThread  # a training rarely needs it

            thread = DrainThread(self._folder, ring_path, places)
            try:
                thread.start()
            except RuntimeError as reason:
                tell(f"cannot start a thread either: {reason}; rows stay in memory until `stepscope show` saves them")
                return
            self._thread = thread

    def look(self, heartbeat: int, born: int, now: int) -> None:
        """Start a new watcher if the heartbeat in the ring (monotonic ns, 0 for none yet) is stale, as often as needed.

        Report that, and report when it is back. Cheap in the normal case; the pauses between starts grow.
        """
        if self._thread is not None:
            return
        last = heartbeat or born
        silent = (now - last) / _NS
        if silent <= GONE_SECONDS or (silent <= STALE_SECONDS and (not heartbeat or self._is_drained())):
            self._welcome(heartbeat)
            return
        if now < self._not_before:
            return
        if self._gone_since is None:
            self._gone_since, self._lost_before = last, self._count_lost()
            tell(f"the watcher of this run was not heard of for {silent:.0f} s; a new one is started, rows wait for it")
        if self._started and last - self._started > STEADY_SECONDS * _NS:
            self._pause = FIRST_PAUSE
        self._started, self._not_before = now, now + round(self._pause * _NS)
        self._pause = min(2 * self._pause, LONGEST_PAUSE)
        try:
            threading.Thread(target=self._again, name="stepscope-restart", daemon=True).start()
        except RuntimeError as error:  # the interpreter is ending, or there may be no more threads
            tell(f"cannot restart the watcher: {error}; rows wait in memory, look with `stepscope show`")

    def _welcome(self, heartbeat: int) -> None:
        """Report that a watcher is back, if one was gone."""
        if self._gone_since is None or heartbeat <= self._gone_since:
            return
        seconds, lost = (heartbeat - self._gone_since) / _NS, self._count_lost() - self._lost_before
        self._gone_since = None
        rows = f"{lost} rows were lost" if lost > 0 else "no row was lost"
        tell(f"the watcher is back after {seconds:.0f} s; {rows}")

    def _again(self) -> None:
        try:
            self._start(START, str(self._folder), *self._arguments, str(os.getpid()))
        except SpawnError as error:
            tell(f"cannot restart the watcher: {error}; rows wait in memory, look with `stepscope show`")

    def stop(self) -> bool:
        """End the thread, if there is one; return whether no thread is left that reads the ring."""
        return self._thread is None or self._thread.stop()
