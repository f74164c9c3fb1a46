"""Count the events of a run and track which alerts are firing, as its files grow."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from stepscope.core.events import is_users
from stepscope.store.events import decode_event

if TYPE_CHECKING:
    from stepscope.store.layout import RunFolder

ALERT = b'"alert"'
MOST_BYTES = 1 << 24
"""Maximum bytes of events read per poll; the rest waits for the next."""
TEXT = 300
"""Maximum characters of an alert."""


class EventCount:
    """The number of events of a run and its firing alerts, from what was appended to its files."""

    def __init__(self, folder: RunFolder) -> None:
        """Start at zero; `look` counts."""
        self._folder = folder
        self._at: dict[str, int] = {}
        self.total = 0
        self.firing: dict[str, str] = {}
        """Severity of each alert that is firing, by its id."""
        self.last: dict[str, str] | None = None
        """Short text of the last alert."""

    def look(self) -> None:
        """Count the events since the last call."""
        try:
            with os.scandir(self._folder.path / "events") as entries:
                files = [(entry.path, entry.stat().st_size) for entry in entries if entry.name.endswith(".jsonl")]
        except OSError:  # no event yet, or an unreadable folder: the list of runs shows that
            return
        for path, size in sorted(files):
            if size > self._at.get(path, 0):
                self._take(path)

    def _take(self, path: str) -> None:
        with open(path, "rb") as file:
            file.seek(self._at.get(path, 0))
            data = file.read(MOST_BYTES)
        whole = data.rfind(b"\n") + 1
        self._at[path] = self._at.get(path, 0) + whole
        self.total += data.count(b"\n", 0, whole)
        if ALERT in data:
            for line in data[:whole].split(b"\n"):
                if ALERT in line:
                    self._note(line)

    def _note(self, line: bytes) -> None:
        event = decode_event(line)
        if event is None or event["kind"] != "alert" or is_users(event):
            return  # a damaged line counts as an event without content
        name, state = str(event.get("alert") or event.get("rule")), event.get("state")
        kept = ("rule", "severity", "state", "text")
        self.last = {key: str(event.get(key) or "")[:TEXT] for key in kept}
        if state == "firing":
            self.firing[name] = str(event.get("severity", "info"))
        elif state != "pending":
            self.firing.pop(name, None)
