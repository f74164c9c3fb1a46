"""Have the run watched: by a process of its own, or where none can be started by a thread of this one."""

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
"""A watcher that has not been heard of for so long is started anew, once."""
START = "stepscope.watcher.process"


class Watch:
    """Keep somebody draining the ring of this process."""

    def __init__(self, folder: Path, arguments: tuple[str, ...], start: Callable[..., None] = start_detached) -> None:
        """Watch the run in `folder`; `arguments` is the watcher's pace."""
        self._folder, self._arguments, self._start = folder, arguments, start
        self._restarted = False
        self._thread: DrainThread | None = None

    def begin(self, ring_path: Path, places: Places) -> None:
        """Start the watcher; where that is impossible drain in a thread and say so."""
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
        """Start a new watcher, once, if the heartbeat in the ring (monotonic ns, 0 for none yet) is stale."""
        if self._restarted or self._thread is not None:
            return
        if (now - (heartbeat or born)) / 1e9 > STALE_SECONDS:
            self._restarted = True
            try:
                threading.Thread(target=self._again, name="stepscope-restart", daemon=True).start()
            except RuntimeError as error:  # the interpreter is ending, or there may be no more threads
                tell(f"cannot restart the watcher: {error}; rows wait in memory, look with `stepscope show`")

    def _again(self) -> None:
        try:
            self._start(START, str(self._folder), *self._arguments, str(os.getpid()))
        except SpawnError as error:
            tell(f"cannot restart the watcher: {error}; rows wait in memory, look with `stepscope show`")

    def stop(self) -> None:
        """End the thread, if there is one."""
        if self._thread is not None:
            self._thread.stop()
