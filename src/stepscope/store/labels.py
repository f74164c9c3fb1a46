"""Labels of a run: what people call it and say about it. They may change at any time; run.json never does.

Uses only the standard library, so that listing runs and starting one are fast.
"""

from __future__ import annotations

import fcntl
import json
import os
import threading
import time
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from stepscope.core.errors import StepscopeError
from stepscope.core.redact import redact_text
from stepscope.store.layout import locked, read_object
from stepscope.store.layout import replace as replace_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from stepscope.store.layout import RunFolder

MOST_TAGS, MOST_TAG, MOST_TEXT, MOST_NOTES = 100, 128, 256, 16_000
"""Maximum number of tags, and maximum characters of a tag, of a group or name, and of the notes."""
MOST_BYTES = 1 << 18
"""Maximum bytes read of the file."""
PATIENCE = 2.0
"""Seconds to wait for another writer."""
NAP = 0.005
_THREADS = threading.Lock()
"""The lock of a file keeps out other processes only."""


@dataclass(frozen=True)
class Labels:
    """The labels of one run; each may be empty."""

    tags: tuple[str, ...] = ()
    """Short words to find it by, without repetition, in the order in which they were added."""
    notes: str = ""
    """Free text of any number of lines."""
    group: str = ""
    """What it belongs to inside its project, such as a sweep."""
    name: str = ""
    """Display name; empty: the one it was started with."""


def make_labels(tags: Any = (), notes: Any = "", group: Any = "", name: Any = "") -> Labels:
    """Return labels from anything that people pass: one tag or several, any text or None; long ones are cut."""
    several = tags if isinstance(tags, (list, tuple, set, frozenset)) else [tags]
    ordered = sorted(several, key=str) if isinstance(several, (set, frozenset)) else several
    kept = tuple(dict.fromkeys(filter(None, (_line(tag, MOST_TAG) for tag in ordered))))[:MOST_TAGS]
    shown = redact_text(_text(notes)[:MOST_NOTES])
    text = "".join(sign if sign.isprintable() or sign in "\n\t" else "?" for sign in shown)
    return Labels(kept, text.strip(), _line(group, MOST_TEXT), _line(name, MOST_TEXT))


def _text(value: Any) -> str:
    return "" if value is None else str(value)


def _line(value: Any, most: int) -> str:
    return "".join(sign if sign.isprintable() else " " for sign in _text(value)[:most]).strip()


def read_labels(folder: RunFolder) -> Labels:
    """Return the labels of a run; a missing or damaged file gives none, a malformed entry costs itself."""
    found = read_object(folder.labels_file, MOST_BYTES)
    tags = found.get("tags")
    texts = {key: found[key] for key in ("notes", "group", "name") if isinstance(found.get(key), str)}
    return make_labels([tag for tag in tags if isinstance(tag, str)] if isinstance(tags, list) else (), **texts)


def change_labels(folder: RunFolder, change: Callable[[Labels], Labels], patience: float = PATIENCE) -> Labels:
    """Replace the labels by `change(labels)`, atomically; of two writers at once, each sees what the other wrote.

    Raises StepscopeError if another writer is busy for `patience` seconds, or the disk refuses.
    """
    what = f"label run {folder.path}"
    deadline = time.monotonic() + patience
    while True:
        try:
            with _THREADS, locked(folder.labels_file.with_suffix(".lock"), os.O_CREAT, fcntl.LOCK_EX | fcntl.LOCK_NB):
                changed = change(read_labels(folder))
                replace_file(folder.labels_file, json.dumps(asdict(changed), indent=1).encode())
                return changed
        except BlockingIOError as error:
            if time.monotonic() >= deadline:
                raise StepscopeError(what, "another process is changing its labels", "try again") from error
        except OSError as error:
            raise StepscopeError(what, error.strerror or error, "check the folder's disk and permissions") from error
        time.sleep(NAP)


def add_labels(labels: Labels) -> Callable[[Labels], Labels]:
    """Return a change that adds tags, and sets whatever else is not empty."""

    def change(before: Labels) -> Labels:
        texts = {key: value for key, value in asdict(labels).items() if value and key != "tags"}
        tags: Iterable[str] = (*before.tags, *labels.tags)
        return replace(before, tags=tuple(dict.fromkeys(tags))[:MOST_TAGS], **texts)

    return change
