"""Facts learned after a run started: the values its script was called with, and the script's name for the run.

A thread writes them beside run.json, so that no call waits for a disk.
"""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Any

from stepscope.core.redact import jsonable, redact
from stepscope.recorder.complaints import tell
from stepscope.store.layout import RunFolder, replace
from stepscope.store.meta import MOST_LATER

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stepscope.session.run import Run


class LaterFacts:
    """The facts of one run; safe to call from any thread, never raises, never waits."""

    def __init__(self, run: Run) -> None:
        """Start with none; only the first rank writes."""
        self._file = RunFolder(run.path).later_file if run.recording and run.rank == 0 else None
        self._facts: dict[str, Any] = {}
        self._lock = threading.Lock()
        self._writer: threading.Thread | None = None

    def add(self, config: Mapping[str, Any] | None = None, name: str | None = None) -> None:
        """Add settings, which replace earlier ones of the same name, and the name of the run."""
        if self._file is None:
            return
        with self._lock:
            if config:
                self._facts["config"] = {**self._facts.get("config", {}), **redact(jsonable(dict(config)))}
            if name:
                self._facts["name"] = str(name)
        self._writer = threading.Thread(target=self._write, name="stepscope-facts", daemon=True)
        self._writer.start()

    def _write(self) -> None:
        with self._lock:
            text = json.dumps(self._facts, default=str).encode()
            problem: object = None
            if len(text) > MOST_LATER:
                problem = f"they are {len(text)} bytes long"
            elif self._file is not None:
                try:
                    replace(self._file, text)
                except OSError as error:
                    problem = error
        if problem is not None:
            tell(f"cannot keep the settings of the script: {problem}; pass them to init(config=...)")

    def settle(self, seconds: float) -> None:
        """Wait until the facts are written, at most this many seconds."""
        if self._writer is not None:
            self._writer.join(seconds)
