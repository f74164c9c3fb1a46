"""Find the sources in a folder as they appear, again and again: those of a format that Stepscope reads."""

from __future__ import annotations

import os
import stat
import time
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from stepscope.core.errors import StepscopeError
from stepscope.importers import formats
from stepscope.importers.source import HEAD_BYTES, head

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepscope.importers.run_builder import ImportFormat

EVERY = 1.0
"""Seconds between two searches."""
SHARE = 50
"""A search takes at most one part in this many of the time."""
AGAIN = 10.0
"""Minimum seconds after which a source that has changed is reported again: it may have been given up meanwhile."""
MISSING, EMPTY, NOTHING = "nothing is there", "it is empty so far", "nothing in it is of a format that Stepscope reads"
UNKNOWN = "its content is of no format that Stepscope reads"
UNKNOWN_YET = f"{UNKNOWN}, so far"
MAY_COME = (MISSING, EMPTY, NOTHING, UNKNOWN_YET)
"""Problems that time may solve."""


class FoundSource(NamedTuple):
    """A file, or a folder that is one thing, of a known format."""

    path: str
    format: str
    group: str
    """The same for all files of one run."""
    changed: float
    """When it last changed, in seconds since 1970."""


class FolderScan:
    """What is known of a folder, or of a single file."""

    def __init__(
        self, path: str, form: str | None = None, skip: str = "", now: Callable[[], float] = time.monotonic
    ) -> None:
        """Know nothing yet; only sources of the format `form` count, if one is given, and none below `skip`."""
        self._path, self._form, self._skip, self._now = os.path.realpath(path), form, skip, now
        self._seen: dict[str, tuple[int, int]] = {}
        """Size and time of files that are of no known format so far."""
        self._known: dict[str, tuple[FoundSource, float]] = {}
        """Sources as they were last reported, and when."""
        self._logged: set[str] = set()
        """Folders with event files."""
        self.problem = ""
        """Why there is no source; empty if there is one."""
        self.pause = EVERY
        """Seconds until the next look should come."""

    def look(self) -> list[FoundSource]:
        """Return the sources that were not there, or not of a known format, at the last look; or changed since."""
        began = self._now()
        is_folder = os.path.isdir(self._path) and formats.owner(self._path) is None
        paths = formats.sources(self._path) if is_folder else iter([self._path])
        found = []
        for path in islice(paths, formats.MOST_FILES):
            if self._skip and path.startswith(self._skip):
                continue
            one = self._changed(path, began) if path in self._known else self._judge(path)
            if one is not None:
                self._known[path] = one, began
                found.append(one)
        self.pause = max(EVERY, SHARE * (self._now() - began))
        if not os.path.exists(self._path):
            self.problem = MISSING
        elif self._known:
            self.problem = ""
        elif is_folder:
            self.problem = NOTHING
        self._logged |= {os.path.dirname(one.path) for one in found if one.format == "tfevents"}
        return [one for one in found if not self._is_double(one.path)]

    def _is_double(self, path: str) -> bool:
        """Return whether the run is in event files, too: Lightning writes a metrics.csv beside them."""
        folder, name = os.path.split(path)
        return name == "metrics.csv" and folder in self._logged and path != self._path

    def _changed(self, path: str, now: float) -> FoundSource | None:
        """Return a known source again if it has changed since it was last reported."""
        known, when = self._known[path]
        try:
            changed = os.stat(path).st_mtime
        except OSError:  # it was removed: its follower reports that
            return None
        return known._replace(changed=changed) if changed > known.changed and now - when >= AGAIN else None

    def _judge(self, path: str) -> FoundSource | None:
        """Return a file as a source if its content, which may have changed, is of a known format."""
        try:
            facts = os.stat(path)
        except OSError as error:
            self.problem = MISSING if isinstance(error, FileNotFoundError) else error.strerror or str(error)
            return None
        if not (stat.S_ISREG(facts.st_mode) or stat.S_ISDIR(facts.st_mode)):
            self.problem = "it is not a regular file"
            return None
        mark = facts.st_size, facts.st_mtime_ns
        before = self._seen.get(path)
        if before == mark or (before is not None and before[0] > HEAD_BYTES):  # more of it would show nothing new
            return None
        self._seen[path] = mark
        try:
            form = self._format_of(path, facts.st_size)
        except StepscopeError as error:
            self.problem = error.cause
            return None
        if form is None or self._form not in {None, form.name}:
            return None
        return FoundSource(path, form.name, form.part_of(path), facts.st_mtime)

    def _format_of(self, path: str, size: int) -> ImportFormat | None:
        if os.path.isdir(path):
            return formats.owner(path)
        if not size:
            self.problem = EMPTY
            return None
        if self._form is not None and path == self._path:
            return formats.FORMATS[self._form]
        beginning = head(path)
        found = formats.recognised(beginning)
        if found is None:  # a text may still become a log; a binary file has its format from the start
            self.problem = UNKNOWN if size > HEAD_BYTES or b"\0" in beginning.data else UNKNOWN_YET
        return found
